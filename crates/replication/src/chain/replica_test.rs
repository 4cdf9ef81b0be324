//! The plain ways of a chain, step by step; the rest is explored by `crates/model`.

use super::*;
use ashlar_types::{InodeId, NodeId};

const A: NodeId = NodeId(1);
const B: NodeId = NodeId(2);
const C: NodeId = NodeId(3);
const NOW: Duration = Duration::ZERO;
const CHUNK: ChunkId = chunk(0);

const fn chunk(index: u64) -> ChunkId {
    ChunkId { inode: InodeId::ROOT, generation: 0, index }
}

fn group(epoch: u64, in_sync: &[NodeId], catching_up: &[NodeId]) -> Membership<NodeId> {
    let mut membership = Membership::new(Epoch(epoch), in_sync.iter().copied());
    membership.catching_up.extend(catching_up.iter().copied());
    membership
}

/// Learns and stores a membership; what it wants then.
fn enter(replica: &mut ChainReplica<NodeId>, membership: &Membership<NodeId>) -> Vec<Command<NodeId>> {
    let mut out = Vec::new();
    replica.learn(membership, NOW, &mut Vec::new());
    replica.membership_stored(membership.epoch, &mut out);
    let peers: Vec<NodeId> = membership.members().filter(|id| *id != replica.member().id()).collect();
    for peer in peers {
        replica.member_mut().granted::<Command<NodeId>>(peer, membership.epoch, NOW, &mut Vec::new());
    }
    out
}

/// A replica that joined at epoch 0, and takes part at `membership`.
fn at(id: NodeId, membership: &Membership<NodeId>) -> ChainReplica<NodeId> {
    let first = Membership { epoch: Epoch(0), ..membership.clone() };
    let mut replica = ChainReplica::join(id, LeaseTerms::DEFAULT, first, NOW, &mut Vec::new());
    enter(&mut replica, membership);
    replica
}

fn restarted(id: NodeId, membership: &Membership<NodeId>, noted: &[ChunkId]) -> ChainReplica<NodeId> {
    let stored = Stored { membership: membership.clone(), content: Content::Whole };
    ChainReplica::recover(id, LeaseTerms::DEFAULT, stored, noted.iter().copied(), NOW, &mut Vec::new())
}

fn begin(replica: &mut ChainReplica<NodeId>, chunk: ChunkId) -> Result<Begun<NodeId>, Refused> {
    replica.begin(chunk, None, &mut Vec::new())
}

/// As `id` names a change that it passes on.
fn from(id: NodeId, begun: Begun<NodeId>) -> InFront<NodeId> {
    InFront { id, epoch: begun.epoch, turn: begun.turn }
}

fn lacks(commands: Vec<Command<NodeId>>) -> Option<(NodeId, Epoch, Epoch, Vec<ChunkId>)> {
    commands.into_iter().find_map(|command| match command {
        Command::Lacks { replica, from, to, chunks } => Some((replica, from, to, chunks)),
        Command::Member(_) => None,
    })
}

/// Two in sync that have been compared.
fn two() -> (ChainReplica<NodeId>, ChainReplica<NodeId>) {
    let both = group(1, &[A, B], &[]);
    let (mut head, tail) = (at(A, &both), at(B, &both));
    assert_eq!(head.to_compare(), Some((B, true)));
    assert_eq!(begin(&mut head, CHUNK), Err(Refused::NotNow), "what is behind is not known yet");
    head.compared(Epoch(1), tail.uncertain());
    (head, tail)
}

/// A head that lets a change of [`CHUNK`] go on and hears nothing.
fn unanswered(head: &mut ChainReplica<NodeId>) -> Begun<NodeId> {
    let begun = begin(head, CHUNK).unwrap();
    assert!(!head.end(CHUNK, begun, Outcome::NotBehind));
    begun
}

#[test]
fn a_change_goes_on_and_is_answered_when_both_have_it() {
    let (mut head, mut tail) = two();
    let first = begin(&mut head, CHUNK).unwrap();
    assert_eq!(first.on, Some(B));
    assert!(!head.may_read(CHUNK, NOW) && head.may_read(chunk(1), NOW) && head.is_noted(CHUNK));
    let second = tail.begin(CHUNK, Some(from(A, first)), &mut Vec::new()).unwrap();
    assert_eq!(second.on, None, "nobody is behind");
    assert!(tail.end(CHUNK, second, Outcome::Made) && tail.may_read(CHUNK, NOW));
    assert!(head.end(CHUNK, first, Outcome::Made) && head.may_read(CHUNK, NOW));
    assert!(!head.is_noted(CHUNK) && !tail.is_noted(CHUNK));
}

