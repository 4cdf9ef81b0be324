//! Messages from the file system to the kernel: drop or change what it caches.
//!
//! **They may block.** The kernel takes the inode or directory lock of what is named, which a request of this very mount may
//! hold: a create holds its parent's lock until it is answered. Call them from a thread that serves no requests, holds no
//! lock a handler needs, and can wait.

use crate::errno::Errno;
use crate::id::NodeId;
use crate::negotiation::Negotiated;
use crate::protocol::{Features, wire};
use crate::transport::device::Device;
use parking_lot::{Condvar, Mutex};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use zerocopy::{Immutable, IntoBytes};

/// `enum fuse_notify_code`.
mod code {
    pub(super) const POLL: i32 = 1;
    pub(super) const INVAL_INODE: i32 = 2;
    pub(super) const INVAL_ENTRY: i32 = 3;
    pub(super) const STORE: i32 = 4;
    pub(super) const RETRIEVE: i32 = 5;
    pub(super) const DELETE: i32 = 6;
    pub(super) const RESEND: i32 = 7;
    pub(super) const INC_EPOCH: i32 = 8;
    pub(super) const PRUNE: i32 = 9;
}

/// Protocol minor versions that brought a notification without a feature bit.
const MINOR_INC_EPOCH: u32 = 44;
const MINOR_PRUNE: u32 = 45;

/// LIMIT: nodes in one prune message; the kernel copies them in one piece.
const PRUNE_NODES_MAX: usize = 512;

/// What a notification did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// The kernel acted on it.
    Applied,
    /// The kernel had nothing cached by that name; as good as applied.
    NotCached,
}

/// Why a notification was not delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotifyError {
    /// This kernel has no such notification, or the feature it needs was not granted.
    #[error("this kernel does not support the notification")]
    Unsupported,
    /// The mount is gone.
    #[error("the mount is gone")]
    Disconnected,
    /// The kernel refused it.
    #[error("the kernel refused the notification: {0}")]
    Refused(Errno),
}

/// Sends notifications for one mount. Cheap to clone; does not keep the mount alive.
#[derive(Clone)]
pub struct Notifier {
    device: Weak<Device>,
    granted: Grant,
    gate: Arc<Gate>,
}

/// Notifications under way. A thread at one may wait in the kernel for a page that a request has locked which nobody has read: it cannot be ended then, and nor can its process.
#[derive(Default)]
pub(crate) struct Gate {
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Default)]
struct GateState {
    is_closed: bool,
    under_way: usize,
}

/// A notification, for as long as it is under way.
struct UnderWay<'a>(&'a Gate);

impl Gate {
    /// Lets one through; waits while none may begin.
    fn enter(&self) -> UnderWay<'_> {
        let mut state = self.state.lock();
        while state.is_closed {
            self.changed.wait(&mut state);
        }
        state.under_way += 1;
        UnderWay(self)
    }

    /// Has none begin any more; tells whether none is under way within `bound`. If one is, others may begin again.
    pub(crate) fn close(&self, bound: Duration) -> bool {
        let give_up = Instant::now() + bound;
        let mut state = self.state.lock();
        state.is_closed = true;
        while state.under_way > 0 {
            if self.changed.wait_until(&mut state, give_up).timed_out() {
                drop(state);
                self.open();
                return false;
            }
        }
        true
    }

    /// Others may begin again.
    pub(crate) fn open(&self) {
        self.state.lock().is_closed = false;
        self.changed.notify_all();
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.state.lock().under_way -= 1;
        self.0.changed.notify_all();
    }
}

/// What decides which notifications the kernel understands.
#[derive(Clone, Copy)]
struct Grant {
    kernel_minor: u32,
    features: Features,
}

impl Notifier {
    pub(crate) fn new(device: &Arc<Device>, granted: &Negotiated) -> Self {
        let grant = Grant { kernel_minor: granted.kernel_minor, features: granted.features };
        Self { device: Arc::downgrade(device), granted: grant, gate: Arc::default() }
    }

    /// What is under way.
    pub(crate) fn gate(&self) -> &Gate {
        &self.gate
    }

    /// Drops the cached attributes of a node, and the cached data in `offset..offset + len`: `len` 0 means to the end, a
    /// negative `offset` means attributes only. Waits for pages under I/O.
    ///
    /// # Errors
    /// See [`NotifyError`].
    pub fn inval_inode(&self, node: NodeId, offset: i64, len: i64) -> Result<Delivery, NotifyError> {
        let out = wire::NotifyInvalInodeOut { ino: node.0, off: offset, len };
        self.send(code::INVAL_INODE, &out, [])
    }

