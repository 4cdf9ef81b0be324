//! Clock, disk and randomness: traits, OS implementation, seeded simulation.
