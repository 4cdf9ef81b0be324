//! Cluster simulation, reference model and checkers.
