//! Chains that go to another target, explored within small bounds; and each rule broken once, to see that the exploration notices.

mod support;

use ashlar_model::chain_move::{Broken, ChainMoveModel};
use support::{holds, violation};

fn breaks(broken: Broken, model: ChainMoveModel) -> String {
    violation(&ChainMoveModel { broken: Some(broken), ..model })
}

fn there_and_back() -> ChainMoveModel {
    ChainMoveModel { moves_max: 2, writes_max: 0, starts_max: 0, ..ChainMoveModel::small() }
}

#[test]
fn a_chain_that_moves_is_one_targets_and_has_what_was_written_whoever_is_started_anew() {
    holds(
        &ChainMoveModel::small(),
        &[
            "the chain has moved with what was written",
            "the chain has moved in spite of a start",
            "a start does not know whether the chain is gone",
        ],
    );
}

#[test]
fn a_chain_that_comes_back_is_not_thrown_away_by_what_is_left_of_its_first_move() {
    holds(&there_and_back(), &["the chain has come back"]);
}

#[test]
fn a_map_that_could_not_be_kept_throws_nothing_away() {
    holds(
        &ChainMoveModel { unkept_max: 1, writes_max: 0, ..ChainMoveModel::small() },
        &["the chain has moved"],
    );
}

#[test]
fn a_question_before_the_note_is_noticed() {
    let what = breaks(Broken::AskedBeforeNoted, ChainMoveModel::small());
    assert!(what.contains("two targets answer"), "{what}");
}

#[test]
fn a_chain_that_is_opened_again_without_proof_is_noticed() {
    let what =
        breaks(Broken::ReopenedWithoutProof, ChainMoveModel { starts_max: 0, ..ChainMoveModel::small() });
    assert!(what.contains("two targets answer"), "{what}");
}

#[test]
fn a_manager_that_tells_what_it_remembers_is_noticed() {
    let what = breaks(Broken::ToldFromMemory, ChainMoveModel { starts_max: 0, ..ChainMoveModel::small() });
    assert!(what.contains("two targets answer"), "{what}");
}

#[test]
fn what_is_left_thrown_away_by_a_map_that_is_not_kept_is_noticed() {
    let model = ChainMoveModel { unkept_max: 1, ..ChainMoveModel::small() };
    let what = breaks(Broken::ThrownAwayByUnkeptMap, model);
    assert!(what.contains("two targets answer") || what.contains("answered is None"), "{what}");
}

#[test]
fn a_seal_that_comes_late_over_what_was_noted_since_is_noticed() {
    let what = breaks(Broken::SealedOverLaterNote, ChainMoveModel { starts_max: 1, ..there_and_back() });
    assert!(what.contains("two targets answer"), "{what}");
}

#[test]
fn a_map_from_before_the_move_that_counts_as_proof_is_noticed() {
    let model = ChainMoveModel { unkept_max: 2, starts_max: 1, ..there_and_back() };
    let what = breaks(Broken::AnyMapProves, model);
    assert!(what.contains("two targets answer"), "{what}");
}

#[test]
fn changes_of_an_earlier_attempt_are_noticed() {
    let what = breaks(Broken::AnyCopierCounts, ChainMoveModel { starts_max: 0, ..ChainMoveModel::small() });
    assert!(what.contains("acknowledged was"), "{what}");
}

#[test]
fn a_question_before_the_seal_is_noticed() {
    let what = breaks(Broken::AskedBeforeSealed, ChainMoveModel::small());
    assert!(what.contains("acknowledged was"), "{what}");
}

#[test]
fn a_process_that_has_ended_and_begins_late_is_noticed() {
    let what = breaks(Broken::AnyProcessBegins, ChainMoveModel::small());
    assert!(what.contains("answered is None"), "{what}");
}
