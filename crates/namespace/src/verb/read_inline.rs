//! `read_inline`: bytes of a file that lives with its inode.

use crate::body;
use crate::context::OpContext;
use crate::error::NsError;
use crate::record::FileData;
use crate::txn::Txn;
use ashlar_types::{FileLayout, InodeId};
use bytes::Bytes;

/// Most bytes of one answer.
// LIMIT: a hole can be as long as a file; its zeros are made in memory.
pub const READ_INLINE_BYTES_MAX: u32 = 1 << 20;

/// What `read_inline` tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadInlineReply {
    /// The bytes that are there; fewer than asked for at the end of the file, or when more than [`READ_INLINE_BYTES_MAX`] was
    /// asked for.
    Bytes {
        /// The bytes.
        data: Bytes,
        /// Length of the file.
        size: u64,
    },
    /// The file has moved to chunks; the reader asks there.
    InChunks {
        /// Where.
        layout: FileLayout,
        /// Length of the file.
        size: u64,
    },
}

/// Reads `len` bytes at `offset`. The right to read was established by `open`.
///
/// # Errors
/// `EISDIR` or `EINVAL` for what is no regular file, `ESTALE` when it is gone.
pub fn read_inline(
    txn: &mut Txn<'_>,
    _context: &OpContext<'_>,
    id: InodeId,
    offset: u64,
    len: u32,
) -> Result<ReadInlineReply, NsError> {
    txn.reveal(id);
    let inode = txn.inode(id)?;
    let (size, has_body) = (inode.size, inode.blocks > 0);
    if let FileData::Chunks { layout, .. } = inode.as_regular()? {
        return Ok(ReadInlineReply::InChunks { layout: layout.clone(), size });
    }
    let len = u64::from(len.min(READ_INLINE_BYTES_MAX)).min(size.saturating_sub(offset)) as usize;
    let data =
        if has_body || len == 0 { body::read(txn, id, offset, len)? } else { Bytes::from(vec![0; len]) };
    Ok(ReadInlineReply::Bytes { data, size })
}
