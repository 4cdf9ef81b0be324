//! `write_inline`: bytes into a file that lives with its inode.

use super::privilege;
use super::resize::{SIZE_MAX, withdraw_proposal};
use crate::body;
use crate::context::OpContext;
use crate::error::NsError;
use crate::record::FileData;
use crate::txn::Txn;
use ashlar_types::{Attr, Errno, FileLayout, InodeId};

/// How to write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriteArgs {
    /// At the end of the file, wherever that is (`O_APPEND`); the offset is ignored.
    pub append: bool,
    /// Whether set-id bits go.
    pub kill_set_id: bool,
    /// Pages of a mapping: file capabilities stay, as on other file systems (`page_mkwrite` of Linux removes no privileges).
    pub is_writeback: bool,
}

/// What `write_inline` tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WriteReply {
    /// All bytes are written.
    Written {
        /// The attributes afterwards.
        attr: Attr,
        /// Where the bytes went.
        offset: u64,
    },
    /// Nothing was written: the bytes would not fit the inode, the file must get chunks first.
    NeedsChunks,
    /// Nothing was written: the file has moved to chunks.
    InChunks {
        /// Where.
        layout: FileLayout,
    },
}

/// Writes `data` at `offset`. The right to write was established by `open`.
///
/// # Errors
/// `EFBIG` beyond 2^63-1, `EISDIR` or `EINVAL` for what is no regular file, `ESTALE` when it is gone.
pub fn write_inline(
    txn: &mut Txn<'_>,
    context: &OpContext<'_>,
    id: InodeId,
    offset: u64,
    data: &[u8],
    args: WriteArgs,
) -> Result<WriteReply, NsError> {
    let inode = txn.inode(id)?;
    let (size, is_empty) = (inode.size, inode.blocks == 0);
    let limit = match inode.as_regular()? {
        FileData::Inline { policy, .. } => body::limit(policy),
        FileData::Chunks { layout, .. } => return Ok(WriteReply::InChunks { layout: layout.clone() }),
    };
    let offset = if args.append { size } else { offset };
    let end = offset.checked_add(data.len() as u64).filter(|end| *end <= SIZE_MAX).ok_or(Errno::EFBIG)?;
    if !data.is_empty() {
        if end > limit {
            return Ok(WriteReply::NeedsChunks);
        }
        withdraw_proposal(txn, id)?;
        let delta = body::write(txn, id, offset, data, is_empty)?;
        if !args.is_writeback {
            privilege::drop_for_write(txn, context, id, args.kill_set_id)?;
        }
        let inode = txn.inode_mut(id)?;
        body::add_blocks(inode, delta);
        inode.size = size.max(end);
        (inode.mtime, inode.ctime) = (context.now, context.now);
        // Whatever the clock says: others may cache the content.
        txn.touch(id);
    }
    txn.reveal(id);
    Ok(WriteReply::Written { attr: txn.inode(id)?.attr(id), offset })
}
