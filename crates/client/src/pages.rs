//! What the kernel may have of an open file in its page cache, and writes past that cache.
//!
//! A page is filled and, once a program has stored into it through a mapping, written back whole. Where a write past the cache comes between the two, it
//! is undone by the write-back; where nobody stores, what it wrote is not seen. So the kernel may have no page of what such a write changes:
//!
//! | in the range of the write the kernel | a write past the cache |
//! |---|---|
//! | has not asked for pages since the file was opened here, or since they were dropped | goes on beside everything; a request for pages of the range waits for it |
//! | may have pages | [`Client::write_over_pages`]: they are dropped while requests for them are held back; then these wait for it, too. With the inode it has the file for itself |
//! | has none but those that the write itself has filled on its way through the cache | [`Client::write_beside`], where other clients write the file: the same with these |
//!
//! Where it may have pages is known as one stretch, from the first to the last: for a log that is read while it is written that is exact.
//!
//! Requests for pages come with a page locked in the kernel, for which a recall may be waiting. So they never wait long for anything that may itself wait for a
//! lease: not for being held back, nor, once a recall of the file has come, for an inline write.

use crate::client::Client;
use crate::file::{File, FileState};
use ashlar_types::{Attr, Errno};
use smallvec::SmallVec;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

/// For how long a request for pages is held back, or waits for inline writes whose lease somebody may be waiting for, before it goes on all the same.
const HOLD_MAX: Duration = Duration::from_millis(2);

/// For how long a program that has been answered may take to get a processor, at most.
const UPTAKE_MAX: Duration = Duration::from_secs(1);

/// Bytes from the first on, up to the second; none if that is not more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Stretch(u64, u64);

/// Bytes of a page; the kernel's are never smaller.
const PAGE_BYTES: u64 = 4096;

impl Stretch {
    pub(crate) const ALL: Stretch = Stretch(0, u64::MAX);

    /// The pages of `bytes` bytes at `offset`.
    pub(crate) fn of_pages(offset: u64, bytes: u64) -> Stretch {
        let end = offset.saturating_add(bytes);
        Stretch(
            offset / PAGE_BYTES * PAGE_BYTES,
            end.checked_next_multiple_of(PAGE_BYTES).unwrap_or(u64::MAX),
        )
    }

    /// Whether both together are one.
    fn touches(self, other: Stretch) -> bool {
        self.0.max(other.0) <= self.1.min(other.1)
    }

    /// The first `bytes` bytes.
    pub(crate) fn up_to(bytes: u64) -> Stretch {
        Stretch(0, bytes)
    }

    /// Its part before the first byte of `other`.
    pub(crate) fn before(self, other: Stretch) -> Stretch {
        Stretch(self.0, self.1.min(other.0))
    }

    /// Its part behind the last byte of `other`.
    pub(crate) fn behind(self, other: Stretch) -> Stretch {
        Stretch(self.0.max(other.1), self.1)
    }

    /// Its first byte and its length, unless it is empty.
    pub(crate) fn bytes(self) -> Option<(u64, u64)> {
        (!self.is_empty()).then(|| (self.0, self.1 - self.0))
    }

    /// Calls `run` with its first byte and its length, unless it is empty.
    pub(crate) fn for_bytes(self, run: impl FnOnce(u64, u64)) {
        if let Some((offset, bytes)) = self.bytes() {
            run(offset, bytes);
        }
    }

    fn is_empty(self) -> bool {
        self.0 >= self.1
    }

    pub(crate) fn meets(self, other: Stretch) -> bool {
        self.0.max(other.0) < self.1.min(other.1)
    }

    /// The shortest with both.
    pub(crate) fn with(self, other: Stretch) -> Stretch {
        match (self.is_empty(), other.is_empty()) {
            (true, _) => other,
            (_, true) => self,
            _ => Stretch(self.0.min(other.0), self.1.max(other.1)),
        }
    }

    /// What is left without `other`; all, if that is in the middle.
    pub(crate) fn without(self, other: Stretch) -> Stretch {
        match (other.0 <= self.0, other.1 >= self.1) {
            (true, true) => Stretch::default(),
            (true, false) => Stretch(self.0.max(other.1), self.1),
            (false, true) => Stretch(self.0, self.1.min(other.0)),
            (false, false) => self,
        }
    }
}

/// What comes into pages.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Filled {
    /// All of them are read.
    ByRead,
    /// They are written, these of them whole: the others are not taken for read.
    ByWrite(Stretch),
}

/// LIMIT: stretches that are told apart, 16 bytes each; most programs read a file from one end to the other, or in few places between two recalls.
const READABLE_MAX: usize = 64;

