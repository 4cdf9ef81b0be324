//! `renameat2(2)`: moves or exchanges names, within a directory or between two.
//!
//! All decisions are made first, in [`plan`], in the order of Linux' `do_renameat2` and `vfs_rename`; then one of three changes is
//! applied. Whether a directory would become its own ancestor is decided by walking from the target up to the root. That
//! walk reads directories of other shards too, so the service holds the file system's rename lease around a call that moves a
//! directory to another parent.

use super::entry::{self, Place};
use super::forget_inode;
use super::mknod::WHITEOUT_RDEV;
use super::new_inode::{self, AskedMode};
use super::permission::{self, Victim};
use super::slice;
use crate::context::OpContext;
use crate::error::NsError;
use crate::key;
use crate::record::{Inode, Kind};
use crate::txn::Txn;
use ashlar_kv::KvError;
use ashlar_types::message::RenameFlags;
use ashlar_types::{Errno, FileType, InodeId, Name};

/// Most directories on the way from a directory to the root that a rename looks at.
// LIMIT: a path of PATH_MAX names 2048 levels; deeper trees can be made with relative paths, and moved as long as they are not deeper
// than this.
const DEPTH_MAX: usize = 1 << 14;

/// What [`rename`] tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RenameReply {
    /// What was moved.
    pub moved: InodeId,
    /// What had the target name before: it lost this name, or got the other one in an exchange.
    pub replaced: Option<InodeId>,
}

/// One end of the call: a directory, a name in it, and what it stands for.
struct End<'n> {
    parent: Inode,
    place: Place<'n>,
    target: Option<(InodeId, Inode)>,
}

impl End<'_> {
    fn parent_id(&self) -> InodeId {
        self.place.directory()
    }

    /// The directory that users see there.
    fn shown_parent(&self) -> InodeId {
        self.parent.shown_as(self.parent_id())
    }
}

/// Moves the entry `from_name` of `from_parent` to `to_name` of `to_parent`, replacing what is there as `flags` allow. Two names of the same
/// inode are left as they are.
///
/// # Errors
/// `EREMOTE` when a parent is split; `ENOENT`, `ENOTDIR`, `EACCES` (also without write permission on a directory that changes its parent), `EPERM` by a sticky bit,
/// `EEXIST` with flags that spare the target, `EINVAL` for a directory into itself or below, `ENOTEMPTY`, `EISDIR`, `ENOTDIR` for a
/// target that cannot be replaced, `EXDEV` across filesets, `ELOOP` below 16384 directories, `EMLINK`, `ENOSPC`.
pub fn rename(
    txn: &mut Txn<'_>,
    context: &OpContext<'_>,
    from_parent: InodeId,
    from_name: Name<'_>,
    to_parent: InodeId,
    to_name: Name<'_>,
    flags: RenameFlags,
) -> Result<RenameReply, NsError> {
    let from = look_up_end(txn, context, from_parent, from_name)?;
    let to = look_up_end(txn, context, to_parent, to_name)?;
    let Some((moved, _)) = from.target else { return Err(Errno::ENOENT.into()) };
    let replaced = to.target.as_ref().map(|(id, _)| *id);
    plan(txn, context, &from, &to, flags)?;
    if replaced == Some(moved) {
        return Ok(RenameReply { moved, replaced: None });
    }
    if flags == RenameFlags::Exchange {
        exchange(txn, context, from, to)?;
        return Ok(RenameReply { moved, replaced });
    }
    let left = (from.parent.clone(), from.place.name());
    replace(txn, context, from, to)?;
    if flags.leaves_whiteout() {
        make_whiteout(txn, context, from_parent, left)?;
    }
    Ok(RenameReply { moved, replaced })
}

fn look_up_end<'n>(
    txn: &mut Txn<'_>,
    context: &OpContext<'_>,
    parent_id: InodeId,
    name: Name<'n>,
) -> Result<End<'n>, NsError> {
    let parent = txn.inode(parent_id)?.clone();
    parent.as_directory()?;
    permission::check(context, &parent, permission::EXECUTE)?;
    slice::require_here(context, &parent, name)?;
    let place = entry::locate(txn, context, parent_id, name)?;
    let target = match place.entry().map(|entry| entry.inode) {
        Some(id) => Some((id, txn.inode(id)?.clone())),
        None => None,
    };
    Ok(End { parent, place, target })
}

