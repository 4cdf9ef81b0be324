//! Chains, explored within small bounds; and each rule broken once, to see that the exploration notices.

mod support;

use ashlar_model::chain::{Broken, ChainModel};
use support::{holds, violation};

fn breaks(broken: Broken, model: ChainModel) -> String {
    violation(&ChainModel { broken: Some(broken), ..model })
}

#[test]
fn what_two_replicas_acknowledged_or_showed_is_kept_whatever_is_torn_late_or_repeated() {
    holds(&ChainModel::small(), &["every write is known to a caller", "a torn write was kept"]);
}

#[test]
fn a_replica_joins_a_single_one_and_may_take_over() {
    let model = ChainModel { in_sync: 1, spare: 1, changes_max: 3, writes_max: 1, ..ChainModel::small() };
    holds(&model, &["a replica joined and was promoted"]);
}

#[test]
fn three_replicas() {
    holds(
        &ChainModel { in_sync: 3, writes_max: 1, ..ChainModel::small() },
        &["every write is known to a caller"],
    );
}

/// Messages that come once or never.
fn lossy() -> ChainModel {
    ChainModel { writes_max: 1, is_lossy: true, ..ChainModel::small() }
}

#[test]
fn what_was_lost_is_sent_again_and_nothing_waits_for_ever() {
    holds(&lossy(), &["every write is known to a caller"]);
}

#[test]
fn a_replica_that_joins_while_messages_are_lost_gets_everything() {
    let model = ChainModel { in_sync: 1, spare: 1, crashes_max: 0, changes_max: 2, ..lossy() };
    holds(&model, &["a replica joined and was promoted"]);
}

#[test]
fn a_message_that_nobody_sends_again_is_noticed() {
    let what = breaks(Broken::SentOnce, lossy());
    assert!(what.contains("differ or wait"), "{what}");
}

#[test]
fn messages_of_an_older_epoch_that_are_taken_are_noticed() {
    // Older reports and copies, taken for new ones, leave replicas apart or lose what was acknowledged.
    let what = breaks(Broken::OlderEpochTaken, ChainModel::small());
    assert!(what.contains("differ or wait") || what.contains("missing"), "{what}");
}

#[test]
fn a_read_during_a_write_is_noticed() {
    let what = breaks(Broken::ReadUncertain, ChainModel::small());
    assert!(what.contains("missing on a replica in sync"), "{what}");
}

#[test]
fn a_read_without_a_lease_is_noticed() {
    let what = breaks(Broken::ReadWithoutLease, ChainModel::small());
    assert!(what.contains("less than a caller knows"), "{what}");
}

#[test]
fn a_mark_that_is_not_durable_is_noticed() {
    let what = breaks(Broken::MarkNotDurable, ChainModel::small());
    assert!(what.contains("missing on a replica in sync"), "{what}");
}

#[test]
fn a_write_reported_before_it_is_applied_is_noticed() {
    let what = breaks(Broken::ReportBeforeApplied, ChainModel::small());
    assert!(what.contains("missing on a replica in sync"), "{what}");
}

#[test]
fn a_replica_that_is_promoted_though_the_head_did_not_ask_is_noticed() {
    let model = ChainModel { in_sync: 1, spare: 1, changes_max: 3, ..ChainModel::small() };
    let what = breaks(Broken::PromotedUnasked, model);
    assert!(what.contains("missing on a replica in sync"), "{what}");
}

#[test]
fn a_replica_that_goes_on_at_its_old_epoch_after_a_restart_is_noticed() {
    let what = breaks(Broken::RestartAtSameEpoch, ChainModel::small());
    assert!(what.contains("missing on a replica in sync"), "{what}");
}

#[test]
fn a_head_that_does_not_wait_for_those_behind_is_noticed() {
    let what = breaks(Broken::AcknowledgeAtHead, ChainModel::small());
    assert!(what.contains("missing on a replica in sync"), "{what}");
}
