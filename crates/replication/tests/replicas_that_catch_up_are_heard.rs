//! Goal: what an independent reading of the state machines has found stays mended. Method: the machines themselves, message by message.

use ashlar_replication::log::{self, EntryRun, LogPosition, LogReplica, Message, Sequence};
use ashlar_replication::membership::{Change, Command, Content, LeaseTerms, Member, Stored};
use ashlar_types::membership::Membership;
use ashlar_types::{Epoch, NodeId};
use std::time::Duration;

const PRIMARY: NodeId = NodeId(0);
const JOINER: NodeId = NodeId(1);
const TERMS: LeaseTerms = LeaseTerms::DEFAULT;

fn catching_up() -> Membership<NodeId> {
    let mut membership = Membership::new(Epoch(2), [PRIMARY]);
    membership.catching_up.push(JOINER);
    membership
}

#[test]
fn a_joiner_that_answers_is_not_removed_when_the_epoch_is_older_than_the_grace() {
    let mut out: Vec<Command<NodeId>> = Vec::new();
    let mut primary = Member::join(PRIMARY, TERMS, catching_up(), Duration::ZERO, &mut out);
    let mut joiner = Member::join(JOINER, TERMS, catching_up(), Duration::ZERO, &mut out);
    primary.stored(Epoch(2));
    joiner.stored(Epoch(2));
    let proposals = |out: &[Command<NodeId>]| {
        out.iter().filter(|command| matches!(command, Command::Propose { .. })).count()
    };
    let mut now = Duration::ZERO;
    while now < 4 * TERMS.grace {
        out.clear();
        primary.tick(now, &mut out);
        assert_eq!(proposals(&out), 0, "at {now:?}: {out:?}");
        for command in std::mem::take(&mut out) {
            let Command::Beacon { epoch, sent_at, .. } = command else { continue };
            let mut grants: Vec<Command<NodeId>> = Vec::new();
            joiner.beacon(PRIMARY, epoch, sent_at, now, &mut grants);
            assert_eq!(grants.len(), 1);
            primary.granted(JOINER, epoch, sent_at, &mut out);
        }
        now += TERMS.heartbeat;
    }
    // It stops answering.
    let silent_since = now;
    while now <= silent_since + TERMS.grace + TERMS.heartbeat {
        out.clear();
        primary.tick(now, &mut out);
        now += TERMS.heartbeat;
    }
    assert!(
        out.contains(&Command::Propose { expected: Epoch(2), change: Change::Remove(JOINER) }),
        "{out:?}"
    );
}

#[test]
fn a_joiner_that_starts_again_asks_for_an_epoch_it_can_take_part_in() {
    let stored = Stored { membership: catching_up(), content: Content::Whole };
    let mut joiner = Member::recover(JOINER, TERMS, stored, Duration::ZERO);
    let mut out: Vec<Command<NodeId>> = Vec::new();
    joiner.tick(Duration::ZERO, &mut out);
    assert_eq!(out, [Command::Propose { expected: Epoch(2), change: Change::Renew }]);
}

#[test]
fn a_checkpoint_that_arrives_twice_is_installed_once_and_drops_nothing_that_was_reported() {
    let mut out = Vec::new();
    let mut joiner = LogReplica::join(JOINER, TERMS, catching_up(), Duration::ZERO, &mut out);
    joiner.membership_stored(Epoch(2), &mut out);
    out.clear();
    let at = LogPosition { sequence: Sequence(100), epoch: Epoch(1) };
    let checkpoint = Message::Checkpoint { epoch: Epoch(2), base: at.sequence, at };
    joiner.receive(PRIMARY, &checkpoint, &mut out);
    joiner.receive(PRIMARY, &checkpoint, &mut out);
    assert_eq!(out, [log::Command::Install { at }]);
    joiner.installed(at, &mut out);
    let entries = [EntryRun { epoch: Epoch(2), count: 5 }].into_iter().collect();
    let (base, committed) = (at.sequence, at.sequence);
    let prepare = Message::Prepare { epoch: Epoch(2), base, previous: at, entries, committed };
    joiner.receive(PRIMARY, &prepare, &mut out);
    joiner.stored(joiner.index().last(), &mut out);
    let is_reported = |command: &log::Command<NodeId>| {
        matches!(
            command,
            log::Command::Send { message: Message::Prepared { through: Sequence(105), .. }, .. }
        )
    };
    assert!(out.iter().any(is_reported), "{out:?}");
    joiner.installed(at, &mut out);
    assert_eq!(joiner.index().last().sequence, Sequence(105));
}
