//! Writes that come through the kernel's page cache, and recalls while they wait.
//!
//! The kernel has put the bytes of such a write into its pages before the mount hears of it. Pages that it had, and those that are filled whole, it has unlocked by
//! then. The last one, if it is neither, it keeps locked until the write is answered, and does not take for read afterwards (`fuse_fill_write_pages` and
//! `fuse_send_write_pages`, Linux 5.14 and later). Dropping all pages of a file would wait for that one, so for the write, and the write may be waiting for a lease of the very
//! session for which the pages are to go. If that went ahead instead, the pages behind the locked one would stay, and other programs here read in them what it has
//! written over, whichever locks they have.
//!
//! So the answer to a recall goes around it ([`Client::drop_content_around`]): what the write may have locked is left where it is, as nobody can read it. Whether it *is* locked the
//! kernel does not tell. If the page may have been read before, [`KernelCache::drop_unless_locked`] tries.
//!
//! What is dropped while the write waits may be read in again, from before the write, and would stay. So it is dropped once more before the write is answered
//! ([`ThroughPages::end`]); that waits for reads alone.
//!
//! The kernel carries out such writes of a file one after the other (`fuse_cache_write_iter` holds the inode's lock), so there is one at a time; the one before may not be
//! forgotten here yet.

use crate::client::Client;
use crate::events::KernelCache;
use crate::file::{File, Handle};
use crate::io::FILE_BYTES_MAX;
use crate::pages::Stretch;
use smallvec::SmallVec;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

/// For how long after pages were dropped a write may come that had put bytes into them before. LIMIT: one that a worker takes up later, and beside which
/// somebody here reads what it writes, can leave a page from before it.
const UNHEARD_MAX: Duration = Duration::from_millis(200);

/// Those of one file; part of its state.
#[derive(Clone, Debug, Default)]
pub(crate) struct Through {
    // LIMIT: as workers of the mount.
    writes: SmallVec<[Waiting; 1]>,
    /// When pages were dropped for a recall the last time, and where the kernel may have had some until then.
    dropped: Option<(Duration, Stretch)>,
    numbers: u64,
}

/// What has become of the last page of a write meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LastPage {
    /// It is where it was, or locked.
    Stays,
    /// It has gone if it was not locked.
    Unknown,
    /// It has gone, so it was not locked.
    Dropped,
}

/// One write that is not answered.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    number: u64,
    range: Stretch,
    /// The page that the kernel may have locked: the last one, if it is not filled whole.
    last: Option<Stretch>,
    /// Whether the kernel may have had that page before, so that it is not locked.
    may_have_last: bool,
    /// Whether pages of it may have been dropped since the kernel put its bytes there.
    is_dropped: bool,
    of_last: LastPage,
}

impl Through {
    /// Notes that pages of the file are dropped, of which the kernel may have had those of `cached`.
    pub(crate) fn note_dropped(&mut self, now: Duration, cached: Stretch) {
        self.dropped = Some((now, cached));
    }

    /// Pages are about to be dropped: those that are to be left, and whether the kernel may have had them before.
    fn begin_drop(&mut self) -> SmallVec<[(u64, Stretch, bool); 1]> {
        self.writes.iter_mut().for_each(|write| write.is_dropped = true);
        let last = |write: &Waiting| write.last.map(|last| (write.number, last, write.may_have_last));
        self.writes.iter().filter_map(last).collect()
    }

    fn find(&mut self, number: u64) -> Option<&mut Waiting> {
        self.writes.iter_mut().find(|write| write.number == number)
    }

    fn take(&mut self, number: u64) -> Option<Waiting> {
        let at = self.writes.iter().position(|write| write.number == number)?;
        Some(self.writes.swap_remove(at))
    }
}

/// Pages that the kernel is to drop before a write is answered: bytes from the first on, and how many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ToDrop {
    /// None of these is locked.
    pub free: Option<(u64, u64)>,
    /// This one may be, by the write itself.
    pub doubtful: Option<(u64, u64)>,
}

