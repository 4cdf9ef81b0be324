//! A sweep over one directory: which workloads with how many threads, how long each, in which order; interrupted and gone on with.
//!
//! What fits into the time is planned before anything is measured ([`budget`]), from rates that a short trial tells ([`probe`]). Everything is
//! measured once, then everything a second time, and so on: what drifts during a run shows as spread between repetitions and not as a
//! difference between workloads, and a run that is cut short has a figure for every curve.

pub mod budget;
pub mod execute;
pub mod fill;
pub mod identity;
pub mod journal;
mod part;
mod plan;
pub mod probe;
pub mod progress;

pub use part::{Part, Unit};
pub use plan::{Amount, Measured, Plan, Point, Tool, Work};
