//! Permission checks (`path_resolution(7)`, `acl(5)`): may this caller read, write, search, act as the owner, change a directory.
//!
//! The rules and their order are those of Linux' `fs/namei.c`, so that a caller sees the same errno whether the kernel of a
//! client or this server was the first to refuse.
//!
//! A client may leave groups out at first ([`ashlar_types::Credentials::complete`]). Not being in a group can give more than being in
//! it; where it would, the answer to incomplete credentials is a refusal, upon which the client asks again with all of them.

use super::privilege;
use crate::acl;
use crate::context::OpContext;
use crate::error::NsError;
use crate::record::Inode;
use ashlar_types::attr::{MODE_SETGID, MODE_STICKY};
use ashlar_types::{Capabilities, Errno};

/// Search a directory or execute a file.
pub(crate) const EXECUTE: u32 = 1;
/// Write.
pub(crate) const WRITE: u32 = 2;
/// Read.
pub(crate) const READ: u32 = 4;

/// Checks that the caller has all of the `wanted` permissions (bits 4 read, 2 write, 1 execute) on `inode`.
///
/// # Errors
/// `EACCES`.
pub(crate) fn check(context: &OpContext<'_>, inode: &Inode, wanted: u32) -> Result<(), NsError> {
    if grants(context, inode, wanted)? {
        return Ok(());
    }
    let caps = context.creds.caps;
    let is_directory = inode.is_directory();
    let may_override = caps.has(Capabilities::DAC_OVERRIDE)
        && (wanted & EXECUTE == 0 || is_directory || inode.mode & 0o111 != 0);
    let may_search = caps.has(Capabilities::DAC_READ_SEARCH)
        && wanted & WRITE == 0
        && (is_directory || wanted & EXECUTE == 0);
    if may_override || may_search { Ok(()) } else { Err(Errno::EACCES.into()) }
}

/// What mode and ACL grant, capabilities aside (`acl_permission_check`).
fn grants(context: &OpContext<'_>, inode: &Inode, wanted: u32) -> Result<bool, NsError> {
    let creds = context.creds;
    if creds.uid == inode.uid {
        return Ok(inode.mode >> 6 & wanted == wanted);
    }
    // With no group bits, which are the ACL's mask, no named entry can grant anything: Linux does not look at the ACL then.
    if let Some(bytes) = &inode.acl_access
        && inode.mode & 0o070 != 0
    {
        return acl::permits(bytes, inode, creds, wanted);
    }
    let (group, other) = (inode.mode >> 3 & wanted == wanted, inode.mode & wanted == wanted);
    Ok(if creds.in_group(inode.gid) { group } else { other && (group || creds.complete) })
}

/// Whether the caller may do what only the owner may (`inode_owner_or_capable`).
pub(crate) fn is_owner(context: &OpContext<'_>, inode: &Inode) -> bool {
    context.creds.uid == inode.uid || context.creds.caps.has(Capabilities::FOWNER)
}

/// Whether the caller may leave a set-group-id bit on something of group `gid` (`in_group_or_capable`), as far as its groups are
/// known; [`super::privilege::may_keep_setgid`] asks for the rest where that matters.
pub(crate) fn may_set_gid(context: &OpContext<'_>, gid: u32) -> bool {
    context.creds.in_group(gid) || context.creds.caps.has(Capabilities::FSETID)
}

/// Checks that the caller may add an entry to `directory` (`may_create`).
///
/// # Errors
/// `ENOTDIR`; `ENOENT` for a directory that has been removed; `EACCES` without write and search permission.
pub(crate) fn may_create(context: &OpContext<'_>, directory: &Inode) -> Result<(), NsError> {
    directory.as_directory()?;
    if directory.nlink == 0 {
        return Err(Errno::ENOENT.into());
    }
    check(context, directory, WRITE | EXECUTE)
}

/// What a call that removes an entry takes it for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Victim {
    /// Of `rmdir`, or of a `rename` of a directory.
    Directory,
    /// Of `unlink`, or of a `rename` of something else.
    NoDirectory,
}

impl Victim {
    /// What `inode` is.
    pub(crate) fn of(inode: &Inode) -> Victim {
        if inode.is_directory() { Victim::Directory } else { Victim::NoDirectory }
    }
}

/// Checks that the caller may remove the entry of `victim` from `directory` (`may_delete`).
///
/// # Errors
/// `EACCES` without write and search permission on `directory`, `EPERM` by its sticky bit, `ENOTDIR` or `EISDIR` when `victim` is not
/// what it is taken for.
pub(crate) fn may_delete(
    context: &OpContext<'_>,
    directory: &Inode,
    victim: &Inode,
    taken_for: Victim,
) -> Result<(), NsError> {
    check(context, directory, WRITE | EXECUTE)?;
    let is_protected =
        directory.mode & MODE_STICKY != 0 && context.creds.uid != directory.uid && !is_owner(context, victim);
    if is_protected {
        return Err(Errno::EPERM.into());
    }
    match (taken_for, Victim::of(victim)) {
        (Victim::Directory, Victim::NoDirectory) => Err(Errno::ENOTDIR.into()),
        (Victim::NoDirectory, Victim::Directory) => Err(Errno::EISDIR.into()),
        _ => Ok(()),
    }
}

/// `mode` for a new file in `directory` without the set-group-id bit, if the file would be executable by a group that the directory
/// gives it and that the caller is not in (`mode_strip_sgid`).
///
/// # Errors
/// `EPERM` when that depends on groups the client has not told yet.
pub(crate) fn strip_setgid(context: &OpContext<'_>, directory: &Inode, mode: u32) -> Result<u32, NsError> {
    let is_setgid_program = mode & (MODE_SETGID | 0o010) == MODE_SETGID | 0o010;
    let gives_group = directory.mode & MODE_SETGID != 0;
    if is_setgid_program && gives_group && !privilege::may_keep_setgid(context, directory.gid)? {
        Ok(mode & !MODE_SETGID)
    } else {
        Ok(mode)
    }
}