/// Decides whether the rename may be done. `Ok` for two names of one inode, too.
fn plan(
    txn: &mut Txn<'_>,
    context: &OpContext<'_>,
    from: &End<'_>,
    to: &End<'_>,
    flags: RenameFlags,
) -> Result<(), NsError> {
    let (moved_id, moved) = from.target.as_ref().ok_or(Errno::ENOENT)?;
    match (flags, &to.target) {
        (flags, Some(_)) if flags.spares_target() => return Err(Errno::EEXIST.into()),
        (RenameFlags::Exchange, None) => return Err(Errno::ENOENT.into()),
        _ => {}
    }
    let changes_parent = from.shown_parent() != to.shown_parent();
    if changes_parent {
        check_ancestry(txn, from, to, flags)?;
    }
    if to.target.as_ref().is_some_and(|(id, _)| id == moved_id) {
        return Ok(());
    }
    permission::may_delete(context, &from.parent, moved, Victim::of(moved))?;
    match &to.target {
        None => permission::may_create(context, &to.parent)?,
        Some((_, replaced)) => {
            let taken_for = if flags == RenameFlags::Exchange { replaced } else { moved };
            permission::may_delete(context, &to.parent, replaced, Victim::of(taken_for))?;
        }
    }
    let exchanged = to.target.as_ref().filter(|_| flags == RenameFlags::Exchange);
    if changes_parent {
        // The entry `..` of a directory that gets another parent is written.
        if moved.is_directory() {
            permission::check(context, moved, permission::WRITE)?;
        }
        if let Some((_, exchanged)) = exchanged.filter(|(_, inode)| inode.is_directory()) {
            permission::check(context, exchanged, permission::WRITE)?;
        }
    }
    if from.parent.fileset != to.parent.fileset {
        return Err(Errno::EXDEV.into());
    }
    match &to.target {
        Some((id, inode)) if exchanged.is_none() && inode.is_directory() => slice::require_empty(txn, *id),
        _ => Ok(()),
    }
}

/// Refuses to put a directory below itself, and to replace an ancestor of what is moved.
///
/// Where there are several servers, whoever moves a directory to another parent reads the number of such moves first and counts it up: so the
/// ancestors that are looked at stay where they are, or the decision is made anew.
fn check_ancestry(
    txn: &mut Txn<'_>,
    from: &End<'_>,
    to: &End<'_>,
    flags: RenameFlags,
) -> Result<(), NsError> {
    let is_directory = |end: &End<'_>| end.target.as_ref().is_some_and(|(_, inode)| inode.is_directory());
    if txn.has_others() && (is_directory(from) || is_directory(to)) {
        let moves: u64 = txn.get_record(&key::moves(), "number of moves")?.unwrap_or(0);
        txn.put_record(key::moves(), &(moves + 1));
    }
    if let Some((moved, inode)) = &from.target
        && inode.is_directory()
        && is_same_or_below(txn, to.shown_parent(), *moved)?
    {
        return Err(Errno::EINVAL.into());
    }
    if let Some((replaced, inode)) = &to.target
        && inode.is_directory()
        && is_same_or_below(txn, from.shown_parent(), *replaced)?
    {
        let is_exchange = flags == RenameFlags::Exchange;
        return Err(if is_exchange { Errno::EINVAL } else { Errno::ENOTEMPTY }.into());
    }
    Ok(())
}

/// Whether `directory` is `ancestor` or somewhere below it.
fn is_same_or_below(txn: &Txn<'_>, directory: InodeId, ancestor: InodeId) -> Result<bool, NsError> {
    let mut at = directory;
    for _ in 0..DEPTH_MAX {
        if at == ancestor {
            return Ok(true);
        }
        if at == InodeId::ROOT {
            return Ok(false);
        }
        match txn.peek_inode(at)?.map(|inode| inode.kind) {
            Some(
                Kind::Directory { parent, .. }
                | Kind::WideDirectory { parent, .. }
                | Kind::DirectoryInSplit { parent, .. },
            ) => at = parent,
            // A removed directory that is still open keeps its last parent, which may be gone: nothing is above it.
            None if at != directory => return Ok(false),
            _ => return Err(KvError::Corrupt { what: format!("{at} should be a directory") }.into()),
        }
    }
    Err(Errno::ELOOP.into())
}

