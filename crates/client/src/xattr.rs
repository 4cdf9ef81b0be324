//! Extended attributes.

use crate::call::{Who, unexpected};
use crate::client::Client;
use ashlar_types::message::{MetaReply, MetaRequest};
use ashlar_types::{Errno, InodeId};
use bytes::Bytes;

/// What a write takes away.
const CAPABILITY: &[u8] = b"security.capability";

impl Client {
    /// `getxattr`: the value.
    ///
    /// # Errors
    /// As `getxattr(2)`.
    pub fn getxattr(&self, who: &Who, inode: InodeId, name: &[u8]) -> Result<Bytes, Errno> {
        self.call_bytes(who, MetaRequest::Getxattr { inode, name })
    }

    /// `listxattr`: the names, each with a NUL behind it.
    ///
    /// # Errors
    /// As `listxattr(2)`.
    pub fn listxattr(&self, who: &Who, inode: InodeId) -> Result<Bytes, Errno> {
        self.call_bytes(who, MetaRequest::Listxattr { inode })
    }

    /// `setxattr`; `create` and `replace` as the flags of the call, `kill_setgid` when an ACL is set by somebody outside the group.
    ///
    /// # Errors
    /// As `setxattr(2)`.
    pub fn setxattr(
        &self,
        who: &Who,
        inode: InodeId,
        (name, value): (&[u8], &[u8]),
        (create, replace): (bool, bool),
        kill_setgid: bool,
    ) -> Result<(), Errno> {
        if name == CAPABILITY
            && let Some(file) = self.open_file(inode)
        {
            // ORDER: a report of writes takes capabilities away; of those that came before, it must not take the new ones.
            self.report_written(&file)?;
        }
        self.call_done(who, MetaRequest::Setxattr { inode, name, value, create, replace, kill_setgid })
    }

    /// `removexattr`.
    ///
    /// # Errors
    /// As `removexattr(2)`.
    pub fn removexattr(&self, who: &Who, inode: InodeId, name: &[u8]) -> Result<(), Errno> {
        self.call_done(who, MetaRequest::Removexattr { inode, name })
    }

    pub(crate) fn call_bytes(&self, who: &Who, request: MetaRequest<'_>) -> Result<Bytes, Errno> {
        match self.call(who, request)? {
            MetaReply::Bytes(bytes) => Ok(bytes),
            other => Err(unexpected(&other)),
        }
    }
}
