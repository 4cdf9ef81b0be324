//! Directories that are being split: threads go on with them, a step at a time, and begin with those that have grown large
//! (ADR 0024). One thread looks for them, and has one for each server that they wait for (`split/queue.rs`).
//!
//! That a directory is being split is noted in the log, with the directory. So it goes on after a start, and where the directory's shard is by then.

mod queue;

use crate::MetaService;
use crate::call::verb as number;
use crate::execute::itself;
use ashlar_env::{Signal, Tasks};
use ashlar_kv::Snapshot;
use ashlar_namespace::{Txn, key, verb};
use ashlar_rpc::{Caller, LastingSessions};
use ashlar_types::{Errno, EventKind, InodeId, NodeId, OpId, SLICES_MAX, ShardId};
use parking_lot::Mutex;
use queue::{Line, Queue, RETRY_MIN};
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Shortest time between steps. They are also as far apart as twice the last one took: whoever changes the directory, or something at several servers
/// in it, gets his turn.
const STEP_PAUSE_MIN: Duration = Duration::from_millis(2);
/// Longest time between steps: one may have waited for a server that was away.
const STEP_PAUSE_MAX: Duration = Duration::from_millis(500);

/// See the module.
pub(crate) struct Splits {
    /// Directories with more entries are split; 0: none is.
    split_at: AtomicU64,
    /// Up to so many entries are moved as a split begins, and so many with a step.
    at_once: AtomicU64,
    step: AtomicUsize,
    queue: Mutex<Queue>,
    woken: Signal,
    ended: AtomicU64,
    moved: AtomicU64,
}

/// What became of splits at this server since it was started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SplitMeasures {
    /// Directories that are being split.
    pub under_way: usize,
    /// Splits that have ended, those of small directories, which are split at once, left out.
    pub ended: u64,
    /// Entries that were moved.
    pub entries_moved: u64,
}

impl Splits {
    pub(crate) fn new(tasks: &dyn Tasks) -> Splits {
        Splits {
            split_at: AtomicU64::new(0),
            at_once: AtomicU64::new(verb::SPLIT_ENTRIES_MAX),
            step: AtomicUsize::new(verb::SPLIT_STEP_ENTRIES),
            queue: Mutex::default(),
            woken: tasks.signal(),
            ended: AtomicU64::new(0),
            moved: AtomicU64::new(0),
        }
    }

    /// A directory may be split from now on.
    pub(crate) fn wake(&self) {
        self.queue.lock().note_look();
        self.woken.notify_all();
    }

    fn end_line(&self, line: Line) {
        self.queue.lock().end_line(line);
        self.woken.notify_all();
    }

    pub(crate) fn measures(&self) -> SplitMeasures {
        SplitMeasures {
            under_way: self.queue.lock().under_way(),
            ended: self.ended.load(Relaxed),
            entries_moved: self.moved.load(Relaxed),
        }
    }

    pub(crate) fn at_once(&self) -> u64 {
        self.at_once.load(Relaxed)
    }
}

