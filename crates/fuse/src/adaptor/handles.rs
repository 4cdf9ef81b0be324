//! Open files by the number the kernel knows them under.

use crate::errno::Errno;
use crate::id::FileHandle;
use ashlar_client::Handle;
use ashlar_types::InodeId;
use parking_lot::RwLock;
use rustc_hash::FxHashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const PARTS: usize = 16;

/// See the module; in parts, so that threads seldom meet.
#[derive(Debug, Default)]
pub(super) struct HandleTable {
    // LIMIT: one per open file description; the kernel bounds those.
    parts: [RwLock<FxHashMap<u64, Arc<Handle>>>; PARTS],
    last: AtomicU64,
}

impl HandleTable {
    fn part(&self, number: u64) -> &RwLock<FxHashMap<u64, Arc<Handle>>> {
        &self.parts[number as usize % PARTS]
    }

    /// A number for `handle`; never 0.
    pub(super) fn insert(&self, handle: Arc<Handle>) -> FileHandle {
        let number = self.last.fetch_add(1, Relaxed) + 1;
        self.part(number).write().insert(number, handle);
        FileHandle(number)
    }

    pub(super) fn find(&self, fh: FileHandle) -> Result<Arc<Handle>, Errno> {
        self.part(fh.0).read().get(&fh.0).cloned().ok_or(Errno::EBADF)
    }

    /// One of the open files of `inode` that are open for writing. Looks at all, so it is for rare questions.
    pub(super) fn writer_of(&self, inode: InodeId) -> Option<Arc<Handle>> {
        let is_writer = |handle: &&Arc<Handle>| handle.file.inode == inode && handle.flags.write;
        self.parts.iter().find_map(|part| part.read().values().find(is_writer).cloned())
    }

    pub(super) fn remove(&self, fh: FileHandle) -> Result<Arc<Handle>, Errno> {
        self.part(fh.0).write().remove(&fh.0).ok_or(Errno::EBADF)
    }
}
