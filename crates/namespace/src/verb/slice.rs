//! What verbs share that meet a directory which is split: its slices have its entries, and what decides who may do what in it.

use crate::context::OpContext;
use crate::error::NsError;
use crate::key::{self, NameHash};
use crate::record::{Inode, Kind};
use crate::txn::Txn;
use ashlar_types::{Attr, Errno, InodeId, Name, Timespec};

/// Refuses a name that `directory` does not have itself: it is split, or a slice for other hashes.
///
/// # Errors
/// `EREMOTE`: the caller is to ask how the directory is split.
pub(crate) fn require_here(
    context: &OpContext<'_>,
    directory: &Inode,
    name: Name<'_>,
) -> Result<(), NsError> {
    let is_here = matches!(directory.kind, Kind::Directory { .. })
        || has(directory, NameHash::of(name, context.hash_key));
    if is_here { Ok(()) } else { Err(Errno::EREMOTE.into()) }
}

/// Whether `directory`, which may be a slice, has the names with this hash itself.
pub(crate) fn has(directory: &Inode, hash: NameHash) -> bool {
    match &directory.kind {
        Kind::WideDirectory { .. } | Kind::DirectoryInSplit { .. } => hash >= directory.border(),
        Kind::Slice { index, count, .. } => hash.slice(usize::from(*count)) == usize::from(*index),
        Kind::SliceInSplit { index, count, until, .. } => {
            hash.slice(usize::from(*count)) == usize::from(*index) && hash < *until
        }
        _ => true,
    }
}

/// The inode that has the entry of `name` of the directory `id`: itself, or a slice.
///
/// # Errors
/// `ESTALE` when there is no such directory.
pub(crate) fn holder(
    txn: &mut Txn<'_>,
    context: &OpContext<'_>,
    id: InodeId,
    name: Name<'_>,
) -> Result<InodeId, NsError> {
    let directory = txn.inode(id)?;
    let (slices, hash) = (directory.slices(), NameHash::of(name, context.hash_key));
    let slice = slices.get(hash.slice(slices.len())).filter(|_| hash < directory.border());
    Ok(slice.copied().unwrap_or(id))
}

/// The record of a new slice of the directory `of`, which is `directory`; its entries are yet to be counted.
pub(crate) fn new_slice(
    (of, directory): (InodeId, &Inode),
    (index, count): (u16, u16),
    now: Timespec,
) -> Inode {
    let policy = directory.as_directory().map(|(_, policy)| policy).unwrap_or_default();
    let kind = Kind::Slice { of, index, count, policy, slices_of_new: directory.slices_of_new() };
    let (mode, fileset) = (directory.mode, directory.fileset);
    let mut slice = Inode::new(mode, directory.uid, directory.gid, fileset, now, kind);
    slice.nlink = 2;
    copy_rules(directory, &mut slice);
    slice.mtime = directory.mtime;
    slice
}

/// Says of a slice up to where it has its names: none at all, all of them, or those below a hash.
pub(crate) fn set_filled_until(record: &mut Inode, border: NameHash) {
    let (Kind::Slice { of, index, count, policy, slices_of_new }
    | Kind::SliceInSplit { of, index, count, policy, slices_of_new, .. }) = record.kind
    else {
        return;
    };
    let range = |index: u16| NameHash::begin_of_slice(usize::from(index), usize::from(count));
    record.kind = if border >= range(index + 1) {
        Kind::Slice { of, index, count, policy, slices_of_new }
    } else {
        let until = border.max(range(index));
        Kind::SliceInSplit { of, index, count, policy, slices_of_new, until }
    };
}

/// Gives a slice what decides who may do what in its directory.
pub(crate) fn copy_rules(directory: &Inode, slice: &mut Inode) {
    (slice.mode, slice.uid, slice.gid) = (directory.mode, directory.uid, directory.gid);
    slice.acl_access.clone_from(&directory.acl_access);
    slice.acl_default.clone_from(&directory.acl_default);
    if let (
        Ok((_, of_directory)),
        Kind::Slice { policy, slices_of_new, .. } | Kind::SliceInSplit { policy, slices_of_new, .. },
    ) = (directory.as_directory(), &mut slice.kind)
    {
        (*policy, *slices_of_new) = (of_directory, directory.slices_of_new());
    }
}

