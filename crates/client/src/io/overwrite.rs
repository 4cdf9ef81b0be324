//! `write` past the kernel's page cache where the kernel may have pages: see [`crate::pages`]. So goes what comes through the page cache of a file that other
//! clients write: its pages are dropped before it is carried out, and it needs no more than they have (SHARE).

use super::write::{Taken, Tried, WriteFlags};
use crate::call::Who;
use crate::client::Client;
use crate::data::{Exclusive, Need};
use crate::file::{Data, File, Handle, InFlight};
use crate::pages::{Beside, Filled, Held, Stretch};
use ashlar_types::Errno;
use ashlar_types::message::LeaseSet;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

/// LIMIT: tries to find the kernel without pages of the range. Each fails only if a request for pages was held back as long as it may be.
const TRIES_MAX: u32 = 50;

/// LIMIT: more of them where it no longer matters, while the content is on its way from the inode to chunks: it goes once, and comes back only by a
/// truncation.
const MOVES_MAX: u32 = 8;

/// Between two tries: those that were held back come through.
const PAUSE: Duration = Duration::from_micros(200);

/// What keeps pages of the range away from the kernel while it lives: the write counts as under way, or the file is this call's own.
struct Kept<'a> {
    _writing: Option<(Beside<'a>, InFlight<'a>)>,
    _exclusive: Option<Exclusive<'a>>,
    _held: Held<'a>,
}

/// One try; what it keeps only if it was the write.
type Tries<'a> = Option<(Tried, Option<Kept<'a>>)>;

/// Which pages a write has the kernel drop.
#[derive(Clone, Copy)]
enum Dropped {
    /// All of its range, and all of the file where there is no reader: it came past the cache.
    AllOfIt,
    /// Those that it has filled whole itself, on its way through the cache. What else it has filled the kernel has locked until it is answered, and does
    /// not take for the content of the file afterwards.
    Filled(Stretch),
}

impl Client {
    /// Does what [`crate::Written::MeetsPages`] left undone, as [`Client::write_as`] would have, and has `answer` tell the kernel what came of it, once. Waits for the kernel to
    /// drop pages, which may wait for reads and writes of pages that come to this client: so not to be called by a thread that these need.
    ///
    /// Where programs ask for pages of the range so fast that it is never without, they are dropped after the write instead: then a store into such a page
    /// can undo it.
    ///
    /// # Errors
    /// As [`Client::write`]; they go to `answer`.
    pub fn write_over_pages(
        &self,
        who: &Who,
        handle: &Handle,
        offset: u64,
        data: &[u8],
        flags: WriteFlags,
        answer: impl FnOnce(Result<Taken, Errno>),
    ) {
        let append = flags.append.unwrap_or(handle.flags.append);
        let put = (offset, data, append);
        self.overwrite_and_answer(who, handle, put, flags, Dropped::AllOfIt, |taken, _| answer(taken));
    }

    /// Whether a write(2) that comes through the kernel's page cache, to a place that it knows, is one for [`Client::write_beside`]: this client has no lease under
    /// which it could leave pages in the cache, because another one writes the file.
    pub fn goes_beside(&self, handle: &Handle, append: bool) -> bool {
        if append || !self.frees_filled.load(SeqCst) || self.is_close_to_open() {
            return false;
        }
        let state = handle.file.state.lock();
        matches!(state.data, Data::Chunks(_))
            && !state.leases.meets(LeaseSet::PAGES)
            && !state.pages.may_exist()
    }

    /// Carries out a write(2) that came through the kernel's page cache as if it had come past it, so that other clients go on writing the file. `filled` is the
    /// part of it, if any, that is whole pages of the kernel. Otherwise as [`Client::write_over_pages`], with which it has in common who may call it; where there is no such
    /// part it waits for no page.
    ///
    /// # Errors
    /// As [`Client::write`]; they go to `answer`, with whether what the kernel has put into its pages stays there.
    pub fn write_beside(
        &self,
        who: &Who,
        handle: &Handle,
        (offset, data): (u64, &[u8]),
        flags: WriteFlags,
        filled: Option<(u64, u64)>,
        answer: impl FnOnce(Result<Taken, Errno>, bool),
    ) {
        let filled = filled.map_or(Stretch::default(), |(offset, bytes)| Stretch::of_pages(offset, bytes));
        self.overwrite_and_answer(who, handle, (offset, data, false), flags, Dropped::Filled(filled), answer);
    }

