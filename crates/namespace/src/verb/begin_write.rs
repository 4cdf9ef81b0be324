//! `begin_write`: a session is about to write a file's chunks; from now on the length in the record may be old.

use super::privilege;
use crate::context::OpContext;
use crate::error::NsError;
use crate::key;
use crate::record::FileData;
use crate::txn::Txn;
use ashlar_types::{Attr, Errno, FileLayout, InodeId};
use bytes::Bytes;

/// What `begin_write` tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BeginWriteReply {
    /// The attributes.
    pub attr: Attr,
    /// Where to write; `None` for a file that lives with its inode, about which nothing is noted.
    pub layout: Option<FileLayout>,
}

/// Notes that the calling session writes the chunks of `id`; calling it again changes nothing. File capabilities go, and with
/// `kill_set_id` set-id bits too: the first write of an open is what clears them. Not for pages of a mapping that are written back
/// (`is_writeback`).
///
/// # Errors
/// `EAGAIN` while a cut of the file's chunks is still to be carried out: what was written now would be cut with the rest. The service carries
/// it out and asks again. `EISDIR` or `EINVAL` for what is no regular file.
pub fn begin_write(
    txn: &mut Txn<'_>,
    context: &OpContext<'_>,
    id: InodeId,
    kill_set_id: bool,
    is_writeback: bool,
) -> Result<BeginWriteReply, NsError> {
    txn.reveal(id);
    let layout = match txn.inode(id)?.as_regular()? {
        FileData::Chunks { layout, .. } => layout.clone(),
        FileData::Inline { .. } => {
            return Ok(BeginWriteReply { attr: txn.inode(id)?.attr(id), layout: None });
        }
    };
    if txn.get(&key::garbage(id, layout.generation))?.is_some() {
        return Err(Errno::EAGAIN.into());
    }
    // An overwrite of what is there must be possible on a full file system. One record per open file; whether the bytes that
    // follow find space is the targets' to say.
    txn.mark_frees_space();
    let writer_key = key::writer_of(id, context.session);
    if txn.get(&writer_key)?.is_none() {
        txn.put(writer_key, Bytes::new());
    }
    if !is_writeback {
        privilege::drop_for_write(txn, context, id, kill_set_id)?;
    }
    Ok(BeginWriteReply { attr: txn.inode(id)?.attr(id), layout: Some(layout) })
}
