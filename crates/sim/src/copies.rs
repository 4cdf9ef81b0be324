//! Simulations of copies alone, with nothing around them but callers, disks and a network that all fail: of chunks ([`chunks`]) and of the logs of metadata servers ([`metadata`]).
//!
//! They are beside the simulation of the whole system because there is more to go wrong in a second of them: everything that callers do is about few chunks, or one register.
#![allow(
    clippy::unwrap_used,
    reason = "what is unwrapped was made by the simulation itself; a panic is a failure of its seed"
)]

pub mod chunks;
pub mod metadata;

use crate::scheduler::Scheduler;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::time::Duration;

/// What became of a seed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// What was wrong; empty when nothing was.
    pub failures: Vec<String>,
    /// Equal for two runs of a seed.
    pub trace: u64,
    /// What has happened, and how often.
    pub counts: Counts,
}

/// How often things have happened, by what they are.
pub type Counts = BTreeMap<&'static str, u64>;

/// Adds `more` to `counts`.
pub fn add(counts: &mut Counts, more: &Counts) {
    for (what, count) in more {
        *counts.entry(what).or_default() += count;
    }
}

/// In words.
pub fn tell(counts: &Counts) -> String {
    let each: Vec<String> = counts.iter().map(|(what, count)| format!("{count} {what}")).collect();
    each.join(", ")
}

/// What became of a run that has `ended`; its tasks are gone afterwards.
fn finish(
    scheduler: &Scheduler,
    failures: &Mutex<Vec<String>>,
    ended: Result<(), String>,
    counts: Counts,
) -> Outcome {
    let mut failures = std::mem::take(&mut *failures.lock());
    failures.extend(scheduler.panics());
    failures.extend(ended.err());
    let trace = scheduler.trace_hash();
    scheduler.kill_all();
    Outcome { failures, trace, counts }
}

/// Lets tasks run while `goes_on`.
fn step_while(scheduler: &Scheduler, goes_on: impl Fn() -> bool) -> Result<(), String> {
    while goes_on() {
        if scheduler.has_panicked() {
            return Err("a task has panicked".into());
        }
        if !scheduler.step() {
            return Err("nobody will ever run again".into());
        }
    }
    Ok(())
}

/// `what`, if `is_right` is not.
fn require(is_right: bool, what: impl FnOnce() -> String) -> Result<(), String> {
    if is_right { Ok(()) } else { Err(what()) }
}

/// Time after which copies must be whole again once nothing fails any more.
const HEAL_MAX: Duration = Duration::from_secs(120);
