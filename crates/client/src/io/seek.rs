//! `lseek` with `SEEK_DATA` and `SEEK_HOLE`.

use super::chunk::unexpected;
use crate::client::Client;
use crate::file::{Data, Handle};
use ashlar_rpc::Payload;
use ashlar_types::Errno;
use ashlar_types::message::{LeaseSet, StorageReply, StorageRequest};

/// What to look for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seek {
    /// The next byte that is stored.
    Data,
    /// The next byte that is not; the end of the file counts as a hole.
    Hole,
}

impl Client {
    /// The offset of the next data or hole at or after `offset` (`lseek(2)`). An inline file is all data.
    ///
    /// # Errors
    /// `ENXIO` beyond the end of the file, or when no data follows.
    pub fn seek(&self, handle: &Handle, offset: u64, what: Seek) -> Result<u64, Errno> {
        let file = &handle.file;
        let (_in_flight, state) = self.begin(file, LeaseSet::READ)?;
        let size = state.size;
        if offset >= size {
            return Err(Errno::ENXIO);
        }
        let Data::Chunks(layout) = &state.data else {
            return Ok(if what == Seek::Data { offset } else { size });
        };
        let layout = layout.clone();
        drop(state);
        let chunk_bytes = u64::from(layout.chunk_bytes);
        let mut at = offset;
        // LIMIT: a turn per chunk that is there, not per chunk the file is long.
        while at < size {
            let (index, within) = (layout.chunk_index(at), (at % chunk_bytes) as u32);
            let (chunk, chain, target) = self.locate(file.inode, &layout, index)?;
            let request = StorageRequest::Seek {
                target,
                chunk,
                chain,
                chunk_bytes: layout.chunk_bytes,
                offset: within,
                data: what == Seek::Data,
            };
            match self.storage.call(&request, Payload::None)? {
                StorageReply::Found(Some(found)) if found < layout.chunk_bytes => {
                    at = index * chunk_bytes + u64::from(found);
                    break;
                }
                StorageReply::Found(_) => {}
                other => return Err(unexpected(&other)),
            }
            let next = match what {
                Seek::Data => self.next_chunk(file.inode, &layout, index + 1)?,
                Seek::Hole => Some(index + 1),
            };
            at = next.map_or(size, |index| index.saturating_mul(chunk_bytes));
        }
        match what {
            Seek::Data if at >= size => Err(Errno::ENXIO),
            _ => Ok(at.min(size)),
        }
    }
}
