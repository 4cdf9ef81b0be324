//! What would stop the simulator for ever is a failure with a name instead.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use ashlar_env::NoWaiting;
use ashlar_env::sim::SimClock;
use ashlar_sim::runner::Runner;
use ashlar_sim::scheduler::Scheduler;
use ashlar_types::Timespec;
use std::sync::Arc;
use std::time::Duration;

#[test]
fn a_seed_that_does_not_end_fails_and_the_next_one_runs() {
    let mut runner = Runner::new(Duration::ZERO);
    let report = runner.run(1, false);
    assert!(report.failures.iter().any(|what| what.contains("does not end")), "{:?}", report.failures);
    assert!(Runner::default().run(1, false).failures.is_empty());
}

#[test]
fn a_task_that_waits_with_a_lock_others_need_is_named() {
    let scheduler = Scheduler::new(1, Arc::new(SimClock::new(Timespec::new(1_700_000_000, 0))), false);
    let theirs = Arc::downgrade(&scheduler);
    let run = move || {
        let _held = NoWaiting::begin("the lock of a test");
        theirs.upgrade().unwrap().pause();
    };
    scheduler.start("holder", Box::new(run));
    while scheduler.step() {}
    let panics = scheduler.panics();
    assert!(panics.iter().any(|what| what.starts_with("holder panicked")), "{panics:?}");
    assert!(panics.iter().any(|what| what.contains("the lock of a test")), "{panics:?}");
}
