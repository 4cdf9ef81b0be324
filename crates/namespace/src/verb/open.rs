//! `open` of something that exists: permission, truncation, and where the content is.

use super::permission;
use super::resize::{Resize, resize};
use crate::body;
use crate::context::OpContext;
use crate::error::NsError;
use crate::key;
use crate::record::{FileData, Kind};
use crate::txn::Txn;
use ashlar_types::message::DataGrant;
use ashlar_types::{Attr, Capabilities, Durability, Errno, InodeId, LayoutPolicy};
use bytes::Bytes;

/// Most bytes of content that come with the answer.
pub const OPEN_BODY_BYTES_MAX: u64 = 64 << 10;

/// How a file is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenArgs {
    /// For reading (or listing).
    pub read: bool,
    /// For writing.
    pub write: bool,
    /// Emptied first (`O_TRUNC`), if it is a regular file.
    pub truncate: bool,
    /// For execution.
    pub execute: bool,
    /// Whether the truncation clears set-id bits whatever the caller's capabilities.
    pub kill_set_id: bool,
    /// Whether to send the content along when it is inline and at most [`OPEN_BODY_BYTES_MAX`].
    pub wants_body: bool,
    /// Set by the service, never by a client: the right has been established (the caller made the file in this transaction,
    /// or reasserts what it held open), permissions are not asked again.
    pub is_granted: bool,
}

/// What `open` tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenReply {
    /// The attributes, after truncation.
    pub attr: Attr,
    /// Where the content is; `Inline` without a body for anything but a regular file.
    pub data: DataGrant,
    /// Up to where the content may be written inline, bytes; 0 for anything but a regular file.
    pub inline_bytes: u64,
    /// How durable an acknowledged write is to be.
    pub durability: Durability,
}

/// Opens `id`. The service notes the handle; an unlinked file gets the session's orphan record here.
///
/// # Errors
/// `EACCES` without the permissions, `EISDIR` for writing a directory, `ELOOP` for a symbolic link, `ESTALE` for a file that was
/// unlinked and that the session does not hold.
pub fn open(
    txn: &mut Txn<'_>,
    context: &OpContext<'_>,
    id: InodeId,
    args: &OpenArgs,
) -> Result<OpenReply, NsError> {
    check(txn, context, id, args)?;
    hold_orphan(txn, context, id)?;
    if args.truncate && matches!(txn.inode(id)?.kind, Kind::Regular(_)) {
        let kill_set_id = args.kill_set_id || !context.creds.caps.has(Capabilities::FSETID);
        resize(txn, context, id, &Resize { size: 0, kill_set_id })?;
    }
    txn.reveal(id);
    let attr = txn.inode(id)?.attr(id);
    let (data, policy) = match &txn.inode(id)?.kind {
        Kind::Regular(FileData::Inline { policy, .. }) => {
            let policy = *policy;
            let body = inline_body(txn, id, attr.size, args.wants_body)?;
            (DataGrant::Inline { body }, policy)
        }
        Kind::Regular(FileData::Chunks { layout, policy }) => {
            (DataGrant::Chunks { layout: layout.clone() }, *policy)
        }
        Kind::Directory { .. }
        | Kind::WideDirectory { .. }
        | Kind::Slice { .. }
        | Kind::DirectoryInSplit { .. }
        | Kind::SliceInSplit { .. }
        | Kind::Symlink
        | Kind::Special
        | Kind::SyncSymlink
        | Kind::SyncSpecial => {
            let none = LayoutPolicy { inline_bytes: Some(0), ..LayoutPolicy::default() };
            (DataGrant::Inline { body: None }, none)
        }
    };
    let durability = policy.durability.unwrap_or_default();
    Ok(OpenReply { attr, data, inline_bytes: body::limit(&policy), durability })
}

fn check(txn: &mut Txn<'_>, context: &OpContext<'_>, id: InodeId, args: &OpenArgs) -> Result<(), NsError> {
    let inode = txn.inode(id)?;
    inode.require_whole()?;
    match inode.kind {
        Kind::Symlink | Kind::SyncSymlink => return Err(Errno::ELOOP.into()),
        _ if inode.is_directory() && (args.write || args.truncate) => return Err(Errno::EISDIR.into()),
        _ => {}
    }
    let mut wanted = 0;
    for (is_wanted, bit) in [
        (args.read, permission::READ),
        (args.write || args.truncate, permission::WRITE),
        (args.execute, permission::EXECUTE),
    ] {
        wanted |= if is_wanted { bit } else { 0 };
    }
    if args.is_granted { Ok(()) } else { permission::check(context, inode, wanted) }
}

/// Keeps an unlinked file for the session, if it is one of those that hold it.
fn hold_orphan(txn: &mut Txn<'_>, context: &OpContext<'_>, id: InodeId) -> Result<(), NsError> {
    if txn.inode(id)?.nlink > 0 {
        return Ok(());
    }
    let orphan_key = key::orphan(id, context.session);
    if txn.get(&orphan_key)?.is_some() {
        return Ok(());
    }
    if !(context.open_in)(id).contains(&context.session) {
        return Err(Errno::ESTALE.into());
    }
    txn.put(orphan_key, Bytes::new());
    Ok(())
}

/// The whole content, if it is asked for and small.
fn inline_body(txn: &Txn<'_>, id: InodeId, size: u64, is_wanted: bool) -> Result<Option<Bytes>, NsError> {
    if !is_wanted || size > OPEN_BODY_BYTES_MAX {
        return Ok(None);
    }
    Ok(Some(body::read(txn, id, 0, size as usize)?))
}
