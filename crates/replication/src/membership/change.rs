//! Changes of a membership, as a pure function from one to the next. The manager runs it between reading the map and the
//! compare-and-set that replaces it; nothing else makes a membership from another.
//!
//! | change | who may ask | when | what comes of it |
//! |---|---|---|---|
//! | `Admit(r)` | the operator (or the manager's planner) | `r` is no member | `r` is catching up |
//! | `Promote(r)` | who gives `r` what it gets: the primary of a log, the last in sync of a chain | `r` is catching up | `r` is in sync, as the last in order |
//! | `Remove(r)` | a member in sync, also for itself; the operator while `r` is catching up | `r` is a member, and not the last in sync | `r` is no member; the order of the others stays |
//! | `Renew` | a member | always | the same, at a new epoch |

use super::ReplicaId;
use ashlar_types::Epoch;
use ashlar_types::membership::{Change, MEMBERS_MAX, Membership};
use serde::{Deserialize, Serialize};

/// Who asks for a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Proposer<R> {
    /// A replica of the group.
    Replica(R),
    /// The operator, or the manager's background planning.
    Operator,
}

/// Why a change is not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The group has changed since: whoever asked looks at the new membership first.
    #[error("the group is at {found}, the change was made for {expected}")]
    Stale {
        /// The epoch the change was made for.
        expected: Epoch,
        /// The epoch that is there.
        found: Epoch,
    },
    /// It is not this proposer's to ask for.
    #[error("only another may ask for that")]
    NotYours,
    /// The replica is not where the change needs it.
    #[error("the replica is not in the state the change begins with")]
    WrongState,
    /// The last replica in sync is never removed: no outsider may become primary.
    #[error("it is the last replica in sync")]
    LastInSync,
    /// The group is as large as it may be.
    #[error("the group has {MEMBERS_MAX} members")]
    Full,
}

/// The membership after `change`, which `by` asked for when the group was at `expected`; it gets the epoch `next`, the next
/// one of the cluster map.
///
/// # Errors
/// [`Refusal`]; nothing is to be changed then.
pub fn plan<R: ReplicaId>(
    current: &Membership<R>,
    expected: Epoch,
    by: Proposer<R>,
    change: Change<R>,
    next: Epoch,
) -> Result<Membership<R>, Refusal> {
    if current.epoch != expected {
        return Err(Refusal::Stale { expected, found: current.epoch });
    }
    // INVARIANT: epochs of a group only grow.
    assert!(next > current.epoch, "{next} does not follow {}", current.epoch);
    let is_in_sync = matches!(by, Proposer::Replica(replica) if current.is_in_sync(replica));
    let mut changed = current.clone();
    changed.epoch = next;
    match change {
        Change::Admit(replica) => {
            allow(by == Proposer::Operator, Refusal::NotYours)?;
            allow(!current.is_member(replica), Refusal::WrongState)?;
            allow(current.members().count() < MEMBERS_MAX, Refusal::Full)?;
            changed.catching_up.push(replica);
        }
        Change::Promote(replica) => {
            let gives = [Some(&current.primary()), current.in_sync.last()];
            let is_giver = |replica: &R| by == Proposer::Replica(*replica);
            allow(gives.into_iter().flatten().any(is_giver), Refusal::NotYours)?;
            allow(current.catching_up.contains(&replica), Refusal::WrongState)?;
            changed.catching_up.retain(|other| *other != replica);
            changed.in_sync.push(replica);
        }
        Change::Remove(replica) => {
            allow(current.is_member(replica), Refusal::WrongState)?;
            let is_catching_up = !current.is_in_sync(replica);
            allow(is_in_sync || (is_catching_up && by == Proposer::Operator), Refusal::NotYours)?;
            allow(is_catching_up || current.in_sync.len() > 1, Refusal::LastInSync)?;
            changed.catching_up.retain(|other| *other != replica);
            changed.in_sync.retain(|other| *other != replica);
        }
        Change::Renew => {
            let is_member = matches!(by, Proposer::Replica(replica) if current.is_member(replica));
            allow(is_member, Refusal::NotYours)?;
        }
    }
    Ok(changed)
}

fn allow(condition: bool, refusal: Refusal) -> Result<(), Refusal> {
    if condition { Ok(()) } else { Err(refusal) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ashlar_types::NodeId;

    const A: NodeId = NodeId(1);
    const B: NodeId = NodeId(2);
    const C: NodeId = NodeId(3);

    fn at(epoch: u64, by: Proposer<NodeId>, change: Change<NodeId>) -> Result<Membership<NodeId>, Refusal> {
        let mut two = Membership::new(Epoch(4), [A, B]);
        two.catching_up.push(C);
        plan(&two, Epoch(epoch), by, change, Epoch(9))
    }

    #[test]
    fn every_change_has_an_owner_and_keeps_the_order() {
        use {Change::*, Proposer::*};
        let promoted = at(4, Replica(A), Promote(C)).unwrap();
        assert_eq!(promoted, Membership::new(Epoch(9), [A, B, C]));
        assert_eq!(at(4, Replica(B), Promote(C)), Ok(promoted), "the last of a chain");
        assert_eq!(at(4, Replica(C), Promote(C)), Err(Refusal::NotYours));
        assert_eq!(at(4, Operator, Promote(C)), Err(Refusal::NotYours));
        let removed = at(4, Replica(B), Remove(A)).unwrap();
        assert_eq!((removed.primary(), removed.catching_up.as_slice()), (B, &[C][..]));
        assert_eq!(
            at(4, Replica(C), Remove(A)),
            Err(Refusal::NotYours),
            "it may not know what was acknowledged"
        );
        assert_eq!(at(4, Operator, Remove(A)), Err(Refusal::NotYours), "nobody waited for its lease");
        assert!(!at(4, Operator, Remove(C)).unwrap().is_member(C));
        assert_eq!(at(4, Replica(A), Admit(NodeId(4))), Err(Refusal::NotYours));
        assert_eq!(at(4, Operator, Admit(C)), Err(Refusal::WrongState));
        assert_eq!(at(4, Replica(C), Renew).unwrap().in_sync.as_slice(), [A, B]);
        assert_eq!(at(4, Operator, Renew), Err(Refusal::NotYours));
    }

    #[test]
    fn a_change_made_for_an_older_epoch_is_refused() {
        let stale = at(3, Proposer::Replica(B), Change::Remove(A));
        assert_eq!(stale, Err(Refusal::Stale { expected: Epoch(3), found: Epoch(4) }));
    }

    #[test]
    fn the_last_replica_in_sync_stays_even_if_others_are_catching_up() {
        let mut one = Membership::new(Epoch(1), [A]);
        one.catching_up.push(B);
        let gone = plan(&one, Epoch(1), Proposer::Replica(A), Change::Remove(A), Epoch(2));
        assert_eq!(gone, Err(Refusal::LastInSync));
    }
}
