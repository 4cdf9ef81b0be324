//! `read`.

use crate::call::Who;
use crate::client::Client;
use crate::file::{Data, Handle};
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
        self.check_locks(handle)?;
        // LIMIT: as in `write`: a file leaves its inode once, and comes back only by a truncation that races with this very read.
        for _ in 0..8 {
            match self.read_once(handle, offset, out) {
                // It is not where it was: an open with O_TRUNC or a write of this client came between.
                Err(Errno::EAGAIN) => handle.file.state.lock().leases = LeaseSet::NONE,
                done => return done,
            }
        }
        Err(Errno::EIO)
    }

    fn read_once(&self, handle: &Handle, offset: u64, out: &mut [u8]) -> Result<usize, Errno> {
        let file = &handle.file;
        let (in_flight, state) = self.begin(file, LeaseSet::READ)?;
        let available = usize::try_from(state.size.saturating_sub(offset)).unwrap_or(usize::MAX);
        let len = out.len().min(available);
        if len == 0 {
            return Ok(0);
        }
        let out = &mut out[..len];
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
                drop(state);
                self.read_chunks(file.inode, &layout, offset, out)?;
            }
        }
        drop(in_flight);
        self.note_read(handle);
        Ok(len)
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
