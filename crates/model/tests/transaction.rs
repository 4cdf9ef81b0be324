//! Transactions between shards, explored within small bounds; and each rule broken once, to see that the exploration notices.

mod support;

use ashlar_model::transaction::{Broken, Scene, TransactionModel};
use support::{holds, violation};

fn breaks(broken: Broken, model: TransactionModel) -> String {
    violation(&TransactionModel { broken: Some(broken), ..model })
}

fn two_moves(scene: Scene) -> TransactionModel {
    TransactionModel { attempts_max: 2, take_overs_max: 0, ..TransactionModel::small(scene) }
}

#[test]
fn a_file_that_is_moved_to_another_shard_is_in_one_directory_for_every_observer() {
    holds(&TransactionModel::small(Scene::File), &["a move is complete in spite of a take-over"]);
}

#[test]
fn a_file_that_is_moved_back_and_forth_is_in_one_directory_for_every_observer() {
    holds(&two_moves(Scene::File), &["two moves are complete"]);
}

#[test]
fn a_directory_that_is_moved_to_another_shard_leaves_no_lock_behind() {
    holds(&TransactionModel::small(Scene::Loop), &["a move is complete in spite of a take-over"]);
}

#[test]
fn two_directories_that_are_moved_into_each_other_do_not_become_a_loop() {
    holds(&two_moves(Scene::Loop), &["a move is complete"]);
}

#[test]
fn a_read_that_does_not_wait_is_noticed() {
    let what = breaks(Broken::ReadLocked, TransactionModel::small(Scene::File));
    assert!(what.contains("does not see the file"), "{what}");
}

#[test]
fn a_word_about_an_entry_that_is_not_committed_is_noticed() {
    let what = breaks(Broken::SayBeforeLogged, TransactionModel::small(Scene::File));
    assert!(what.contains("does not see the file"), "{what}");
}

#[test]
fn directory_moves_without_the_move_key_are_noticed() {
    let what = breaks(Broken::NoMoveKey, two_moves(Scene::Loop));
    assert!(what.contains("in each other"), "{what}");
}

#[test]
fn a_replaced_primary_that_answers_for_what_began_after_it_is_noticed() {
    let what = breaks(Broken::AnsweredInIgnorance, TransactionModel::small(Scene::File));
    assert!(what.contains("does not see the file"), "{what}");
}

#[test]
fn an_era_that_is_used_twice_is_noticed() {
    let what = breaks(Broken::EraReused, TransactionModel { take_overs_max: 1, ..two_moves(Scene::File) });
    assert!(what.contains("does not see the file"), "{what}");
}

#[test]
fn a_decision_that_is_taken_for_another_vote_is_noticed() {
    let what = breaks(Broken::AnyTicketCounts, two_moves(Scene::File));
    assert!(what.contains("sees the file twice"), "{what}");
}
