//! Closes that metadata is told of a moment later, together: nobody waits for them, and one call for many is cheaper than one for each.
//!
//! With a close comes the time of the last read, if that is to be noted: also of that nobody is told sooner (`relatime`). What is not told yet is known here,
//! so this client sees it; it is told before this client sets times of the file, and metadata takes no time from before somebody else's change.
//!
//! Each server is told by a thread of its own, so that closes at one wait for no other one that is away. What could not be told is told again, for as long as the
//! session lasts.
//!
//! Only for clients over a network; in a process a call costs less.

use crate::call::{Who, unexpected};
use crate::client::Client;
use crate::file::Handle;
use ashlar_env::{Clock, Signal, Tasks};
use ashlar_types::message::{MetaReply, MetaRequest, ToldClose};
use ashlar_types::{Attr, ClusterMap, DescriptionId, Errno, InodeId, NodeId, ShardId, Timespec};
use parking_lot::{Mutex, MutexGuard, RwLock};
use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

/// For how long the first of them waits for others. Meanwhile the file counts as open here for others who open it: theirs may go past the page cache, as beside a
/// writer. So a large file that was open for writing is closed at once.
const DELAY: Duration = Duration::from_millis(5);
/// LIMIT: closes of a shard that are not told yet, and so of one call; who closes when there are so many tells metadata himself.
const WAITING_MAX: usize = 256;
/// Time between two tries to tell the same.
const TRY_PAUSE: Duration = Duration::from_secs(1);
/// The same where only the server does not know yet that the files are open: closes of others come meanwhile.
const UNTOLD_PAUSE: Duration = Duration::from_millis(20);
/// LIMIT: tries. A server that is away takes minutes for each.
const TRIES_MAX: u32 = 100;
/// For how long a thread stays for whose server there is nothing.
const IDLE_MAX: Duration = Duration::from_secs(10);
/// For how long the end of the client waits until all are told; the end of the session closes the rest.
const END_WAIT: Duration = Duration::from_secs(2);

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

/// One that is not told yet.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Due {
    close: ToldClose,
    /// Of all that there were.
    number: u64,
    tries: u32,
}

impl Due {
    fn home(&self) -> ShardId {
        self.close.inode.home()
    }
}

#[derive(Default)]
struct State {
    // LIMIT: `WAITING_MAX` per shard, with those on the way.
    waiting: VecDeque<Due>,
    /// What calls that are under way tell.
    on_the_way: Vec<Due>,
    /// How many there were.
    taken: u64,
    /// Servers that have a thread.
    // LIMIT: as metadata servers.
    tended: BTreeSet<NodeId>,
    /// No more are taken.
    is_ended: bool,
    /// What is left is not told.
    is_over: bool,
}

impl State {
    fn all(&self) -> impl Iterator<Item = &Due> {
        self.waiting.iter().chain(&self.on_the_way)
    }

    fn read_of(&self, inode: InodeId) -> Option<Timespec> {
        let of_it = self.all().filter(|due| due.close.inode == inode);
        of_it.filter_map(|due| due.close.atime).max()
    }

    /// Those of the shard of the oldest that `may` be told.
    fn take_batch(&mut self, may: impl Fn(InodeId) -> bool) -> Vec<Due> {
        let Some(first) = self.waiting.iter().find(|due| may(due.close.inode)) else { return Vec::new() };
        let home = first.home();
        self.take_of(home, may)
    }

    fn take_of(&mut self, home: ShardId, may: impl Fn(InodeId) -> bool) -> Vec<Due> {
        let is_wanted = |due: &Due| due.home() == home && may(due.close.inode);
        let (batch, rest): (Vec<Due>, Vec<Due>) = self.waiting.drain(..).partition(is_wanted);
        self.waiting = rest.into();
        batch
    }

    /// Those of `batch` that are to be told once more are the oldest again; the others are given back.
    fn put_back(&mut self, batch: &[Due]) -> Vec<Due> {
        let is_over = self.is_over;
        let again = |due: &Due| Due { tries: due.tries + 1, ..due.clone() };
        let (again, given_up): (Vec<Due>, Vec<Due>) =
            batch.iter().map(again).partition(|due| !is_over && due.tries < TRIES_MAX);
        again.into_iter().rev().for_each(|due| self.waiting.push_front(due));
        given_up
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
        let home = close.inode.home();
        let of_shard = state.all().filter(|due| due.home() == home).count();
        if !self.is_used || state.is_ended || of_shard >= WAITING_MAX {
            return Err(close);
        }
        let is_first = !state.waiting.iter().any(|due| due.home() == home);
        self.reads.fetch_add(usize::from(close.atime.is_some()), SeqCst);
        let number = state.taken;
        state.taken += 1;
        state.waiting.push_back(Due { close, number, tries: 0 });
        drop(state);
        if is_first {
            self.ready.notify_all();
        }
        Ok(())
    }