/// Gives the name `to` to what `from` stands for, and takes it from what had it.
fn replace(txn: &mut Txn<'_>, context: &OpContext<'_>, from: End<'_>, to: End<'_>) -> Result<(), NsError> {
    let (from_parent, to_parent) = (from.parent_id(), to.parent_id());
    let shown_parent = to.shown_parent();
    let (moved_id, moved) = from.target.ok_or(Errno::ENOENT)?;
    let came = i32::from(moved.is_directory());
    let lost = to.target.as_ref().map_or(0, |(_, inode)| i32::from(inode.is_directory()));
    let is_new_name = i64::from(to.target.is_none());

    from.place.remove(txn);
    // Looked up again: both names may be in one bucket.
    let place = entry::locate(txn, context, to_parent, to.place.name())?;
    place.set(txn, (moved_id, moved.file_type()))?;
    entry::count(txn.inode_mut(from_parent)?, context.now, -1, -came)?;
    entry::count(txn.inode_mut(to_parent)?, context.now, is_new_name, came - lost)?;
    settle(txn, context, moved_id, shown_parent)?;
    if let Some((replaced, _)) = to.target {
        slice::forget_slices(txn, replaced)?;
        forget_inode::drop_link(txn, context, replaced)?;
        txn.mark_frees_space();
    }
    Ok(())
}

/// Gives the `name` that something has just left in the directory `id`, which is `parent`, to a whiteout: the character device 0:0, which nobody
/// may use, and which says to overlayfs that the name is not there. Whoever may take the name away may do that.
fn make_whiteout(
    txn: &mut Txn<'_>,
    context: &OpContext<'_>,
    id: InodeId,
    (parent, name): (Inode, Name<'_>),
) -> Result<(), NsError> {
    let (_, policy) = parent.as_directory()?;
    let asked = AskedMode { file_type: FileType::CharDevice, mode: 0, umask: 0 };
    let mut inode = new_inode::plan(context, &parent, asked, Kind::new_special(&policy))?;
    inode.rdev = WHITEOUT_RDEV;
    let place = entry::locate(txn, context, id, name)?;
    let whiteout = txn.allocate_inode_id(id.home())?;
    new_inode::apply(txn, context, place, whiteout, inode)?;
    Ok(())
}

/// Exchanges what the two names stand for.
fn exchange(txn: &mut Txn<'_>, context: &OpContext<'_>, from: End<'_>, to: End<'_>) -> Result<(), NsError> {
    let (from_parent, to_parent) = (from.parent_id(), to.parent_id());
    let (shown_from, shown_to) = (from.shown_parent(), to.shown_parent());
    let (moved_id, moved) = from.target.ok_or(Errno::ENOENT)?;
    let (replaced_id, replaced) = to.target.ok_or(Errno::ENOENT)?;
    let came = i32::from(moved.is_directory()) - i32::from(replaced.is_directory());

    let from_name = from.place.name();
    to.place.set(txn, (moved_id, moved.file_type()))?;
    // Looked up again: both names may be in one bucket.
    let place = entry::locate(txn, context, from_parent, from_name)?;
    place.set(txn, (replaced_id, replaced.file_type()))?;
    entry::count(txn.inode_mut(from_parent)?, context.now, 0, -came)?;
    entry::count(txn.inode_mut(to_parent)?, context.now, 0, came)?;
    settle(txn, context, moved_id, shown_to)?;
    settle(txn, context, replaced_id, shown_from)
}

/// Stamps an inode that has got a name in `parent`; a directory notes its new parent.
fn settle(
    txn: &mut Txn<'_>,
    context: &OpContext<'_>,
    inode: InodeId,
    new_parent: InodeId,
) -> Result<(), NsError> {
    let record = txn.inode_mut(inode)?;
    record.ctime = context.now;
    record.set_parent(new_parent);
    Ok(())
}