impl ToDrop {
    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        *self == ToDrop::default()
    }

    /// All of `bytes` bytes at `offset`.
    pub fn range(offset: u64, bytes: u64) -> ToDrop {
        ToDrop { free: Stretch::of_pages(offset, bytes).bytes(), doubtful: None }
    }

    /// Adds what `other` has, and perhaps what lies between; false if that cannot be one.
    pub fn take_in(&mut self, other: &ToDrop) -> bool {
        if self.doubtful.is_some() || other.doubtful.is_some() {
            return false;
        }
        let stretch = |free: Option<(u64, u64)>| {
            free.map_or(Stretch::default(), |(offset, bytes)| Stretch::of_pages(offset, bytes))
        };
        self.free = stretch(self.free).with(stretch(other.free)).bytes();
        true
    }

    /// Has `kernel` drop them. Waits for reads of pages that come to this client, so not to be called by a thread that these need.
    pub fn carry_out(&self, kernel: &dyn KernelCache, file: &File) {
        if let Some((offset, bytes)) = self.free {
            kernel.drop_range(file.inode, offset, bytes);
        }
        if let Some((offset, bytes)) = self.doubtful {
            kernel.drop_unless_locked(file.inode, offset, bytes);
        }
    }
}

/// A write(2) that has come through the kernel's page cache, until it is answered or this goes.
pub struct ThroughPages {
    file: Arc<File>,
    number: u64,
    is_over: bool,
}

impl ThroughPages {
    /// Ends it; what is to be dropped before it is answered.
    #[must_use]
    pub fn end(mut self) -> ToDrop {
        self.is_over = true;
        let Some(write) = self.file.state.lock().through.take(self.number) else { return ToDrop::default() };
        if !write.is_dropped {
            return ToDrop::default();
        }
        let last = write.last.filter(|_| write.of_last != LastPage::Dropped);
        let free = last.map_or(write.range, |last| write.range.without(last)).bytes();
        let doubtful = last.filter(|_| write.of_last == LastPage::Unknown).and_then(Stretch::bytes);
        ToDrop { free, doubtful }
    }
}

impl Drop for ThroughPages {
    fn drop(&mut self) {
        if !self.is_over {
            self.file.state.lock().through.take(self.number);
        }
    }
}

impl Client {
    /// To be called when a write(2) of `bytes` bytes at `offset` has come through the kernel's page cache, before anything else is done about it; `last` is the page (its first byte, its
    /// bytes) that the kernel may have locked.
    pub fn begin_through_pages(
        &self,
        handle: &Handle,
        offset: u64,
        bytes: u64,
        last: Option<(u64, u64)>,
    ) -> ThroughPages {
        let file = handle.file.clone();
        // A kernel that has more pages locked is waited for, whatever waits for that.
        if !self.frees_filled.load(SeqCst) {
            return ThroughPages { file, number: 0, is_over: true };
        }
        let last = last.map(|(offset, bytes)| Stretch::of_pages(offset, bytes));
        let now = self.env.clock.monotonic();
        let is_recalled = self.recalled.has(file.inode);
        let mut state = file.state.lock();
        let before = state.through.dropped.filter(|(at, _)| now.saturating_sub(*at) < UNHEARD_MAX);
        let may_have = |page: Stretch| {
            state.pages.may_have(page) || before.is_some_and(|(_, cached)| cached.meets(page))
        };
        let may_have_last = last.is_some_and(may_have);
        let is_dropped = is_recalled || before.is_some();
        let of_last = if is_dropped && may_have_last { LastPage::Unknown } else { LastPage::Stays };
        let range = Stretch::of_pages(offset, bytes);
        state.through.numbers += 1;
        let number = state.through.numbers;
        let write = Waiting { number, range, last, may_have_last, is_dropped, of_last };
        state.through.writes.push(write);
        drop(state);
        // A thread that answers one may be waiting for the page that this write has locked.
        self.help_recalls(file.inode);
        ThroughPages { file, number, is_over: false }
    }

    /// Has the kernel drop all pages of a file that may be read, and its attributes.
    pub(crate) fn drop_content_around(&self, kernel: &dyn KernelCache, file: &File) {
        let mut left = file.state.lock().through.begin_drop();
        if left.is_empty() {
            return kernel.drop_content(file.inode);
        }
        left.sort_unstable_by_key(|(_, last, _)| *last);
        let mut rest = Stretch::up_to(FILE_BYTES_MAX);
        for (_, last, _) in &left {
            let before = rest.before(*last);
            before.for_bytes(|offset, bytes| kernel.drop_range(file.inode, offset, bytes));
            rest = rest.behind(*last);
        }
        rest.for_bytes(|offset, bytes| kernel.drop_range(file.inode, offset, bytes));
        for (number, last, _) in left.into_iter().filter(|(.., may_have)| *may_have) {
            let Some((offset, bytes)) = last.bytes() else { continue };
            if kernel.drop_unless_locked(file.inode, offset, bytes)
                && let Some(write) = file.state.lock().through.find(number)
            {
                write.of_last = LastPage::Dropped;
            }
        }
    }
}