/// Pages that may have been read since all were dropped: those that a read or a whole write has filled.
#[derive(Clone, Debug, Default)]
pub(crate) struct Readable {
    stretches: SmallVec<[Stretch; 2]>,
    /// There were more than are told apart.
    is_any: bool,
}

impl Readable {
    fn add(&mut self, filled: Stretch) {
        if filled.is_empty() || self.is_any {
            return;
        }
        // Nearly always the last one goes on.
        if let Some(last) =
            self.stretches.last_mut().filter(|last| last.meets(filled) && last.with(filled) == **last)
        {
            *last = last.with(filled);
            return;
        }
        let mut filled = filled;
        self.stretches.retain(|known| {
            let is_apart = !known.touches(filled);
            if !is_apart {
                filled = filled.with(*known);
            }
            is_apart
        });
        if self.stretches.len() < READABLE_MAX {
            self.stretches.push(filled);
        } else {
            *self = Readable { stretches: SmallVec::new(), is_any: true };
        }
    }

    /// Without those of `range`.
    fn without(&self, range: Stretch) -> Readable {
        if self.is_any && range != Stretch::ALL {
            return self.clone();
        }
        let mut rest = Readable::default();
        let parts = self.stretches.iter().flat_map(|known| [known.before(range), known.behind(range)]);
        parts.for_each(|part| rest.add(part));
        rest
    }

    /// Whether any page of `range` may be one of them.
    pub(crate) fn meets(&self, range: Stretch) -> bool {
        self.is_any || self.stretches.iter().any(|known| known.meets(range))
    }
}

/// Requests for pages of one file, and writes that must not meet them; part of its state.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pages {
    /// Where the kernel may have any.
    cached: Stretch,
    /// Which of these it may take for read.
    readable: Readable,
    /// The same of those that are being dropped, by the number of who does.
    // LIMIT: threads that answer recalls of the file.
    going: SmallVec<[(u64, Readable); 1]>,
    /// Requests for pages that were let in, ever.
    pub begun: u64,
    /// Who holds requests for pages back: for which, and whether one got through since.
    // LIMIT: the threads that carry out such writes.
    holders: Vec<Holder>,
    /// Writes past the cache under way beside everything but requests for their pages, and whether they are with the inode.
    // LIMIT: the writes that programs have under way.
    beside: Vec<(Stretch, bool)>,
    /// Whether pages have been written back since the file was opened here: programs store into mappings.
    has_stores: bool,
    /// When a write made the file longer the last time since the kernel had no pages, and to how many bytes.
    pub grown: Option<(Duration, u64)>,
    /// Who may do what to the file, as it was when the file was opened here.
    permissions: Permissions,
}

/// Mode, owner and group; nothing once they have changed.
type Permissions = Option<(u32, u32, u32)>;

impl Pages {
    /// Of a file that is opened with these attributes.
    pub(crate) fn of(attr: &Attr) -> Pages {
        Pages { permissions: permissions(attr), ..Pages::default() }
    }
}

impl Pages {
    /// Of a file of which the kernel may have any page.
    pub(crate) fn unknown() -> Pages {
        let readable = Readable { is_any: true, ..Readable::default() };
        Pages { cached: Stretch::ALL, readable, ..Pages::default() }
    }
}

fn permissions(attr: &Attr) -> Permissions {
    Some((attr.mode, attr.uid, attr.gid))
}

/// What a request for pages waits for; the longest last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Wait {
    /// For what may itself be waiting for the page that the request has locked: [`HOLD_MAX`] at most.
    AWhile,
    /// For a write with the inode to end.
    ForInode,
    /// For a write to chunks to end: what it is about to change must not be read before, so the request fails if it does not.
    ForChunks,
}

/// Who holds requests for pages of a stretch back.
#[derive(Clone, Copy, Debug)]
struct Holder {
    number: u64,
    range: Stretch,
    has_gap: bool,
}

/// A write past the cache that goes on beside everything but requests for its pages, for as long as it lives.
pub(crate) struct Beside<'a> {
    file: &'a File,
    entry: (Stretch, bool),
}

impl Drop for Beside<'_> {
    fn drop(&mut self) {
        let mut state = self.file.state.lock();
        // One like another will do.
        if let Some(own) = state.pages.beside.iter().position(|entry| *entry == self.entry) {
            state.pages.beside.swap_remove(own);
        }
        let has_waiters = state.pages.may_exist();
        drop(state);
        if has_waiters {
            self.file.changed.notify_all();
        }
    }
}

/// Holds requests for pages of a stretch back for as long as it lives; each only for [`HOLD_MAX`].
pub(crate) struct Held<'a> {
    file: &'a File,
    number: u64,
    range: Stretch,
}

impl<'a> Held<'a> {
    /// Whether no request got through since; then no page of the stretch has come into the cache since. `pages` are of the same file, which is
    /// locked.
    pub(crate) fn is_tight(&self, pages: &Pages) -> bool {
        pages.holders.iter().any(|holder| holder.number == self.number && !holder.has_gap)
    }

