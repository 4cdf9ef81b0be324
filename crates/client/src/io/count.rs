//! Counting the blocks of a file anew.
//!
//! What a write adds is told by its answer, and reported to metadata. If the answer was lost with a server that was killed, the write is made again where the chunk is then, finds the
//! blocks there already, and says that it has added none. Nobody knows what the first attempt had added, nor what one has that nobody answered before the caller's time was over; so what the chunks have is asked for, and metadata told the difference to
//! what it counts. That needs the file for itself. It is done when the file is synced, or
//! closed for the last time: not at every close, because a process that is just begun closes what it was left, and must not wait for a target then; if this client dies before, metadata counts by itself, because it finds the record of the writer. Nor is a target asked at the last close
//! that gave no answer before: the record of the writer stays then, and metadata counts when the session ends.
//!
//! Known weakness: a recall takes the record away, and does not wait for a count. If the client dies between that and the close, `ashlar fsck --repair` counts.

use crate::call::unexpected;
use crate::client::Client;
use crate::data::Need;
use crate::file::{Data, File};
use crate::io::BlockDoubt;
use crate::io::chunk::unexpected as unexpected_storage;
use ashlar_rpc::Payload;
use ashlar_rpc::placed::at_each_place;
use ashlar_types::message::{LeaseSet, MetaReply, MetaRequest, StorageReply, StorageRequest};
use ashlar_types::{Errno, FileLayout, InodeId, SessionId};

impl Client {
    /// Has metadata count the blocks of `file` that there are, if this client may not know of some. Nothing that a program relies on hangs on it: what does not go is logged, and
    /// tried again by the next call.
    pub(crate) fn count_if_unsure(&self, file: &File) {
        if file.state.lock().block_doubt == BlockDoubt::None {
            return;
        }
        if let Err(errno) = self.count_alone(file) {
            tracing::warn!(inode = %file.inode, %errno, "the blocks of a file could not be counted anew after the answer to a write was lost");
        }
    }

    fn count_alone(&self, file: &File) -> Result<(), Errno> {
        // ORDER: others have told what they have written before this client has the file for itself, and this one does below. So what metadata counts lacks only what nobody was told.
        // Nothing is written: file capabilities stay, as where pages of a mapping are written back.
        let _exclusive = self.exclusive_as(file, Need::of(LeaseSet::WRITE).for_writeback(true))?;
        let (session, layout) = {
            let state = file.state.lock();
            let layout = match &state.data {
                _ if state.block_doubt == BlockDoubt::None => return Ok(()),
                Data::Chunks(layout) => Some(layout.clone()),
                // It was emptied meanwhile.
                Data::Inline(_) => None,
            };
            (self.session(), layout)
        };
        if let Some(layout) = layout {
            self.report(file, false)?;
            let blocks = self.count(file.inode, &layout)?;
            let known = self.commit_blocks(session, (file.inode, &layout), 0)?;
            if blocks != known {
                tracing::info!(inode = %file.inode, known, blocks, "blocks of a write whose answer was lost were counted");
                self.commit_blocks(session, (file.inode, &layout), blocks as i64 - known as i64)?;
            }
        }
        let mut state = file.state.lock();
        // Others may have had the file while it was counted, which counts for nothing then.
        if self.is_of_ended(&state, session) {
            return Err(Errno::EAGAIN);
        }
        state.block_doubt = BlockDoubt::None;
        Ok(())
    }

    /// Units of 512 bytes that the chunks of a file have.
    fn count(&self, inode: InodeId, layout: &FileLayout) -> Result<u64, Errno> {
        let (mut blocks, generation) = (0, layout.generation);
        at_each_place(&self.map, &*self.env.tasks, layout, |target, chains| {
            let request = StorageRequest::Extent { target, inode, generation, chains };
            match self.storage.call(&request, Payload::None)? {
                StorageReply::Extent(extent) => blocks += extent.map_or(0, |(_, _, blocks)| blocks),
                other => return Err(unexpected_storage(&other)),
            }
            Ok(())
        })?;
        Ok(blocks)
    }

    /// Has metadata count `blocks_delta` more; tells what it counts then.
    fn commit_blocks(
        &self,
        session: SessionId,
        (inode, layout): (InodeId, &FileLayout),
        blocks_delta: i64,
    ) -> Result<u64, Errno> {
        let request = MetaRequest::CommitWrite {
            inode,
            generation: Some(layout.generation),
            size_at_least: 0,
            blocks_delta,
            mtime: None,
            atime: None,
            kill_set_id: false,
            keeps_capability: true,
            done: false,
        };
        let reply = self.call_of(session, request);
        self.reports.note(inode);
        match reply? {
            MetaReply::Attr { attr, .. } => Ok(attr.blocks),
            other => Err(unexpected(&other)),
        }
    }
}