    fn overwrite_and_answer(
        &self,
        who: &Who,
        handle: &Handle,
        put: (u64, &[u8], bool),
        flags: WriteFlags,
        dropped: Dropped,
        answer: impl FnOnce(Result<Taken, Errno>, bool),
    ) {
        let file = &*handle.file;
        for count in 1..=TRIES_MAX + MOVES_MAX {
            let is_last = count >= TRIES_MAX;
            match self.overwrite(who, file, put, flags, (dropped, is_last)) {
                Ok(Some((Tried::Written(taken), kept))) => {
                    // A write that is to be durable lets others go on before it waits for a disk.
                    let is_to_sync = self.must_sync(handle, flags);
                    let kept = kept.filter(|_| !is_last && !is_to_sync);
                    if is_last {
                        self.drop_pages_late(file, taken, dropped);
                    }
                    let synced = if is_to_sync { self.fsync(handle) } else { Ok(()) };
                    // ORDER: pages are asked for again once the kernel has been told, see `Client::is_growing`.
                    answer(synced.map(|()| taken), false);
                    drop(kept);
                    return;
                }
                Ok(Some((Tried::MeetsPages, _))) => {
                    return answer(self.write_among_pages(who, handle, put, flags, dropped), true);
                }
                Ok(Some((_, kept))) => {
                    drop(kept);
                    if let Err(errno) = self.spill(file, flags) {
                        return answer(Err(errno), true);
                    }
                }
                Ok(None) => {
                    file.changed.wait_for(&mut file.state.lock(), PAUSE);
                }
                Err(errno) => return answer(Err(errno), true),
            }
        }
        answer(Err(Errno::EIO), true);
    }

    /// What came through the cache leaves its pages there, under a lease that allows that.
    fn write_among_pages(
        &self,
        who: &Who,
        handle: &Handle,
        (offset, data, _): (u64, &[u8], bool),
        flags: WriteFlags,
        dropped: Dropped,
    ) -> Result<Taken, Errno> {
        let range = Stretch::of_pages(offset, data.len() as u64);
        let whole = if let Dropped::Filled(whole) = dropped { whole } else { range };
        self.begin_pages_as(&handle.file, range, Filled::ByWrite(whole))?;
        let bytes = self.write_whole(who, handle, offset, data, flags)?;
        Ok(Taken { offset, bytes })
    }

    fn drop_pages_late(&self, file: &File, taken: Taken, dropped: Dropped) {
        tracing::debug!(inode = %file.inode, "pages were asked for all the time beside a write past them");
        let range = match dropped {
            Dropped::AllOfIt => Stretch::of_pages(taken.offset, taken.bytes as u64),
            Dropped::Filled(filled) => filled,
        };
        if let Some(kernel) = self.kernel.get() {
            range.for_bytes(|offset, bytes| kernel.drop_range(file.inode, offset, bytes));
        }
    }

    /// One try; nothing if the kernel may have pages, and [`Tried::MeetsPages`] if what came through the cache is to stay there.
    fn overwrite<'a>(
        &self,
        who: &Who,
        file: &'a File,
        (offset, data, append): (u64, &[u8], bool),
        flags: WriteFlags,
        (dropped, is_last): (Dropped, bool),
    ) -> Result<Tries<'a>, Errno> {
        let came_through = matches!(dropped, Dropped::Filled(_));
        let need = Need::of(LeaseSet::WRITE).past_cache(came_through).yielding(flags.yields);
        if matches!(file.state.lock().data, Data::Chunks(_)) {
            self.clear_set_id(who, file, flags)?;
        }
        // The lease first: asking for it may take long, and the end of the file is known with it.
        let (in_flight, state) = self.begin_as(file, need)?;
        let at = state.place(append, offset);
        let is_inline = matches!(state.data, Data::Inline(_));
        // Without readers no pages are asked for and none can be stored into: when all are dropped there are none.
        let drops_all = !came_through && (is_inline || state.readers == 0);
        let stays = came_through && (is_inline || state.pages.may_exist());
        drop(state);
        // ORDER: the kernel may wait for a request that waits for nothing being in flight.
        drop(in_flight);
        if stays {
            return Ok(Some((Tried::MeetsPages, None)));
        }
        let range = if drops_all { Stretch::ALL } else { Stretch::of_pages(at, data.len() as u64) };
        let held = file.hold_pages(range);
        if let Some(kernel) = self.kernel.get() {
            if drops_all {
                kernel.drop_content(file.inode);
            } else if let Dropped::Filled(filled) = dropped {
                filled.for_bytes(|offset, bytes| kernel.drop_range(file.inode, offset, bytes));
            } else {
                kernel.drop_range(file.inode, at, data.len() as u64);
            }
        }
        let exclusive = is_inline.then(|| self.exclusive_as(file, need)).transpose()?;
        let (in_flight, mut state) = match &exclusive {
            Some(_) => (None, file.state.lock()),
            None => {
                let (in_flight, state) = self.begin_as(file, need)?;
                (Some(in_flight), state)
            }
        };
        let is_tight = held.is_tight(&state.pages);
        if is_tight && !came_through {
            state.pages.note_dropped(range);
        }
        let has_moved = matches!(state.data, Data::Inline(_)) != is_inline;
        if has_moved || !(is_last || is_tight && state.place(append, offset) == at) {
            return Ok(None);
        }
        let writing = in_flight.map(|in_flight| (held.begin_write(&mut state.pages), in_flight));
        let tried = if is_inline {
            drop(state);
            self.send_inline(who, file, offset, data, (append, flags))?
        } else {
            self.send_to_chunks(file, state, offset, data, (append, false))?
        };
        Ok(Some((tried, Some(Kept { _writing: writing, _exclusive: exclusive, _held: held }))))
    }
}
