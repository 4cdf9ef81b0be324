//! The kernel's caches, as the client drops them when a lease is recalled.

use crate::id::NodeId;
use crate::notify::{Notifier, NotifyError};
use ashlar_client::KernelCache;
use ashlar_types::InodeId;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

/// Finds the directory that a mount shows as its root, which may become another one.
pub type FindRoot = Arc<dyn Fn() -> InodeId + Send + Sync>;

/// The kernel's name for the root of a mount.
const ROOT_NODE: NodeId = NodeId(1);

/// See the module. Entries are dropped by raising the connection's epoch (Linux 6.16): that takes no lock that a request under way
/// may hold, and reaches names that a lookup under way is about to put in. It drops the names of all directories; they are
/// looked up again when used, while attributes and pages stay.
#[derive(Default)]
pub struct NotifierCache {
    notifier: OnceLock<Notifier>,
    lacks_epoch: AtomicBool,
    /// Nothing: the root of the mount is that of the file system.
    root: OnceLock<FindRoot>,
}

impl NotifierCache {
    pub(super) fn set_root(&self, root: FindRoot) {
        let _ = self.root.set(root);
    }

    /// The inode behind a name of the kernel.
    pub(super) fn inode(&self, node: NodeId) -> InodeId {
        match self.root.get() {
            Some(find) if node == ROOT_NODE => find(),
            _ => InodeId(node.0),
        }
    }

    fn node(&self, inode: InodeId) -> NodeId {
        match self.root.get() {
            Some(find) if find() == inode => ROOT_NODE,
            _ => NodeId(inode.0),
        }
    }

    pub(super) fn attach(&self, notifier: Notifier) {
        // Raising the epoch of an empty cache costs nothing and tells whether the kernel can.
        self.lacks_epoch.store(matches!(notifier.inc_epoch(), Err(NotifyError::Unsupported)), Relaxed);
        let _ = self.notifier.set(notifier);
    }

    pub(super) fn can_drop_entries(&self) -> bool {
        !self.lacks_epoch.load(Relaxed)
    }

    /// `bytes` of 0 are all up to the end.
    fn inval(&self, inode: InodeId, offset: i64, bytes: i64) {
        if let Some(notifier) = self.notifier.get()
            && let Err(error) = notifier.inval_inode(self.node(inode), offset, bytes)
        {
            tracing::debug!(%error, %inode, "the kernel did not take an invalidation");
        }
    }
}

impl KernelCache for NotifierCache {
    fn drop_attributes(&self, inode: InodeId) {
        // A negative offset means: attributes only.
        self.inval(inode, -1, 0);
    }

    fn drop_content(&self, inode: InodeId) {
        self.inval(inode, 0, 0);
    }

    fn drop_range(&self, inode: InodeId, offset: u64, bytes: u64) {
        // Files end below 2^63 (`s_maxbytes`), so both fit.
        self.inval(inode, offset as i64, bytes as i64);
    }

    fn drop_entries(&self, directory: InodeId) {
        if let Some(notifier) = self.notifier.get()
            && self.can_drop_entries()
            && let Err(error) = notifier.inc_epoch()
        {
            tracing::warn!(%error, %directory, "the kernel did not raise its epoch");
        }
        // Cached names of a listing are attributes of the directory, too.
        self.inval(directory, -1, 0);
    }
}