    /// When `inode` was read last, if metadata has not been told yet.
    pub(crate) fn read_of(&self, inode: InodeId) -> Option<Timespec> {
        if self.reads.load(SeqCst) == 0 { None } else { self.state.lock().read_of(inode) }
    }

    /// Waits until there are any at a server, as `server_of` says, that has no thread, and takes it for one; `None`: no more will come.
    fn wait_for_server(&self, server_of: impl Fn(InodeId) -> NodeId) -> Option<NodeId> {
        let mut state = self.state.lock();
        loop {
            if state.is_over || state.is_ended && state.waiting.is_empty() {
                return None;
            }
            let mut servers = state.waiting.iter().map(|due| server_of(due.close.inode));
            if let Some(server) = servers.find(|server| !state.tended.contains(server)) {
                state.tended.insert(server);
                return Some(server);
            }
            match state.waiting.is_empty() {
                true => self.ready.wait(&mut state),
                // A newer map may have given them to another one.
                false => drop(self.ready.wait_for(&mut state, TRY_PAUSE)),
            }
        }
    }

    /// Waits until there are any at `server`; whether there are, or its thread is to end.
    fn wait_for_some_of(&self, server: NodeId, server_of: impl Fn(InodeId) -> NodeId) -> bool {
        let mut state = self.state.lock();
        let mut is_idle = false;
        loop {
            let has_any = state.waiting.iter().any(|due| server_of(due.close.inode) == server);
            if has_any && !state.is_over {
                return true;
            }
            if state.is_ended || is_idle {
                // ORDER: under the lock. What comes afterwards finds that it has no thread.
                state.tended.remove(&server);
                return false;
            }
            is_idle = self.ready.wait_for(&mut state, IDLE_MAX);
        }
    }

    /// The thread of `server` is gone.
    fn leave(&self, server: NodeId) {
        self.state.lock().tended.remove(&server);
    }

    /// Waits for at most `bound` until all that there are now are told; whether there were any.
    pub(crate) fn wait(&self, clock: &dyn Clock, bound: Duration) -> bool {
        let give_up = clock.monotonic().saturating_add(bound);
        let mut state = self.state.lock();
        let (before, had_any) = (state.taken, state.all().next().is_some());
        while state.all().any(|due| due.number < before) {
            let left = give_up.saturating_sub(clock.monotonic());
            if left.is_zero() || self.told.wait_for(&mut state, left) {
                break;
            }
        }
        had_any
    }

    /// No more wait from now on; those that there are may be told for a while yet.
    fn end(&self, clock: &dyn Clock) {
        self.state.lock().is_ended = true;
        self.ready.notify_all();
        self.wait(clock, END_WAIT);
        let mut state = self.state.lock();
        state.is_over = true;
        let left = state.waiting.drain(..).filter(|due| due.close.atime.is_some()).count();
        self.reads.fetch_sub(left, SeqCst);
        drop(state);
        self.ready.notify_all();
    }
}

/// What a thread that tells has.
#[derive(Clone)]
struct Teller {
    closes: Arc<Closes>,
    client: Weak<Client>,
    tasks: Arc<dyn Tasks>,
    map: Arc<RwLock<Arc<ClusterMap>>>,
}

/// Starts the thread that starts one for each server that is to be told, until the session ends.
///
/// # Errors
/// When no thread can be started.
pub(crate) fn start_telling(client: &Arc<Client>) -> io::Result<()> {
    if !client.closes.is_used {
        return Ok(());
    }
    let teller = Teller {
        closes: client.closes.clone(),
        client: Arc::downgrade(client),
        tasks: client.env.tasks.clone(),
        map: client.map.clone(),
    };
    let thread = client.env.tasks.spawn("ashlar-closes", Box::new(move || teller.run()))?;
    client.event_threads.lock().push(thread);
    Ok(())
}

impl Teller {
    fn server_of(&self, inode: InodeId) -> NodeId {
        self.map.read().primary(inode.home()).unwrap_or_default()
    }

