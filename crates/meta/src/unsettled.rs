//! Files whose length nobody knows: their writer has died, and a target that has part of them does not tell what.
//!
//! The writer's record in the log says which they are, so a start with all targets settles them; here is only what could not be
//! settled yet. It is tried again once the target is there. Until then their content is not read, written or cut: somebody would take the length that metadata has for the file's,
//! copy a part for the whole, or append over what is there. Their names and attributes can be used, and they can be emptied or removed,
//! because nothing of that depends on what is missing. A stat tells the length that metadata has: there is no other.

use crate::MetaService;
use ashlar_namespace::{NsError, Txn};
use ashlar_types::{Errno, InodeId, ShardId};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

/// See the module. Its lock is a leaf.
#[derive(Default)]
pub(crate) struct Unsettled {
    /// Generation of the chunks, and what a target answered.
    // LIMIT: one per writer's record of a session that has ended, in the log.
    files: Mutex<FxHashMap<InodeId, (u32, Errno)>>,
}

impl Unsettled {
    /// Notes a file with chunks of `generation`, and what a target answered.
    pub(crate) fn note(&self, inode: InodeId, generation: u32, errno: Errno) {
        self.files.lock().insert(inode, (generation, errno));
    }

    /// Whether the length of `inode` is not known.
    pub(crate) fn has(&self, inode: InodeId) -> bool {
        self.files.lock().contains_key(&inode)
    }

    /// Whether that of its chunks of `generation` is not known.
    pub(crate) fn is_of(&self, inode: InodeId, generation: u32) -> bool {
        self.files.lock().get(&inode).is_some_and(|(noted, _)| *noted == generation)
    }

    /// All of `shard`.
    pub(crate) fn of_shard(&self, shard: ShardId) -> Vec<(InodeId, u32, Errno)> {
        let files = self.files.lock();
        let all = files.iter().map(|(inode, (generation, errno))| (*inode, *generation, *errno));
        all.filter(|(inode, ..)| inode.home() == shard).collect()
    }

    /// Forgets them: another server knows.
    pub(crate) fn forget_shard(&self, shard: ShardId) {
        self.files.lock().retain(|inode, _| inode.home() != shard);
    }

    /// Forgets one that was removed.
    pub(crate) fn forget(&self, inode: InodeId) {
        self.files.lock().remove(&inode);
    }
}

impl MetaService {
    /// Whether the length of `inode` is known, as `txn` leaves it: for a call that depends on it. An emptied file has other chunks, or none.
    ///
    /// # Errors
    /// What the target answered that was asked for the length: `ENODEV` when it is missing.
    pub(crate) fn check_settled(&self, txn: &mut Txn<'_>, inode: InodeId) -> Result<(), NsError> {
        let found = self.unsettled.files.lock().get(&inode).copied();
        let Some((generation, errno)) = found else { return Ok(()) };
        let now = txn.find_inode(inode)?.and_then(Self::generation_of);
        if now == Some(generation) { Err(errno.into()) } else { Ok(()) }
    }
}
