//! What every exploration of the tests is asked.

use ashlar_model::explorer::{Model, explore};
use std::fmt::Debug;

/// LIMIT: states of an exploration that runs with the other tests.
const STATES_MAX: u64 = 3_000_000;

/// No rule is broken in any state of `model`, all were looked at, and each of `milestones` was reached.
pub fn holds<M: Model + Debug>(model: &M, milestones: &[&str]) {
    let outcome = explore(model, STATES_MAX);
    println!("{model:?}\n  {}", outcome.summary());
    assert!(outcome.violation.is_none(), "{}", outcome.describe());
    assert!(outcome.is_complete, "more than {STATES_MAX} states");
    for milestone in milestones {
        assert!(outcome.count(milestone) > 0, "never reached: {milestone}");
    }
}

/// What the exploration of `model`, which has a broken rule, finds.
pub fn violation<M: Model + Debug>(model: &M) -> String {
    let outcome = explore(model, STATES_MAX);
    println!("{model:?}: {}\n{}", outcome.summary(), outcome.describe());
    outcome.violation.expect("the exploration notices a broken rule").what
}
