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

/// What is reported before it is stored, as under `async` durability.
fn asynchronous() -> LogModel {
    LogModel { is_async: true, ..LogModel::small() }
}

#[test]
fn under_async_a_replica_that_has_lost_what_it_reported_leaves_and_nothing_is_lost() {
    holds(
        &asynchronous(),
        &["everything was acknowledged", "a replica has lost what it had reported, and nothing is lost"],
    );
}

#[test]
fn under_async_what_all_have_lost_is_lost_and_replicas_agree_again() {
    let model = LogModel { entries_max: 1, changes_max: 3, crashes_max: 2, ..asynchronous() };
    holds(&model, &["what was acknowledged was lost by all"]);
}

#[test]
fn a_replica_that_forgets_that_it_has_lost_what_it_reported_is_noticed() {
    let what = breaks(Broken::LossForgotten, asynchronous());
    assert!(what.contains("missing on a replica in sync") || what.contains("is committed"), "{what}");
}

#[test]
fn a_disk_that_was_replaced_is_in_sync_with_nothing_and_says_so() {
    let model =
        LogModel { replacements_max: 1, entries_max: 1, crashes_max: 0, changes_max: 3, ..LogModel::small() };
    holds(&model, &["everything was acknowledged"]);
    let what = breaks(Broken::EmptyInSync, model);
    assert!(what.contains("missing on a replica in sync") || what.contains("is committed"), "{what}");
}

#[test]
fn messages_of_an_older_epoch_that_are_taken_are_noticed() {
    let what = breaks(Broken::OlderEpochTaken, LogModel::small());
    assert!(what.contains("missing on a replica in sync"), "{what}");
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
