//! `setattr`: `chmod(2)`, `chown(2)`, `utimensat(2)`, `truncate(2)` and any of them together, by the rules of Linux'
//! `notify_change` and `setattr_prepare`.

use super::permission;
use super::privilege;
use super::resize::{Resize, resize};
use super::slice;
use super::xattr;
use crate::acl;
use crate::context::OpContext;
use crate::error::NsError;
use crate::record::Inode;
use crate::txn::Txn;
use ashlar_types::attr::{MODE_PERMISSION_MASK, MODE_SETGID, MODE_SETUID};
use ashlar_types::message::{SetAttr, TimeSet};
use ashlar_types::{Attr, Capabilities, Errno, InodeId, Timespec};

/// What `setattr` tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetattrReply {
    /// The attributes afterwards.
    pub attr: Attr,
    /// Whether the file's chunks must be cut ([`crate::record::Garbage`] with `keep_bytes` above 0) and the cut reported with
    /// [`super::collected`] before this call is answered: old bytes may show through if the file grows first.
    pub must_cut: bool,
}

/// The fields of mode and owner after the change.
pub(super) struct Plan {
    mode: u32,
    uid: u32,
    gid: u32,
}

/// Changes attributes of `id`. Absent fields stay; a call without any changes nothing, not even ctime.
///
/// # Errors
/// `EPERM` when the caller may not change mode, owner or times, `EACCES` for a truncation or the current time without write permission,
/// `EISDIR` and `EINVAL` for the length of what has none, `EFBIG` beyond 2^63-1, `EOPNOTSUPP` for the mode of a symbolic link,
/// `EINVAL` for a malformed time, `EAGAIN` while an earlier cut of the file's chunks is still to be carried out.
pub fn setattr(
    txn: &mut Txn<'_>,
    context: &OpContext<'_>,
    id: InodeId,
    changes: &SetAttr,
) -> Result<SetattrReply, NsError> {
    let inode = txn.inode(id)?;
    inode.require_whole()?;
    check_size(context, inode, changes)?;
    check_times(context, inode, changes)?;
    let plan = plan(context, inode, changes)?;
    let before = inode.is_directory().then(|| inode.clone());
    // A record of fixed size changes in place: that works on any full file system.
    txn.mark_frees_space();
    let must_cut = apply(txn, context, id, changes, &plan)?;
    if let Some(before) = before {
        slice::mirror(txn, id, &before, changes.mtime.is_some())?;
    }
    txn.reveal(id);
    Ok(SetattrReply { attr: txn.inode(id)?.attr(id), must_cut })
}

fn check_size(context: &OpContext<'_>, inode: &Inode, changes: &SetAttr) -> Result<(), NsError> {
    if changes.size.is_none() {
        return Ok(());
    }
    inode.as_regular()?;
    if changes.has_handle { Ok(()) } else { permission::check(context, inode, permission::WRITE) }
}

pub(super) fn check_times(context: &OpContext<'_>, inode: &Inode, changes: &SetAttr) -> Result<(), NsError> {
    let times = [changes.atime, changes.mtime];
    for time in times.iter().flatten() {
        if let TimeSet::At(at) = time
            && at.nanos >= 1_000_000_000
        {
            return Err(Errno::EINVAL.into());
        }
    }
    if times == [None, None] || permission::is_owner(context, inode) {
        return Ok(());
    }
    let is_truncation = changes.size.is_some() && !times.iter().flatten().any(|time| *time != TimeSet::Now);
    if is_truncation {
        return Ok(());
    }
    // `utimensat(2)`: writers may set both times to now, and nothing else.
    if times == [Some(TimeSet::Now), Some(TimeSet::Now)] {
        permission::check(context, inode, permission::WRITE)
    } else {
        Err(Errno::EPERM.into())
    }
}

