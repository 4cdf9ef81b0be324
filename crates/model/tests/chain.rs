//! Chains, explored within small bounds; and each rule broken once, to see that the exploration notices.

mod support;

use ashlar_model::chain::{Begins, Broken, ChainModel};
use support::{holds, violation};

fn breaks(broken: Broken, model: ChainModel) -> String {
    violation(&ChainModel { broken: Some(broken), ..model })
}

#[test]
fn what_two_replicas_acknowledged_or_showed_is_kept_whatever_is_torn_late_or_given_up() {
    holds(
        &ChainModel::small(),
        &[
            "every write is known to a caller",
            "a torn write was kept",
            "a call was given up and may be carried out yet",
        ],
    );
}

#[test]
fn a_replica_joins_a_single_one_and_may_take_over() {
    let model = ChainModel { in_sync: 1, spare: 1, changes_max: 3, writes_max: 1, ..ChainModel::small() };
    holds(&model, &["a replica joined and was promoted", "one began with nothing"]);
}

#[test]
fn three_replicas() {
    let model = ChainModel { in_sync: 3, writes_max: 1, crashes_max: 0, ..ChainModel::small() };
    holds(&model, &["every write is known to a caller"]);
}
