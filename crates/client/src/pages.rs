//! What the kernel may have of an open file in its page cache, and writes past that cache.
//!
//! A page is filled and, once a program has stored into it through a mapping, written back whole. Where a write past the cache comes between the two, it
//! is undone by the write-back; where nobody stores, what it wrote is not seen. So the kernel may have no page of what such a write changes:
//!
//! | the kernel | a write past the cache |
//! |---|---|
//! | has not asked for pages since the file was opened here, or has given all back since | goes on beside everything; the first request for pages waits for those under way |
//! | may have pages | [`Client::write_over_pages`]: pages are dropped while requests for new ones are held back, then it has the file for itself |
//!
//! Requests for pages come with a page locked in the kernel, for which a recall may be waiting. So they never wait long for anything that may itself wait for a
//! lease: not for being held back, nor for an inline write.

use crate::client::{Client, WAIT_MAX};
use crate::file::{File, FileState};
use ashlar_types::{Errno, InodeId};
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

/// For how long a request for pages is held back, or waits for inline writes, before it goes on all the same.
const HOLD_MAX: Duration = Duration::from_millis(2);

/// For how long a program that has been answered may take to get a processor, at most.
const UPTAKE_MAX: Duration = Duration::from_secs(1);

/// Requests for pages of one file, and writes that must not meet them; part of its state.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pages {
    /// Whether the kernel may have any.
    pub may_exist: bool,
    /// Requests for pages that were let in, ever.
    pub begun: u64,
    /// How many hold requests for pages back.
    holders: u32,
    /// Writes past the cache under way beside everything, to chunks and with the inode.
    beside: [u32; 2],
    /// Whether pages have been written back since the file was opened here: programs store into mappings.
    has_stores: bool,
    /// When a write made the file longer the last time since the kernel had no pages, and to how many bytes.
    pub grown: Option<(Duration, u64)>,
}

/// A write past the cache that goes on beside everything, for as long as it lives.
pub(crate) struct Beside<'a> {
    file: &'a File,
    is_inline: bool,
}

impl Drop for Beside<'_> {
    fn drop(&mut self) {
        let mut state = self.file.state.lock();
        state.pages.beside[usize::from(self.is_inline)] -= 1;
        let has_waiters = state.pages.may_exist;
        drop(state);
        if has_waiters {
            self.file.changed.notify_all();
        }
    }
}

/// Holds requests for pages back for as long as it lives; each only for [`HOLD_MAX`].
pub(crate) struct Held<'a> {
    file: &'a File,
    begun: u64,
}

impl Held<'_> {
    /// Whether none got through since; then no page has come into the cache since. The state of the file must be locked by the caller.
    pub(crate) fn is_tight(&self, pages: &Pages) -> bool {
        pages.begun == self.begun
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.file.state.lock().pages.holders -= 1;
        self.file.changed.notify_all();
    }
}

impl Pages {
    /// Counts a write past the cache as begun beside everything; nothing if the kernel may have pages. Called under the lock of `file`, whose state this is of.
    pub(crate) fn begin_beside<'a>(&mut self, file: &'a File, is_inline: bool) -> Option<Beside<'a>> {
        if self.may_exist {
            return None;
        }
        self.beside[usize::from(is_inline)] += 1;
        Some(Beside { file, is_inline })
    }
}

impl File {
    /// Holds back requests for pages from now on.
    pub(crate) fn hold_pages(&self) -> Held<'_> {
        let mut state = self.state.lock();
        state.pages.holders += 1;
        Held { file: self, begun: state.pages.begun }
    }
}

impl Client {
    /// Notes, ahead of a write beside pages of the kernel, which is `is_writeback` of one, that the file of so many bytes will perhaps grow to `length`.
    pub(crate) fn note_paged_write(&self, state: &mut FileState, is_writeback: bool, length: u64) {
        if is_writeback {
            state.pages.has_stores = true;
        } else if state.pages.has_stores && state.pages.may_exist && length > state.size {
            self.note_growth(&mut state.pages, length);
        }
    }

    /// Notes that the file is about to grow to `length` bytes by a write that the kernel's pages know nothing of yet.
    pub(crate) fn note_growth(&self, pages: &mut Pages, length: u64) {
        pages.grown = Some((self.env.clock.monotonic(), length));
        self.has_grown.store(true, SeqCst);
    }

    /// Whether the kernel may not have taken up yet that a write of its own has made the file `length` bytes long. Then it must not learn the length any other way: of
    /// its last page it clears what is behind the length it knows before it writes the page back, and if it learns the length at that moment, what it
    /// cleared goes with the rest (Linux 6.18, `iomap_writeback_handle_eof` and `fuse_send_writepage`).
    pub fn is_growing(&self, inode: InodeId, length: u64) -> bool {
        // Looked at first: attributes are asked for all the time, and few files are written like this.
        if !self.has_grown.load(SeqCst) {
            return false;
        }
        let Some(file) = self.open_file(inode) else { return false };
        let grown = file.state.lock().pages.grown;
        grown.is_some_and(|(at, to)| {
            to == length && self.env.clock.monotonic().saturating_sub(at) < UPTAKE_MAX
        })
    }

    /// To be called ahead of a read that fills pages of the kernel, and of a write(2) that goes through them.
    ///
    /// # Errors
    /// `ETIMEDOUT` when writes past the cache to chunks do not end.
    pub fn begin_pages(&self, file: &File) -> Result<(), Errno> {
        let mut state = file.state.lock();
        let mut begun = None;
        loop {
            // From now on no write past the cache begins beside this. Each turn anew: pages may all have been given back meanwhile.
            state.pages.may_exist = true;
            let bound = match (state.pages.beside, state.pages.holders) {
                ([0, 0], 0) => break,
                ([0, _], _) => HOLD_MAX,
                // They wait for storage alone, and what they are about to change must not be read before.
                _ => WAIT_MAX,
            };
            let now = self.env.clock.monotonic();
            let left = bound.saturating_sub(now.saturating_sub(*begun.get_or_insert(now)));
            if left.is_zero() && bound == WAIT_MAX {
                return Err(Errno::ETIMEDOUT);
            }
            if left.is_zero() {
                break;
            }
            file.changed.wait_for(&mut state, left);
        }
        state.pages.begun += 1;
        Ok(())
    }
}
