//! The answer to STATX: attributes, birth time and attribute flags.

use super::{Attr, Timestamp, lifetime_parts};
use crate::protocol::wire;
use std::time::Duration;

/// The answer to STATX (see statx(2)).
#[derive(Clone, Copy, Debug)]
pub struct StatxReply {
    /// The classic attributes; the `STATX_BASIC_STATS` part of the mask is implied.
    pub attr: Attr,
    /// When the node was made, if known.
    pub btime: Option<Timestamp>,
    /// `STATX_ATTR_*` bits.
    pub attributes: u64,
    /// Which of those bits the file system knows about.
    pub attributes_mask: u64,
    /// How long the kernel may believe the attributes.
    pub lifetime: Duration,
}

impl StatxReply {
    pub(crate) fn to_wire(self) -> wire::StatxOut {
        let (attr_valid, attr_valid_nsec) = lifetime_parts(self.lifetime);
        let time = |at: Timestamp| wire::SxTime { tv_sec: at.secs, tv_nsec: at.nanos, reserved: 0 };
        let btime_mask = if self.btime.is_some() { libc::STATX_BTIME } else { 0 };
        let rdev = u64::from(self.attr.rdev);
        let stat = wire::Statx {
            mask: libc::STATX_BASIC_STATS | btime_mask,
            blksize: self.attr.blksize,
            attributes: self.attributes,
            nlink: self.attr.nlink,
            uid: self.attr.uid,
            gid: self.attr.gid,
            mode: self.attr.mode as u16,
            ino: self.attr.ino,
            size: self.attr.size,
            blocks: self.attr.blocks,
            attributes_mask: self.attributes_mask,
            atime: time(self.attr.atime),
            btime: time(self.btime.unwrap_or_default()),
            ctime: time(self.attr.ctime),
            mtime: time(self.attr.mtime),
            rdev_major: libc::major(rdev),
            rdev_minor: libc::minor(rdev),
            ..Default::default()
        };
        wire::StatxOut { attr_valid, attr_valid_nsec, flags: 0, spare: [0; 2], stat }
    }
}
