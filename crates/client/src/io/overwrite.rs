//! `write` past the kernel's page cache where the kernel may have pages: see [`crate::pages`].

use super::write::{Taken, Tried, WriteFlags};
use crate::call::Who;
use crate::client::Client;
use crate::data::Exclusive;
use crate::file::{Data, File, Handle, InFlight};
use crate::pages::{Beside, Held, Stretch};
use ashlar_types::Errno;
use ashlar_types::message::LeaseSet;
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
type Tries<'a> = Option<(Tried, Kept<'a>)>;

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
        let file = &*handle.file;
        let put = (offset, data, append);
        for count in 1..=TRIES_MAX + MOVES_MAX {
            let is_last = count >= TRIES_MAX;
            match self.overwrite(who, file, put, flags, is_last) {
                Ok(Some((Tried::Written(taken), kept))) => {
                    // A write that is to be durable lets others go on before it waits for a disk.
                    let is_to_sync = self.must_sync(handle, flags);
                    let kept = (!is_last && !is_to_sync).then_some(kept);
                    if is_last {
                        self.drop_pages_late(file, taken);
                    }
                    let synced = if is_to_sync { self.fsync(handle) } else { Ok(()) };
                    // ORDER: pages are asked for again once the kernel has been told, see `Client::is_growing`.
                    answer(synced.map(|()| taken));
                    drop(kept);
                    return;
                }
                Ok(Some((_, kept))) => {
                    drop(kept);
                    if let Err(errno) = self.spill(file) {
                        return answer(Err(errno));
                    }
                }
                Ok(None) => {
                    file.changed.wait_for(&mut file.state.lock(), PAUSE);
                }
                Err(errno) => return answer(Err(errno)),
            }
        }
        answer(Err(Errno::EIO));
    }

    fn drop_pages_late(&self, file: &File, taken: Taken) {
        tracing::debug!(inode = %file.inode, "pages were asked for all the time beside a write past them");
        if let Some(kernel) = self.kernel.get() {
            kernel.drop_range(file.inode, taken.offset, taken.bytes as u64);
        }
    }

    /// One try; nothing if the kernel may have pages.
    fn overwrite<'a>(
        &self,
        who: &Who,
        file: &'a File,
        (offset, data, append): (u64, &[u8], bool),
        flags: WriteFlags,
        is_last: bool,
    ) -> Result<Tries<'a>, Errno> {
        if matches!(file.state.lock().data, Data::Chunks(_)) {
            self.clear_set_id(who, file, flags)?;
        }
        // The lease first: asking for it may take long, and the end of the file is known with it.
        let (in_flight, state) = self.begin(file, LeaseSet::WRITE)?;
        let at = state.place(append, offset);
        let is_inline = matches!(state.data, Data::Inline(_));
        // Without readers no pages are asked for and none can be stored into: when all are dropped there are none.
        let drops_all = is_inline || state.readers == 0;
        drop(state);
        // ORDER: the kernel may wait for a request that waits for nothing being in flight.
        drop(in_flight);
        let range = if drops_all { Stretch::ALL } else { Stretch::of_pages(at, data.len() as u64) };
        let held = file.hold_pages(range);
        if let Some(kernel) = self.kernel.get() {
            if drops_all {
                kernel.drop_content(file.inode);
            } else {
                kernel.drop_range(file.inode, at, data.len() as u64);
            }
        }
        let exclusive = is_inline.then(|| self.exclusive(file)).transpose()?;
        let (in_flight, mut state) = match &exclusive {
            Some(_) => (None, file.state.lock()),
            None => {
                let (in_flight, state) = self.begin(file, LeaseSet::WRITE)?;
                (Some(in_flight), state)
            }
        };
        let is_tight = held.is_tight(&state.pages);
        if is_tight {
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
        Ok(Some((tried, Kept { _writing: writing, _exclusive: exclusive, _held: held })))
    }
}