#[test]
fn what_is_not_answered_behind_is_refused_until_it_was_sent_whole() {
    let (mut head, mut tail) = two();
    unanswered(&mut head);
    assert!(!head.may_read(CHUNK, NOW) && head.is_noted(CHUNK));
    assert_eq!(begin(&mut head, CHUNK), Err(Refused::Unsettled));
    assert!(begin(&mut head, chunk(1)).is_ok());
    let whole = head.settles(CHUNK).unwrap();
    let piece = InFront { id: A, epoch: whole.epoch, turn: whole.turn };
    let begun = tail.begin_piece(CHUNK, piece, &mut Vec::new()).unwrap();
    assert!(tail.end(CHUNK, begun, Outcome::Made));
    assert!(!tail.may_read(CHUNK, NOW) && tail.is_noted(CHUNK), "more may come");
    assert!(tail.settled_in_front(CHUNK, piece, &mut Vec::new()));
    head.settled(CHUNK, whole.epoch);
    assert!(tail.may_read(CHUNK, NOW) && head.may_read(CHUNK, NOW) && !head.is_noted(CHUNK));
    assert!(begin(&mut head, CHUNK).is_ok());
}

#[test]
fn a_change_that_was_given_up_is_not_made_after_later_ones() {
    let (mut head, mut tail) = two();
    let late = unanswered(&mut head);
    let whole = head.settles(CHUNK).unwrap();
    let piece = InFront { id: A, epoch: whole.epoch, turn: whole.turn };
    let begun = tail.begin_piece(CHUNK, piece, &mut Vec::new()).unwrap();
    tail.end(CHUNK, begun, Outcome::Made);
    let refused = tail.begin(CHUNK, Some(from(A, late)), &mut Vec::new());
    assert_eq!(refused, Err(Refused::NotNow));
    assert!(tail.settled_in_front(CHUNK, piece, &mut Vec::new()));
    head.settled(CHUNK, whole.epoch);
    let next = begin(&mut head, CHUNK).unwrap();
    assert!(tail.begin(CHUNK, Some(from(A, next)), &mut Vec::new()).is_ok());
}

#[test]
fn a_change_that_is_under_way_at_a_new_epoch_is_not_answered_and_its_chunk_is_unsettled() {
    let (mut head, _) = two();
    let begun = begin(&mut head, CHUNK).unwrap();
    enter(&mut head, &group(2, &[A, B], &[]));
    assert!(!head.end(CHUNK, begun, Outcome::Made));
    assert_eq!(head.unsettled_count(), 1);
}

#[test]
fn a_change_that_fails_while_a_new_epoch_is_stored_is_not_forgotten() {
    let (mut head, _) = two();
    let begun = begin(&mut head, CHUNK).unwrap();
    head.learn(&group(2, &[A, B], &[]), NOW, &mut Vec::new());
    assert!(!head.end(CHUNK, begun, Outcome::NotBehind));
    assert!(head.is_noted(CHUNK));
    head.membership_stored(Epoch(2), &mut Vec::new());
    assert_eq!(head.unsettled_count(), 1);
}

#[test]
fn who_is_not_in_sync_any_more_tells_what_nobody_else_may_have() {
    let (mut head, _) = two();
    unanswered(&mut head);
    let begun = begin(&mut head, chunk(1)).unwrap();
    enter(&mut head, &group(2, &[B], &[]));
    head.end(chunk(1), begun, Outcome::Made);
    assert!(head.is_noted(CHUNK) && head.is_noted(chunk(1)));
    enter(&mut head, &group(3, &[B], &[A]));
    assert_eq!(head.uncertain(), BTreeSet::from([CHUNK, chunk(1)]));
}

/// One, and one behind that is caught up with and lacks [`CHUNK`].
fn catching_up() -> ChainReplica<NodeId> {
    let mut head = at(A, &group(1, &[A], &[B]));
    assert_eq!(head.to_compare(), Some((B, false)));
    head.compared(Epoch(1), [CHUNK]);
    head
}

