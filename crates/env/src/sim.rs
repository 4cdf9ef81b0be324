//! A seeded, simulated environment.