/// Decides mode and owner.
pub(super) fn plan(context: &OpContext<'_>, inode: &Inode, changes: &SetAttr) -> Result<Plan, NsError> {
    let (uid, gid) = plan_owner(context, inode, changes)?;
    let mut mode = inode.mode;
    let changes_owner = changes.uid.is_some() || changes.gid.is_some();
    let kills = changes_owner || (changes.kill_set_id && changes.size.is_none());
    if kills && !inode.is_directory() {
        mode = privilege::without_set_id(context, mode, inode.gid)?;
        if mode != inode.mode && !changes_owner && !changes.has_handle {
            // `chown(path, -1, -1)` is everybody's as long as it changes nothing; taking bits away is a change of mode.
            privilege::check_owner(context, inode)?;
        }
    }
    if let Some(wanted) = changes.mode {
        privilege::check_owner(context, inode)?;
        if inode.kind.is_symlink() {
            return Err(Errno::EOPNOTSUPP.into());
        }
        mode = inode.mode & !MODE_PERMISSION_MASK | wanted & MODE_PERMISSION_MASK;
        if changes_owner && !inode.is_directory() {
            mode &= !MODE_SETUID;
        }
    }
    let is_stated = changes.mode.is_some() || mode != inode.mode;
    if is_stated && mode & MODE_SETGID != 0 && !privilege::may_keep_setgid(context, gid)? {
        mode &= !MODE_SETGID;
    }
    Ok(Plan { mode, uid, gid })
}

/// Decides owner and group (`chown_ok` and `chgrp_ok` of Linux).
fn plan_owner(context: &OpContext<'_>, inode: &Inode, changes: &SetAttr) -> Result<(u32, u32), NsError> {
    let creds = context.creds;
    let (uid, gid) = (changes.uid.unwrap_or(inode.uid), changes.gid.unwrap_or(inode.gid));
    let is_user = creds.uid == inode.uid;
    let may_chown = creds.caps.has(Capabilities::CHOWN);
    let is_uid_allowed = changes.uid.is_none() || may_chown || (is_user && uid == inode.uid);
    let is_gid_allowed =
        changes.gid.is_none() || may_chown || (is_user && (gid == inode.gid || creds.in_group(gid)));
    if is_uid_allowed && is_gid_allowed { Ok((uid, gid)) } else { Err(Errno::EPERM.into()) }
}

fn apply(
    txn: &mut Txn<'_>,
    context: &OpContext<'_>,
    id: InodeId,
    changes: &SetAttr,
    plan: &Plan,
) -> Result<bool, NsError> {
    let mut must_cut = false;
    if let Some(size) = changes.size {
        let kill_set_id = changes.kill_set_id || !context.creds.caps.has(Capabilities::FSETID);
        must_cut = resize(txn, context, id, &Resize { size, kill_set_id })?;
    }
    if !changes_mode(changes) && changes.atime.is_none() && changes.mtime.is_none() {
        return Ok(must_cut);
    }
    let changes_owner = changes.uid.is_some() || changes.gid.is_some();
    let only_clears = changes.has_handle && changes.mode.is_none() && !changes_owner;
    if only_clears && (changes.atime, changes.mtime) == (None, None) && txn.inode(id)?.mode == plan.mode {
        // Comes with every write to chunks by the unprivileged; the write stamps ctime.
        return Ok(must_cut);
    }
    if changes_owner && !txn.inode(id)?.is_directory() {
        xattr::drop_capability(txn, id)?;
    }
    apply_to(txn.inode_mut(id)?, context, changes, plan)?;
    Ok(must_cut)
}

/// Whether mode and owner are to be written.
fn changes_mode(changes: &SetAttr) -> bool {
    let changes_owner = changes.uid.is_some() || changes.gid.is_some();
    changes.mode.is_some() || changes_owner || (changes.kill_set_id && changes.size.is_none())
}

/// Changes everything but the length.
pub(super) fn apply_to(
    inode: &mut Inode,
    context: &OpContext<'_>,
    changes: &SetAttr,
    plan: &Plan,
) -> Result<(), NsError> {
    if changes_mode(changes) {
        (inode.mode, inode.uid, inode.gid) = (plan.mode, plan.uid, plan.gid);
    }
    if changes.mode.is_some()
        && let Some(bytes) = &inode.acl_access
    {
        inode.acl_access = Some(acl::chmod(bytes, plan.mode)?);
    }
    let at = |time: TimeSet| -> Timespec {
        match time {
            TimeSet::Now => context.now,
            TimeSet::At(at) => at,
        }
    };
    if let Some(time) = changes.atime {
        inode.atime = at(time);
    }
    if let Some(time) = changes.mtime {
        inode.mtime = at(time);
    }
    inode.ctime = context.now;
    Ok(())
}
