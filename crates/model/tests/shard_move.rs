//! Metadata shards that go to another server, explored within small bounds; and each rule broken once, to see that the exploration notices.

mod support;

use ashlar_model::shard_move::{Broken, ShardMoveModel};
use support::{holds, violation};

/// The shortest way to a violation often ends where nobody serves any more, before anybody could serve what is not there.
fn breaks(broken: Broken) {
    let what = violation(&ShardMoveModel { broken: Some(broken), ..ShardMoveModel::small() });
    assert!(what.contains("serve"), "{what}");
}

#[test]
fn a_shard_that_moves_is_one_servers_and_has_what_was_written_whoever_is_started_anew() {
    holds(
        &ShardMoveModel::small(),
        &[
            "the shard has moved with what was written",
            "the shard has moved in spite of a start",
            "the shard has stayed after all",
        ],
    );
}

#[test]
fn a_shard_that_goes_and_comes_back_is_one_servers() {
    let model = ShardMoveModel { attempts_max: 2, starts_max: 0, others_max: 0, ..ShardMoveModel::small() };
    holds(&model, &["the shard has come back"]);
}

#[test]
fn a_shard_that_is_served_again_without_proof_is_noticed() {
    breaks(Broken::ServedWithoutProof);
}

#[test]
fn a_receiver_that_is_told_to_forget_without_proof_is_noticed() {
    breaks(Broken::GaveUpWithoutProof);
}

#[test]
fn a_manager_that_refuses_by_what_it_remembers_is_noticed() {
    breaks(Broken::RefusedFromMemory);
}

#[test]
fn a_start_without_a_new_epoch_is_noticed() {
    breaks(Broken::NoNewEpoch);
}

#[test]
fn an_epoch_that_is_looked_at_after_the_receiver_was_asked_is_noticed() {
    breaks(Broken::LookedAfterwards);
}

#[test]
fn a_question_that_is_asked_again_by_a_newer_map_is_noticed() {
    breaks(Broken::AskedByNewerMap);
}

#[test]
fn a_manager_that_does_not_compare_epochs_is_noticed() {
    breaks(Broken::AnyEpochCounts);
}

#[test]
fn a_receiver_that_forgets_by_an_old_map_is_noticed() {
    breaks(Broken::ForgottenByOldMap);
}

#[test]
fn a_shard_that_comes_back_before_it_has_gone_is_noticed() {
    let model = ShardMoveModel { attempts_max: 2, starts_max: 0, others_max: 0, ..ShardMoveModel::small() };
    let what = violation(&ShardMoveModel { broken: Some(Broken::CameBackTooSoon), ..model });
    assert!(what.contains("nobody serves"), "{what}");
}
