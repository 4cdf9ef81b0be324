//! The end of an inode: what happens when its last name goes, and when nothing holds it open any more.

use crate::context::OpContext;
use crate::error::NsError;
use crate::key::{self, BODY_PIECE_BYTES};
use crate::record::{FileData, Garbage, Inode, Kind};
use crate::txn::Txn;
use ashlar_kv::Key;
use ashlar_types::InodeId;
use bytes::Bytes;
use std::ops::ControlFlow;

/// Value of the orphan record of an inode that `tmpfile` made and that may still get a first name. Others are empty.
pub(crate) const ORPHAN_LINKABLE: &[u8] = &[1];

/// Takes one name's link from `inode` (all of them from a directory), whose entry the caller removes. Without any link left, it lives on as an orphan of the
/// sessions that have it open, or is forgotten when there are none. Returns the links left.
///
/// # Errors
/// [`NsError::Kv`] when the store cannot answer; `ESTALE` when there is no such inode.
pub(crate) fn drop_link(txn: &mut Txn<'_>, context: &OpContext<'_>, inode: InodeId) -> Result<u32, NsError> {
    if let Some(left) = txn.drop_elsewhere(inode)? {
        return Ok(left);
    }
    let record = txn.inode_mut(inode)?;
    record.nlink = if record.is_directory() { 0 } else { record.nlink.saturating_sub(1) };
    record.ctime = context.now;
    let nlink = record.nlink;
    if nlink == 0 {
        let sessions = (context.open_in)(inode);
        if sessions.is_empty() {
            forget_inode(txn, inode)?;
        }
        // LIMIT: one record per session that has the file open; the service bounds its sessions.
        for session in sessions {
            txn.put(key::orphan(inode, session), Bytes::new());
        }
    }
    Ok(nlink)
}

/// Removes `inode`, which has no name and which nothing holds open, with all that belongs to it. Chunks become garbage: they are deleted on
/// the targets once this is durable.
///
/// # Errors
/// [`NsError::Kv`] when the store cannot answer; `ESTALE` when there is no such inode.
pub(crate) fn forget_inode(txn: &mut Txn<'_>, inode: InodeId) -> Result<(), NsError> {
    let record = txn.inode(inode)?.clone();
    txn.mark_frees_space();
    match &record.kind {
        Kind::Regular(data) => forget_data(txn, inode, &record, data)?,
        Kind::Symlink | Kind::SyncSymlink => txn.delete(key::link_target(inode)),
        Kind::Directory { .. }
        | Kind::WideDirectory { .. }
        | Kind::Slice { .. }
        | Kind::DirectoryInSplit { .. }
        | Kind::SliceInSplit { .. }
        | Kind::Special
        | Kind::SyncSpecial => {}
    }
    if record.has_xattrs {
        // LIMIT: the xattrs of one inode, which `setxattr` bounds.
        delete_prefix(txn, &key::xattr_prefix(inode))?;
    }
    txn.remove_inode(inode)
}

fn forget_data(txn: &mut Txn<'_>, id: InodeId, inode: &Inode, data: &FileData) -> Result<(), NsError> {
    match data {
        FileData::Inline { generation, .. } => {
            // A layout that was proposed and not bound: without the inode nobody can bind it any more.
            if *generation > 0 && txn.get(&key::garbage(id, *generation))?.is_some() {
                txn.mark_garbage();
            }
            forget_body(txn, id, inode)
        }
        FileData::Chunks { layout, .. } => {
            let garbage = Garbage { layout: layout.clone(), keep_bytes: 0 };
            txn.put_record(key::garbage(id, layout.generation), &garbage);
            txn.mark_garbage();
            // LIMIT: one record per session that writes the file.
            delete_prefix(txn, &key::writer(id))
        }
    }
}

/// Removes the pieces of an inline file. No piece begins behind the end of the file, and without blocks there is none, so that most
/// files need no scan.
fn forget_body(txn: &mut Txn<'_>, id: InodeId, inode: &Inode) -> Result<(), NsError> {
    if inode.blocks == 0 {
        return Ok(());
    }
    if (1..=u64::from(BODY_PIECE_BYTES)).contains(&inode.size) {
        txn.delete(key::body(id, 0));
        return Ok(());
    }
    // LIMIT: the pieces of one inline file, at most `LayoutPolicy::INLINE_BYTES_MAX` bytes.
    delete_prefix(txn, &key::body_prefix(id))
}

fn delete_prefix(txn: &mut Txn<'_>, prefix: &[u8]) -> Result<(), NsError> {
    let mut keys: Vec<Key> = Vec::new();
    txn.scan(prefix, &key::after_prefix(prefix), &mut |key, _| {
        keys.push(Key::from_slice(key));
        ControlFlow::Continue(())
    })?;
    for key in keys {
        txn.delete(key);
    }
    Ok(())
}
