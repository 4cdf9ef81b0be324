//! Membership and leases, explored within small bounds; and each rule broken once, to see that the exploration notices.

mod support;

use ashlar_model::membership::{Broken, MembershipModel};
use support::{holds, violation};

fn breaks(broken: Broken, model: MembershipModel) -> String {
    violation(&MembershipModel { broken: Some(broken), ..model })
}

#[test]
fn one_of_two_replicas_acknowledges_at_a_time_whatever_clocks_pauses_and_crashes_do() {
    let milestones = [
        "somebody may acknowledge",
        "another took over and may acknowledge",
        "may acknowledge and does not know of the newest epoch",
    ];
    holds(&MembershipModel::small(), &milestones);
}

#[test]
fn one_that_has_lost_its_power_goes_on_alone_once_nobody_else_may() {
    let model =
        MembershipModel { crashes_max: 0, power_cuts_max: 1, time_max: 2, ..MembershipModel::small() };
    let milestones = [
        "somebody may acknowledge",
        "another took over and may acknowledge",
        "may acknowledge without one that was given up",
    ];
    holds(&model, &milestones);
}

#[test]
fn a_replica_that_joins_a_single_one_never_answers_beside_it() {
    let model =
        MembershipModel { in_sync: 1, spare: 1, time_max: 2, changes_max: 3, ..MembershipModel::small() };
    holds(&model, &["somebody may acknowledge", "may acknowledge with a promoted replica"]);
}

#[test]
fn a_primary_that_does_not_look_at_its_lease_is_noticed() {
    assert!(
        breaks(Broken::LeaseUnchecked, MembershipModel::small()).contains("two replicas may acknowledge")
    );
}

#[test]
fn a_grace_that_is_too_short_for_the_clocks_is_noticed() {
    let what = breaks(Broken::GraceTooShort, MembershipModel { lease: 2, ..MembershipModel::small() });
    assert!(what.contains("may"), "{what}");
}

#[test]
fn a_manager_that_writes_without_comparing_is_noticed() {
    let what = breaks(Broken::WriteWithoutCompare, MembershipModel::small());
    assert!(what.contains("two memberships have one epoch"), "{what}");
}

#[test]
fn a_replica_that_goes_on_at_its_old_epoch_after_a_restart_is_noticed() {
    let what = breaks(Broken::RestartAtSameEpoch, MembershipModel::small());
    assert!(what.contains("may serve reads"), "{what}");
}

#[test]
fn a_lease_granted_after_the_removal_was_asked_for_is_noticed() {
    let what = breaks(Broken::GrantAfterRemoval, MembershipModel::small());
    assert!(what.contains("may serve reads"), "{what}");
}

#[test]
fn a_removal_nobody_waited_for_is_noticed() {
    let what = breaks(Broken::RemovalWithoutGrace, MembershipModel::small());
    assert!(what.contains("two replicas may acknowledge"), "{what}");
}

#[test]
fn a_single_replica_that_does_without_the_lease_of_the_one_that_joins_is_noticed() {
    let model =
        MembershipModel { in_sync: 1, spare: 1, time_max: 3, changes_max: 3, ..MembershipModel::small() };
    let what = breaks(Broken::JoinerLeaseAssumed, model);
    assert!(what.contains("may"), "{what}");
}

#[test]
fn an_epoch_that_is_acted_on_and_not_stored_is_noticed() {
    let model = MembershipModel {
        in_sync: 1,
        spare: 1,
        time_max: 0,
        changes_max: 3,
        departures: true,
        ..MembershipModel::small()
    };
    let what = breaks(Broken::EpochNotStored, model);
    assert!(what.contains("two replicas may acknowledge"), "{what}");
}
