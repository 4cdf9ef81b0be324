//! The last attributes of inodes that this mount removed lately: the kernel may still be asked about them, and to change them, through a
//! working directory, an `O_PATH` descriptor, or a pipe, socket or device (which the kernel opens itself), though nobody has them open.

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

    /// Takes the place of what was remembered. The kernel lets only one change of an inode's attributes at a time through.
    pub(super) fn replace(&self, changed: &Attr) {
        if let Some(attr) = self.0.lock().iter_mut().rev().find(|attr| attr.inode == changed.inode) {
            *attr = changed.clone();
        }
    }

    pub(super) fn find(&self, inode: InodeId) -> Option<Attr> {
        self.0.lock().iter().rev().find(|attr| attr.inode == inode).cloned()
    }
}
