//! The kernel's caches, as the client drops them when a lease is recalled.

use crate::id::NodeId;
use crate::notify::{Notifier, NotifyError};
use ashlar_client::{Dropping, KernelCache};
use ashlar_types::InodeId;
use parking_lot::{Condvar, Mutex};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Finds the directory that a mount shows as its root, which may become another one.
pub type FindRoot = Arc<dyn Fn() -> InodeId + Send + Sync>;

/// A page that a thread of its own drops.
#[derive(Debug, Default)]
struct Page {
    /// Where the kernel tells of that thread, once it runs, and whether it is done.
    state: Mutex<(Option<PathBuf>, bool)>,
    done: Condvar,
}

impl Page {
    fn note_done(&self) {
        self.state.lock().1 = true;
        self.done.notify_all();
    }
}

impl Dropping for Page {
    fn wait(&self, at_most: Duration) -> bool {
        let mut state = self.state.lock();
        if !state.1 && !at_most.is_zero() {
            self.done.wait_for(&mut state, at_most);
        }
        state.1
    }

    fn is_blocked(&self) -> bool {
        let thread = self.state.lock().0.clone();
        // Where that cannot be known: for as long as it takes to be sure.
        thread.as_deref().is_none_or(waits_in_kernel)
    }
}

/// Where the kernel tells of the thread that calls.
fn own_stat() -> Option<PathBuf> {
    let own = std::fs::read_link("/proc/thread-self").ok()?;
    Some(Path::new("/proc").join(own).join("stat"))
}

/// Whether a thread waits in the kernel for something that no signal ends, as for a page that is locked (`proc_pid_stat(5)`, state D).
fn waits_in_kernel(stat: &Path) -> bool {
    let stat = std::fs::read_to_string(stat).unwrap_or_default();
    // The name of the thread, in brackets, may have anything in it.
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('D'))
}

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

    /// Drops the names of an inode whose attributes were dropped. The kernel asks for those again where it looks at the mode, and not where only the owner may do something (`setattr_prepare`,
    /// `check_sticky`): there it would go by the owner that it knew. With a name that it looks up it learns the owner.
    /// What is in use keeps its names (a directory while those in it are kept).
    fn drop_names_of(&self, inode: InodeId) {
        let Some(notifier) = self.notifier.get().filter(|_| self.can_drop_entries()) else { return };
        let dropped = match notifier.prune(&[self.node(inode)]) {
            // Linux 6.16 and 6.17 can drop all names alone.
            Err(NotifyError::Unsupported) => notifier.inc_epoch(),
            other => other,
        };
        if let Err(error) = dropped {
            tracing::debug!(%error, %inode, "the kernel did not drop the names of what has changed");
        }
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
        self.drop_names_of(inode);
    }

    fn drop_content(&self, inode: InodeId) {
        self.inval(inode, 0, 0);
        self.drop_names_of(inode);
    }

    fn drop_range(&self, inode: InodeId, offset: u64, bytes: u64) {
        // Files end below 2^63 (`s_maxbytes`), so both fit.
        self.inval(inode, offset as i64, bytes as i64);
    }

    fn begin_to_drop(&self, inode: InodeId, offset: u64, bytes: u64) -> Arc<dyn Dropping> {
        let page = Arc::new(Page::default());
        let Some(notifier) = self.notifier.get().cloned() else {
            page.note_done();
            return page;
        };
        let (node, own) = (self.node(inode), page.clone());
        let run = move || {
            let stat = own_stat();
            own.state.lock().0 = stat;
            if let Err(error) = notifier.inval_inode(node, offset as i64, bytes as i64) {
                tracing::debug!(%error, %inode, "the kernel did not take an invalidation");
            }
            own.note_done();
        };
        // Not joined: it ends when whoever has the page locked lets go.
        // LIMIT: one per write through the cache that waits for a lease while that is recalled, and one more as it ends.
        if let Err(error) = std::thread::Builder::new().name("fuse-page".into()).spawn(run) {
            tracing::error!(%error, "no thread to drop a page; it is taken for locked by the write that waits");
        }
        page
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
