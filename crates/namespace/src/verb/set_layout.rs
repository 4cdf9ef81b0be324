//! `set_layout`: a file that has outgrown its inode moves to the chunks its bytes were copied to (`design.md` D4).

use crate::body;
use crate::context::OpContext;
use crate::error::NsError;
use crate::key;
use crate::record::{FileData, Garbage, Kind};
use crate::txn::Txn;
use ashlar_types::{Attr, Errno, FileLayout, InodeId, LayoutPolicy};
use bytes::Bytes;

/// Binds a proposed layout: the inline bytes go, the file has `blocks` units of 512 bytes in chunks, and the calling session
/// is noted as writing them. Length and times stay; the write that follows changes them.
///
/// # Errors
/// `EAGAIN` when `layout` is not the pending proposal of the file: it was withdrawn, or the content has changed since. The writer
/// begins anew.
pub fn set_layout(
    txn: &mut Txn<'_>,
    context: &OpContext<'_>,
    id: InodeId,
    layout: &FileLayout,
    blocks: u64,
) -> Result<Attr, NsError> {
    let FileData::Inline { policy, generation } = *txn.inode(id)?.as_regular()? else {
        return Err(Errno::EAGAIN.into());
    };
    let proposal_key = key::garbage(id, layout.generation);
    let proposal: Option<Garbage> = txn.get_record(&proposal_key, "garbage record")?;
    let is_pending =
        generation == layout.generation && proposal.is_some_and(|record| record.layout == *layout);
    if !is_pending {
        return Err(Errno::EAGAIN.into());
    }
    // ORDER: the bytes are on the targets before this call; here the inline bytes, the record that would collect the chunks
    // and the inode change in one transaction, so that at any crash exactly one of the two copies is the file's.
    body::cut(txn, id, 0)?;
    txn.delete(proposal_key);
    bind(txn, context, (id, policy), layout, blocks)?;
    Ok(txn.inode(id)?.attr(id))
}

/// The inline file `id` of a directory with `policy` has its bytes in chunks from now on.
pub(super) fn bind(
    txn: &mut Txn<'_>,
    context: &OpContext<'_>,
    (id, policy): (InodeId, LayoutPolicy),
    layout: &FileLayout,
    blocks: u64,
) -> Result<(), NsError> {
    txn.put(key::writer_of(id, context.session), Bytes::new());
    let inode = txn.inode_mut(id)?;
    inode.kind = Kind::Regular(FileData::Chunks { layout: layout.clone(), policy });
    inode.blocks = blocks;
    txn.touch(id);
    txn.reveal(id);
    Ok(())
}
