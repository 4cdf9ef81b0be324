//! Writes that come through the kernel's page cache, and recalls while they wait.
//!
//! The kernel has put the bytes of such a write into its pages before the mount hears of it. Pages that it had, and those that are filled whole, it has unlocked by
//! then. The last one, if it is neither, it keeps locked until the write is answered, and does not take for read afterwards (`fuse_fill_write_pages` and
//! `fuse_send_write_pages`, Linux 5.14 and later). Dropping all pages of a file would wait for that one, so for the write, and the write may be waiting for a lease of the very
//! session for which the pages are to go. If that went ahead instead, the pages behind the locked one would stay, and other programs here read in them what it has
//! written over, whichever locks they have.
//!
//! So the answer to a recall goes around it ([`Client::drop_content_around`]): a page that the write has locked is left where it is, as nobody can read it. Whether it *is* locked the
//! kernel does not tell. It is if the page was not there before; else it is found out, once for each write ([`Client::settle_last_pages`]).
//!
//! What is dropped while the write waits may be read in again, from before the write, and would stay. So it is dropped once more before the write is answered
//! ([`ThroughPages::end`]); that waits for reads alone.
//!
//! The kernel carries out such writes of a file one after the other (`fuse_cache_write_iter` holds the inode's lock), so there is one at a time; the one before may not be
//! forgotten here yet.

use crate::client::Client;
use crate::events::{Dropping, KernelCache};
use crate::file::{File, Handle};
use crate::io::FILE_BYTES_MAX;
use crate::pages::{Filled, Stretch};
use ashlar_types::Errno;
use smallvec::SmallVec;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

/// For how long after pages were dropped a write may come that had put bytes into them before. LIMIT: one that a worker takes up later, and beside which
/// somebody here reads what it writes, can leave a page from before it.
const UNHEARD_MAX: Duration = Duration::from_secs(2);

/// Time between two looks whether a page was dropped; that takes some microseconds.
const LOOK_PAUSE: Duration = Duration::from_micros(500);
/// After so many looks at which whoever drops a page was waiting in the kernel, it is the write that has it locked. Until then a program that reads it and had been answered has got
/// a processor, and a write-back of the page has come to this client; the kernel waits for these as well. LIMIT: one that takes longer is overtaken by whoever the page is given
/// up for. It is only waited for at all where the page was read since it was dropped the last time, and the kernel has given it up since for lack of memory.
const LOOKS_MAX: u32 = 1000;

/// After so many such looks a write no longer waits in the end for a page that it may have locked itself, and that goes then anyway. LIMIT: one that somebody else has locked
/// for longer can be read as it was before the write, until it goes. While whoever drops the page does not wait for it, he lacks a processor, and anybody can read it.
const DOUBT_LOOKS_MAX: u32 = 4;

/// Those of one file; part of its state.
#[derive(Clone, Debug, Default)]
pub(crate) struct Through {
    // LIMIT: as workers of the mount.
    writes: SmallVec<[Waiting; 1]>,
    /// Pages of mappings that are being written back.
    // LIMIT: as workers of the mount.
    written_back: SmallVec<[Stretch; 1]>,
    /// When pages were dropped for a recall the last time.
    dropped: Option<Duration>,
    /// Writes ever.
    pub numbers: u64,
}

/// What is known of the last page of a write, if that is not filled whole.
#[derive(Clone, Debug)]
enum LastPage {
    /// It was not there before, so the kernel has it locked; or it has gone since, and nobody has read it again.
    Locked,
    /// It may have been.
    Unknown,
    /// It is being dropped, or waited for, by another thread.
    Tried(Arc<dyn Dropping>),
    /// The write has it locked, as that thread found.
    FoundLocked(Arc<dyn Dropping>),
    /// It was dropped, or read anew, so it is not locked: a page like others.
    Ordinary,
}

/// One write that is not answered.
#[derive(Clone, Debug)]
struct Waiting {
    number: u64,
    /// Recalls do not wait for it.
    yields: bool,
    range: Stretch,
    last: Option<(Stretch, LastPage)>,
    /// Whether pages of it may have been dropped since the kernel put its bytes there.
    is_dropped: bool,
}