#[test]
fn changes_of_chunks_that_are_still_to_be_sent_stay_and_others_go_on() {
    let mut head = catching_up();
    let stays = begin(&mut head, CHUNK).unwrap();
    assert_eq!(stays.on, None);
    assert!(head.end(CHUNK, stays, Outcome::Made) && head.may_read(CHUNK, NOW));
    let on = begin(&mut head, chunk(1)).unwrap();
    assert_eq!(on.on, Some(B));
    assert!(head.end(chunk(1), on, Outcome::NotBehind), "it is not in sync");
    assert_eq!(head.unsettled_count(), 2);
}

#[test]
fn one_that_has_everything_is_promoted_and_required_from_then_on() {
    let mut head = catching_up();
    let mut out = Vec::new();
    head.require(B);
    head.promote(B, Epoch(1), &mut out);
    assert!(out.is_empty() && head.has_caught_up().is_none() && !head.is_behind_required());
    assert!(head.settles(CHUNK).is_some());
    head.settled(CHUNK, Epoch(1));
    assert_eq!(head.has_caught_up(), Some(B));
    head.promote(B, Epoch(1), &mut out);
    assert_eq!(out, [], "what was synced in front before it is required is not durable there yet");
    head.require(B);
    assert!(head.is_behind_required() && head.has_caught_up() == Some(B), "it is synced once more");
    head.promote(B, Epoch(2), &mut out);
    assert_eq!(out, [], "at another epoch");
    head.promote(B, Epoch(1), &mut out);
    assert_eq!(head.has_caught_up(), None, "that was asked for");
    let change = membership::Change::Promote(B);
    assert_eq!(out, [Command::Member(membership::Command::Propose { expected: Epoch(1), change })]);
    unanswered(&mut head);
    assert_eq!(begin(&mut head, CHUNK), Err(Refused::Unsettled));
}

#[test]
fn after_a_restart_noted_chunks_are_doubtful_behind_and_unsettled_in_front() {
    let both = group(1, &[A, B], &[]);
    let (mut head, mut tail) = (restarted(A, &both, &[CHUNK]), restarted(B, &both, &[chunk(1)]));
    assert_eq!(begin(&mut head, CHUNK), Err(Refused::NotNow), "it has forgotten what it sent at this epoch");
    let next = group(2, &[A, B], &[]);
    enter(&mut head, &next);
    enter(&mut tail, &next);
    assert_eq!(tail.uncertain(), BTreeSet::from([chunk(1)]));
    assert!(!tail.may_read(chunk(1), NOW) && tail.may_read(CHUNK, NOW));
    head.compared(Epoch(2), tail.uncertain());
    assert_eq!((head.next_unsettled(None), head.unsettled_count()), (Some(CHUNK), 2));
    assert!(!head.may_read(CHUNK, NOW) && head.settles(CHUNK).is_some());
}

#[test]
fn whoever_is_removed_lacks_what_is_unsettled_and_nothing_else_since_it_was_in_sync() {
    let mut head = at(A, &group(1, &[A], &[B]));
    enter(&mut head, &group(2, &[A, B], &[]));
    enter(&mut head, &group(4, &[A, B], &[]));
    head.compared(Epoch(4), []);
    unanswered(&mut head);
    let told = lacks(enter(&mut head, &group(5, &[A], &[])));
    assert_eq!(told, Some((B, Epoch(2), Epoch(4), vec![CHUNK])));
    assert_eq!(lacks(enter(&mut head, &group(6, &[A], &[]))), None, "once");
}

#[test]
fn who_has_lost_something_does_not_tell_what_others_lack() {
    let stored = Stored { membership: group(1, &[A, B], &[]), content: Content::Short };
    let mut head = ChainReplica::recover(A, LeaseTerms::DEFAULT, stored, [], NOW, &mut Vec::new());
    assert_eq!(lacks(enter(&mut head, &group(2, &[A], &[]))), None);
}

