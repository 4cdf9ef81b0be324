//! A file outgrows its inode (`design.md` D4): its bytes go to chunks first, then one operation binds the layout.

use super::WriteFlags;
use crate::call::{Who, unexpected};
use crate::client::Client;
use crate::data::Need;
use crate::file::{Data, File};
use crate::io::{BlockDoubt, Growth};
use crate::unsynced::Synced;
use ashlar_types::message::{LeaseSet, MetaReply, MetaRequest};
use ashlar_types::{Errno, FileLayout, LayoutPolicy, SessionId};
use bytes::Bytes;
use std::sync::Arc;

/// Further attempts to have content durable in chunks.
const SPILLS_MAX: u32 = 3;

impl Client {
    /// Moves the content of an inline file to chunks, for a write with these `flags`. Does nothing when it has chunks already.
    ///
    /// # Errors
    /// `ENOSPC` when the pool has no usable target; what storage and metadata answer. The file is as before then.
    pub(super) fn spill(&self, file: &File, flags: WriteFlags) -> Result<(), Errno> {
        let need = Need::of(LeaseSet::WRITE).for_writeback(flags.is_writeback).yielding(flags.yields);
        let _exclusive = self.exclusive_as(file, need)?;
        let (body, session) = {
            let state = file.state.lock();
            match &state.data {
                // The session has ended since; whoever wants this begins anew.
                _ if !state.leases.has(LeaseSet::WRITE) => return Ok(()),
                Data::Chunks(_) => return Ok(()),
                // ORDER: as in `send_to_chunks`.
                Data::Inline(body) => (body.clone(), self.session()),
            }
        };
        let (layout, is_bound) =
            match self.call(&Who::system(), MetaRequest::ProposeLayout { inode: file.inode }) {
                Ok(MetaReply::Layout { layout, is_bound }) => (layout, is_bound),
                Ok(reply) => return Err(unexpected(&reply)),
                // It has chunks: an answer that said so was lost with the service, and the call was made again.
                Err(Errno::EAGAIN) => {
                    file.state.lock().forget_inline();
                    return Ok(());
                }
                Err(errno) => return Err(errno),
            };
        let bound = if is_bound { Ok(()) } else { self.fill_and_bind(session, file, &layout, body) };
        if bound.is_err() {
            // What was written there goes now; if this call does not come through, when the session ends.
            let withdraw = MetaRequest::WithdrawLayout { inode: file.inode, generation: layout.generation };
            if let Err(errno) = self.call_done(&Who::system(), withdraw) {
                tracing::debug!(inode = %file.inode, %errno, "a proposed layout was not withdrawn");
            }
        }
        let mut state = file.state.lock();
        match bound {
            Ok(()) => state.data = Data::Chunks(Arc::new(layout)),
            // An open with O_TRUNC came between, or somebody's sync: what is known here is void, and the write that brought us here begins
            // anew.
            Err(Errno::EAGAIN) => state.forget_inline(),
            Err(errno) => return Err(errno),
        }
        Ok(())
    }

    /// Writes `body`, or what metadata has if it is not known, to the chunks of a proposed layout and binds it.
    fn fill_and_bind(
        &self,
        session: SessionId,
        file: &File,
        layout: &FileLayout,
        body: Option<Bytes>,
    ) -> Result<(), Errno> {
        let body = match body {
            Some(body) => body,
            None => {
                let len = LayoutPolicy::INLINE_BYTES_MAX;
                let request = MetaRequest::ReadInline { inode: file.inode, offset: 0, len };
                self.call_bytes(&Who::system(), request)?
            }
        };
        // Zeros behind the last byte that is none, up to the whole limit in a file that was made longer, need no space.
        let used = body.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        // ORDER: the bytes are in the chunks before the layout that points to them is bound; durably so if somebody may have been
        // promised that they are, because the binding drops the inline copy and may become durable on its own.
        let is_synced = !file.state.lock().is_unpromised;
        // LIMIT: a turn more for each server that has just lost it: what is with the inode is still there.
        let mut turns = 0..SPILLS_MAX;
        let mut grown = Growth::default();
        loop {
            let written = self.write_chunks(session, (file.inode, layout), 0, &body[..used]);
            written.outcome?;
            grown.blocks_delta += written.grown.blocks_delta;
            grown.doubt = grown.doubt.max(written.grown.doubt);
            if !is_synced || self.sync_noted(file.inode, layout, || {})? == Synced::Whole {
                break;
            }
            turns.next().ok_or(Errno::EIO)?;
            // What the first one has added may be lost.
            grown.doubt = grown.doubt.max(BlockDoubt::MadeAgain);
        }
        // Before the layout is bound: from then on it is the file's.
        file.state.lock().doubt_blocks(grown.doubt);
        let blocks = u64::try_from(grown.blocks_delta).unwrap_or(0);
        let request = MetaRequest::SetLayout { inode: file.inode, layout: layout.clone(), blocks, is_synced };
        self.call_done(&Who::system(), request)
    }
}