    /// Drops a name (and everything below it, if it is a directory), so that the next use looks it up.
    ///
    /// # Errors
    /// See [`NotifyError`].
    pub fn inval_entry(&self, parent: NodeId, name: &[u8]) -> Result<Delivery, NotifyError> {
        self.inval_entry_with(parent, name, 0)
    }

    /// Ends the lifetime of a name without dropping it: the next use looks it up and, if nothing changed, keeps what is below.
    ///
    /// # Errors
    /// `Unsupported` without `HAS_EXPIRE_ONLY`; see [`NotifyError`].
    pub fn expire_entry(&self, parent: NodeId, name: &[u8]) -> Result<Delivery, NotifyError> {
        self.require(Features::HAS_EXPIRE_ONLY)?;
        self.inval_entry_with(parent, name, wire::flag::EXPIRE_ONLY)
    }

    fn inval_entry_with(&self, parent: NodeId, name: &[u8], flags: u32) -> Result<Delivery, NotifyError> {
        let namelen = name_len(name)?;
        let out = wire::NotifyInvalEntryOut { parent: parent.0, namelen, flags };
        self.send(code::INVAL_ENTRY, &out, [name, &[0]])
    }

    /// Says that a name of `child` was removed: like [`Self::inval_entry`], and watchers of the directory are told.
    ///
    /// # Errors
    /// `Refused(ENOTEMPTY)` or `Refused(EBUSY)` if the kernel still uses it; see [`NotifyError`].
    pub fn delete(&self, parent: NodeId, child: NodeId, name: &[u8]) -> Result<Delivery, NotifyError> {
        let out =
            wire::NotifyDeleteOut { parent: parent.0, child: child.0, namelen: name_len(name)?, padding: 0 };
        self.send(code::DELETE, &out, [name, &[0]])
    }

    /// Puts `data` into the page cache of a node.
    ///
    /// # Errors
    /// See [`NotifyError`].
    pub fn store(&self, node: NodeId, offset: u64, data: &[u8]) -> Result<Delivery, NotifyError> {
        let size = u32::try_from(data.len()).map_err(|_| NotifyError::Refused(Errno::E2BIG))?;
        let out = wire::NotifyStoreOut { nodeid: node.0, offset, size, padding: 0 };
        self.send(code::STORE, &out, [data])
    }

    /// Asks for `size` bytes of a node's page cache; they come to `Filesystem::retrieve_reply`, with `tag`.
    ///
    /// # Errors
    /// See [`NotifyError`].
    pub fn retrieve(&self, tag: u32, node: NodeId, offset: u64, size: u32) -> Result<Delivery, NotifyError> {
        self.send(code::RETRIEVE, &retrieve_out(TAG_OF_FILESYSTEM, tag, node, offset, size), [])
    }

    /// Wakes pollers of the open file whose POLL carried this wake-up.
    ///
    /// # Errors
    /// See [`NotifyError`].
    pub fn poll_wakeup(&self, wakeup: u64) -> Result<Delivery, NotifyError> {
        self.send(code::POLL, &wire::NotifyPollWakeupOut { kh: wakeup }, [])
    }

    /// Ends the lifetime of every name the mount has cached (Linux 6.16 and later).
    ///
    /// # Errors
    /// `Unsupported` on older kernels; see [`NotifyError`].
    pub fn inc_epoch(&self) -> Result<Delivery, NotifyError> {
        if self.granted.kernel_minor < MINOR_INC_EPOCH {
            return Err(NotifyError::Unsupported);
        }
        self.send(code::INC_EPOCH, &(), [])
    }

    /// Asks for all requests in progress again; they come with `Unique::is_resent`.
    ///
    /// # Errors
    /// `Unsupported` without `HAS_RESEND`; see [`NotifyError`].
    pub fn resend(&self) -> Result<Delivery, NotifyError> {
        self.require(Features::HAS_RESEND)?;
        self.send(code::RESEND, &(), [])
    }