impl Waiting {
    /// The page that is to be left where it is.
    fn held(&self) -> Option<Stretch> {
        match &self.last {
            _ if !self.yields => None,
            None | Some((_, LastPage::Ordinary)) => None,
            Some((page, _)) => Some(*page),
        }
    }
}

/// The number of a write, its last page, and the attempt to drop that, if one is under way.
type Unsettled = (u64, Stretch, Option<Arc<dyn Dropping>>);

impl Through {
    /// Notes that pages of the file were dropped for a recall.
    pub(crate) fn note_dropped(&mut self, now: Duration) {
        self.dropped = Some(now);
    }

    /// Notes that pages of `range` are asked for: whoever asks has them locked, so no write has.
    pub(crate) fn note_filled(&mut self, range: Stretch) {
        for (page, last) in self.writes.iter_mut().filter_map(|write| write.last.as_mut()) {
            if range.meets(*page) {
                *last = LastPage::Ordinary;
            }
        }
    }

    /// Pages are about to be dropped: those that are to be left.
    pub(crate) fn begin_drop(&mut self) -> SmallVec<[Stretch; 1]> {
        self.writes.iter_mut().for_each(|write| write.is_dropped = true);
        self.writes.iter().filter_map(Waiting::held).collect()
    }

    /// The last pages of which it is to be found out whether they are locked.
    fn unsettled(&self) -> SmallVec<[Unsettled; 1]> {
        let unsettled = |write: &Waiting| match &write.last {
            _ if !write.yields => None,
            Some((page, LastPage::Unknown)) => Some((write.number, *page, None)),
            Some((page, LastPage::Tried(attempt))) => Some((write.number, *page, Some(attempt.clone()))),
            _ => None,
        };
        self.writes.iter().filter_map(unsettled).collect()
    }

    fn find(&mut self, number: u64) -> Option<&mut Waiting> {
        self.writes.iter_mut().find(|write| write.number == number)
    }

    fn note_going(&mut self, number: u64) {
        if let Some(write) = self.find(number) {
            write.is_dropped = true;
        }
    }

    fn note_last(&mut self, number: u64, known: LastPage) {
        if let Some((_, last)) = self.find(number).and_then(|write| write.last.as_mut()) {
            *last = known;
        }
    }

    fn take(&mut self, number: u64) -> Option<Waiting> {
        let at = self.writes.iter().position(|write| write.number == number)?;
        Some(self.writes.swap_remove(at))
    }

    fn is_written_back(&self, page: Stretch) -> bool {
        self.written_back.iter().any(|written| written.meets(page))
    }
}

/// Pages that the kernel is to drop before a write is answered: bytes from the first on, and how many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ToDrop {
    /// None of these is locked by the write.
    free: Option<(u64, u64)>,
    /// This one may be.
    doubtful: Option<(u64, u64)>,
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
        let drop_range = |(offset, bytes): (u64, u64), run: &dyn Fn(u64, u64)| {
            let number = file.state.lock().pages.begin_drop(Stretch::of_pages(offset, bytes), &[]);
            run(offset, bytes);
            file.state.lock().pages.end_drop(number);
        };
        if let Some(free) = self.free {
            drop_range(free, &|offset, bytes| kernel.drop_range(file.inode, offset, bytes));
        }
        if let Some(doubtful) = self.doubtful {
            drop_range(doubtful, &|offset, bytes| {
                // One that the write has locked goes as soon as it is answered.
                wait_in_doubt(&*kernel.begin_to_drop(file.inode, offset, bytes));
            });
        }
    }
}

/// A write(2) that has come through the kernel's page cache, until it is answered or this goes.
pub struct ThroughPages {
    file: Arc<File>,
    /// 0 if it is not known to the file.
    number: u64,
    yields: bool,
    range: Stretch,
    last: Option<Stretch>,
}

impl ThroughPages {
    /// Whether recalls are answered while it waits ([`crate::WriteFlags::yields`]).
    pub fn yields(&self) -> bool {
        self.yields
    }

