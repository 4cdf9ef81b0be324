//! Directories that are being split: a thread goes on with them, a step at a time, and begins with those that have grown large
//! (ADR 0024).
//!
//! That a directory is being split is noted in the log, with the directory. So it goes on after a start, and where the directory's shard is by then.

use crate::MetaService;
use crate::call::verb as number;
use crate::execute::itself;
use ashlar_env::{Signal, Tasks};
use ashlar_kv::Snapshot;
use ashlar_namespace::{key, verb};
use ashlar_rpc::Caller;
use ashlar_types::{Errno, EventKind, InodeId, OpId, SLICES_MAX, ShardId};
use parking_lot::Mutex;
use std::collections::{BTreeSet, VecDeque};
use std::ops::ControlFlow;
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Time between looks whether there is something to be done that nobody has told of: a shard has come, or something went wrong.
const IDLE: Duration = Duration::from_secs(1);
/// For how long after something went wrong no other directory is begun with.
const REST: Duration = Duration::from_secs(5);
/// Shortest time between steps. They are also as far apart as twice the last one took: whoever changes the directory, or something at several servers
/// in it, gets his turn.
const STEP_PAUSE_MIN: Duration = Duration::from_millis(2);
/// Longest time between steps: one may have waited for a server that was away.
const STEP_PAUSE_MAX: Duration = Duration::from_millis(500);
/// Large directories that wait for their turn.
// LIMIT: others are noted again when they grow.
const GROWN_MAX: usize = 64;

/// See the module.
pub(crate) struct Splits {
    /// Directories with more entries are split; 0: none is.
    split_at: AtomicU64,
    /// Up to so many entries are moved as a split begins, and so many with a step.
    at_once: AtomicU64,
    step: AtomicUsize,
    queue: Mutex<Queue>,
    woken: Signal,
    under_way: AtomicUsize,
    ended: AtomicU64,
    moved: AtomicU64,
}

#[derive(Default)]
struct Queue {
    /// Whether there may be directories that are being split.
    is_to_look: bool,
    grown: VecDeque<InodeId>,
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
            // Those of the start before.
            queue: Mutex::new(Queue { is_to_look: true, grown: VecDeque::new() }),
            woken: tasks.signal(),
            under_way: AtomicUsize::new(0),
            ended: AtomicU64::new(0),
            moved: AtomicU64::new(0),
        }
    }

    /// A directory may be split from now on.
    pub(crate) fn wake(&self) {
        self.queue.lock().is_to_look = true;
        self.woken.notify_all();
    }

    pub(crate) fn measures(&self) -> SplitMeasures {
        SplitMeasures {
            under_way: self.under_way.load(Relaxed),
            ended: self.ended.load(Relaxed),
            entries_moved: self.moved.load(Relaxed),
        }
    }

    pub(crate) fn at_once(&self) -> u64 {
        self.at_once.load(Relaxed)
    }
}

impl MetaService {
    /// Starts the thread that splits directories; it ends with the service. One that grows to more than `split_at` entries is split by itself, if there are
    /// other metadata servers; 0: none is.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn start_splitter(self: &Arc<Self>, split_at: u64) -> std::io::Result<()> {
        self.splits.split_at.store(split_at, SeqCst);
        let weak: Weak<MetaService> = Arc::downgrade(self);
        let run = move || {
            let (mut generation, mut rests_until) = (u64::MAX, Duration::ZERO);
            while let Some(service) = weak.upgrade() {
                {
                    let mut queue = service.splits.queue.lock();
                    if !queue.is_to_look && queue.grown.is_empty() {
                        service.splits.woken.wait_for(&mut queue, IDLE);
                    }
                }
                if service.is_ending() {
                    return;
                }
                if std::mem::replace(&mut generation, service.across.generation()) != generation {
                    service.splits.queue.lock().is_to_look = true;
                }
                let mut outcome = Err(Errno::EIO);
                if !service.env.tasks.contain(&mut || outcome = service.split_on(rests_until)) {
                    tracing::error!("splitting a directory ended by a panic; trying again later");
                }
                if let Err(errno) = outcome {
                    tracing::debug!(%errno, "a directory that is being split has to wait");
                    rests_until = service.env.clock.monotonic() + REST;
                    let mut queue = service.splits.queue.lock();
                    queue.is_to_look = true;
                    // A stop does not wait for this.
                    service.splits.woken.wait_for(&mut queue, STEP_PAUSE_MAX);
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

    /// Notes directories that have grown large.
    pub(crate) fn note_grown(&self, grown: &[(InodeId, u64)]) {
        let split_at = self.splits.split_at.load(Relaxed);
        if split_at == 0 || grown.iter().all(|(_, entries)| *entries <= split_at) || !self.across.has_peers()
        {
            return;
        }
        let mut queue = self.splits.queue.lock();
        for (directory, _) in grown.iter().filter(|(_, entries)| *entries > split_at) {
            if queue.grown.len() < GROWN_MAX && !queue.grown.contains(directory) {
                queue.grown.push_back(*directory);
                self.splits.woken.notify_all();
            }
        }
    }

    /// Goes on with all directories that are being split here, to their ends, and begins with one that has grown large, unless that rests until later.
    fn split_on(&self, rests_until: Duration) -> Result<(), Errno> {
        let is_to_look = std::mem::take(&mut self.splits.queue.lock().is_to_look);
        if is_to_look {
            let mut halfway = self.find_halfway()?;
            let (mut waiting, mut failed) = (0, None);
            while let Some(directory) = halfway.pop_first() {
                self.splits.under_way.store(halfway.len() + waiting + 1, Relaxed);
                // One that cannot go on holds up no other.
                if let Err(errno) = self.split_to_the_end(directory) {
                    (waiting, failed) = (waiting + 1, Some(errno));
                }
            }
            self.splits.under_way.store(waiting, Relaxed);
            failed.map_or(Ok(()), Err)?;
        }
        if self.env.clock.monotonic() < rests_until {
            // Not at once again, or this would never rest.
            self.env.tasks.pause(STEP_PAUSE_MAX);
            return Ok(());
        }
        let next = self.splits.queue.lock().grown.pop_front();
        next.map_or(Ok(()), |directory| self.begin_to_split(directory))
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
        if slices < 2 || split_at == 0 {
            return Err(Errno::EINVAL);
        }
        let _inside = self.enter(directory.home())?;
        let creds = itself();
        let entries = self.mutate(
            Caller::new(OpId::default(), &creds),
            number::SPLIT_STEP,
            |txn, context| {
                let found = txn.find_inode(directory)?.filter(|found| found.can_be_split());
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

    /// Makes steps until all entries of a directory are in its slices.
    fn split_to_the_end(&self, directory: InodeId) -> Result<(), Errno> {
        let (clock, began) = (&self.env.clock, self.env.clock.monotonic());
        let mut moved = 0;
        while !self.is_stopping.load(Acquire) {
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
                verb::SplitProgress::Nothing => return Ok(()),
            };
            moved += entries;
            self.splits.moved.fetch_add(entries, Relaxed);
            if is_end {
                self.splits.ended.fetch_add(1, Relaxed);
                let seconds = clock.monotonic().saturating_sub(began).as_secs_f64();
                tracing::info!(%directory, moved, seconds, "all entries of a directory are in its slices");
                return Ok(());
            }
            let took = clock.monotonic().saturating_sub(before);
            self.env.tasks.pause((took * 2).clamp(STEP_PAUSE_MIN, STEP_PAUSE_MAX));
        }
        Ok(())
    }
}

/// How many entries a directory has with whose split was begun; 0: with none.
pub(crate) struct Begun(u64);
