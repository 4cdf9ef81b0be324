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
    log: Option<Arc<dyn HandleLog>>,
}

/// Is told of open files as the kernel knows them, so that another process can go on with them.
pub trait HandleLog: Send + Sync + std::fmt::Debug {
    /// `handle` is `fh` for the kernel; `is_directory` says what it is of.
    fn opened(&self, fh: u64, handle: &Handle, is_directory: bool);
    /// A lock may be held through it from now on, or none is any more.
    fn locked(&self, fh: u64, is_held: bool);
    /// It is closed.
    fn closed(&self, fh: u64);
}

impl HandleTable {
    fn part(&self, number: u64) -> &RwLock<FxHashMap<u64, Arc<Handle>>> {
        &self.parts[number as usize % PARTS]
    }

    /// A table that tells `log`.
    pub(super) fn logged(log: Arc<dyn HandleLog>) -> HandleTable {
        HandleTable { log: Some(log), ..HandleTable::default() }
    }

    /// A number for `handle`, of a directory or not; never 0.
    pub(super) fn insert(&self, handle: Arc<Handle>, is_directory: bool) -> FileHandle {
        let number = self.last.fetch_add(1, Relaxed) + 1;
        if let Some(log) = &self.log {
            log.opened(number, &handle, is_directory);
        }
        self.part(number).write().insert(number, handle);
        FileHandle(number)
    }

    /// A handle that the kernel knows as `number` already. Before any other is inserted.
    pub(super) fn adopt(&self, number: u64, handle: Arc<Handle>) {
        self.last.fetch_max(number, Relaxed);
        self.part(number).write().insert(number, handle);
    }

    /// A lock may be held through `fh` from now on, or none is any more.
    pub(super) fn note_locked(&self, fh: FileHandle, is_held: bool) {
        if let Some(log) = &self.log {
            log.locked(fh.0, is_held);
        }
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
        let removed = self.part(fh.0).write().remove(&fh.0).ok_or(Errno::EBADF)?;
        if let Some(log) = &self.log {
            log.closed(fh.0);
        }
        Ok(removed)
    }
}
