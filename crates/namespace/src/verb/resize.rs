//! Changing the length of a regular file: what `setattr` and `open` with truncation share.

use super::privilege;
use crate::body;
use crate::context::OpContext;
use crate::error::NsError;
use crate::key;
use crate::record::{FileData, Garbage, Kind};
use crate::txn::Txn;
use ashlar_types::{Errno, FileLayout, InodeId, LayoutPolicy};
use std::ops::ControlFlow;

/// Largest length of a file, bytes (`off_t`).
pub(super) const SIZE_MAX: u64 = i64::MAX as u64;

/// How to change a length.
pub(super) struct Resize {
    /// The new length, bytes.
    pub size: u64,
    /// Whether set-id bits go.
    pub kill_set_id: bool,
}

/// Gives the regular file `id` another length. Times change even if the length does not, as on ext4. Returns whether chunks must be
/// cut before the call is answered.
pub(super) fn resize(
    txn: &mut Txn<'_>,
    context: &OpContext<'_>,
    id: InodeId,
    wanted: &Resize,
) -> Result<bool, NsError> {
    if wanted.size > SIZE_MAX {
        return Err(Errno::EFBIG.into());
    }
    let inode = txn.inode(id)?;
    let old_size = inode.size;
    let must_cut = match inode.as_regular()?.clone() {
        FileData::Inline { .. } => {
            if wanted.size != old_size {
                withdraw_proposal(txn, id)?;
            }
            resize_inline(txn, id, wanted.size)?;
            false
        }
        FileData::Chunks { layout, policy } => resize_chunks(txn, id, wanted.size, (layout, policy))?,
    };
    privilege::drop_for_write(txn, context, id, wanted.kill_set_id)?;
    txn.mark_frees_space();
    let inode = txn.inode_mut(id)?;
    inode.size = wanted.size;
    (inode.mtime, inode.ctime) = (context.now, context.now);
    Ok(must_cut)
}

fn resize_inline(txn: &mut Txn<'_>, id: InodeId, size: u64) -> Result<(), NsError> {
    let inode = txn.inode(id)?;
    if size < inode.size && inode.blocks > 0 {
        let delta = body::cut(txn, id, size)?;
        body::add_blocks(txn.inode_mut(id)?, delta);
    }
    Ok(())
}

fn resize_chunks(
    txn: &mut Txn<'_>,
    id: InodeId,
    size: u64,
    (layout, policy): (FileLayout, LayoutPolicy),
) -> Result<bool, NsError> {
    let garbage_key = key::garbage(id, layout.generation);
    if size == 0 {
        // One generation is left out, so that the garbage record cannot be taken for a pending proposal.
        let generation = next_generation(layout.generation)?;
        txn.put_record(garbage_key, &Garbage { layout, keep_bytes: 0 });
        txn.mark_garbage();
        drop_writers(txn, id)?;
        let inode = txn.inode_mut(id)?;
        inode.kind = Kind::Regular(FileData::Inline { policy, generation });
        inode.blocks = 0;
        return Ok(false);
    }
    let old_size = txn.inode(id)?.size;
    if let Some(pending) = txn.get_record::<Garbage>(&garbage_key, "garbage record")? {
        // Old bytes behind an earlier cut may still be there: it must be carried out before the length changes again.
        return if pending.keep_bytes == size { Ok(true) } else { Err(Errno::EAGAIN.into()) };
    }
    if size >= old_size && !has_writer(txn, id)? {
        return Ok(false);
    }
    // A writer may have written behind the length in the record; nothing of that may show through either.
    txn.put_record(garbage_key, &Garbage { layout, keep_bytes: size });
    txn.mark_garbage();
    Ok(true)
}

/// The generation after `generation`.
pub(super) fn next_generation(generation: u32) -> Result<u32, NsError> {
    // LIMIT: a file can be spilled and emptied 2^31 times; then it must be copied.
    generation.checked_add(1).ok_or(NsError::Errno(Errno::ENOSPC))
}

/// Makes a layout that was proposed and not yet bound unusable: content it was proposed for is about to change.
pub(super) fn withdraw_proposal(txn: &mut Txn<'_>, id: InodeId) -> Result<bool, NsError> {
    let FileData::Inline { policy, generation } = *txn.inode(id)?.as_regular()? else { return Ok(false) };
    if generation == 0 || txn.get(&key::garbage(id, generation))?.is_none() {
        return Ok(false);
    }
    let generation = next_generation(generation)?;
    txn.inode_mut(id)?.kind = Kind::Regular(FileData::Inline { policy, generation });
    txn.mark_garbage();
    Ok(true)
}

/// Whether a session writes the file's chunks.
fn has_writer(txn: &Txn<'_>, id: InodeId) -> Result<bool, NsError> {
    let prefix = key::writer(id);
    let mut is_found = false;
    txn.scan(&prefix, &key::after_prefix(&prefix), &mut |_, _| {
        is_found = true;
        ControlFlow::Break(())
    })?;
    Ok(is_found)
}

/// Removes all writer records of the file: what they were about is gone.
fn drop_writers(txn: &mut Txn<'_>, id: InodeId) -> Result<(), NsError> {
    let prefix = key::writer(id);
    // LIMIT: one record per session of the file system that writes this file.
    let mut found = Vec::new();
    txn.scan(&prefix, &key::after_prefix(&prefix), &mut |writer_key, _| {
        found.push(ashlar_kv::Key::from_slice(writer_key));
        ControlFlow::Continue(())
    })?;
    for writer_key in found {
        txn.delete(writer_key);
    }
    Ok(())
}
