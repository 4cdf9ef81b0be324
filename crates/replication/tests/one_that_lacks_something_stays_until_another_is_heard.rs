//! Goal: a replica that has lost something with its power leaves in favour of others that are there, and of nobody else, unless the operator says that they never come back. Method: the machines themselves, message by
//! message.

use ashlar_replication::membership::{Change, Command, Content, LeaseTerms, Member, Stored};
use ashlar_types::membership::Membership;
use ashlar_types::{Epoch, NodeId};
use std::time::Duration;

const FIRST: NodeId = NodeId(0);
const SECOND: NodeId = NodeId(1);
const THIRD: NodeId = NodeId(2);
const TERMS: LeaseTerms = LeaseTerms::DEFAULT;
const EPOCH: Epoch = Epoch(5);

type Commands = Vec<Command<NodeId>>;

fn started(id: NodeId, members: &[NodeId], content: Content) -> Member<NodeId> {
    let membership = Membership::new(EPOCH, members.iter().copied());
    Member::recover(id, TERMS, Stored { membership, content }, Duration::ZERO)
}

/// What `member` wants done until `end`, while `others` answer, or do not.
fn run(
    (member, others): (&mut Member<NodeId>, &mut [Member<NodeId>]),
    from: Duration,
    end: Duration,
) -> Vec<Change<NodeId>> {
    let (mut now, mut proposed) = (from, Vec::new());
    while now < end {
        let mut out = Commands::new();
        member.tick(now, &mut out);
        for command in out {
            match command {
                Command::Propose { expected: EPOCH, change } => proposed.push(change),
                Command::Beacon { to, epoch, sent_at } => {
                    let mut granted = Commands::new();
                    if let Some(other) = others.iter_mut().find(|other| other.id() == to) {
                        other.beacon(member.id(), epoch, sent_at, now, &mut granted);
                    }
                    if !granted.is_empty() {
                        member.granted(to, epoch, sent_at, &mut Commands::new());
                    }
                }
                other => panic!("{other:?}"),
            }
        }
        now += TERMS.heartbeat;
    }
    proposed.dedup();
    proposed
}

#[test]
fn it_leaves_once_another_one_is_heard() {
    let long = 4 * TERMS.grace;
    for content in [Content::Whole, Content::Short] {
        let mut short = started(FIRST, &[FIRST, SECOND], Content::Short);
        assert_eq!(run((&mut short, &mut []), Duration::ZERO, long), [], "nobody is there");
        assert_eq!(short.waits_for(long).collect::<Vec<_>>(), [SECOND]);
        let mut others = [started(SECOND, &[FIRST, SECOND], content)];
        assert_eq!(run((&mut short, &mut others), long, 2 * long), [Change::Remove(FIRST)], "{content:?}");
        assert_eq!(short.waits_for(2 * long).count(), 0);
        assert_eq!(run((&mut short, &mut []), 3 * long, 4 * long), [], "it was there, and is not any more");
    }
    let mut short = started(FIRST, &[FIRST, SECOND], Content::Short);
    let mut others = [started(SECOND, &[FIRST, SECOND], Content::Missing)];
    assert_eq!(run((&mut short, &mut others), Duration::ZERO, long), [], "one with another disk has nothing");
    let mut others = [started(SECOND, &[FIRST, SECOND], Content::Whole)];
    others[0].set_out(true);
    assert_eq!(run((&mut short, &mut others), Duration::ZERO, long), [], "nor one whose disk does not work");
    let mut missing = started(FIRST, &[FIRST, SECOND], Content::Missing);
    assert_eq!(run((&mut missing, &mut []), Duration::ZERO, long), [Change::Remove(FIRST)], "it has nothing");
}

#[test]
fn whom_the_operator_has_given_up_is_removed_once_leases_are_over() {
    let mut short = started(FIRST, &[FIRST, SECOND, THIRD], Content::Short);
    short.give_up(THIRD);
    assert_eq!(run((&mut short, &mut []), Duration::ZERO, TERMS.grace), [], "it may have a lease");
    let proposed = run((&mut short, &mut []), TERMS.grace, 2 * TERMS.grace);
    assert_eq!(proposed, [Change::Remove(THIRD)], "and not one that may come back");
    // It is not left to if it answers once more after all, but to another one.
    let mut others = [started(THIRD, &[FIRST, SECOND, THIRD], Content::Short)];
    let proposed = run((&mut short, &mut others), 2 * TERMS.grace, 3 * TERMS.grace);
    assert_eq!(proposed, [Change::Remove(THIRD)]);
    let mut others = [started(SECOND, &[FIRST, SECOND, THIRD], Content::Short)];
    let proposed = run((&mut short, &mut others), 3 * TERMS.grace, 4 * TERMS.grace);
    assert_eq!(proposed, [Change::Remove(THIRD), Change::Remove(FIRST)], "before it was heard");
    short.set_out(true);
    assert_eq!(run((&mut short, &mut []), 5 * TERMS.grace, 6 * TERMS.grace), [], "its disk does not work");
    short.set_out(false);
    // It was said of that epoch.
    short.learn(&Membership::new(Epoch(6), [FIRST, SECOND, THIRD]), Duration::ZERO, &mut Commands::new());
    short.stored(Epoch(6));
    let mut out = Commands::new();
    short.tick(7 * TERMS.grace, &mut out);
    assert!(!out.iter().any(|command| matches!(command, Command::Propose { .. })), "{out:?}");

    // The last one goes on with what it has.
    let mut short = started(FIRST, &[FIRST, SECOND], Content::Short);
    let mut out = Commands::new();
    short.learn(&Membership::new(Epoch(6), [FIRST]), TERMS.grace, &mut out);
    assert!(short.stored(Epoch(6)) && short.may_acknowledge(TERMS.grace), "{out:?}");
}

#[test]
fn who_only_asks_whether_anybody_is_there_counts_as_nobody_that_answers() {
    let mut out = Commands::new();
    let mut whole =
        Member::join(SECOND, TERMS, Membership::new(EPOCH, [FIRST, SECOND]), Duration::ZERO, &mut out);
    whole.stored(EPOCH);
    let mut short = started(FIRST, &[FIRST, SECOND], Content::Short);
    let (mut now, mut removes) = (Duration::ZERO, false);
    while now <= TERMS.grace + TERMS.heartbeat {
        out.clear();
        short.tick(now, &mut out);
        for command in std::mem::take(&mut out) {
            if let Command::Beacon { epoch, sent_at, .. } = command {
                whole.beacon(FIRST, epoch, sent_at, now, &mut Commands::new());
            }
        }
        whole.tick(now, &mut out);
        removes |= out.contains(&Command::Propose { expected: EPOCH, change: Change::Remove(FIRST) });
        assert!(!whole.may_serve(now));
        now += TERMS.heartbeat;
    }
    assert!(removes, "it goes on without the one that takes no part");
}
