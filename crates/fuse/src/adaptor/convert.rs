//! Between the kernel's types and the client's.

use super::Adaptor;
use crate::errno::Errno;
use crate::id::NodeId;
use crate::protocol::SetTime;
use crate::reply::{Attr, AttrReply, Entry, FileKind, Timestamp};
use ashlar_client::{Found, KernelCache};
use ashlar_types::message::TimeSet;
use ashlar_types::{FileType, InodeId, Timespec};
use std::time::Duration;

impl From<ashlar_types::Errno> for Errno {
    fn from(errno: ashlar_types::Errno) -> Errno {
        match errno {
            // An inode that was removed between the kernel's walk and its request: what a local file system answers then is that the
            // name is not there. Open files are never removed, so no descriptor sees this. Where the name may have got another
            // inode instead, it is `found_by_name` that answers.
            ashlar_types::Errno::ESTALE => Errno::ENOENT,
            other => Errno::new(other.raw()),
        }
    }
}

/// The error of a request on an inode that the kernel has found by its name.
///
/// If it is gone, a rename may have put another in its place, and then the name has been there all the time: told `ESTALE`, the kernel looks
/// the name up again, and finds the new one or that there is none.
pub(super) fn found_by_name(errno: ashlar_types::Errno) -> Errno {
    match errno {
        ashlar_types::Errno::ESTALE => Errno::ESTALE,
        other => other.into(),
    }
}

pub(super) fn timestamp(time: Timespec) -> Timestamp {
    Timestamp { secs: time.secs, nanos: time.nanos }
}

pub(super) fn time_set(time: SetTime) -> TimeSet {
    match time {
        SetTime::Now => TimeSet::Now,
        SetTime::At(at) => TimeSet::At(Timespec::new(at.secs, at.nanos)),
    }
}

pub(super) fn file_kind(file_type: FileType) -> FileKind {
    match file_type {
        FileType::Fifo => FileKind::Fifo,
        FileType::CharDevice => FileKind::CharDevice,
        FileType::Directory => FileKind::Directory,
        FileType::BlockDevice => FileKind::BlockDevice,
        FileType::Regular => FileKind::Regular,
        FileType::Symlink => FileKind::Symlink,
        FileType::Socket => FileKind::Socket,
    }
}

pub(super) fn attr(attr: &ashlar_types::Attr) -> Attr {
    Attr {
        ino: attr.inode.0,
        size: attr.size,
        blocks: attr.blocks,
        atime: timestamp(attr.atime),
        mtime: timestamp(attr.mtime),
        ctime: timestamp(attr.ctime),
        mode: attr.mode,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
        blksize: attr.block_size,
    }
}

pub(super) fn attr_reply(found: &Found) -> AttrReply {
    AttrReply { attr: attr(&found.attr), lifetime: found.attr_valid }
}

impl Adaptor {
    /// Node ids are inode ids, but for the root of the mount.
    pub(super) fn inode(&self, node: NodeId) -> InodeId {
        self.cache.inode(node)
    }

    /// To be called when attributes are about to go to the kernel: it tells them to whoever asked, but takes none up itself, see [`Client::is_growing`].
    pub(super) fn keep_length(&self, attr: &ashlar_types::Attr) {
        if self.client.is_growing(attr) {
            // What it asked for before this it does not take up any more (`fuse_change_attributes`, `attr_version`).
            self.cache.drop_attributes(attr.inode);
        }
    }

    pub(super) fn entry(&self, found: &Found) -> Entry {
        self.keep_length(&found.attr);
        Entry {
            node: NodeId(found.attr.inode.0),
            generation: 0,
            attr: attr(&found.attr),
            entry_lifetime: self.entry_lifetime(found.entry_valid),
            attr_lifetime: self.entry_attr_lifetime(found.attr_valid),
        }
    }

    /// For how long attributes that come with a name are good. The kernel may not know the inode yet: until it has taken this reply, which
    /// it does when the caller gets a processor, an invalidation finds nothing to invalidate, and old attributes would be kept for as long as a
    /// lease that was given back. Where others may change them the kernel asks for them by inode: what it is told then it drops
    /// if an invalidation came meanwhile. A client that is close-to-open gets no invalidations.
    fn entry_attr_lifetime(&self, valid: Duration) -> Duration {
        if self.options.is_sole_session || self.client.is_close_to_open() { valid } else { Duration::ZERO }
    }

    /// A name is kept only if it can be taken back: by the kernel's epoch, or because nobody else could change it; or if it need not be.
    pub(super) fn entry_lifetime(&self, valid: Duration) -> Duration {
        let is_good =
            self.options.is_sole_session || self.cache.can_drop_entries() || self.client.is_close_to_open();
        if is_good { valid } else { Duration::ZERO }
    }
}
