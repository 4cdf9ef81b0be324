//! `fallocate`.

use super::chunk::{BlockDoubt, Growth, unexpected as unexpected_storage};
use super::write::{FILE_BYTES_MAX, WriteFlags};
use crate::call::{Who, unexpected};
use crate::client::Client;
use crate::file::{Data, File, Handle};
use ashlar_rpc::Payload;
use ashlar_types::message::{ChunkWritten, LeaseSet, MetaReply, MetaRequest, StorageReply, StorageRequest};
use ashlar_types::{Errno, FileLayout, InodeId, SessionId};

/// What `fallocate(2)` is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllocateMode {
    /// Reserve space, extending the file.
    Allocate,
    /// Reserve space, keeping the size.
    KeepSize,
    /// Free the space of a range, keeping the size.
    PunchHole,
    /// Make a range read as zeros, extending the file.
    ZeroRange,
    /// Make a range read as zeros, keeping the size.
    ZeroRangeKeepSize,
}

impl AllocateMode {
    const KEEP_SIZE: u32 = 1;
    const PUNCH_HOLE: u32 = 2;
    const ZERO_RANGE: u32 = 16;

    /// The mode of `fallocate(2)`'s flags.
    ///
    /// # Errors
    /// `EOPNOTSUPP` for combinations that are not offered (collapse, insert, unshare).
    pub fn from_bits(bits: u32) -> Result<AllocateMode, Errno> {
        const PUNCH: u32 = AllocateMode::PUNCH_HOLE | AllocateMode::KEEP_SIZE;
        const ZERO_KEEP: u32 = AllocateMode::ZERO_RANGE | AllocateMode::KEEP_SIZE;
        match bits {
            0 => Ok(AllocateMode::Allocate),
            Self::KEEP_SIZE => Ok(AllocateMode::KeepSize),
            PUNCH => Ok(AllocateMode::PunchHole),
            Self::ZERO_RANGE => Ok(AllocateMode::ZeroRange),
            ZERO_KEEP => Ok(AllocateMode::ZeroRangeKeepSize),
            _ => Err(Errno::EOPNOTSUPP),
        }
    }

    fn bits(self) -> u32 {
        match self {
            AllocateMode::Allocate => 0,
            AllocateMode::KeepSize => Self::KEEP_SIZE,
            AllocateMode::PunchHole => Self::PUNCH_HOLE | Self::KEEP_SIZE,
            AllocateMode::ZeroRange => Self::ZERO_RANGE,
            AllocateMode::ZeroRangeKeepSize => Self::ZERO_RANGE | Self::KEEP_SIZE,
        }
    }

    fn extends(self) -> bool {
        matches!(self, AllocateMode::Allocate | AllocateMode::ZeroRange)
    }

    fn zeroes(self) -> bool {
        !matches!(self, AllocateMode::Allocate | AllocateMode::KeepSize)
    }

    fn reserves(self) -> bool {
        self != AllocateMode::PunchHole
    }
}

impl Client {
    /// `fallocate`, on behalf of `who`: set-id bits go unless the privileged change the content. The kernel clears those that it knows of; another mount may
    /// have set some.
    ///
    /// # Errors
    /// As `fallocate(2)`.
    pub fn fallocate(
        &self,
        who: &Who,
        handle: &Handle,
        mode: AllocateMode,
        (offset, len): (u64, u64),
    ) -> Result<(), Errno> {
        let flags = WriteFlags::on_behalf_of(who);
        self.clear_set_id(who, &handle.file, flags)?;
        self.allocate(handle, mode, offset, len)?;
        if self.must_sync(handle, flags) {
            self.fsync(handle)?;
        }
        Ok(())
    }

    fn allocate(&self, handle: &Handle, mode: AllocateMode, offset: u64, len: u64) -> Result<(), Errno> {
        let file = &handle.file;
        if len == 0 {
            return Err(Errno::EINVAL);
        }
        let end = offset.checked_add(len).filter(|&end| end <= FILE_BYTES_MAX).ok_or(Errno::EFBIG)?;
        for _ in 0..8 {
            let session = self.session();
            let is_inline = matches!(file.state.lock().data, Data::Inline(_));
            if !is_inline {
                if self.allocate_chunks(file, mode, offset, end)? {
                    // Reserved space has no length on its target: should this process die, nobody else could tell the new size.
                    if mode.extends() {
                        self.report(file, false)?;
                    }
                    if session == self.session() {
                        return Ok(());
                    }
                }
                // Of the new size nobody knows whose session ended before it was reported: once more.
                continue;
            }
            let exclusive = self.exclusive(file)?;
            let request = MetaRequest::AllocateInline { inode: file.inode, mode: mode.bits(), offset, len };
            let reply = self.call(&Who::system(), request)?;
            match reply {
                MetaReply::Attr { attr, .. } => {
                    let mut state = file.state.lock();
                    state.size = attr.size;
                    if let Data::Inline(body) = &mut state.data {
                        *body = None;
                    }
                    return Ok(());
                }
                MetaReply::NeedsChunks => {
                    drop(exclusive);
                    self.spill(file, WriteFlags::default())?;
                }
                other => return Err(unexpected(&other)),
            }
        }
        Err(Errno::EIO)
    }