    /// Asks the kernel to forget these nodes if nothing uses them (Linux 6.18 and later).
    ///
    /// # Errors
    /// `Unsupported` on older kernels; E2BIG for more than 512 nodes; see [`NotifyError`].
    pub fn prune(&self, nodes: &[NodeId]) -> Result<Delivery, NotifyError> {
        if self.granted.kernel_minor < MINOR_PRUNE {
            return Err(NotifyError::Unsupported);
        }
        if nodes.len() > PRUNE_NODES_MAX {
            return Err(NotifyError::Refused(Errno::E2BIG));
        }
        let ids: Vec<u64> = nodes.iter().map(|node| node.0).collect();
        let out = wire::NotifyPruneOut { count: nodes.len() as u32, padding: 0, spare: 0 };
        self.send(code::PRUNE, &out, [ids.as_bytes()])
    }

    pub(crate) fn require(&self, feature: Features) -> Result<(), NotifyError> {
        if self.granted.features.contains(feature) { Ok(()) } else { Err(NotifyError::Unsupported) }
    }

    pub(crate) fn device(&self) -> Result<Arc<Device>, NotifyError> {
        self.device.upgrade().ok_or(NotifyError::Disconnected)
    }

    fn send<T: IntoBytes + Immutable, const N: usize>(
        &self,
        code: i32,
        head: &T,
        tail: [&[u8]; N],
    ) -> Result<Delivery, NotifyError> {
        let device = self.device()?;
        let tail_len: usize = tail.iter().map(|part| part.len()).sum();
        let len = size_of::<wire::OutHeader>() + size_of::<T>() + tail_len;
        let len = u32::try_from(len).map_err(|_| NotifyError::Refused(Errno::E2BIG))?;
        // A notification is a reply to no request: unique 0, and the code where the error would be.
        let header = wire::OutHeader { len, error: code, unique: 0 };
        let _under_way = self.gate.enter();
        let sent = match tail.as_slice() {
            [] => device.write_parts([header.as_bytes(), head.as_bytes()]),
            [one] => device.write_parts([header.as_bytes(), head.as_bytes(), one]),
            [one, two] => device.write_parts([header.as_bytes(), head.as_bytes(), one, two]),
            _ => Err(Errno::EINVAL),
        };
        match sent {
            Ok(()) => Ok(Delivery::Applied),
            Err(Errno::ENOENT) => Ok(Delivery::NotCached),
            Err(Errno::ENODEV | Errno::ENOTCONN | Errno::ECONNABORTED) => Err(NotifyError::Disconnected),
            Err(errno) => Err(NotifyError::Refused(errno)),
        }
    }
}

/// Ids of retrieve notifications. They come back as request ids, where they must be even and never meet one of the kernel's,
/// which count up from 2.
const TAG_OF_FILESYSTEM: u64 = 1 << 62;
const TAG_OF_TRANSPORT: u64 = 1 << 61;

fn retrieve_out(kind: u64, tag: u32, node: NodeId, offset: u64, size: u32) -> wire::NotifyRetrieveOut {
    let notify_unique = kind | u64::from(tag) << 1;
    wire::NotifyRetrieveOut { notify_unique, nodeid: node.0, offset, size, padding: 0 }
}

/// The tag in the id of a reply to a retrieve notification.
pub(crate) fn retrieve_tag(unique: u64) -> u32 {
    (unique >> 1) as u32
}

/// Whether a request is the answer to [`nudge`].
pub(crate) fn is_nudge(unique: u64) -> bool {
    unique & (TAG_OF_FILESYSTEM | TAG_OF_TRANSPORT | 1 << 63) == TAG_OF_TRANSPORT
}

/// Makes the kernel send a request that says nothing (see the ring transport). `node` is a regular file it knows.
pub(crate) fn nudge(device: &Device, node: NodeId) -> Result<(), Errno> {
    let out = retrieve_out(TAG_OF_TRANSPORT, device.next_nudge(), node, 0, 0);
    let len = (size_of::<wire::OutHeader>() + size_of_val(&out)) as u32;
    let header = wire::OutHeader { len, error: code::RETRIEVE, unique: 0 };
    device.write_parts([header.as_bytes(), out.as_bytes()])
}

/// The kernel takes names of up to 1024 bytes (`FUSE_NAME_MAX`), older kernels the same.
fn name_len(name: &[u8]) -> Result<u32, NotifyError> {
    const NAME_LEN_MAX: usize = 1024;
    if name.len() > NAME_LEN_MAX {
        return Err(NotifyError::Refused(Errno::ENAMETOOLONG));
    }
    Ok(name.len() as u32)
}