/// Whether a slice has the rules of its directory, and those of its names that it is to have.
pub(crate) fn has_rules(directory: &Inode, slice: &Inode) -> bool {
    let mut right = slice.clone();
    copy_rules(directory, &mut right);
    set_filled_until(&mut right, directory.border());
    right == *slice
}

/// Brings a change of the directory `id` to its slices, if it is split: rules where they differ from `before`, and the time of the last change of names if that
/// was set.
///
/// # Errors
/// [`NsError::Kv`] when the store cannot answer; `ESTALE` for a slice that is not there; [`NsError::Elsewhere`].
pub(crate) fn mirror(
    txn: &mut Txn<'_>,
    id: InodeId,
    before: &Inode,
    sets_mtime: bool,
) -> Result<(), NsError> {
    if before.slices().is_empty() {
        return Ok(());
    }
    let directory = txn.inode(id)?.clone();
    let rules = |inode: &Inode| {
        let Inode { mode, uid, gid, acl_access, acl_default, .. } = inode.clone();
        (mode, uid, gid, acl_access, acl_default, inode.as_directory().ok(), inode.slices_of_new())
    };
    if sets_mtime && let Kind::DirectoryInSplit { mtime_of_slices, .. } = &mut txn.inode_mut(id)?.kind {
        *mtime_of_slices = None;
    }
    if rules(&directory) == rules(before) && !sets_mtime {
        return Ok(());
    }
    all(txn, directory.slices(), |txn, slice| {
        let slice = txn.inode_mut(slice)?;
        copy_rules(&directory, slice);
        if sets_mtime {
            slice.mtime = directory.mtime;
        }
        Ok(())
    })
}

/// Does something with each slice. Whatever has to be asked of other servers is asked for all of them at once.
fn all(
    txn: &mut Txn<'_>,
    slices: &[InodeId],
    mut each: impl FnMut(&mut Txn<'_>, InodeId) -> Result<(), NsError>,
) -> Result<(), NsError> {
    let mut outcome = Ok(());
    for &slice in slices {
        match each(txn, slice) {
            Err(NsError::Elsewhere) => outcome = Err(NsError::Elsewhere),
            other => other?,
        }
    }
    outcome
}

/// The attributes of the directory `id`, all slices included.
///
/// # Errors
/// As [`mirror`].
pub(crate) fn whole_attr(txn: &mut Txn<'_>, id: InodeId) -> Result<Attr, NsError> {
    let directory = txn.inode(id)?.clone();
    let mut attrs = Vec::with_capacity(directory.slices().len());
    all(txn, directory.slices(), |txn, slice| {
        attrs.push(txn.inode(slice)?.attr(slice));
        Ok(())
    })?;
    Ok(directory.attr(id).of_whole(&attrs))
}

/// Refuses a directory that has entries, or whose slices have any.
///
/// # Errors
/// `ENOTEMPTY`; as [`mirror`].
pub(crate) fn require_empty(txn: &mut Txn<'_>, id: InodeId) -> Result<(), NsError> {
    let directory = txn.inode(id)?;
    if directory.is_directory() && directory.size != 0 {
        return Err(Errno::ENOTEMPTY.into());
    }
    let slices = directory.slices().to_vec();
    let mut is_empty = true;
    all(txn, &slices, |txn, slice| {
        is_empty &= txn.inode(slice)?.size == 0;
        Ok(())
    })?;
    if is_empty { Ok(()) } else { Err(Errno::ENOTEMPTY.into()) }
}

/// Removes the slices of the directory `id`, which are empty; to be called before it loses its name.
///
/// # Errors
/// As [`mirror`].
pub(crate) fn forget_slices(txn: &mut Txn<'_>, id: InodeId) -> Result<(), NsError> {
    let directory = txn.inode(id)?;
    let (slices, is_in_split) =
        (directory.slices().to_vec(), matches!(directory.kind, Kind::DirectoryInSplit { .. }));
    if is_in_split {
        txn.delete(key::halfway(id));
    }
    if !slices.is_empty() && !txn.is_elsewhere(id) {
        // With the slices goes what they know of the last change of names, which whoever has the directory open may ask for.
        let mtime = whole_attr(txn, id)?.mtime;
        txn.inode_mut(id)?.mtime = mtime;
    }
    // Nobody has a slice open: who opens the directory opens the directory.
    all(txn, &slices, |txn, slice| txn.remove_inode(slice))
}