    /// On chunks; false when the file turns out to be with its inode.
    fn allocate_chunks(&self, file: &File, mode: AllocateMode, offset: u64, end: u64) -> Result<bool, Errno> {
        let (in_flight, state) = self.begin(file, LeaseSet::WRITE)?;
        let Data::Chunks(layout) = &state.data else { return Ok(false) };
        let (layout, size) = (layout.clone(), state.size);
        // ORDER: as in `send_to_chunks`.
        let session = self.session();
        drop(state);
        let mut grown = Growth::default();
        let outcome = (|| {
            if mode.zeroes() {
                // Beyond the end nothing is stored that could be anything but zeros.
                let last = end.min(size);
                self.punch_range(session, (file, &layout), (offset, last), &mut grown)?;
            }
            if mode.reserves() {
                self.allocate_range(session, (file, &layout), (offset, end), &mut grown)?;
            }
            Ok(())
        })();
        let now = self.env.clock.now();
        let mut state = file.state.lock();
        if self.is_of_ended(&state, session) {
            state.doubt_blocks(BlockDoubt::MadeAgain);
        } else {
            state.is_dirty = true;
            state.note_grown(grown);
            if outcome.is_ok() && mode.extends() {
                state.size = state.size.max(end);
            }
        }
        if outcome.is_ok() {
            state.unreported.mtime = Some(now);
            state.unreported.is_of_a_call = true;
        }
        drop(state);
        drop(in_flight);
        outcome.map(|()| true)
    }

    /// Punches `[offset, end)`; adds to `grown` what was done, also when the rest fails.
    fn punch_range(
        &self,
        session: SessionId,
        (file, layout): (&File, &FileLayout),
        (offset, end): (u64, u64),
        grown: &mut Growth,
    ) -> Result<(), Errno> {
        let mut at = offset;
        // LIMIT: a turn per chunk that is there, not per chunk the range is long.
        while at < end
            && let Some(next) = self.next_chunk(file.inode, layout, layout.chunk_index(at))?
        {
            at = at.max(next.saturating_mul(u64::from(layout.chunk_bytes)));
            let Some(piece) = layout.pieces(at, end.saturating_sub(at)).next() else { break };
            self.punch_piece(session, (file.inode, layout), piece, grown)?;
            at += u64::from(piece.2);
        }
        Ok(())
    }

    /// Punches one piece, in the chunk `index` the `len` bytes from `within` on; adds to `grown` what was done.
    pub(super) fn punch_piece(
        &self,
        session: SessionId,
        (inode, layout): (InodeId, &FileLayout),
        (index, within, len): (u64, u32, u32),
        grown: &mut Growth,
    ) -> Result<(), Errno> {
        let (chunk, chain, target) = self.locate(inode, layout, index)?;
        let chunk_bytes = layout.chunk_bytes;
        let request = StorageRequest::Punch { target, chunk, chain, chunk_bytes, offset: within, len };
        let outcome = self.written(session, &request);
        self.note_change(inode, layout, index, outcome);
        grown.add(outcome)
    }

    /// Reserves `[offset, end)`; adds to `grown` what was done, also when the rest fails.
    fn allocate_range(
        &self,
        session: SessionId,
        (file, layout): (&File, &FileLayout),
        (offset, end): (u64, u64),
        grown: &mut Growth,
    ) -> Result<(), Errno> {
        for (index, within, len) in layout.pieces(offset, end.saturating_sub(offset)) {
            let (chunk, chain, target) = self.locate(file.inode, layout, index)?;
            let chunk_bytes = layout.chunk_bytes;
            let request = StorageRequest::Allocate { target, chunk, chain, chunk_bytes, offset: within, len };
            let outcome = self.written(session, &request);
            self.note_change(file.inode, layout, index, outcome);
            grown.add(outcome)?;
        }
        Ok(())
    }

    fn written(&self, session: SessionId, request: &StorageRequest) -> Result<ChunkWritten, Errno> {
        match self.with_room(|| self.storage.call_in(session, request, Payload::None))? {
            StorageReply::Written(written) => Ok(written),
            other => Err(unexpected_storage(&other)),
        }
    }
}