    fn run(&self) {
        while let Some(server) = self.closes.wait_for_server(|inode| self.server_of(inode)) {
            let teller = self.clone();
            if self.tasks.spawn("ashlar-close", Box::new(move || teller.tend(server))).is_err() {
                tracing::error!(%server, "no thread can be started; closes at this server hold up those at others");
                self.tell(server);
                self.closes.leave(server);
            }
        }
    }

    fn tend(&self, server: NodeId) {
        while self.closes.wait_for_some_of(server, |inode| self.server_of(inode)) {
            self.tell(server);
        }
    }

    fn tell(&self, server: NodeId) {
        self.tasks.pause(DELAY);
        let mut pause = None;
        let mut tell = || {
            if let Some(client) = self.client.upgrade() {
                pause = client.tell_closes_at(server);
            } else {
                // Nobody is there who could be told anything.
                self.closes.state.lock().is_over = true;
            }
        };
        // A panic ends this batch only: with the thread gone, closes would wait until there are too many.
        if !self.tasks.contain(&mut tell) {
            tracing::error!("telling metadata of closes ended by a panic");
        }
        if let Some(pause) = pause {
            self.tasks.pause(pause);
        }
    }
}

/// Notes that the closes of a call are told as it goes, also by a panic; or, if it `has_failed`, that they are to be told again.
struct OnTheWay<'a> {
    client: &'a Client,
    batch: Vec<Due>,
    has_failed: bool,
}

impl OnTheWay<'_> {
    /// ORDER: before they are not known here any more. What was told of the file before does not have it.
    fn forget(&self, batch: &[Due]) -> usize {
        let reads = batch.iter().filter(|due| due.close.atime.is_some());
        let forget = |due: &Due| {
            self.client.reports.note(due.close.inode);
            self.client.ahead.forget(due.close.inode);
        };
        reads.map(forget).count()
    }
}

