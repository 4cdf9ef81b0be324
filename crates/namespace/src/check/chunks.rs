//! What the comparison with the chunks on targets needs to know of the namespace: files in chunks, and garbage.

use crate::error::NsError;
use crate::key;
use crate::record::{FileData, Garbage, Inode, Kind};
use ashlar_kv::Snapshot;
use ashlar_types::{FileLayout, InodeId, ShardId, codec};
use std::ops::ControlFlow;

/// A file whose content is in chunks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkedFile {
    /// The file.
    pub inode: InodeId,
    /// Where its content is, generation included.
    pub layout: FileLayout,
    /// Its length in the record; older than the truth while a session writes it.
    pub size: u64,
    /// Its allocated units of 512 bytes in the record.
    pub blocks: u64,
}

/// Visits the files of `shard` that are in chunks, by ascending id. Inodes that do not decode are left out ([`super::check`] tells them).
///
/// # Errors
/// [`NsError::Kv`] when the store cannot be read.
pub fn for_each_chunked_file(
    snapshot: &dyn Snapshot,
    shard: ShardId,
    visit: &mut dyn FnMut(ChunkedFile) -> ControlFlow<()>,
) -> Result<(), NsError> {
    let (from, to) = key::table_range(shard, b'I');
    snapshot.scan(&from, &to, &mut |record_key, value| {
        let Ok(inode) = codec::decode::<Inode>(value, "inode record") else {
            return ControlFlow::Continue(());
        };
        match (key::inode_of(record_key), inode.kind) {
            (Some(id), Kind::Regular(FileData::Chunks { layout, .. })) => {
                visit(ChunkedFile { inode: id, layout, size: inode.size, blocks: inode.blocks })
            }
            _ => ControlFlow::Continue(()),
        }
    })?;
    Ok(())
}

/// Visits the garbage records of `shard`, by ascending inode and generation. Those that do not decode are left out.
///
/// # Errors
/// [`NsError::Kv`] when the store cannot be read.
pub fn for_each_garbage(
    snapshot: &dyn Snapshot,
    shard: ShardId,
    visit: &mut dyn FnMut(InodeId, Garbage) -> ControlFlow<()>,
) -> Result<(), NsError> {
    let (from, to) = key::table_range(shard, b'G');
    snapshot.scan(&from, &to, &mut |record_key, value| match (
        key::inode_of(record_key),
        codec::decode::<Garbage>(value, "garbage record"),
    ) {
        (Some(id), Ok(garbage)) => visit(id, garbage),
        _ => ControlFlow::Continue(()),
    })?;
    Ok(())
}
