//! `collected`: chunks that no file refers to have been cut on the targets.

use crate::context::OpContext;
use crate::error::NsError;
use crate::key;
use crate::record::{FileData, Garbage, Kind};
use crate::txn::Txn;
use ashlar_types::{Errno, InodeId};

/// What was cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Collected {
    /// Generation of the chunks.
    pub generation: u32,
    /// Leading bytes that were kept, as the garbage record said.
    pub keep_bytes: u64,
    /// Units of 512 bytes that were freed.
    pub blocks_freed: u64,
}

/// Whether the chunks of a garbage record may be cut now; asked before anything is cut. They may not while the record stands for a
/// proposed layout that may yet be bound ([`super::propose_layout`]): the content of the file is being copied there. Once the answer is
/// yes it stays so, because generations only grow.
///
/// # Errors
/// [`NsError::Kv`] when the store cannot answer.
pub fn may_collect(txn: &mut Txn<'_>, id: InodeId, generation: u32) -> Result<bool, NsError> {
    Ok(match txn.find_inode(id)?.map(|inode| &inode.kind) {
        Some(Kind::Regular(FileData::Inline { generation: current, .. })) => *current != generation,
        _ => true,
    })
}

/// Removes the garbage record, if it still says what was carried out, and takes the freed units off the file if it still has these
/// chunks. Calling it again changes nothing.
///
/// # Errors
/// `EAGAIN` when the chunks were not to be cut ([`may_collect`]).
pub fn collected(
    txn: &mut Txn<'_>,
    _context: &OpContext<'_>,
    id: InodeId,
    cut: &Collected,
) -> Result<(), NsError> {
    let garbage_key = key::garbage(id, cut.generation);
    let record: Option<Garbage> = txn.get_record(&garbage_key, "garbage record")?;
    if record.is_none_or(|record| record.keep_bytes != cut.keep_bytes) {
        return Ok(());
    }
    if !may_collect(txn, id, cut.generation)? {
        return Err(Errno::EAGAIN.into());
    }
    let has_chunks = match txn.find_inode(id)?.map(|inode| &inode.kind) {
        Some(Kind::Regular(FileData::Chunks { layout, .. })) => layout.generation == cut.generation,
        _ => false,
    };
    txn.delete(garbage_key);
    txn.mark_frees_space();
    if has_chunks && cut.blocks_freed > 0 {
        // Not the content: it ended before the cut already. Whoever has it leased may be a call that waits for this cut, and gives nothing
        // back before it has ended.
        txn.recount(id);
        let inode = txn.inode_mut(id)?;
        inode.blocks = inode.blocks.saturating_sub(cut.blocks_freed);
    }
    Ok(())
}
