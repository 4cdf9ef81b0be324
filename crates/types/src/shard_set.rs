//! Sets of metadata shards.

use crate::{InodeId, ShardId};
use serde::{Deserialize, Serialize};

const WORD: usize = u64::BITS as usize;

/// A set of shards: a bit for each, from shard 0 on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardSet(Vec<u64>);

impl ShardSet {
    /// The shards from 0 to below `count`.
    pub fn below(count: u16) -> ShardSet {
        (0..count).map(ShardId).collect()
    }

    /// Whether `shard` is in it.
    pub fn has(&self, shard: ShardId) -> bool {
        let at = usize::from(shard.0);
        self.0.get(at / WORD).is_some_and(|word| word & 1 << (at % WORD) != 0)
    }

    /// Whether the home shard of `inode` is in it.
    pub fn has_home_of(&self, inode: InodeId) -> bool {
        self.has(inode.home())
    }

    /// The shards in it, ascending.
    pub fn iter(&self) -> impl Iterator<Item = ShardId> {
        (0..=u16::MAX).take(self.0.len() * WORD).map(ShardId).filter(|shard| self.has(*shard))
    }
}

impl FromIterator<ShardId> for ShardSet {
    fn from_iter<I: IntoIterator<Item = ShardId>>(shards: I) -> ShardSet {
        let mut set = ShardSet::default();
        for shard in shards {
            let at = usize::from(shard.0);
            if set.0.len() <= at / WORD {
                set.0.resize(at / WORD + 1, 0);
            }
            set.0[at / WORD] |= 1 << (at % WORD);
        }
        set
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_has_what_was_put_into_it_and_nothing_else() {
        let all = [0, 1, 63, 64, 65, 200, u16::MAX];
        let set: ShardSet = all.into_iter().map(ShardId).collect();
        assert_eq!(set.iter().map(|shard| shard.0).collect::<Vec<_>>(), all);
        assert!(!set.has(ShardId(2)) && !set.has(ShardId(199)));
        assert!(!ShardSet::default().has(ShardId(0)));
    }
}