impl MetaService {
    /// Starts what splits directories; it ends with the service. One that grows to more than `split_at` entries is split by itself, if there are
    /// other metadata servers; 0: none is.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn start_splitter(self: &Arc<Self>, split_at: u64) -> std::io::Result<()> {
        self.splits.split_at.store(split_at, SeqCst);
        // There may be some of the start before.
        self.splits.wake();
        let weak: Weak<MetaService> = Arc::downgrade(self);
        let run = move || {
            let mut generation = u64::MAX;
            while let Some(service) = weak.upgrade() {
                if service.is_ending() {
                    return;
                }
                // A panic ends this round only: nobody else would notice that no directory is split to its end any more.
                if !service.env.tasks.contain(&mut || service.split_round(&mut generation)) {
                    tracing::error!("looking for directories to split ended by a panic; trying again later");
                    service.splits.wake();
                    service.env.tasks.pause(RETRY_MIN);
                }
            }
        };
        self.env.tasks.spawn("ashlar-split", Box::new(run)).map(drop)
    }

    /// For tests: directories of more than `at_once` entries are split in steps of `step` entries.
    pub fn split_in_steps(&self, at_once: u64, step: usize) {
        self.splits.at_once.store(at_once, SeqCst);
        self.splits.step.store(step, SeqCst);
    }

    /// Whether directories are split that have grown large.
    pub(crate) fn splits_by_itself(&self) -> bool {
        self.splits.split_at.load(Relaxed) > 0 && self.across.has_peers()
    }

    /// Notes directories that have grown large.
    pub(crate) fn note_grown(&self, grown: &[(InodeId, u64)]) {
        let split_at = self.splits.split_at.load(Relaxed);
        if !self.splits_by_itself() || grown.iter().all(|(_, entries)| *entries <= split_at) {
            return;
        }
        let mut queue = self.splits.queue.lock();
        for (directory, _) in grown.iter().filter(|(_, entries)| *entries > split_at) {
            if queue.push_grown(*directory) {
                self.splits.woken.notify_all();
            }
        }
    }

    /// Waits until there is something to be done, and has threads do it.
    fn split_round(self: &Arc<Self>, generation: &mut u64) {
        {
            let mut queue = self.splits.queue.lock();
            if let Some(pause) = queue.idle(self.env.clock.monotonic()) {
                self.splits.woken.wait_for(&mut queue, pause);
            }
        }
        if self.is_ending() {
            return;
        }
        if self.is_awaiting() {
            // Nobody knows yet who has cached what a step changes.
            return self.pause_splits();
        }
        let now = self.env.clock.monotonic();
        let is_new = std::mem::replace(generation, self.across.generation()) != *generation;
        if self.splits.queue.lock().take_look(now) || is_new {
            match self.find_halfway() {
                Ok(found) => self.splits.queue.lock().note_halfway(&found, now),
                Err(_) => {
                    self.splits.queue.lock().note_look();
                    return self.pause_splits();
                }
            }
        }
        let due = self.splits.queue.lock().due(now);
        let due = due.into_iter().map(|directory| (directory, self.server_of_step(directory))).collect();
        let lines = self.splits.queue.lock().line_up(due, now);
        lines.into_iter().for_each(|line| self.employ(line));
    }

    /// Waits for a while; a stop does not wait for this.
    fn pause_splits(&self) {
        self.splits.woken.wait_for(&mut self.splits.queue.lock(), RETRY_MIN);
    }

    /// Has a thread work through a line.
    fn employ(self: &Arc<Self>, line: Line) {
        let weak = Arc::downgrade(self);
        let run = move || {
            let Some(service) = weak.upgrade() else { return };
            if !service.env.tasks.contain(&mut || service.work_through(line)) {
                tracing::error!("splitting directories ended by a panic; trying again later");
                service.env.tasks.pause(RETRY_MIN);
            }
            service.splits.end_line(line);
        };
        if let Err(error) = self.env.tasks.spawn("ashlar-slice", Box::new(run)) {
            tracing::error!(%error, "no thread can be started to split directories; trying again later");
            self.splits.end_line(line);
            self.env.tasks.pause(RETRY_MIN);
        }
    }

    /// Goes on with all directories of a line. Those with which that does not go have to wait, and hold up no other.
    fn work_through(&self, line: Line) {
        while !self.is_ending() {
            let taken = self.splits.queue.lock().take(line, self.env.clock.monotonic());
            let Some(directory) = taken else { return };
            let outcome = self.attempt(directory, || match line {
                Line::Beginnings => self.begin_to_split(directory).map(|()| false),
                Line::At(server) => self.split_with(directory, server),
            });
            self.splits.queue.lock().put_back(line, directory, outcome, self.env.clock.monotonic());
            // It may have to stand in another line now.
            self.splits.woken.notify_all();
        }
    }

    /// Does something with a directory; a panic is an error of it.
    fn attempt(&self, directory: InodeId, what: impl Fn() -> Result<bool, Errno>) -> Result<bool, Errno> {
        let mut outcome = Err(Errno::EIO);
        if !self.env.tasks.contain(&mut || outcome = what()) {
            tracing::error!(%directory, "splitting a directory ended by a panic; trying again later");
        }
        outcome
    }

    /// The server that the next step of a directory needs; this one where that cannot be told, as a step will.
    fn server_of_step(&self, directory: InodeId) -> NodeId {
        let slice = {
            let reader = self.lane.read();
            let mut txn = Txn::new(&reader);
            txn.find_inode(directory).ok().flatten().and_then(verb::next_slice)
        };
        let server = slice.and_then(|slice| self.map.read().primary(slice.home()));
        server.unwrap_or(self.across.node())
    }

    /// Directories here that are being split.
    fn find_halfway(&self) -> Result<BTreeSet<InodeId>, Errno> {
        let shards: Vec<ShardId> = self.shards_here().0.iter().collect();
        let mut found = BTreeSet::new();
        for shard in shards {
            let (from, to) = key::table_range(shard, b'H');
            let mut visit = |record_key: &[u8], _: &[u8]| {
                found.extend(key::inode_of(record_key));
                ControlFlow::Continue(())
            };
            self.lane.read().scan(&from, &to, &mut visit).map_err(|error| self.answer(&error.into()))?;
        }
        Ok(found)
    }

    /// Splits a directory that has more entries than it may by itself.
    fn begin_to_split(&self, directory: InodeId) -> Result<(), Errno> {
        let split_at = self.splits.split_at.load(Relaxed);
        let servers: BTreeSet<_> = self.map.read().shards.iter().map(|shard| shard.primary).collect();
        let slices = servers.len().min(usize::from(SLICES_MAX)) as u16;
        // Where it is now it is noted when it grows there.
        if slices < 2 || split_at == 0 || !self.is_here(directory.home()) {
            return Ok(());
        }
        let _inside = self.enter(directory.home())?;
        let creds = itself();
        let entries = self.mutate(
            Caller::new(OpId::default(), &creds),
            number::SPLIT_STEP,
            |txn, context| {
                let found = txn.find_inode(directory)?.filter(|found| found.splits_when_large());
                let Some(entries) = found.map(|found| found.size).filter(|entries| *entries > split_at)
                else {
                    return Ok(Begun(0));
                };
                verb::split_above(txn, context, directory, slices, self.splits.at_once())?;
                Ok(Begun(entries))
            },
            |Begun(entries), _| entries,
        )?;
        if entries > 0 {
            self.splits.wake();
            let text = format!("directory {directory} has {entries} entries and gets {slices} slices");
            tracing::info!("{text}");
            if let Some(reports) = self.reports.get() {
                reports.report(EventKind::DirectorySplit, "metadata", &text);
            }
        }
        Ok(())
    }

    /// Makes steps of a directory until all its entries are in its slices, and tells that, or until another server than `server` has to take part in the next one.
    fn split_with(&self, directory: InodeId, server: NodeId) -> Result<bool, Errno> {
        let clock = &self.env.clock;
        while !self.is_ending() {
            let before = clock.monotonic();
            let progress = {
                let _inside = self.enter(directory.home())?;
                let (creds, step) = (itself(), self.splits.step.load(Relaxed));
                self.mutate(
                    Caller::new(OpId::default(), &creds),
                    number::SPLIT_STEP,
                    |txn, context| verb::split_step(txn, context, directory, step),
                    |progress, _| progress,
                )?
            };
            let (entries, is_end) = match progress {
                verb::SplitProgress::Moved(entries) => (entries, false),
                verb::SplitProgress::Ended(entries) => (entries, true),
                verb::SplitProgress::Nothing => return Ok(true),
            };
            self.splits.moved.fetch_add(entries, Relaxed);
            let split = self.splits.queue.lock().note_moved(directory, entries, before);
            if is_end {
                self.splits.ended.fetch_add(1, Relaxed);
                let seconds = clock.monotonic().saturating_sub(split.since).as_secs_f64();
                let moved = split.moved;
                tracing::info!(%directory, moved, seconds, "all entries of a directory are in its slices");
                return Ok(true);
            }
            let took = clock.monotonic().saturating_sub(before);
            self.env.tasks.pause((took * 2).clamp(STEP_PAUSE_MIN, STEP_PAUSE_MAX));
            if self.server_of_step(directory) != server {
                break;
            }
        }
        Ok(false)
    }
}

/// How many entries a directory has with whose split was begun; 0: with none.
pub(crate) struct Begun(u64);
