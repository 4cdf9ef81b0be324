//! A virtual chain: what file layouts name in the place of targets. Only the cluster map knows which targets are behind it.

use crate::membership::{MEMBERS_MAX, Membership};
use crate::{ChainId, Epoch, PoolId, TargetId};
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

/// A virtual chain and the targets behind it, head first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Encoded", into = "Encoded")]
pub struct Chain {
    /// Its id.
    pub id: ChainId,
    /// The pool its targets are of.
    pub pool: PoolId,
    /// Targets with a copy of each chunk that has all that was acknowledged, head first; one without replication.
    pub targets: SmallVec<[TargetId; 3]>,
    /// The head copies its chunks to another target, which is to have the chain in its place. Never of a chain with [`Chain::copies`].
    pub moving: Option<Move>,
    /// Of a chain of several copies: the rest of its group.
    pub copies: Option<ChainCopies>,
}

/// A chain that goes to another target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Move {
    /// Where it goes.
    pub to: TargetId,
    /// Of the map that said so first: tells this move from others of the same chain.
    pub since: Epoch,
}

/// What there is of a chain of several copies besides its targets in sync ([`Chain::targets`]).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChainCopies {
    /// How many copies there are to be, 2 or 3.
    pub wanted: u8,
    /// The epoch of the map at which the group changed last.
    pub changed: Epoch,
    /// Targets that are being brought up to date. They hold no promise.
    pub catching_up: SmallVec<[TargetId; 2]>,
    /// Targets that were in sync and are not: what they lack is noted by those that are, so that they can be brought up to date by that alone. One that is just being
    /// brought up to date is still one of them.
    pub former: SmallVec<[TargetId; 2]>,
}

impl ChainCopies {
    /// Most copies of a chunk.
    pub const COPIES_MAX: u8 = 3;
    // LIMIT: of targets whose lack is noted, for each chain.
    /// Most former members that are remembered.
    pub const FORMER_MAX: usize = 2;
}

impl Chain {
    /// How many copies of each chunk there are to be.
    pub fn copies_wanted(&self) -> u8 {
        self.copies.as_ref().map_or(1, |copies| copies.wanted)
    }

    /// Whether `target` has, or is being given, all chunks.
    pub fn is_member(&self, target: TargetId) -> bool {
        let is_catching_up = |copies: &ChainCopies| copies.catching_up.contains(&target);
        self.targets.contains(&target) || self.copies.as_ref().is_some_and(is_catching_up)
    }

    /// Whether fewer targets have all of it than are to.
    pub fn is_short(&self) -> bool {
        self.targets.len() < usize::from(self.copies_wanted())
    }

    /// Whether chunks of it on `target` are there for good: it has them, is being given them, or, with several copies, had them and may come back. With one copy the one that
    /// has them is the head.
    pub fn is_kept_at(&self, target: TargetId) -> bool {
        match &self.copies {
            Some(copies) => self.is_member(target) || copies.former.contains(&target),
            None => self.targets.first() == Some(&target),
        }
    }

    /// All targets that the chain names but former ones.
    pub(crate) fn everybody(&self) -> impl Iterator<Item = TargetId> + '_ {
        let others = self.copies.iter().flat_map(|copies| &copies.catching_up);
        self.targets.iter().chain(others).copied().chain(self.moving.map(|moving| moving.to))
    }

    /// The group that keeps the chunks of a chain of several copies.
    pub fn group(&self) -> Option<Membership<TargetId>> {
        let copies = self.copies.as_ref()?;
        Some(Membership {
            epoch: copies.changed,
            in_sync: self.targets.iter().copied().collect(),
            catching_up: copies.catching_up.iter().copied().collect(),
        })
    }

    /// Makes `group` the one that keeps the chunks. Who is not in sync any more is a former member, the newest last, until there are as many copies as there are to be.
    ///
    /// # Panics
    /// If the chain keeps one copy.
    pub fn set_group(&mut self, group: &Membership<TargetId>) {
        let before: SmallVec<[TargetId; 4]> = self.targets.iter().copied().collect();
        let copies = self.copies.as_mut().expect("a chain of several copies");
        copies.changed = group.epoch;
        copies.catching_up = group.catching_up.iter().copied().collect();
        self.targets = group.in_sync.iter().copied().collect();
        copies.former.extend(before);
        copies.former.retain(|target| !group.is_in_sync(*target));
        if group.in_sync.len() >= usize::from(copies.wanted) {
            copies.former.clear();
        }
        while copies.former.len() > ChainCopies::FORMER_MAX {
            copies.former.remove(0);
        }
    }

    /// Whether what it says goes together.
    pub(crate) fn is_sound(&self) -> bool {
        let all: SmallVec<[TargetId; 8]> = self.everybody().collect();
        let is_each_once = (1..all.len()).all(|at| !all[..at].contains(&all[at]));
        let has_room = |copies: &ChainCopies| {
            (2..=ChainCopies::COPIES_MAX).contains(&copies.wanted)
                && self.targets.len() + copies.catching_up.len() <= MEMBERS_MAX
                && copies.former.len() <= ChainCopies::FORMER_MAX
                && copies.former.iter().all(|former| !self.targets.contains(former))
                && self.moving.is_none()
        };
        let is_group_sound = self.copies.as_ref().map_or(self.targets.len() == 1, has_room);
        !self.targets.is_empty() && is_each_once && is_group_sound
    }
}