    /// Counts the write that this was for as begun; requests for its pages wait for its end from now on, however long it takes.
    pub(crate) fn begin_write(&self, pages: &mut Pages) -> Beside<'a> {
        pages.begin_write(self.file, self.range, false)
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.file.state.lock().pages.holders.retain(|holder| holder.number != self.number);
        self.file.changed.notify_all();
    }
}

impl Pages {
    /// Whether the kernel may take any page of `range` for read.
    pub(crate) fn may_be_read(&self, range: Stretch) -> bool {
        self.readable.meets(range) || self.going.iter().any(|(_, readable)| readable.meets(range))
    }

    /// Pages of `range` are about to be dropped but those of `left`, until [`Pages::end_drop`] with the number that this gives: what can be read then was filled by requests that come from now on.
    /// Pages of those that have come are locked, so they are waited for, and dropped.
    pub(crate) fn begin_drop(&mut self, range: Stretch, left: &[Stretch]) -> u64 {
        let mut stays = self.readable.without(range);
        left.iter().filter(|page| self.may_be_read(**page)).for_each(|page| stays.add(*page));
        let number = self.going.iter().map(|(number, _)| number + 1).max().unwrap_or(0);
        self.going.push((number, std::mem::replace(&mut self.readable, stays)));
        number
    }

    /// The kernel keeps what it had when the file was open here before.
    pub(crate) fn note_kept(&mut self) {
        self.readable.is_any = true;
    }

    /// Pages are written back: programs store into mappings.
    pub(crate) fn note_stores(&mut self) {
        self.has_stores = true;
    }

    /// Whether pages have been written back since the file was opened here.
    pub(crate) fn has_stores(&self) -> bool {
        self.has_stores
    }

    /// Pages of `range` may be read.
    pub(crate) fn note_readable(&mut self, range: Stretch) {
        self.readable.add(range);
    }

    /// They are dropped.
    pub(crate) fn end_drop(&mut self, number: u64) {
        self.going.retain(|(going, _)| *going != number);
    }

    /// Whether the kernel may have any page.
    pub(crate) fn may_exist(&self) -> bool {
        !self.cached.is_empty()
    }

    /// Whether the kernel may have a page of `range`.
    pub(crate) fn may_have(&self, range: Stretch) -> bool {
        self.cached.meets(range)
    }

    /// Notes that the kernel has dropped the pages of `dropped`, while no request for pages was let in.
    pub(crate) fn note_dropped(&mut self, dropped: Stretch) {
        self.cached = self.cached.without(dropped);
        if self.cached.is_empty() {
            self.readable = Readable::default();
        }
    }

    /// Counts a write of `range` past the cache as begun beside everything; nothing if the kernel may have pages of it. Called under the lock of
    /// `file`, whose state this is of.
    pub(crate) fn begin_beside<'a>(
        &mut self,
        file: &'a File,
        range: Stretch,
        is_inline: bool,
    ) -> Option<Beside<'a>> {
        if self.cached.meets(range) {
            return None;
        }
        Some(self.begin_write(file, range, is_inline))
    }

    fn begin_write<'a>(&mut self, file: &'a File, range: Stretch, is_inline: bool) -> Beside<'a> {
        let entry = (range, is_inline);
        self.beside.push(entry);
        Beside { file, entry }
    }

    /// For what a request for `range` must wait; nothing if it need not. `is_recalled` says whether somebody waits for this file's leases.
    fn must_wait(&self, range: Stretch, is_recalled: bool) -> Option<Wait> {
        let met = self.beside.iter().filter(|(written, _)| written.meets(range));
        // Those to chunks wait for storage alone. One with the inode may wait for a lease of another session that writes this file, too, and that one
        // for the page that this request has locked; both hear of it by a recall.
        let wait = |is_inline: bool| match (is_inline, is_recalled) {
            (false, _) => Wait::ForChunks,
            (true, false) => Wait::ForInode,
            (true, true) => Wait::AWhile,
        };
        let held = self.holders.iter().any(|holder| holder.range.meets(range)).then_some(Wait::AWhile);
        met.map(|(_, is_inline)| wait(*is_inline)).chain(held).max()
    }
}

impl File {
    /// Holds back requests for pages of `range` from now on.
    pub(crate) fn hold_pages(&self, range: Stretch) -> Held<'_> {
        let pages = &mut self.state.lock().pages;
        let number = pages.holders.iter().map(|holder| holder.number + 1).max().unwrap_or(0);
        pages.holders.push(Holder { number, range, has_gap: false });
        Held { file: self, number, range }
    }
}

