//! `propose_layout`: where the bytes of a file that outgrows its inode are to go (`design.md` D4).

use super::resize::next_generation;
use super::set_layout::bind;
use crate::context::OpContext;
use crate::error::NsError;
use crate::key;
use crate::record::{FileData, Garbage, Kind};
use crate::txn::Txn;
use ashlar_types::{Errno, FileLayout, InodeId, LayoutPolicy};

/// Where the bytes of a file are to go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proposal {
    /// The chains, under a fresh generation.
    pub layout: FileLayout,
    /// Whether it is the file's already, because there was nothing to copy.
    pub is_bound: bool,
}

/// Chooses chains for the inline file `id` under a fresh generation. The writer copies the old bytes there and then binds the
/// layout with [`super::set_layout`]; until then the file stays as it is. Where there is nothing to copy, it is bound at once.
///
/// The garbage record written here makes a crash in between leak nothing. While the inode carries the same generation it
/// stands for a pending proposal: its chunks are not garbage yet, and [`super::may_collect`] says so until [`super::withdraw_layout`] (or
/// any change of the content, or a newer proposal) has made the proposal void.
///
/// # Errors
/// `ENOSPC` when the pool has no usable target, `EAGAIN` when the file is in chunks already, `EISDIR` or `EINVAL` for what is no
/// regular file.
pub fn propose_layout(txn: &mut Txn<'_>, context: &OpContext<'_>, id: InodeId) -> Result<Proposal, NsError> {
    let inode = txn.inode(id)?;
    // A hole is one there, too.
    let is_bound = inode.blocks == 0;
    let FileData::Inline { policy, generation } = *inode.as_regular()? else {
        return Err(Errno::EAGAIN.into());
    };
    let settings = policy.or(LayoutPolicy::root_default());
    let chains = context.placement.chains_for_file(&settings);
    if chains.is_empty() {
        return Err(Errno::ENOSPC.into());
    }
    let generation = next_generation(generation)?.max(context.placement.first_generation());
    let chunk_bytes = settings.chunk_bytes.unwrap_or(LayoutPolicy::CHUNK_BYTES_MIN);
    let layout = FileLayout { generation, chunk_bytes, chains };
    layout.check()?;
    if is_bound {
        bind(txn, context, (id, policy), &layout, 0)?;
    } else {
        txn.put_record(key::garbage(id, generation), &Garbage { layout: layout.clone(), keep_bytes: 0 });
        txn.inode_mut(id)?.kind = Kind::Regular(FileData::Inline { policy, generation });
    }
    Ok(Proposal { layout, is_bound })
}