#[test]
fn what_comes_in_front_of_a_chunk_that_is_not_settled_behind_is_taken_and_sent_on_later() {
    let three = group(2, &[A, B, C], &[]);
    let mut middle = restarted(B, &group(1, &[A, B, C], &[]), &[CHUNK]);
    enter(&mut middle, &three);
    middle.compared(Epoch(2), []);
    assert!(middle.settles(CHUNK).is_none(), "what is here is doubtful");
    let piece = InFront { id: A, epoch: Epoch(2), turn: 1 };
    let begun = middle.begin_piece(CHUNK, piece, &mut Vec::new()).unwrap();
    assert_eq!(begun.on, None);
    assert!(middle.end(CHUNK, begun, Outcome::Made));
    assert!(!middle.settled_in_front(CHUNK, piece, &mut Vec::new()), "the last one lacks it");
    let whole = middle.settles(CHUNK).unwrap();
    assert_eq!(whole.to, C);
    middle.settled(CHUNK, whole.epoch);
    assert!(middle.settled_in_front(CHUNK, piece, &mut Vec::new()) && !middle.is_noted(CHUNK));
}

#[test]
fn all_is_deleted_only_by_the_last_who_asks_and_never_of_one_in_sync() {
    let mut head = at(A, &group(1, &[A], &[B]));
    let mut behind = at(B, &group(1, &[A], &[B]));
    let from = |whole: Whole<NodeId>| InFront { id: A, epoch: whole.epoch, turn: whole.turn };
    let late = head.empties().unwrap();
    head.gave_up(late);
    let (late, last) = (from(late), from(head.empties().unwrap()));
    assert!(behind.empties_here(last, &mut Vec::new()) && behind.empties_here(last, &mut Vec::new()));
    assert!(!behind.empties_here(late, &mut Vec::new()));
    enter(&mut behind, &group(2, &[A, B], &[]));
    assert!(!behind.empties_here(InFront { epoch: Epoch(2), ..last }, &mut Vec::new()));
}

#[test]
fn a_deletion_that_was_given_up_does_not_delete_what_was_written_since() {
    let two = group(1, &[A, B], &[]);
    let (mut head, mut behind) = (at(A, &two), at(B, &two));
    head.compared(Epoch(1), []);
    let of = |begun: Begun<NodeId>| InFront { id: A, epoch: begun.epoch, turn: begun.turn };
    let late = head.begin_deletion(None, &mut Vec::new()).unwrap();
    assert!(!head.end_deletion(late, Outcome::NotBehind));
    // It is asked for again, and then there is something new.
    let again = head.begin_deletion(None, &mut Vec::new()).unwrap();
    assert!(behind.begin_deletion(Some(of(again)), &mut Vec::new()).is_ok());
    assert!(behind.begin_deletion(Some(of(again)), &mut Vec::new()).is_ok(), "as often as it takes");
    assert!(head.end_deletion(again, Outcome::Made));
    let begun = head.begin(CHUNK, None, &mut Vec::new()).unwrap();
    let taken = behind.begin(CHUNK, Some(of(begun)), &mut Vec::new()).unwrap();
    assert!(behind.end(CHUNK, taken, Outcome::Made) && head.end(CHUNK, begun, Outcome::Made));
    assert_eq!(behind.begin_deletion(Some(of(late)), &mut Vec::new()), Err(Refused::NotNow));
}

#[test]
fn what_is_damaged_behind_counts_for_nothing_until_it_was_sent_again() {
    let (mut head, mut tail) = two();
    assert_eq!(tail.damaged(CHUNK, NOW, &mut Vec::new()), Ok(Some(Mender::InFront(A))));
    assert!(!tail.may_read(CHUNK, NOW) && tail.may_read(chunk(1), NOW) && tail.is_doubtful(CHUNK));
    assert!(tail.is_noted(CHUNK) && tail.uncertain().contains(&CHUNK), "the next process is to know it");
    assert!(!head.wanted_again(CHUNK, C, Epoch(1)) && !head.wanted_again(CHUNK, B, Epoch(2)));
    assert!(head.wanted_again(CHUNK, B, Epoch(1)));
    assert!(
        head.is_unsettled(CHUNK) && !head.may_read(CHUNK, NOW),
        "it could be taken back if the head died now"
    );
    let whole = head.settles(CHUNK).unwrap();
    let piece = InFront { id: A, epoch: whole.epoch, turn: whole.turn };
    let begun = tail.begin_piece(CHUNK, piece, &mut Vec::new()).unwrap();
    assert!(tail.end(CHUNK, begun, Outcome::Made) && !tail.may_read(CHUNK, NOW));
    assert!(tail.settled_in_front(CHUNK, piece, &mut Vec::new()));
    head.settled(CHUNK, whole.epoch);
    assert!(head.may_read(CHUNK, NOW) && tail.may_read(CHUNK, NOW) && !tail.is_doubtful(CHUNK));
}

