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
use ashlar_rpc::{Caller, LastingSessions};
use ashlar_types::{Errno, EventKind, InodeId, OpId, SLICES_MAX, ShardId};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::ControlFlow;
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Time between looks whether there is something to be done that nobody has told of: a shard has come, or something went wrong.
const IDLE: Duration = Duration::from_secs(1);
/// Shortest and longest time until a directory is tried again with which something went wrong: it doubles.
const RETRY_MIN: Duration = Duration::from_millis(500);
const RETRY_MAX: Duration = Duration::from_secs(5);
/// After so many tries in a row that came to nothing the log says so: a shard that moves, or a server that is started anew, costs a few.
const TRIES_UNTOLD: u32 = 3;
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

impl Queue {
    fn has_work(&self, failing: &Failing, now: Duration) -> bool {
        self.is_to_look
            || failing.is_due(now)
            || self.grown.iter().any(|directory| failing.may_try(*directory, now))
    }

    /// The next one that has grown large, of those that need not wait.
    fn next_grown(&mut self, failing: &Failing, now: Duration) -> Option<InodeId> {
        let at = self.grown.iter().position(|directory| failing.may_try(*directory, now))?;
        self.grown.remove(at)
    }

    /// Notes one that has grown large; whether it is new.
    fn push_grown(&mut self, directory: InodeId) -> bool {
        let is_new = self.grown.len() < GROWN_MAX && !self.grown.contains(&directory);
        if is_new {
            self.grown.push_back(directory);
        }
        is_new
    }
}

/// Directories with which something went wrong the last time.
#[derive(Default)]
// LIMIT: of those that are being split here, and those that have grown large.
struct Failing(BTreeMap<InodeId, Failure>);

struct Failure {
    /// In a row.
    tries: u32,
    next_try: Duration,
}

impl Failing {
    fn may_try(&self, directory: InodeId, now: Duration) -> bool {
        self.0.get(&directory).is_none_or(|failure| failure.next_try <= now)
    }

    fn is_due(&self, now: Duration) -> bool {
        self.0.values().any(|failure| failure.next_try <= now)
    }

    fn pause(&self) -> Duration {
        if self.0.is_empty() { IDLE } else { RETRY_MIN }
    }

    fn note(&mut self, directory: InodeId, errno: Errno, now: Duration) {
        let failure = self.0.entry(directory).or_insert(Failure { tries: 0, next_try: now });
        let wait = RETRY_MIN.saturating_mul(1 << failure.tries.min(8)).min(RETRY_MAX);
        failure.next_try = now + wait;
        failure.tries = failure.tries.saturating_add(1);
        if failure.tries == TRIES_UNTOLD {
            tracing::warn!(%directory, %errno, "a directory cannot be split, or not to its end; this is tried again and again");
        } else {
            tracing::debug!(%directory, %errno, "splitting a directory has to wait");
        }
    }

    fn forget(&mut self, directory: InodeId) {
        self.0.remove(&directory);
    }

    fn retain(&mut self, is_wanted: impl Fn(&InodeId) -> bool) {
        self.0.retain(|directory, _| is_wanted(directory));
    }
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
            let (mut generation, mut failing) = (u64::MAX, Failing::default());
            while let Some(service) = weak.upgrade() {
                {
                    let mut queue = service.splits.queue.lock();
                    if !queue.has_work(&failing, service.env.clock.monotonic()) {
                        service.splits.woken.wait_for(&mut queue, failing.pause());
                    }
                }
                if service.is_ending() {
                    return;
                }
                if std::mem::replace(&mut generation, service.across.generation()) != generation {
                    service.splits.queue.lock().is_to_look = true;
                }
                service.split_on(&mut failing);
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

    /// Goes on with all directories that are being split here, to their ends, and begins with one that has grown large. Those with which that does not go
    /// have to wait, and hold up no other.
    fn split_on(&self, failing: &mut Failing) {
        let now = self.env.clock.monotonic();
        if self.is_awaiting() {
            // Nobody knows yet who has cached what a step changes.
            let mut queue = self.splits.queue.lock();
            self.splits.woken.wait_for(&mut queue, RETRY_MIN);
            return;
        }
        let is_to_look = std::mem::take(&mut self.splits.queue.lock().is_to_look);
        if is_to_look || failing.is_due(now) {
            let Ok(mut halfway) = self.find_halfway() else {
                let mut queue = self.splits.queue.lock();
                queue.is_to_look = true;
                // A stop does not wait for this.
                self.splits.woken.wait_for(&mut queue, RETRY_MIN);
                return;
            };
            let grown = self.splits.queue.lock().grown.clone();
            failing.retain(|directory| halfway.contains(directory) || grown.contains(directory));
            let mut waiting = 0;
            while let Some(directory) = halfway.pop_first() {
                self.splits.under_way.store(halfway.len() + waiting + 1, Relaxed);
                let is_done = failing.may_try(directory, now)
                    && self.attempt(directory, failing, || self.split_to_the_end(directory));
                waiting += usize::from(!is_done);
            }
            self.splits.under_way.store(waiting, Relaxed);
        }
        let next = self.splits.queue.lock().next_grown(failing, now);
        if let Some(directory) = next
            && !self.attempt(directory, failing, || self.begin_to_split(directory))
        {
            self.splits.queue.lock().push_grown(directory);
        }
    }

    /// Does something with a directory; false if it is to be tried again later.
    fn attempt(
        &self,
        directory: InodeId,
        failing: &mut Failing,
        what: impl Fn() -> Result<(), Errno>,
    ) -> bool {
        let mut outcome = Err(Errno::EIO);
        if !self.env.tasks.contain(&mut || outcome = what()) {
            tracing::error!(%directory, "splitting a directory ended by a panic; trying again later");
        }
        match outcome {
            Ok(()) => failing.forget(directory),
            Err(errno) => failing.note(directory, errno, self.env.clock.monotonic()),
        }
        outcome.is_ok()
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
