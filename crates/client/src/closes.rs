//! Closes that metadata is told of a moment later, together: nobody waits for them, and one call for many is cheaper than one for each.
//!
//! With a close comes the time of the last read, if that is to be noted: also of that nobody is told sooner (`relatime`). What is not told yet is known here,
//! so this client sees it; it is told before this client sets times of the file, and metadata takes no time from before somebody else's change.
//!
//! Only for clients over a network; in a process a call costs less.

use crate::call::{Who, unexpected};
use crate::client::Client;
use crate::file::Handle;
use ashlar_env::{Signal, Tasks};
use ashlar_types::message::{MetaReply, MetaRequest, ToldClose};
use ashlar_types::{Attr, DescriptionId, Errno, InodeId, ShardId, Timespec};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

/// For how long the first of them waits for others. Meanwhile the file counts as open here for others who open it: theirs may go past the page cache, as beside a
/// writer. So a large file that was open for writing is closed at once.
const DELAY: Duration = Duration::from_millis(5);
/// LIMIT: closes that wait; who closes when there are so many tells metadata himself.
const WAITING_MAX: usize = 256;

/// Who remembers the last attributes of files that went with a close: it runs what tells them.
pub type NoteGone = Box<dyn Fn(&mut dyn FnMut() -> Vec<Attr>) + Send + Sync>;

/// See the module.
pub(crate) struct Closes {
    is_used: bool,
    state: Mutex<State>,
    ready: Signal,
    told: Signal,
    /// How many times of reads are not told yet: looked at with every question for attributes.
    reads: AtomicUsize,
    note_gone: OnceLock<NoteGone>,
}

#[derive(Default)]
struct State {
    // LIMIT: `WAITING_MAX`.
    waiting: VecDeque<ToldClose>,
    /// What a call that is under way tells.
    // LIMIT: as many, of one call.
    on_the_way: Vec<ToldClose>,
    is_ended: bool,
}

impl State {
    fn all(&self) -> impl Iterator<Item = &ToldClose> {
        self.waiting.iter().chain(&self.on_the_way)
    }

    fn read_of(&self, inode: InodeId) -> Option<Timespec> {
        self.all().filter(|close| close.inode == inode).filter_map(|close| close.atime).max()
    }

    /// Those of the shard of the oldest.
    fn take_batch(&mut self) -> Vec<ToldClose> {
        let Some(home) = self.waiting.front().map(|close| close.inode.home()) else { return Vec::new() };
        self.take_of(home)
    }

    fn take_of(&mut self, home: ShardId) -> Vec<ToldClose> {
        let (batch, rest): (Vec<ToldClose>, Vec<ToldClose>) =
            self.waiting.drain(..).partition(|close| close.inode.home() == home);
        self.waiting = rest.into();
        batch
    }
}

impl Closes {
    /// Closes that wait for each other, if that `is_used`.
    pub(crate) fn new(is_used: bool, ready: Signal) -> Closes {
        Closes {
            is_used,
            state: Mutex::default(),
            told: ready.another(),
            ready,
            reads: AtomicUsize::new(0),
            note_gone: OnceLock::new(),
        }
    }

    pub(crate) fn is_used(&self) -> bool {
        self.is_used
    }

    /// Takes a close that is to be told later. Given back: it is to be told now.
    pub(crate) fn add(&self, close: ToldClose) -> Result<(), ToldClose> {
        let mut state = self.state.lock();
        if !self.is_used || state.is_ended || state.waiting.len() >= WAITING_MAX {
            return Err(close);
        }
        self.reads.fetch_add(usize::from(close.atime.is_some()), SeqCst);
        state.waiting.push_back(close);
        let is_first = state.waiting.len() == 1;
        drop(state);
        if is_first {
            self.ready.notify_one();
        }
        Ok(())
    }

    /// When `inode` was read last, if metadata has not been told yet.
    pub(crate) fn read_of(&self, inode: InodeId) -> Option<Timespec> {
        if self.reads.load(SeqCst) == 0 { None } else { self.state.lock().read_of(inode) }
    }

    /// Waits until there are any; whether there are, or no more will come.
    fn wait_for_some(&self) -> bool {
        let mut state = self.state.lock();
        while state.waiting.is_empty() && !state.is_ended {
            self.ready.wait(&mut state);
        }
        !state.is_ended
    }

    /// No more wait from now on.
    fn end(&self) {
        self.state.lock().is_ended = true;
        self.ready.notify_all();
    }
}

/// Starts the thread that tells metadata, until the session ends.
///
/// # Errors
/// When no thread can be started.
pub(crate) fn start_telling(client: &Arc<Client>) -> io::Result<()> {
    if !client.closes.is_used {
        return Ok(());
    }
    let (weak, closes, tasks) = (Arc::downgrade(client), client.closes.clone(), client.env.tasks.clone());
    let run = move || run(&closes, &weak, &*tasks);
    let thread = client.env.tasks.spawn("ashlar-closes", Box::new(run))?;
    client.event_threads.lock().push(thread);
    Ok(())
}

fn run(closes: &Closes, client: &Weak<Client>, tasks: &dyn Tasks) {
    while closes.wait_for_some() {
        tasks.pause(DELAY);
        let Some(client) = client.upgrade() else { return };
        // A panic ends this batch only: with the thread gone, closes would wait until there are too many.
        if !tasks.contain(&mut || client.tell_closes()) {
            tracing::error!("telling metadata of closes ended by a panic");
        }
    }
}

/// Notes that the closes of a call are told as it goes, also by a panic.
struct OnTheWay<'a>(&'a Client, Vec<ToldClose>);

