//! `read`.

use crate::call::{Who, unexpected};
use crate::client::Client;
use crate::data::Need;
use crate::file::{Data, File, Handle};
use ashlar_types::Errno;
use ashlar_types::message::{LeaseSet, MetaRequest};

/// `relatime`: an access time at least this old is renewed even if the content has not changed since, seconds.
const RELATIME_SECONDS: i64 = 24 * 60 * 60;

impl Client {
    /// Reads at `offset` into `out`; tells how many bytes there were, fewer than asked for only at the end of the file.
    ///
    /// # Errors
    /// `EBADF` when not open for reading; `EIO` for damage.
    pub fn read(&self, handle: &Handle, offset: u64, out: &mut [u8]) -> Result<usize, Errno> {
        self.read_as(handle, offset, out, false)
    }

    /// As [`Client::read`], of what goes past the kernel's page cache: of a file that several clients write it goes on beside them.
    ///
    /// # Errors
    /// As [`Client::read`].
    pub fn read_past_cache(&self, handle: &Handle, offset: u64, out: &mut [u8]) -> Result<usize, Errno> {
        self.read_as(handle, offset, out, true)
    }

    fn read_as(
        &self,
        handle: &Handle,
        offset: u64,
        out: &mut [u8],
        is_past_cache: bool,
    ) -> Result<usize, Errno> {
        self.check_locks(handle)?;
        // LIMIT: as in `write`: a file leaves its inode once, and comes back only by a truncation that races with this very read.
        for _ in 0..8 {
            match self.read_once(handle, offset, out, is_past_cache) {
                // It is not what it was when this began.
                Ok(None) => {}
                Ok(Some(len)) => return Ok(len),
                // It is not where it was: an open with O_TRUNC or a write of this client came between.
                Err(Errno::EAGAIN) => handle.file.state.lock().leases = LeaseSet::NONE,
                Err(errno) => {
                    // The kernel makes EIO of whatever a program's read meets that fills pages.
                    tracing::debug!(inode = %handle.file.inode, offset, len = out.len(), %errno, "a read fails");
                    return Err(errno);
                }
            }
        }
        tracing::error!(inode = %handle.file.inode, offset, "a read did not come to an end: the file was another one each time");
        Err(Errno::EIO)
    }

    /// Nothing when it has to be done again.
    fn read_once(
        &self,
        handle: &Handle,
        offset: u64,
        out: &mut [u8],
        is_past_cache: bool,
    ) -> Result<Option<usize>, Errno> {
        let file = &handle.file;
        let need = Need::of(LeaseSet::READ).past_cache(is_past_cache);
        let (mut in_flight, mut state) = self.begin_as(file, need)?;
        let end = offset.saturating_add(out.len() as u64);
        if !state.leases.meets(LeaseSet::PAGES) && end > state.size {
            // Others make the file longer, and have told nobody.
            drop(state);
            drop(in_flight);
            self.learn_length(file)?;
            (in_flight, state) = self.begin_as(file, need)?;
        }
        let available = usize::try_from(state.size.saturating_sub(offset)).unwrap_or(usize::MAX);
        let len = out.len().min(available);
        if len == 0 {
            return Ok(Some(0));
        }
        let out = &mut out[..len];
        let mut doubtful = None;
        match &state.data {
            Data::Inline(Some(body)) => {
                // The body may be shorter than the file: a file extended by truncate ends in a hole.
                let start = usize::try_from(offset).unwrap_or(usize::MAX).min(body.len());
                let end = start.saturating_add(len).min(body.len());
                let (stored, hole) = out.split_at_mut(end - start);
                stored.copy_from_slice(&body[start..end]);
                hole.fill(0);
                drop(state);
            }
            Data::Inline(None) => {
                drop(state);
                self.read_inline(handle, offset, out)?;
            }
            Data::Chunks(layout) => {
                let layout = layout.clone();
                doubtful = self.knowledge(&state);
                drop(state);
                self.read_chunks(file.inode, &layout, offset, out)?;
            }
        }
        drop(in_flight);
        if let Some(known) = doubtful
            && !self.is_still_so(file, &known, out)?
        {
            return Ok(None);
        }
        self.note_read(handle);
        Ok(Some(len))
    }

    /// Has whoever writes the file beside this client say how long it is.
    fn learn_length(&self, file: &File) -> Result<(), Errno> {
        let epoch = file.state.lock().lease_epoch;
        let request = MetaRequest::Getattr { inode: file.inode };
        let found = self.ask_for_attr(&Who::system(), &request)?.map_err(|other| unexpected(&other))?;
        let mut state = file.state.lock();
        // It does not get shorter while SHARE is held.
        if state.leases.has(LeaseSet::SHARE) && state.lease_epoch == epoch {
            state.size = state.size.max(found.attr.size);
        }
        Ok(())
    }

    fn read_inline(&self, handle: &Handle, offset: u64, out: &mut [u8]) -> Result<(), Errno> {
        let mut done = 0;
        while done < out.len() {
            // LIMIT: one reply carries at most 256 KiB; an inline file is no longer than that, but its hole may be.
            let want = (out.len() - done).min(256 << 10);
            let request = MetaRequest::ReadInline {
                inode: handle.file.inode,
                offset: offset + done as u64,
                len: want as u32,
            };
            let bytes = self.call_bytes(&Who::system(), request)?;
            let piece = &mut out[done..done + want];
            let stored = bytes.len().min(want);
            piece[..stored].copy_from_slice(&bytes[..stored]);
            piece[stored..].fill(0);
            done += want;
        }
        Ok(())
    }

    /// Notes that `handle` was read, as `relatime` does: the access time is renewed, at close, if it is not after the last change or
    /// a day old.
    pub fn note_read(&self, handle: &Handle) {
        if handle.flags.no_atime {
            return;
        }
        let mut state = handle.file.state.lock();
        let (atime, changed) = state.times;
        if atime > changed && self.env.clock.now().seconds_since(atime) < RELATIME_SECONDS {
            return;
        }
        let now = self.env.clock.now();
        state.times.0 = now;
        state.unreported.atime = Some(now);
    }
}
