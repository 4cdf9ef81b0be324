//! Carries out a storage request on its target.

use crate::StorageService;
use crate::answer::answer;
use ashlar_chunkstore::{ChunkError, ChunkStore};
use ashlar_rpc::{Payload, StorageCalls};
use ashlar_types::Errno;
use ashlar_types::block_sum::BLOCK_BYTES;
use ashlar_types::message::{ChunkWritten, StorageReply, StorageRequest};

impl StorageCalls for StorageService {
    fn call(&self, request: &StorageRequest, payload: Payload<'_>) -> Result<StorageReply, Errno> {
        let id = request.target();
        let store = self.target(id).ok_or(Errno::ENODEV)?;
        carry_out(self, &store, request, payload).map_err(|error| answer(id, &error))
    }
}

fn changed(blocks_delta: i64) -> StorageReply {
    StorageReply::Written(ChunkWritten { blocks_delta })
}

/// Leaves the checksums of the blocks that `[offset, offset + len)` covers whole, of those of all blocks it touches: the reader has
/// only a part of the others, and cannot check that.
fn keep_whole_blocks(sums: &mut Vec<u32>, offset: usize, len: usize) {
    let touched = offset / BLOCK_BYTES;
    let (first, end) = (offset.div_ceil(BLOCK_BYTES), (offset + len) / BLOCK_BYTES);
    sums.truncate(end.saturating_sub(touched));
    sums.drain(..(first - touched).min(sums.len()));
}

fn carry_out(
    service: &StorageService,
    store: &ChunkStore,
    request: &StorageRequest,
    payload: Payload<'_>,
) -> Result<StorageReply, ChunkError> {
    match (request, payload) {
        (StorageRequest::Write { chunk, chunk_bytes, offset, sums, .. }, Payload::Write(data)) => {
            let sums = (!sums.is_empty()).then_some(sums.as_slice());
            Ok(changed(store.write(*chunk, *chunk_bytes, *offset, data, sums)?.blocks_delta))
        }
        (StorageRequest::Read { chunk, chunk_bytes, offset, want_sums, .. }, Payload::Read(out)) => {
            let mut sums = Vec::new();
            if *want_sums {
                let len = out.len();
                store.read_with_sums(*chunk, *chunk_bytes, *offset, out, &mut sums)?;
                keep_whole_blocks(&mut sums, *offset as usize, len);
            } else {
                store.read(*chunk, *chunk_bytes, *offset, out)?;
            }
            Ok(StorageReply::Read { sums })
        }
        (StorageRequest::Write { .. } | StorageRequest::Read { .. }, _) => {
            Err(ChunkError::BadRequest("a read or write came without its payload"))
        }
        (StorageRequest::Truncate { chunk, chunk_bytes, len, .. }, _) => {
            Ok(changed(store.truncate(*chunk, *chunk_bytes, *len)?))
        }
        (StorageRequest::Punch { chunk, chunk_bytes, offset, len, .. }, _) => {
            Ok(changed(store.punch(*chunk, *chunk_bytes, *offset, *len)?))
        }
        (StorageRequest::Allocate { chunk, chunk_bytes, offset, len, .. }, _) => {
            Ok(changed(store.allocate(*chunk, *chunk_bytes, *offset, *len)?))
        }
        (StorageRequest::DeleteGeneration { inode, generation, from_index, .. }, _) => {
            let deleted = store.delete_generation(*inode, *generation, *from_index)?;
            Ok(StorageReply::Deleted { blocks: deleted.blocks, is_done: deleted.next.is_none() })
        }
        (StorageRequest::Seek { chunk, offset, data, .. }, _) => Ok(StorageReply::Found(if *data {
            store.seek_data(*chunk, *offset)?
        } else {
            Some(store.seek_hole(*chunk, *offset)?)
        })),
        (StorageRequest::Extent { inode, generation, .. }, _) => {
            let extent = store.extent(*inode, *generation)?;
            Ok(StorageReply::Extent(extent.map(|extent| (extent.last_index, extent.last_len, extent.blocks))))
        }
        (StorageRequest::NextChunk { inode, generation, from_index, .. }, _) => {
            Ok(StorageReply::NextChunk(store.next_chunk(*inode, *generation, *from_index)?))
        }
        (StorageRequest::Sync { .. }, _) => {
            store.sync()?;
            Ok(StorageReply::Done)
        }
        (StorageRequest::GiveBack { .. }, _) => {
            store.give_back()?;
            Ok(StorageReply::Done)
        }
        (StorageRequest::Suspects { after, limit, shards, .. }, _) => {
            let page = store.suspects(*after, *limit as usize, shards)?;
            Ok(StorageReply::Suspects { found: page.found, mark: page.mark })
        }
        (StorageRequest::Confirm { mark, shards, .. }, _) => {
            store.confirm(*mark, shards)?;
            Ok(StorageReply::Done)
        }
        (StorageRequest::Space { .. }, _) => {
            // Nobody can use what a target has that has stopped.
            if let Some(what) = store.stopped() {
                return Err(ChunkError::Stopped { what });
            }
            let space = service.share_of(store.space()?);
            Ok(StorageReply::Space { bytes_total: space.bytes_total, bytes_free: space.bytes_free })
        }
    }
}
