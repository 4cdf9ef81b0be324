//! The last attributes of inodes that this mount removed lately: the kernel may still be asked about them, through a working directory
//! or an `O_PATH` descriptor, though nobody has them open.

use ashlar_types::{Attr, InodeId};
use parking_lot::Mutex;
use std::collections::VecDeque;

/// How many are remembered.
// LIMIT: about 150 bytes each.
const REMOVED_MAX: usize = 1024;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct RemovedInodes(Mutex<VecDeque<Attr>>);

impl RemovedInodes {
    pub(super) fn note(&self, last: Option<Attr>) {
        let Some(attr) = last else { return };
        let mut removed = self.0.lock();
        if removed.len() >= REMOVED_MAX {
            removed.pop_front();
        }
        removed.push_back(attr);
    }

    pub(super) fn find(&self, inode: InodeId) -> Option<Attr> {
        self.0.lock().iter().rev().find(|attr| attr.inode == inode).cloned()
    }
}