    /// Ends it; what is to be dropped before it is answered.
    #[must_use]
    pub fn end(mut self) -> ToDrop {
        let write = self.file.state.lock().through.take(self.number);
        self.number = 0;
        let Some(write) = write.filter(|write| write.is_dropped) else { return ToDrop::default() };
        let (is_apart, is_doubtful) = match write.last.as_ref().map(|(_, last)| last) {
            None | Some(LastPage::Ordinary) => (false, false),
            Some(LastPage::Locked) => (true, false),
            // Whoever is dropping it does so when it is unlocked, and nobody takes it for read before.
            Some(LastPage::FoundLocked(attempt)) => (!attempt.wait(Duration::ZERO), false),
            // Whoever is dropping it may only lack a processor: then what anybody can read there may be from before the write.
            Some(LastPage::Tried(attempt)) => {
                let is_gone = attempt.wait(Duration::ZERO);
                (!is_gone, !is_gone)
            }
            Some(LastPage::Unknown) => (true, true),
        };
        let apart = write.last.map(|(page, _)| page).filter(|_| is_apart);
        ToDrop {
            free: apart.map_or(write.range, |page| write.range.without(page)).bytes(),
            doubtful: apart.filter(|_| is_doubtful).and_then(Stretch::bytes),
        }
    }
}

impl Drop for ThroughPages {
    fn drop(&mut self) {
        if self.number != 0 {
            self.file.state.lock().through.take(self.number);
        }
    }
}

/// Pages of a mapping are being written back for as long as it lives.
pub(crate) struct WritingBack<'a> {
    file: &'a File,
    range: Stretch,
}

impl Drop for WritingBack<'_> {
    fn drop(&mut self) {
        let written_back = &mut self.file.state.lock().through.written_back;
        if let Some(at) = written_back.iter().position(|range| *range == self.range) {
            written_back.swap_remove(at);
        }
    }
}

impl File {
    /// Notes that `bytes` bytes at `offset` are written back.
    pub(crate) fn begin_writing_back(&self, offset: u64, bytes: u64) -> WritingBack<'_> {
        let range = Stretch::of_pages(offset, bytes);
        let mut state = self.state.lock();
        state.pages.note_stores();
        state.through.written_back.push(range);
        drop(state);
        WritingBack { file: self, range }
    }
}

impl Client {
    /// Whether recalls of a file are answered while its writes wait: such as come past the page cache have no page locked, and of such as come through it see
    /// [`ThroughPages`].
    pub fn answers_beside_writes(&self) -> bool {
        self.frees_filled.load(SeqCst) && !self.is_close_to_open()
    }

    /// To be called when a write(2) of `bytes` bytes at `offset` has come through the kernel's page cache, before anything else is done about it. `last` is the page (its first byte, its
    /// bytes) that the kernel may have locked; `is_resent` says whether another process of this mount has had the write already.
    pub fn begin_through_pages(
        &self,
        handle: &Handle,
        (offset, bytes): (u64, u64),
        last: Option<(u64, u64)>,
        is_resent: bool,
    ) -> ThroughPages {
        let file = handle.file.clone();
        let (range, last) =
            (Stretch::of_pages(offset, bytes), last.map(|(at, bytes)| Stretch::of_pages(at, bytes)));
        // A kernel that has more pages locked is waited for, whatever waits for that; and nobody else gets pages back from a session that is close-to-open.
        if !self.answers_beside_writes() {
            return ThroughPages { file, number: 0, yields: false, range, last };
        }
        let now = self.env.clock.monotonic();
        let mut state = file.state.lock();
        // What programs have stored into mappings goes with its write-back, which the answer has to wait for in any case: then it is given as everywhere before Linux 6.6.
        let yields = !state.pages.has_stores();
        let is_recent = state.through.dropped.is_some_and(|at| now.saturating_sub(at) < UNHEARD_MAX);
        let may_have = |page: Stretch| is_resent || state.pages.may_be_read(page);
        let know = |page| (page, if may_have(page) { LastPage::Unknown } else { LastPage::Locked });
        let known = last.map(know);
        // ORDER: looked at under the lock under which a lease ends.
        let is_recalled = self.recalled.has(file.inode);
        let is_dropped = is_resent || is_recent || is_recalled;
        state.through.numbers += 1;
        let number = state.through.numbers;
        state.through.writes.push(Waiting { number, yields, range, last: known, is_dropped });
        drop(state);
        // A thread that answers one may be waiting for the page that this write has locked.
        if is_recalled {
            self.help_recalls(file.inode);
        }
        ThroughPages { file, number, yields, range, last }
    }

