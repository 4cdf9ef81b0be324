//! Simulation of the whole system on one machine: the production metadata service, chunk stores and clients over simulated disks, in
//! one thread, with every choice drawn from one seed.
//!
//! A run makes a file system, lets a few clients work on few names, stops the machine in the middle of something or breaks a disk or
//! a client, starts again, and compares everything with a naive reference. See [`run::run`].
//!
//! Beside it are simulations of copies alone ([`copies`]); [`simulation`] has all of them by name.
//!
//! What this crate is not: it knows no rule of the system but what its users are promised, and nothing depends on it.

#![allow(missing_docs, reason = "the fields of the model and of plans say what they are")]

pub mod actor;
pub mod audit;
pub mod compare;
pub mod content;
pub mod copies;
pub mod coroutine;
pub mod machine;
pub mod model;
pub mod oracle;
pub mod run;
pub mod runner;
pub mod scheduler;
pub mod simulation;
mod site;
pub mod sweep;
pub mod watch;