/// How [`Chain`] is encoded.
#[derive(Serialize, Deserialize)]
#[serde(rename = "Chain")]
struct Encoded {
    id: ChainId,
    pool: PoolId,
    targets: SmallVec<[TargetId; 3]>,
    standing: Standing,
}

/// The first two have the bytes of an optional [`Move`], which was all there was before chains had copies: maps of a file system without any are as they were.
#[derive(Serialize, Deserialize)]
#[serde(rename = "StandingOfChain")]
enum Standing {
    Stays,
    Moves(Move),
    IsCopied(ChainCopies),
}

impl From<Encoded> for Chain {
    fn from(encoded: Encoded) -> Chain {
        let Encoded { id, pool, targets, standing } = encoded;
        let (moving, copies) = match standing {
            Standing::Stays => (None, None),
            Standing::Moves(moving) => (Some(moving), None),
            Standing::IsCopied(copies) => (None, Some(copies)),
        };
        Chain { id, pool, targets, moving, copies }
    }
}

impl From<Chain> for Encoded {
    fn from(chain: Chain) -> Encoded {
        let Chain { id, pool, targets, moving, copies } = chain;
        let standing = match (copies, moving) {
            (Some(copies), _) => Standing::IsCopied(copies),
            (None, Some(moving)) => Standing::Moves(moving),
            (None, None) => Standing::Stays,
        };
        Encoded { id, pool, targets, standing }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use crate::codec;
    use smallvec::smallvec;

    fn chain() -> Chain {
        let copies =
            ChainCopies { wanted: 2, changed: Epoch(7), catching_up: smallvec![], former: smallvec![] };
        let targets = smallvec![TargetId(5), TargetId(6)];
        Chain { id: ChainId(0), pool: PoolId(0), targets, moving: None, copies: Some(copies) }
    }

    /// Maps are read by software from before there were copies, as long as there are none.
    #[test]
    fn a_chain_of_one_copy_is_encoded_as_it_was() {
        #[derive(Serialize)]
        struct Before {
            id: ChainId,
            pool: PoolId,
            targets: SmallVec<[TargetId; 3]>,
            moving: Option<Move>,
        }
        for moving in [None, Some(Move { to: TargetId(300), since: Epoch(1000) })] {
            let one = Chain { targets: smallvec![TargetId(5)], moving, copies: None, ..chain() };
            let Chain { id, pool, targets, moving, .. } = one.clone();
            let bytes = codec::encode(&Before { id, pool, targets, moving });
            assert_eq!(codec::encode(&one), bytes);
            assert_eq!(codec::decode::<Chain>(&bytes, "chain"), Ok(one));
        }
        let bytes = codec::encode(&chain());
        assert_eq!(codec::decode::<Chain>(&bytes, "chain"), Ok(chain()));
    }

    #[test]
    fn who_leaves_a_group_is_remembered_until_he_is_back_or_others_have_left_since() {
        let mut chain = chain();
        let mut group = chain.group().unwrap();
        let mut change = |in_sync: &[u32], catching_up: &[u32]| {
            group.epoch = Epoch(group.epoch.0 + 1);
            group.in_sync = in_sync.iter().copied().map(TargetId).collect();
            group.catching_up = catching_up.iter().copied().map(TargetId).collect();
            chain.set_group(&group);
            assert!(chain.is_sound() && chain.group().as_ref() == Some(&group));
            chain.copies.as_ref().unwrap().former.iter().map(|target| target.0).collect::<Vec<_>>()
        };
        assert_eq!(change(&[5], &[]), [6]);
        assert_eq!(change(&[5], &[6]), [6], "it lacks something still");
        assert_eq!(change(&[5, 6], &[]), Vec::<u32>::new());
        assert_eq!(change(&[5, 6], &[9]), Vec::<u32>::new());
        assert_eq!(change(&[5, 6], &[]), Vec::<u32>::new(), "one that was never in sync");
        assert_eq!(change(&[5, 7, 8], &[]), Vec::<u32>::new());
        assert_eq!(change(&[5], &[]), [7, 8]);
        assert_eq!(change(&[9], &[]), [8, 5], "no more than two");
        assert_eq!(change(&[9], &[8]), [8, 5]);
        assert_eq!(change(&[9, 8], &[]), Vec::<u32>::new(), "there are enough");
    }

    #[test]
    fn a_chain_that_contradicts_itself_is_not_sound() {
        let is_sound = |change: &dyn Fn(&mut Chain)| {
            let mut chain = chain();
            change(&mut chain);
            chain.is_sound()
        };
        assert!(is_sound(&|_| {}));
        assert!(!is_sound(&|chain| chain.copies = None), "two targets and one copy");
        assert!(!is_sound(&|chain| chain.targets.clear()));
        assert!(!is_sound(&|chain| chain.targets.push(TargetId(5))));
        assert!(!is_sound(&|chain| chain.copies.as_mut().unwrap().catching_up.push(TargetId(6))));
        assert!(!is_sound(&|chain| chain.copies.as_mut().unwrap().wanted = 4));
        assert!(!is_sound(&|chain| chain.moving = Some(Move { to: TargetId(9), since: Epoch(1) })));
    }
}