    /// As [`Client::begin_pages`], for such a write.
    ///
    /// # Errors
    /// As of that.
    pub fn begin_pages_through(&self, through: &ThroughPages) -> Result<(), Errno> {
        let whole = through.last.map_or(through.range, |last| through.range.without(last));
        self.begin_pages_as(&through.file, through.range, Filled::ByWrite(whole))
    }

    /// Finds out whether the last pages of writes are locked where they may have been in the cache before, or until `is_over`. Not again for one write: what
    /// it has locked it keeps until it is answered.
    pub(crate) fn settle_last_pages(
        &self,
        kernel: &dyn KernelCache,
        file: &File,
        is_over: impl Fn() -> bool,
    ) {
        let unsettled = file.state.lock().through.unsettled();
        for (number, page, attempt) in unsettled {
            let Some((offset, bytes)) = page.bytes() else { continue };
            let going = file.state.lock().pages.begin_drop(page, &[]);
            let attempt = attempt.unwrap_or_else(|| {
                // ORDER: before it goes, or the write could end, and leave what was read in again.
                file.state.lock().through.note_going(number);
                let attempt = kernel.begin_to_drop(file.inode, offset, bytes);
                file.state.lock().through.note_last(number, LastPage::Tried(attempt.clone()));
                attempt
            });
            let known = find_out(file, (number, page), &attempt, &is_over);
            let mut state = file.state.lock();
            match known {
                Some(known) => state.through.note_last(number, known),
                // It may still be there.
                None => state.pages.note_readable(page),
            }
            state.pages.end_drop(going);
        }
    }

    /// Has the kernel drop all pages of a file that may be read, and its attributes.
    pub(crate) fn drop_content_around(&self, kernel: &dyn KernelCache, file: &File) {
        let (left, number) = {
            let mut state = file.state.lock();
            let left = state.through.begin_drop();
            let number = state.pages.begin_drop(Stretch::ALL, &left);
            (left, number)
        };
        drop_around(kernel, file, left);
        file.state.lock().pages.end_drop(number);
    }
}

/// Waits until a page is dropped, or is likely to be locked by the write that is about to be answered.
fn wait_in_doubt(attempt: &dyn Dropping) {
    let mut looks = 0;
    for _ in 0..LOOKS_MAX {
        if attempt.wait(LOOK_PAUSE) {
            return;
        }
        looks = if attempt.is_blocked() { looks + 1 } else { 0 };
        if looks >= DOUBT_LOOKS_MAX {
            return;
        }
    }
}

/// What comes of an attempt to drop the last page of a write; nothing if the write or the recall ends before.
fn find_out(
    file: &File,
    (number, page): (u64, Stretch),
    attempt: &Arc<dyn Dropping>,
    is_over: impl Fn() -> bool,
) -> Option<LastPage> {
    let mut looks = 0;
    loop {
        if attempt.wait(LOOK_PAUSE) {
            return Some(LastPage::Ordinary);
        }
        let mut state = file.state.lock();
        match state.through.find(number).and_then(|write| write.last.as_ref()) {
            None => return None,
            _ if is_over() => return None,
            // Somebody reads it, and has it locked meanwhile.
            Some((_, LastPage::Ordinary)) => return Some(LastPage::Ordinary),
            Some(_) => {}
        }
        // A write-back waits for whatever it needs, and is what whoever drops the page waits for.
        let is_locked = attempt.is_blocked() && !state.through.is_written_back(page);
        looks = if is_locked { looks + 1 } else { 0 };
        if looks >= LOOKS_MAX {
            return Some(LastPage::FoundLocked(attempt.clone()));
        }
    }
}

fn drop_around(kernel: &dyn KernelCache, file: &File, mut left: SmallVec<[Stretch; 1]>) {
    if left.is_empty() {
        return kernel.drop_content(file.inode);
    }
    left.sort_unstable();
    let mut rest = Stretch::up_to(FILE_BYTES_MAX);
    for page in left {
        rest.before(page).for_bytes(|offset, bytes| kernel.drop_range(file.inode, offset, bytes));
        rest = rest.behind(page);
    }
    rest.for_bytes(|offset, bytes| kernel.drop_range(file.inode, offset, bytes));
}
