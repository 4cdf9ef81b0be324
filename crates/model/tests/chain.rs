//! Chains, explored within small bounds; and each rule broken once, to see that the exploration notices.

mod support;

use ashlar_model::chain::{Begins, Broken, ChainModel};
use support::{holds, violation};

/// What callers were told is missing somewhere, or replicas do not come to have the same.
fn breaks(broken: Broken, model: ChainModel) {
    let what = violation(&ChainModel { broken: Some(broken), ..model });
    let texts =
        ["missing on a replica in sync", "less than a caller knows", "replicas differ", "is not settled"];
    assert!(texts.iter().any(|text| what.contains(text)), "{what}");
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
    let model = ChainModel { in_sync: 1, spare: 1, changes_max: 2, writes_max: 1, ..ChainModel::small() };
    holds(&model, &["a replica joined and was promoted", "one began with nothing"]);
}

#[test]
fn three_replicas() {
    let model =
        ChainModel { in_sync: 3, writes_max: 1, crashes_max: 0, failures_max: 0, ..ChainModel::small() };
    holds(&model, &["every write is known to a caller"]);
}

/// One of two is away, and comes back.
fn returning(begins: Begins) -> ChainModel {
    ChainModel {
        begins,
        writes_max: 2,
        changes_max: 3,
        crashes_max: 0,
        failures_max: 0,
        ..ChainModel::small()
    }
}

#[test]
fn a_replica_that_was_away_gets_what_it_lacks_and_no_more() {
    let model = ChainModel { failures_max: 1, ..returning(Begins::LastAway) };
    holds(&model, &["one came back, and what it lacks was known", "a replica joined and was promoted"]);
}

#[test]
fn a_head_that_was_away_loses_what_nobody_else_has() {
    let model = ChainModel { changes_max: 4, ..returning(Begins::FirstAway) };
    holds(&model, &["one came back, and what it lacks was known", "a replica joined and was promoted"]);
}

#[test]
fn a_call_that_was_given_up_and_is_carried_out_late_is_noticed() {
    breaks(Broken::GivenUpTaken, ChainModel::small());
}

#[test]
fn calls_of_an_older_epoch_that_are_taken_are_noticed() {
    breaks(Broken::OlderEpochTaken, ChainModel::small());
}

#[test]
fn a_read_of_what_is_not_everywhere_behind_is_noticed() {
    breaks(Broken::ReadUnsettled, ChainModel::small());
}

#[test]
fn a_read_without_a_lease_is_noticed() {
    breaks(Broken::ReadWithoutLease, ChainModel::small());
}

#[test]
fn a_note_that_is_not_durable_is_noticed() {
    breaks(Broken::NoteNotDurable, ChainModel::small());
}

#[test]
fn a_change_that_is_answered_before_those_behind_have_it_is_noticed() {
    breaks(Broken::AnsweredBeforeBehind, ChainModel::small());
}

#[test]
fn a_replica_that_is_promoted_though_nobody_asked_is_noticed() {
    let model = ChainModel { in_sync: 1, spare: 1, changes_max: 3, ..ChainModel::small() };
    breaks(Broken::PromotedUnasked, model);
}

#[test]
fn a_replica_that_goes_on_at_its_old_epoch_after_a_restart_is_noticed() {
    breaks(Broken::RestartAtSameEpoch, ChainModel { changes_max: 0, ..ChainModel::small() });
}

#[test]
fn a_piece_that_takes_away_what_the_next_one_brings_is_noticed() {
    breaks(Broken::PieceEmpties, ChainModel::small());
}

#[test]
fn what_others_lack_and_is_not_noted_is_noticed() {
    breaks(Broken::LackNotNoted, returning(Begins::LastAway));
}

#[test]
fn what_others_lack_and_is_noted_after_the_change_is_noticed() {
    let model = ChainModel { crashes_max: 1, ..returning(Begins::LastAway) };
    breaks(Broken::LackNotedAfter, model);
}

#[test]
fn a_half_copied_chunk_that_is_taken_for_whole_is_noticed() {
    let model = ChainModel { changes_max: 4, ..returning(Begins::FirstAway) };
    breaks(Broken::DoubtForgotten, model);
}

#[test]
fn what_a_replica_was_before_it_was_emptied_and_is_trusted_is_noticed() {
    let model = ChainModel { in_sync: 3, writes_max: 1, ..returning(Begins::LastAway) };
    breaks(Broken::InSyncAtTrusted, model);
}

/// What is made is not stored at once, and the power may be cut.
fn asynchronous() -> ChainModel {
    ChainModel {
        power_cuts_max: 1,
        crashes_max: 0,
        failures_max: 0,
        writes_max: 1,
        changes_max: 2,
        ..ChainModel::small()
    }
}

#[test]
fn under_async_a_replica_that_has_lost_what_it_reported_leaves_and_nothing_is_lost() {
    holds(&asynchronous(), &["a replica has lost what it had reported, and nothing is lost"]);
}

#[test]
fn a_replica_that_forgets_that_it_has_lost_what_it_reported_is_noticed() {
    breaks(Broken::LossForgotten, asynchronous());
}