impl Drop for OnTheWay<'_> {
    fn drop(&mut self) {
        let closes = &self.client.closes;
        // What is put back stays known. Forgotten is what it says in any case: it may have been told although the answer was lost.
        let reads = self.forget(&self.batch);
        let mut state = closes.state.lock();
        state.on_the_way.retain(|one| !self.batch.iter().any(|told| told.number == one.number));
        let reads = if self.has_failed {
            let given_up = state.put_back(&self.batch);
            given_up.iter().filter(|due| due.close.atime.is_some()).count()
        } else {
            reads
        };
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

    /// Tells all closes that wait at `server`; if any are left there, the time until these are to be told again.
    fn tell_closes_at(&self, server: NodeId) -> Option<Duration> {
        let mut failed = Vec::new();
        // LIMIT: a turn per shard, and per batch that comes meanwhile.
        loop {
            let mut state = self.closes.state.lock();
            let is_there = |inode: InodeId| self.server_of(inode) == server;
            let may = |inode: InodeId| {
                is_there(inode) && !failed.contains(&inode.home()) && !self.untold.has(inode)
            };
            let batch = state.take_batch(may);
            let Some(home) = batch.first().map(Due::home) else {
                let is_left = state.waiting.iter().any(|due| is_there(due.close.inode));
                let pause = if failed.is_empty() { UNTOLD_PAUSE } else { TRY_PAUSE };
                return is_left.then_some(pause);
            };
            if self.tell_batch(state, batch).is_err() {
                failed.push(home);
            }
        }
    }

    /// Tells of `batch`, which is of one shard. What could not be told waits again.
    ///
    /// # Errors
    /// As of the call, but for the end of the session, which closes everything.
    fn tell_batch(&self, mut state: MutexGuard<'_, State>, batch: Vec<Due>) -> Result<(), Errno> {
        state.on_the_way.extend(batch.iter().cloned());
        drop(state);
        let mut on_the_way = OnTheWay { client: self, batch, has_failed: false };
        let of: Vec<ToldClose> = on_the_way.batch.iter().map(|due| due.close.clone()).collect();
        let mut told = Ok(());
        let mut tell = || match self.call(&Who::system(), MetaRequest::Closes { of: of.clone() }) {
            Ok(MetaReply::Closed { gone }) => gone,
            Err(Errno::ENOTCONN) => Vec::new(),
            other => {
                let errno = other.map_or_else(|errno| errno, |other| unexpected(&other));
                tracing::warn!(%errno, closes = of.len(), "could not report closes; trying again");
                told = Err(errno);
                Vec::new()
            }
        };
        match self.closes.note_gone.get() {
            Some(note) => note(&mut tell),
            None => drop(tell()),
        }
        on_the_way.has_failed = told.is_err();
        told
    }

    /// Tells those of the shard of `inode`, but for files of which the server does not know yet that they are open.
    fn tell_shard_of<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        inode: InodeId,
    ) -> Result<MutexGuard<'a, State>, Errno> {
        let batch = state.take_of(inode.home(), |inode| !self.untold.has(inode));
        if batch.is_empty() {
            return Ok(state);
        }
        self.tell_batch(state, batch)?;
        Ok(self.closes.state.lock())
    }

    /// Tells of closes of `inode` that wait, and waits until they are told: before what they say of times is replaced.
    ///
    /// # Errors
    /// `ETIMEDOUT` after [`crate::ClientConfig::wait_max`]; else as of the call.
    pub(crate) fn settle_closes(&self, inode: InodeId) -> Result<(), Errno> {
        if self.closes.read_of(inode).is_none() {
            return Ok(());
        }
        // Once for all tries: each that fails wakes whoever waits.
        let give_up = self.env.clock.monotonic().saturating_add(self.wait_max);
        let mut state = self.tell_shard_of(self.closes.state.lock(), inode)?;
        while state.read_of(inode).is_some() {
            let left = give_up.saturating_sub(self.env.clock.monotonic());
            if left.is_zero() || self.closes.told.wait_for(&mut state, left) {
                return Err(Errno::ETIMEDOUT);
            }
        }
        Ok(())
    }

    /// As [`Client::release`], of a directory, told at once: who lists one often removes it next, and a directory that is open is not gone with its name.
    pub fn release_directory(&self, handle: &Handle) -> Option<Attr> {
        let last = self.release(handle);
        // What could not be told is told later.
        drop(self.tell_shard_of(self.closes.state.lock(), handle.file.inode));
        last
    }

    /// Whether all closes are told.
    pub(crate) fn are_closes_told(&self) -> bool {
        self.closes.state.lock().all().next().is_none()
    }

    /// Waits until all closes are told, for a while, and takes no more: the session ends.
    pub(crate) fn end_closes(&self) {
        self.closes.end(&*self.env.clock);
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
        let of = |batch: Vec<Due>| batch.iter().map(|due| due.close.inode.0).collect::<Vec<u64>>();
        assert_eq!(of(state.take_batch(|inode| inode.0 != 8)), [7], "the other one may not be told yet");
        assert_eq!(of(state.take_batch(|_| true)), [elsewhere]);
        assert_eq!(of(state.take_batch(|_| true)), [8]);
        assert!(state.take_batch(|_| true).is_empty());
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
        assert_eq!(
            closes.add(close(1 << 48 | 9, None)),
            Ok(()),
            "those of a shard are in no other one's way"
        );
        let unused = Closes::new(false, Signal::default());
        assert!(unused.add(close(1, None)).is_err());
        let ended = Closes::new(true, Signal::default());
        ended.end(&*ashlar_env::Env::os().clock);
        assert!(ended.add(close(1, None)).is_err() && ended.wait_for_server(|_| NodeId(1)).is_none());
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
        let batch = state.take_batch(|_| true);
        state.on_the_way.extend(batch);
        drop(state);
        assert_eq!(closes.read_of(InodeId(3)), newest, "on its way");
    }

    #[test]
    fn what_could_not_be_told_is_the_oldest_again_until_it_was_tried_often_enough() {
        let closes = Closes::new(true, Signal::default());
        [5, 6].iter().for_each(|inode| assert_eq!(closes.add(close(*inode, None)), Ok(())));
        let mut state = closes.state.lock();
        for _ in 1..TRIES_MAX {
            let batch = state.take_of(ShardId(0), |inode| inode.0 == 5);
            assert!(batch.len() == 1 && state.put_back(&batch).is_empty());
        }
        assert_eq!(state.waiting.front().map(|due| due.close.inode.0), Some(5));
        let batch = state.take_batch(|_| true);
        let given_up = state.put_back(&batch);
        assert_eq!(given_up.iter().map(|due| due.close.inode.0).collect::<Vec<_>>(), [5]);
        assert_eq!(state.waiting.len(), 1);
        // Nor is anything put back after the end.
        state.is_over = true;
        let batch = state.take_batch(|_| true);
        assert_eq!((state.put_back(&batch).len(), state.waiting.len()), (1, 0));
    }
}

#[cfg(test)]
mod servers_tests;
