//! Which keys of a shard change while it is being sent.

use super::super::Across;
use ashlar_kv::{Key, WriteSet};
use ashlar_namespace::key;
use ashlar_types::ShardId;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

/// Nothing is being sent.
const NONE: u32 = u32::MAX;

/// See the module.
pub(in crate::across) struct Tracker {
    shard: AtomicU32,
    // LIMIT: as the keys of the shard.
    changed: Mutex<BTreeSet<Key>>,
}

impl Default for Tracker {
    fn default() -> Tracker {
        Tracker { shard: AtomicU32::new(NONE), changed: Mutex::default() }
    }
}

impl Tracker {
    /// From now on changes of `shard`, and of kept answers, are noted; of another one not any more.
    pub fn begin(&self, shard: ShardId) {
        self.changed.lock().clear();
        self.shard.store(u32::from(shard.0), SeqCst);
    }

    pub fn end(&self) {
        self.shard.store(NONE, SeqCst);
        self.changed.lock().clear();
    }

    pub fn len(&self) -> usize {
        self.changed.lock().len()
    }

    /// Up to `count` keys that have changed and that `is_wanted`, ascending from `from` on; they are not noted any more.
    pub fn take(&self, from: &Key, count: usize, is_wanted: impl Fn(&Key) -> bool) -> Vec<Key> {
        let mut changed = self.changed.lock();
        let behind = changed.range(from.clone()..);
        let wanted: Vec<Key> = behind.filter(|key| is_wanted(key)).take(count).cloned().collect();
        changed.retain(|key| !wanted.contains(key));
        wanted
    }

    /// Keys of `writes` that are to be noted.
    fn of(&self, writes: &[(ShardId, WriteSet)]) -> Vec<Key> {
        let tracked = self.shard.load(SeqCst);
        if tracked == NONE {
            return Vec::new();
        }
        let is_tracked = |shard: ShardId, found: &Key| match key::is_of_server(found) {
            true => key::reply_of(found).is_some(),
            false => u32::from(shard.0) == tracked,
        };
        let keys = |(shard, writes): &(ShardId, WriteSet)| {
            let of_shard = writes.0.iter().map(|(key, _)| key).filter(|key| is_tracked(*shard, key));
            of_shard.cloned().collect::<Vec<_>>()
        };
        writes.iter().flat_map(keys).collect()
    }
}

impl Across {
    /// Which of `writes` are to be noted once they are committed. To be asked under the lane's lock.
    pub(crate) fn tracked(&self, writes: &[(ShardId, WriteSet)]) -> Vec<Key> {
        self.tracker.of(writes)
    }

    /// They are. Still under the lane's lock: whoever takes a noted key reads its value afterwards.
    pub(crate) fn note_changed(&self, keys: Vec<Key>) {
        if !keys.is_empty() {
            self.tracker.changed.lock().extend(keys);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ashlar_types::{InodeId, SessionId};

    #[test]
    fn what_changes_of_a_shard_is_noted_and_nothing_else_but_kept_answers() {
        let tracker = Tracker::default();
        let inode = |shard| key::inode(InodeId::new(ShardId(shard), 9).unwrap());
        let reply = key::reply(SessionId(5), 2);
        let set = |shard, keys: &[Key]| {
            let writes = keys.iter().map(|key| (key.clone(), None)).collect();
            (ShardId(shard), WriteSet(writes))
        };
        let writes = [
            set(0, &[inode(0), key::session(SessionId(5)), reply.clone()]),
            set(3, &[inode(3)]),
            set(4, &[inode(4)]),
        ];
        assert!(tracker.of(&writes).is_empty(), "nothing is being sent");
        tracker.begin(ShardId(3));
        assert_eq!(tracker.of(&writes), [reply.clone(), inode(3)]);
        tracker.changed.lock().extend(tracker.of(&writes));
        let first = key::shard_prefix(ShardId(0));
        assert_eq!(tracker.take(&first, 9, |key| key::reply_of(key).is_none()), [inode(3)]);
        assert!(tracker.take(&inode(3), 9, |_| true).is_empty());
        assert_eq!((tracker.len(), tracker.take(&first, 9, |_| true)), (1, vec![reply]));
    }
}
