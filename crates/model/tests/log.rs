//! Log replication, explored within small bounds; and each rule broken once, to see that the exploration notices.

mod support;

use ashlar_model::log::{Broken, LogModel};
use support::{holds, violation};

fn breaks(broken: Broken, model: LogModel) -> String {
    violation(&LogModel { broken: Some(broken), ..model })
}

#[test]
fn what_two_replicas_acknowledged_is_kept_whatever_is_lost_late_or_repeated() {
    holds(&LogModel::small(), &["everything was acknowledged", "two primaries acknowledged, at two epochs"]);
}

#[test]
fn a_replica_joins_a_single_one_and_may_take_over() {
    let model = LogModel {
        in_sync: 1,
        spare: 1,
        entries_max: 1,
        changes_max: 4,
        crashes_max: 1,
        ..LogModel::small()
    };
    holds(&model, &["a replica joined and was promoted", "the replica that joined is primary"]);
}

#[test]
fn checkpoints_bring_a_replica_up_to_date_that_is_behind_the_log() {
    let model = LogModel {
        in_sync: 1,
        spare: 1,
        entries_max: 1,
        changes_max: 3,
        crashes_max: 0,
        checkpoints: true,
        ..LogModel::small()
    };
    holds(&model, &["a replica joined and was promoted", "the replica that joined is primary"]);
}

#[test]
fn a_checkpoint_takes_nothing_from_a_replica_in_sync_that_it_has_reported() {
    let model = LogModel {
        in_sync: 2,
        entries_max: 3,
        changes_max: 1,
        crashes_max: 0,
        checkpoints: true,
        ..LogModel::small()
    };
    holds(&model, &["everything was acknowledged"]);
}

#[test]
fn messages_of_an_older_epoch_that_are_taken_are_noticed() {
    let what = breaks(Broken::OlderEpochTaken, LogModel::small());
    assert!(what.contains("entry-1 is committed"), "{what}");
}

#[test]
fn entries_reported_before_they_are_stored_are_noticed() {
    let what = breaks(Broken::ReportBeforeStored, LogModel::small());
    assert!(what.contains("missing on a replica in sync"), "{what}");
}

#[test]
fn a_replica_that_is_promoted_though_the_primary_did_not_ask_is_noticed() {
    let model = LogModel { in_sync: 1, spare: 1, changes_max: 3, ..LogModel::small() };
    let what = breaks(Broken::PromotedUnasked, model);
    assert!(what.contains("missing on a replica in sync"), "{what}");
}

#[test]
fn a_replica_that_is_promoted_with_what_a_new_primary_knows_to_be_committed_is_noticed() {
    let model = LogModel { in_sync: 2, spare: 1, entries_max: 1, ..LogModel::small() };
    let what = breaks(Broken::PromotedTooEarly, model);
    assert!(what.contains("missing on a replica in sync"), "{what}");
}

#[test]
fn a_manager_that_writes_without_comparing_is_noticed() {
    let what = breaks(Broken::WriteWithoutCompare, LogModel::small());
    assert!(what.contains("acknowledged"), "{what}");
}

#[test]
fn a_removed_replica_that_returns_without_catching_up_is_noticed() {
    let what = breaks(Broken::ReturnsInSync, LogModel { changes_max: 3, ..LogModel::small() });
    assert!(what.contains("missing on a replica in sync"), "{what}");
}

#[test]
fn a_replica_that_goes_on_at_its_old_epoch_after_a_restart_is_noticed() {
    let what = breaks(Broken::RestartAtSameEpoch, LogModel::small());
    assert!(what.contains("missing on a replica in sync"), "{what}");
}

#[test]
fn a_primary_that_does_not_wait_for_its_backups_is_noticed() {
    let what = breaks(Broken::AcknowledgeAlone, LogModel::small());
    assert!(what.contains("missing on a replica in sync"), "{what}");
}
