//! `allocate_inline`: `fallocate(2)` on a file that lives with its inode.

use super::privilege;
use super::resize::{SIZE_MAX, withdraw_proposal};
use super::write_inline::WriteReply;
use crate::body;
use crate::context::OpContext;
use crate::error::NsError;
use crate::record::FileData;
use crate::txn::Txn;
use ashlar_types::{Errno, InodeId};

/// `FALLOC_FL_KEEP_SIZE`: the length stays.
pub const KEEP_SIZE: u32 = 0x01;
/// `FALLOC_FL_PUNCH_HOLE`: the range becomes a hole; only together with [`KEEP_SIZE`].
pub const PUNCH_HOLE: u32 = 0x02;
/// `FALLOC_FL_ZERO_RANGE`: the range becomes zeros.
pub const ZERO_RANGE: u32 = 0x10;

/// What to allocate, punch or zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllocateArgs {
    /// `mode` of `fallocate(2)`.
    pub mode: u32,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// Whether set-id bits go.
    pub kill_set_id: bool,
}

/// Allocates, punches or zeroes a range. Allocation stores zeros, up to the length of the file where that stays. Behind the inline limit
/// only chunks can keep space, also where the length stays; what is kept up to it is the reserve of the log.
///
/// # Errors
/// `EOPNOTSUPP` for other modes, `EINVAL` for an empty range, `EFBIG` beyond 2^63-1, `EISDIR` or `EINVAL` for what is no regular file.
pub fn allocate_inline(
    txn: &mut Txn<'_>,
    context: &OpContext<'_>,
    id: InodeId,
    args: &AllocateArgs,
) -> Result<WriteReply, NsError> {
    let (is_punch, is_zero, keeps_size) = match args.mode {
        0 => (false, false, false),
        KEEP_SIZE => (false, false, true),
        ZERO_RANGE => (false, true, false),
        mode if mode == ZERO_RANGE | KEEP_SIZE => (false, true, true),
        mode if mode == PUNCH_HOLE | KEEP_SIZE => (true, false, true),
        _ => return Err(Errno::EOPNOTSUPP.into()),
    };
    if args.len == 0 {
        return Err(Errno::EINVAL.into());
    }
    let end = args.offset.checked_add(args.len).filter(|end| *end <= SIZE_MAX).ok_or(Errno::EFBIG)?;
    let inode = txn.inode(id)?;
    let size = inode.size;
    let limit = match inode.as_regular()? {
        FileData::Inline { policy, .. } => body::limit(policy),
        FileData::Chunks { layout, .. } => return Ok(WriteReply::InChunks { layout: layout.clone() }),
    };
    let stored_end = if keeps_size { end.min(size) } else { end };
    if !is_punch && end > limit {
        return Ok(WriteReply::NeedsChunks);
    }
    withdraw_proposal(txn, id)?;
    let mut delta = 0;
    if is_punch || is_zero {
        delta += body::punch(txn, id, args.offset..end)?;
    }
    if !is_punch {
        delta += body::fill(txn, id, args.offset..stored_end)?;
    }
    privilege::drop_for_write(txn, context, id, args.kill_set_id)?;
    let inode = txn.inode_mut(id)?;
    body::add_blocks(inode, delta);
    if !keeps_size {
        inode.size = size.max(end);
    }
    (inode.mtime, inode.ctime) = (context.now, context.now);
    // Whatever the clock says: others may cache the content.
    txn.touch(id);
    txn.reveal(id);
    Ok(WriteReply::Written { attr: txn.inode(id)?.attr(id), offset: args.offset })
}
