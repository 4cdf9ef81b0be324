//! Who keeps the copies of one replicated thing, at which epoch: the membership of a metadata shard (on nodes) or of a chain
//! (on targets). `design.md` D6: one membership machine, two data paths.

use crate::Epoch;
use crate::NodeId;
use crate::map::Shard;
use serde::{Deserialize, Serialize};
use smallvec::{SmallVec, smallvec};

/// Replicas of one group, primary (head of a chain) first.
pub type Replicas<R> = SmallVec<[R; MEMBERS_MAX]>;

/// Most replicas a group can have: three copies, and one more while a replica moves.
// LIMIT: bounds every list of replicas, and with it every message that carries one.
pub const MEMBERS_MAX: usize = 4;

/// The replicas of a group at one epoch. It never changes: a change is another membership with a larger epoch.
///
/// Invariants, kept by the only function that makes one from another (`ashlar_replication::membership::plan`):
/// `in_sync` is never empty; no replica is in both lists or twice in one; the first of `in_sync` was in sync at the epoch before.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Membership<R> {
    /// The epoch of the cluster map at which this group changed last.
    pub epoch: Epoch,
    /// Replicas that hold everything acknowledged, in order; the first is the primary.
    pub in_sync: Replicas<R>,
    /// Replicas that are being brought up to date. They hold no promise.
    pub catching_up: Replicas<R>,
}

impl<R: Copy + Eq> Membership<R> {
    /// A group of `in_sync` at `epoch`, primary first, nobody catching up. `in_sync` must not be empty.
    pub fn new(epoch: Epoch, in_sync: impl IntoIterator<Item = R>) -> Membership<R> {
        let in_sync: Replicas<R> = in_sync.into_iter().collect();
        assert!(!in_sync.is_empty() && in_sync.len() <= MEMBERS_MAX, "1 to {MEMBERS_MAX} replicas");
        Membership { epoch, in_sync, catching_up: SmallVec::new() }
    }

    /// The replica that answers for the group.
    pub fn primary(&self) -> R {
        self.in_sync[0]
    }

    /// Whether `replica` holds everything acknowledged.
    pub fn is_in_sync(&self, replica: R) -> bool {
        self.in_sync.contains(&replica)
    }

    /// Whether `replica` is in the group at all.
    pub fn is_member(&self, replica: R) -> bool {
        self.is_in_sync(replica) || self.catching_up.contains(&replica)
    }

    /// Everybody: in sync first, then catching up.
    pub fn members(&self) -> impl Iterator<Item = R> + '_ {
        self.in_sync.iter().chain(&self.catching_up).copied()
    }

    /// Whether `replica` is the only one: nobody else was ever told anything at this epoch.
    pub fn is_alone(&self, replica: R) -> bool {
        self.in_sync.as_slice() == [replica] && self.catching_up.is_empty()
    }
}

/// One change of a group. Who may ask for it and when: `ashlar_replication::membership::plan`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Change<R> {
    /// Begin to bring a replica up to date.
    Admit(R),
    /// A replica that was catching up holds everything.
    Promote(R),
    /// A replica is gone, or goes.
    Remove(R),
    /// A new epoch for the same replicas: what was sent at the old one is void.
    Renew,
}

impl Shard {
    /// The group that keeps this shard in a map of `epoch`: one copy, at its primary.
    pub fn membership(&self, epoch: Epoch) -> Membership<NodeId> {
        Membership { epoch, in_sync: smallvec![self.primary], catching_up: SmallVec::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ShardId;

    #[test]
    fn todays_map_is_groups_of_one_that_are_alone() {
        let shard = Shard { id: ShardId(3), primary: NodeId(1) }.membership(Epoch(7));
        assert!(shard.is_alone(NodeId(1)) && !shard.is_alone(NodeId(2)));
    }
}