impl Client {
    /// Notes, ahead of a write, which is `is_writeback` of a page, that the file will perhaps grow to `length` bytes while programs store into its pages:
    /// the last one may be asked for before the kernel has been told.
    pub(crate) fn note_length(&self, state: &mut FileState, is_writeback: bool, length: u64) {
        if is_writeback {
            state.pages.note_stores();
        } else if state.pages.has_stores() && length > state.size {
            state.pages.grown = Some((self.env.clock.monotonic(), length));
            self.has_grown.store(true, SeqCst);
        }
    }

    /// Whether the kernel must not take these attributes up, because it may not have taken up yet that a write of its own has made the file as long as they
    /// say. It must not learn the length any other way: of its last page it clears what is behind the length it knows before it writes the page
    /// back, and if it learns the length at that moment, what it cleared goes with the rest (Linux 6.18, `iomap_writeback_handle_eof` and
    /// `fuse_send_writepage`).
    ///
    /// What has changed about who may do what it must take up, or it would let in who was shut out: such a file is no longer held back.
    pub fn is_growing(&self, attr: &Attr) -> bool {
        // Looked at first: attributes are asked for all the time, and few files are written like this.
        if !self.has_grown.load(SeqCst) {
            return false;
        }
        let Some(file) = self.open_file(attr.inode) else { return false };
        let pages = &mut file.state.lock().pages;
        let is_growing = pages.grown.is_some_and(|(at, to)| {
            to == attr.size && self.env.clock.monotonic().saturating_sub(at) < UPTAKE_MAX
        });
        if is_growing && pages.permissions != permissions(attr) {
            pages.permissions = None;
            return false;
        }
        is_growing
    }

    /// To be called ahead of a read that fills pages of the kernel, of `bytes` bytes at `offset`. Ahead of a write(2) that goes through them: [`Client::begin_pages_through`].
    ///
    /// # Errors
    /// `ETIMEDOUT` when writes past the cache to chunks do not end.
    pub fn begin_pages(&self, file: &File, offset: u64, bytes: u64) -> Result<(), Errno> {
        let range = Stretch::of_pages(offset, bytes);
        self.begin_pages_as(file, range, Filled::ByRead)
    }

    /// The same of `range`, which is `filled` by a read or a write.
    pub(crate) fn begin_pages_as(&self, file: &File, range: Stretch, filled: Filled) -> Result<(), Errno> {
        let mut state = file.state.lock();
        let mut begun = None;
        loop {
            // From now on no write past the cache begins here beside this. Each turn anew: the pages may have been dropped meanwhile.
            state.pages.cached = state.pages.cached.with(range);
            match filled {
                // ORDER: both under one lock, or a write that is heard of in between would be taken to have the page locked.
                Filled::ByRead => {
                    state.through.note_filled(range);
                    state.pages.readable.add(range);
                }
                Filled::ByWrite(whole) => state.pages.readable.add(whole),
            }
            let is_recalled = self.recalled.has(file.inode);
            let Some(wait) = state.pages.must_wait(range, is_recalled) else { break };
            let bound = if wait == Wait::AWhile { HOLD_MAX } else { self.wait_max };
            let now = self.env.clock.monotonic();
            let left = bound.saturating_sub(now.saturating_sub(*begun.get_or_insert(now)));
            match wait {
                Wait::ForChunks if left.is_zero() => return Err(Errno::ETIMEDOUT),
                _ if left.is_zero() => break,
                _ => {}
            }
            file.changed.wait_for(&mut state, left);
        }
        state.pages.begun += 1;
        let holders = state.pages.holders.iter_mut();
        holders.filter(|holder| holder.range.meets(range)).for_each(|holder| holder.has_gap = true);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stretch_of_pages_grows_and_shrinks_at_its_ends() {
        let page = |first: u64, behind: u64| Stretch(first * PAGE_BYTES, behind * PAGE_BYTES);
        assert_eq!(Stretch::of_pages(4095, 2), page(0, 2));
        assert_eq!(Stretch::of_pages(u64::MAX - 1, 1).1, u64::MAX);
        let empty = Stretch::default();
        assert!(empty.is_empty() && !empty.meets(Stretch::ALL) && empty.with(page(3, 4)) == page(3, 4));
        let five = page(3, 4).with(page(7, 8));
        assert!(
            five == page(3, 8)
                && five.meets(page(5, 6))
                && !five.meets(page(8, 9))
                && !five.meets(page(0, 3))
        );
        assert_eq!(five.without(page(7, 20)), page(3, 7));
        assert_eq!(five.without(page(0, 4)), page(4, 8));
        assert_eq!(five.without(page(4, 5)), five, "the middle stays in");
        assert_eq!(five.without(page(9, 20)), five);
        assert_eq!(five.without(page(0, 2)), five);
        assert!(five.without(Stretch::ALL).is_empty());
    }
}
