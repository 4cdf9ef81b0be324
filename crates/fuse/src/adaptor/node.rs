//! Requests on inodes.

use super::{Adaptor, convert, identity};
use crate::errno::Errno;
use crate::protocol::SetAttr;
use crate::reply::{AttrReply, ReplyBuffer, Statfs, StatxReply};
use crate::request::Request;
use ashlar_client::Found;
use ashlar_types::{Attr, NAME_BYTES_MAX, message};
use std::time::Duration;

/// Unit of the block counts of statfs, bytes.
const STATFS_BLOCK_BYTES: u64 = 4096;

impl Adaptor {
    pub(super) fn on_getattr(&self, request: &Request<'_>) -> Result<AttrReply, Errno> {
        Ok(convert::attr_reply(&self.found(request)?))
    }

    /// Attributes of an inode; of one that is gone but that the kernel still knows (a working directory, an `O_PATH` descriptor), the last.
    fn found(&self, request: &Request<'_>) -> Result<Found, Errno> {
        let inode = self.inode(request.node);
        match self.client.getattr(&identity::who(request), inode) {
            Err(ashlar_types::Errno::ESTALE) => {
                Ok(of_removed(self.removed.find(inode).ok_or(Errno::ESTALE)?))
            }
            other => {
                let found = other?;
                self.keep_length(&found.attr);
                Ok(found)
            }
        }
    }

    pub(super) fn on_statx(&self, request: &Request<'_>) -> Result<StatxReply, Errno> {
        let found = self.found(request)?;
        Ok(StatxReply {
            attr: convert::attr(&found.attr),
            btime: Some(convert::timestamp(found.attr.btime)),
            attributes: 0,
            attributes_mask: 0,
            lifetime: found.attr_valid,
        })
    }

    pub(super) fn on_setattr(&self, request: &Request<'_>, changes: &SetAttr) -> Result<AttrReply, Errno> {
        let inode = self.inode(request.node);
        let handle = changes.fh.map(|fh| self.handles.find(fh)).transpose()?;
        // Arrives with nothing to set for `chown(path, -1, -1)`, and before a write that clears set-id bits.
        let only_clears = changes.mode.is_none()
            && (changes.uid, changes.gid) == (None, None)
            && changes.size.is_none()
            && changes.atime.is_none()
            && changes.mtime.is_none();
        let changes = message::SetAttr {
            mode: changes.mode,
            uid: changes.uid,
            gid: changes.gid,
            size: changes.size,
            atime: changes.atime.map(convert::time_set),
            mtime: changes.mtime.map(convert::time_set),
            kill_set_id: changes.kill_suid_gid || only_clears,
            has_handle: false,
        };
        let who = identity::who(request);
        let found = match self.client.setattr(&who, inode, handle.as_deref(), changes) {
            // The chown is for those who may change the mode, the write for whoever has a descriptor; without any it is the chown.
            Err(refused @ ashlar_types::Errno::EPERM) if only_clears => {
                let writer = self.handles.writer_of(inode).ok_or(refused)?;
                self.client.setattr(&who, inode, Some(&writer), changes)?
            }
            Err(ashlar_types::Errno::ESTALE) => {
                let last = self.removed.find(inode).ok_or(Errno::ESTALE)?;
                let attr =
                    self.client.setattr_removed(&who, last, changes).map_err(convert::found_by_name)?;
                self.removed.replace(&attr);
                of_removed(attr)
            }
            other => other?,
        };
        Ok(convert::attr_reply(&found))
    }

    pub(super) fn on_readlink(
        &self,
        request: &Request<'_>,
        reply: &mut ReplyBuffer<'_>,
    ) -> Result<(), Errno> {
        let target = self.client.readlink(&identity::who(request), self.inode(request.node));
        reply.put(&target.map_err(convert::found_by_name)?);
        Ok(())
    }

    pub(super) fn on_statfs(&self) -> Result<Statfs, Errno> {
        let statfs = self.client.statfs()?;
        Ok(Statfs {
            blocks: statfs.bytes_total / STATFS_BLOCK_BYTES,
            blocks_free: statfs.bytes_free / STATFS_BLOCK_BYTES,
            blocks_available: statfs.bytes_available / STATFS_BLOCK_BYTES,
            files: statfs.inodes_used.saturating_add(statfs.inodes_free),
            files_free: statfs.inodes_free,
            block_size: STATFS_BLOCK_BYTES as u32,
            name_len_max: NAME_BYTES_MAX as u32,
            fragment_size: STATFS_BLOCK_BYTES as u32,
        })
    }
}

/// Nothing is promised about an inode that is gone.
fn of_removed(attr: Attr) -> Found {
    Found { attr, attr_valid: Duration::ZERO, entry_valid: Duration::ZERO, is_whole: true }
}
