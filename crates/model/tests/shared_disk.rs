//! A disk that two servers reach, explored within small bounds; and each rule broken once, to see that the exploration notices.

mod support;

use ashlar_model::shared_disk::{Broken, SharedDiskModel};
use support::{holds, violation};

fn breaks(broken: Broken) {
    let what = violation(&SharedDiskModel { broken: Some(broken), ..SharedDiskModel::small() });
    assert!(what.contains("both servers have the disk mounted"), "{what}");
}

#[test]
fn one_server_at_a_time_has_the_disk_mounted_whoever_is_paused_killed_or_fenced() {
    holds(
        &SharedDiskModel::small(),
        &["the disk has moved in good order", "the disk was taken over", "the disk is served after a death"],
    );
}

#[test]
fn a_disk_that_is_given_away_for_silence_is_noticed() {
    breaks(Broken::SilenceGives);
}

#[test]
fn a_fence_that_has_not_succeeded_is_noticed() {
    breaks(Broken::FencedUnseen);
}

#[test]
fn a_word_of_before_the_disk_was_granted_is_noticed() {
    breaks(Broken::OldWords);
}

#[test]
fn a_server_that_mounts_without_asking_is_noticed() {
    breaks(Broken::NotAsked);
}

#[test]
fn a_process_that_does_not_know_what_is_mounted_is_noticed() {
    breaks(Broken::NotLooked);
}

#[test]
fn a_mount_that_outlives_its_process_is_noticed() {
    breaks(Broken::LateMount);
}

#[test]
fn an_answer_to_an_earlier_question_is_noticed() {
    breaks(Broken::LateGrant);
}