impl Drop for OnTheWay<'_> {
    fn drop(&mut self) {
        let closes = &self.0.closes;
        let reads = self.1.iter().filter(|close| close.atime.is_some());
        // ORDER: before they are not known here any more. What was told of the file before does not have it.
        let forget = |close: &ToldClose| {
            self.0.reports.note(close.inode);
            self.0.ahead.forget(close.inode);
        };
        let reads = reads.map(forget).count();
        let mut state = closes.state.lock();
        state.on_the_way.retain(|close| !self.1.contains(close));
        closes.reads.fetch_sub(reads, SeqCst);
        drop(state);
        closes.told.notify_all();
    }
}

impl Client {
    /// Has `note_gone` remember files that go with a close which is told later. Called once.
    pub fn set_note_gone(&self, note_gone: NoteGone) {
        let _ = self.closes.note_gone.set(note_gone);
    }

    /// Tells all closes that wait.
    pub(crate) fn tell_closes(&self) {
        loop {
            let mut state = self.closes.state.lock();
            let batch = state.take_batch();
            if batch.is_empty() {
                return;
            }
            self.tell_batch(state, batch);
        }
    }

    fn tell_batch(&self, mut state: parking_lot::MutexGuard<'_, State>, batch: Vec<ToldClose>) {
        state.on_the_way.extend(batch.iter().cloned());
        drop(state);
        let on_the_way = OnTheWay(self, batch);
        let mut tell = || match self.call(&Who::system(), MetaRequest::Closes { of: on_the_way.1.clone() }) {
            Ok(MetaReply::Closed { gone }) => gone,
            other => {
                let errno = other.map_or_else(|errno| errno, |other| unexpected(&other));
                tracing::warn!(%errno, closes = on_the_way.1.len(), "could not report closes");
                Vec::new()
            }
        };
        match self.closes.note_gone.get() {
            Some(note) => note(&mut tell),
            None => drop(tell()),
        }
    }

    /// Tells of closes of `inode` that wait, and waits until they are told: before what they say of times is replaced.
    ///
    /// # Errors
    /// `ETIMEDOUT` after [`self.wait_max`].
    pub(crate) fn settle_closes(&self, inode: InodeId) -> Result<(), Errno> {
        if self.closes.read_of(inode).is_none() {
            return Ok(());
        }
        let mut state = self.closes.state.lock();
        let batch = state.take_of(inode.home());
        if !batch.is_empty() {
            self.tell_batch(state, batch);
            state = self.closes.state.lock();
        }
        while state.read_of(inode).is_some() {
            if self.closes.told.wait_for(&mut state, self.wait_max) {
                return Err(Errno::ETIMEDOUT);
            }
        }
        Ok(())
    }

    /// As [`Client::release`], of a directory, told at once: who lists one often removes it next, and a directory that is open is not gone with its name.
    pub fn release_directory(&self, handle: &Handle) -> Option<Attr> {
        let last = self.release(handle);
        let mut state = self.closes.state.lock();
        let batch = state.take_of(handle.file.inode.home());
        if !batch.is_empty() {
            self.tell_batch(state, batch);
        }
        last
    }

    /// Tells of all closes, and takes no more: the session ends.
    pub(crate) fn end_closes(&self) {
        self.closes.end();
        self.tell_closes();
    }

    /// The close of a description, to be told later if it may be.
    pub(crate) fn close_later(&self, inode: InodeId, handle: u64, atime: Option<Timespec>) -> bool {
        self.closes.add(ToldClose { inode, handle: DescriptionId(handle), atime }).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(inode: u64, read_s: Option<i64>) -> ToldClose {
        let atime = read_s.map(|secs| Timespec { secs, nanos: 0 });
        ToldClose { inode: InodeId(inode), handle: DescriptionId(inode), atime }
    }

    #[test]
    fn those_of_a_shard_go_together_and_the_oldest_first() {
        let closes = Closes::new(true, Signal::default());
        let elsewhere = 1 << 48 | 5;
        for inode in [7, elsewhere, 8] {
            assert_eq!(closes.add(close(inode, None)), Ok(()));
        }
        let mut state = closes.state.lock();
        let batch: Vec<u64> = state.take_batch().iter().map(|close| close.inode.0).collect();
        assert_eq!(batch, [7, 8]);
        assert_eq!(state.take_batch().len(), 1);
        assert!(state.take_batch().is_empty());
    }

    #[test]
    fn no_more_wait_than_may_and_none_where_nobody_tells_them() {
        let closes = Closes::new(true, Signal::default());
        (0..WAITING_MAX as u64).for_each(|inode| assert_eq!(closes.add(close(inode, Some(1))), Ok(())));
        assert_eq!(closes.add(close(9, Some(2))), Err(close(9, Some(2))));
        assert_eq!(
            closes.read_of(InodeId(9)),
            Some(Timespec { secs: 1, nanos: 0 }),
            "the other is not noted"
        );
        let unused = Closes::new(false, Signal::default());
        assert!(unused.add(close(1, None)).is_err());
        let ended = Closes::new(true, Signal::default());
        ended.end();
        assert!(ended.add(close(1, None)).is_err() && !ended.wait_for_some());
    }

    #[test]
    fn the_newest_read_is_known_until_it_is_told() {
        let closes = Closes::new(true, Signal::default());
        assert_eq!(closes.read_of(InodeId(3)), None);
        for read in [Some(5), None, Some(4)] {
            assert_eq!(closes.add(close(3, read)), Ok(()));
        }
        let newest = Some(Timespec { secs: 5, nanos: 0 });
        assert_eq!((closes.read_of(InodeId(3)), closes.read_of(InodeId(4))), (newest, None));
        let mut state = closes.state.lock();
        let batch = state.take_batch();
        state.on_the_way.extend(batch);
        drop(state);
        assert_eq!(closes.read_of(InodeId(3)), newest, "on its way");
    }
}