#[test]
fn who_does_not_take_part_yet_does_not_say_that_nobody_else_has_a_chunk() {
    let both = group(1, &[A, B], &[]);
    let mut head = restarted(A, &both, &[]);
    assert_eq!(head.damaged(CHUNK, NOW, &mut Vec::new()), Err(Refused::NotNow));
    enter(&mut head, &group(2, &[A, B], &[]));
    assert_eq!(head.damaged(CHUNK, NOW, &mut Vec::new()), Ok(Some(Mender::WhoIsNext)));
}

#[test]
fn a_head_that_cannot_read_a_chunk_leaves_and_gets_it_when_it_comes_back() {
    let (mut head, tail) = two();
    let mut out = Vec::new();
    assert_eq!(head.damaged(CHUNK, NOW, &mut out), Ok(Some(Mender::WhoIsNext)));
    let leaves = |command: &Command<NodeId>| {
        matches!(
            command,
            Command::Member(membership::Command::Propose { change: membership::Change::Remove(A), .. })
        )
    };
    assert!(out.iter().any(leaves) && !head.may_read(chunk(1), NOW) && begin(&mut head, chunk(1)).is_err());
    enter(&mut head, &group(2, &[B], &[]));
    enter(&mut head, &group(3, &[B], &[A]));
    assert_eq!(head.uncertain().into_iter().collect::<Vec<_>>(), [CHUNK]);
    drop(tail);
}

#[test]
fn what_nobody_was_told_of_may_be_taken_back_and_nothing_else() {
    let (mut head, mut tail) = two();
    assert_eq!(head.may_fall_back(CHUNK), Ok(None), "both have it");
    unanswered(&mut head);
    assert_eq!((head.may_fall_back(CHUNK), head.may_fall_back(chunk(1))), (Ok(Some(B)), Ok(None)));
    // What is there cannot be read either.
    assert!(head.wanted_again(CHUNK, B, Epoch(1)));
    assert_eq!((head.may_fall_back(CHUNK), head.is_unsettled(CHUNK)), (Ok(None), true));
    let whole = head.settles(CHUNK).unwrap();
    head.settled(CHUNK, whole.epoch);
    let begun = begin(&mut head, CHUNK).unwrap();
    assert!(!head.end(CHUNK, begun, Outcome::Failed));
    assert_eq!(
        head.may_fall_back(CHUNK),
        Ok(None),
        "it did not go on, and was damaged before that, it may be"
    );
    assert_eq!(tail.may_fall_back(CHUNK), Ok(None), "nobody is behind");
    enter(&mut tail, &group(2, &[B], &[A]));
    assert_eq!(tail.may_fall_back(CHUNK), Ok(None), "who is brought up to date has nothing that counts");
}

#[test]
fn what_nobody_was_told_of_is_known_at_the_next_epoch_and_after_a_start() {
    let (mut head, _) = two();
    unanswered(&mut head);
    enter(&mut head, &group(2, &[A, B], &[]));
    assert_eq!(
        head.may_fall_back(CHUNK),
        Err(Refused::NotNow),
        "what the other one lacks is to be asked first"
    );
    head.compared(Epoch(2), [chunk(1)]);
    assert_eq!((head.may_fall_back(CHUNK), head.may_fall_back(chunk(1))), (Ok(Some(B)), Ok(None)));
    let mut again = restarted(A, &group(2, &[A, B], &[]), &[CHUNK]);
    enter(&mut again, &group(3, &[A, B], &[]));
    again.compared(Epoch(3), []);
    assert_eq!(again.may_fall_back(CHUNK), Ok(Some(B)));
}

#[test]
fn who_is_about_to_be_promoted_is_waited_for() {
    let mut head = at(A, &group(1, &[A], &[B]));
    head.compared(Epoch(1), []);
    head.require(B);
    head.promote(B, Epoch(1), &mut Vec::new());
    unanswered(&mut head);
    assert_eq!(head.may_fall_back(CHUNK), Err(Refused::NotNow), "it cannot be head yet");
}

#[test]
fn the_only_copy_has_nobody_to_bring_back_what_is_damaged() {
    let alone = group(1, &[A], &[]);
    let mut one = at(A, &alone);
    assert_eq!(one.damaged(CHUNK, NOW, &mut Vec::new()), Ok(None));
    assert!(!one.is_doubtful(CHUNK), "what can be read of it goes on being read");
}
