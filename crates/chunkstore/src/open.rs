//! Making, opening and closing a target.

use crate::alloc::Allocator;
use crate::cache::Cache;
use crate::config::Config;
use crate::counters::Counters;
use crate::dirty::DirtyRegions;
use crate::error::{ChunkError, is_no_space};
use crate::fresh::FreshSlots;
use crate::geometry::{Class, SlabId};
use crate::header::Owner;
use crate::index::{Index, Verb};
use crate::key::{self, Mark, OpenedIn};
use crate::loss_marks::{LossMarks, OwnMark};
use crate::lost::LostChunks;
use crate::recover::RecoveryReport;
use crate::slab::Slabs;
use crate::space::Space;
use crate::stop::StopSwitch;
use crate::store::{CLEAN_BATCH, ChunkStore};
use crate::suspects::Touched;
use crate::sync::SyncRounds;
use crate::target::{self, TargetHeader, TargetIdentity};
use ashlar_env::{Disk, DiskFile, Env};
use ashlar_kv::{Engine, KvError, Lane, Urgency};
use ashlar_types::Start;
use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Directory of the index under the target; its engine belongs into [`ENGINE_DIR`].
pub const INDEX_DIR: &str = "index";
/// Directory for the engine of the index under the target.
pub const ENGINE_DIR: &str = "index/engine";
/// Bits of a slot generation that count inside one open.
const GENERATION_BITS: u32 = 40;

/// A target that nobody else can open while this lives.
pub struct TargetLock(Arc<dyn DiskFile>);

/// A target that is locked and whose index is open.
pub(crate) struct Opening {
    pub(crate) index: Index,
    pub(crate) stop: Arc<StopSwitch>,
    pub(crate) lock: Arc<dyn DiskFile>,
    pub(crate) header: TargetHeader,
    /// The disk has failed meanwhile, which is noted, and read anew.
    pub(crate) is_after_loss: bool,
}

impl Opening {
    /// Locks a target, checks that it is the expected one, and opens its index.
    pub(crate) fn start(
        disk: &Arc<dyn Disk>,
        engine: impl FnOnce() -> Result<Box<dyn Engine>, KvError>,
        env: &Env,
        expected: &TargetIdentity,
        config: &Config,
    ) -> Result<Opening, ChunkError> {
        target::require_identity(&**disk, expected)?;
        let lock = TargetLock(target::lock(&**disk, &config.holder)?);
        Opening::start_locked(lock, disk, engine, env, expected, config)
    }

    /// As [`Opening::start`], of one that is locked.
    fn start_locked(
        TargetLock(lock): TargetLock,
        disk: &Arc<dyn Disk>,
        engine: impl FnOnce() -> Result<Box<dyn Engine>, KvError>,
        env: &Env,
        expected: &TargetIdentity,
        config: &Config,
    ) -> Result<Opening, ChunkError> {
        let stop = Arc::new(StopSwitch::new(Arc::clone(disk)));
        // ORDER: before anything is read that a failed sync may have left in memory alone.
        let is_after_loss = disk.end_loss();
        let is_after_loss = is_after_loss
            .map_err(|error| ChunkError::io(format!("read {} anew", disk.describe("")), error))?;
        if is_after_loss {
            tracing::warn!(target = %expected.target, "the target has stopped after an error of its disk: what was not durable then may be lost");
        }
        let header = target::require_identity(&**disk, expected)?;
        let engine = engine().map_err(opening_error)?;
        let lane =
            Lane::open(Arc::clone(disk), INDEX_DIR, engine, env, expected.cluster, config.index.clone())
                .map_err(opening_error)?;
        Ok(Opening { index: Index::new(lane, Arc::clone(&stop)), stop, lock, header, is_after_loss })
    }
}

/// A disk that is full or cannot be written to says nothing about the index: no reason to make it anew.
fn opening_error(error: KvError) -> ChunkError {
    match error {
        KvError::Io { what, source } if is_no_space(&source) => {
            ChunkError::NoSpace { what: format!("index: {what}: {source}") }
        }
        KvError::Io { what, source } if source.kind() == ErrorKind::ReadOnlyFilesystem => {
            ChunkError::Io { what: format!("index: {what}"), source }
        }
        error => error.into(),
    }
}

/// The number of opens so far, as the index has it.
pub(crate) fn stored_opens(index: &Index) -> Result<u64, ChunkError> {
    let Some(value) = index.get(&key::opens())? else { return Ok(0) };
    let corrupt =
        |_| ChunkError::Corrupt { file: "index".into(), what: "the number of opens is malformed".into() };
    Ok(u64::from_le_bytes(<[u8; 8]>::try_from(&*value).map_err(corrupt)?))
}

/// Refuses an index that is not the one the target was used with last.
fn require_mark(index: &Index, header: &TargetHeader) -> Result<(), ChunkError> {
    let foreign = |what: String| Err(ChunkError::Foreign { file: "index".into(), what });
    let Some(value) = index.get(&key::mark())? else {
        // Of a target that was only made, or an index that was not made anew to the end.
        let is_new = header.start == Start::default();
        return if is_new { Ok(()) } else { foreign("it does not say of which target it is".into()) };
    };
    let mark = Mark::decode(&value)?;
    if mark.uuid != header.identity.uuid {
        return foreign(format!("it is the index of another target ({})", mark.uuid));
    }
    if header.start != mark.start && header.start != mark.before {
        let what =
            format!("it was last used in {}, the target in {}: it is a copy", mark.start, header.start);
        return foreign(what);
    }
    Ok(())
}

/// The number of opens that slot generation `generation` was made in.
pub(crate) fn opens_of(generation: u64) -> u64 {
    generation >> GENERATION_BITS
}

impl ChunkStore {
    /// Makes a target in an empty directory.
    ///
    /// # Errors
    /// [`ChunkError::Foreign`] when a target is there already, [`ChunkError::Io`].
    pub fn format(disk: &dyn Disk, identity: &TargetIdentity) -> Result<(), ChunkError> {
        target::create(disk, identity)
    }

    /// What a target's header says, without opening it.
    ///
    /// # Errors
    /// [`ChunkError::Io`], [`ChunkError::Corrupt`], [`ChunkError::Foreign`] or [`ChunkError::Newer`].
    pub fn header(disk: &dyn Disk) -> Result<TargetHeader, ChunkError> {
        target::read_header(disk)
    }

    /// Locks the target in `disk`, for whoever is to look at it before it is opened ([`ChunkStore::open_locked`]); `holder` is told to others.
    ///
    /// # Errors
    /// [`ChunkError::Locked`] when somebody else has it, [`ChunkError::Io`].
    pub fn lock(disk: &dyn Disk, holder: &str) -> Result<TargetLock, ChunkError> {
        target::lock(disk, holder).map(TargetLock)
    }

    /// Opens a target and puts right what an unclean stop left. `engine` makes the engine of the index, in [`ENGINE_DIR`]; it is
    /// called once the target is locked.
    ///
    /// # Errors
    /// [`ChunkError::Foreign`] when it is another target than `expected`, [`ChunkError::Newer`], [`ChunkError::Locked`],
    /// [`ChunkError::Corrupt`], [`ChunkError::Io`].
    pub fn open(
        disk: Arc<dyn Disk>,
        engine: impl FnOnce() -> Result<Box<dyn Engine>, KvError>,
        env: &Env,
        expected: &TargetIdentity,
        config: Config,
    ) -> Result<(ChunkStore, RecoveryReport), ChunkError> {
        let opening = Opening::start(&disk, engine, env, expected, &config)?;
        ChunkStore::recovered(opening, disk, env, expected, config)
    }

    /// As [`ChunkStore::open`], of a target that the caller has locked.
    ///
    /// # Errors
    /// As [`ChunkStore::open`].
    pub fn open_locked(
        lock: TargetLock,
        disk: Arc<dyn Disk>,
        engine: impl FnOnce() -> Result<Box<dyn Engine>, KvError>,
        env: &Env,
        expected: &TargetIdentity,
        config: Config,
    ) -> Result<(ChunkStore, RecoveryReport), ChunkError> {
        let opening = Opening::start_locked(lock, &disk, engine, env, expected, &config)?;
        ChunkStore::recovered(opening, disk, env, expected, config)
    }

    fn recovered(
        opening: Opening,
        disk: Arc<dyn Disk>,
        env: &Env,
        expected: &TargetIdentity,
        config: Config,
    ) -> Result<(ChunkStore, RecoveryReport), ChunkError> {
        let Opening { index, stop, lock, header, is_after_loss } = opening;
        require_mark(&index, &header)?;
        let opens = stored_opens(&index)? + 1;
        let last = index.get(&key::continuity())?.map(|value| OpenedIn::decode(&value)).transpose()?;
        // One that is not of the last open says nothing: that was done by software that does not note what it overwrites.
        let last = last.filter(|last| last.opens + 1 == opens).map(|last| OpenedIn { opens, ..last });
        let now = disk.continuity().map(|span| OpenedIn { span, opens });
        let was_closed = index.get(&key::closed())?.is_some_and(|value| *value == (opens - 1).to_le_bytes());
        let has_lost = opens > 1 && !was_closed && (now.is_none() || now != last);
        let loss_mark = OwnMark::of_open(&index, opens, has_lost, (expected.uuid, env.clock.now()))?;
        let mark = config.start.map(|start| Mark { uuid: expected.uuid, start, before: header.start });
        let position = index.commit(Verb::Open, Urgency::FreesSpace, |changes| {
            changes.insert(key::opens(), Some(Bytes::copy_from_slice(&opens.to_le_bytes())));
            changes.extend(mark.map(|mark| (key::mark(), Some(mark.encode()))));
            changes.insert(key::continuity(), last.map(|last| last.encode()));
            // It stays until somebody has heard of it: a later open finds nothing lost.
            changes.extend(has_lost.then(|| (key::loss(), Some(Bytes::new()))));
            changes.insert(key::loss_mark(), Some(loss_mark.encode()));
        })?;
        // ORDER: durable before the first slot of this open, so that no generation is ever given twice; and in the index, which knows
        // what the header said before, before it is in the header.
        index.flush(position)?;
        if let Some(start) = config.start {
            let noted = target::note_start(&*disk, expected, start);
            noted.inspect_err(|error| drop(stop.stop("note a start".into(), error)))?;
        }
        let space = Space::new(Arc::clone(&disk), Arc::clone(&env.clock), |total| config.reserve(total))?;
        let store = ChunkStore {
            loss_marks: LossMarks::load(&index, loss_mark.mark)?,
            owner: Owner { cluster: expected.cluster, target: expected.target },
            slabs: Slabs::new(Arc::clone(&disk), Arc::clone(&stop), config.open_slabs_max),
            alloc: Allocator::new(),
            cache: Cache::new(config.header_cache_bytes),
            fresh: FreshSlots::new(),
            dirty: DirtyRegions::new(),
            touched: Touched::new(),
            lost: LostChunks::default(),
            suspects_gate: Mutex::new(()),
            rounds: SyncRounds::default(),
            counters: Counters::default(),
            next_generation: AtomicU64::new(opens << GENERATION_BITS),
            synced_at: AtomicU64::new(u64::try_from(env.clock.monotonic().as_micros()).unwrap_or(0)),
            mark_gate: RwLock::new(()),
            growing: Mutex::new(()),
            clock: Arc::clone(&env.clock),
            _lock: lock,
            config,
            stop,
            index,
            space,
        };
        store.find_slabs()?;
        store.count_lost()?;
        if !was_closed {
            store.sync_what_was_left(is_after_loss)?;
        }
        let report = store.recover(last, now)?;
        store.stock_clean_slots()?;
        Ok((store, report))
    }

    /// Syncs, forgets all dirty regions and closes the index, so that the next open has nothing to put right. Later calls
    /// answer [`ChunkError::Stopped`].
    ///
    /// # Errors
    /// As [`ChunkStore::sync`]; the target is closed all the same.
    pub fn close(&self) -> Result<(), ChunkError> {
        let synced = self.sync();
        self.stop.note_again();
        let cleared = synced.and_then(|()| {
            while self.clear(Some(self.clock.monotonic()))? > 0 {}
            let opens = self.next_generation.load(Ordering::Relaxed) >> GENERATION_BITS;
            let note = |changes: &mut crate::index::Changes| {
                changes.insert(key::closed(), Some(Bytes::copy_from_slice(&opens.to_le_bytes())));
            };
            // ORDER: behind everything else in the log, and closing flushes that.
            self.index.commit(Verb::Sync, Urgency::FreesSpace, note).map(drop)
        });
        let closed = self.index.close();
        self.stop.close();
        cleared.and(closed)
    }

    /// Whether the power may have been cut while the target was open, so that acknowledged changes which were not synced may be lost, since
    /// [`ChunkStore::forget_loss`] was called last.
    ///
    /// # Errors
    /// Those of the index.
    pub fn has_lost(&self) -> Result<bool, ChunkError> {
        self.check()?;
        Ok(self.index.get(&key::loss())?.is_some())
    }

    /// Whoever is to know of it has noted that changes may be lost. Durable when it returns.
    ///
    /// # Errors
    /// Those of the index.
    pub fn forget_loss(&self) -> Result<(), ChunkError> {
        self.check()?;
        let forget = |changes: &mut crate::index::Changes| {
            changes.insert(key::loss(), None);
        };
        let position = self.index.commit(Verb::NoteCopy, Urgency::FreesSpace, forget)?;
        self.index.flush(position)
    }

    /// Learns which slabs there are and which of their slots are in use.
    fn find_slabs(&self) -> Result<(), ChunkError> {
        for class in Class::all() {
            let numbers = self.slabs.list(class)?;
            for number in &numbers {
                self.alloc.add_found_slab(SlabId { class, number: *number });
            }
            if let Some(number) = numbers.last() {
                // Only the newest one can be incomplete: a slab is finished before the next one is begun.
                self.slabs.create(SlabId { class, number: *number })?;
            }
        }
        let (from, to) = key::table_range(key::GROUPS);
        self.index.for_each(&from, &to, |key, value| {
            let (slab, group) = key::decode_group(key)?;
            let bits = key::decode_bits(value)?;
            if !self.alloc.load_group(slab, group, bits) {
                tracing::error!(slab = self.slabs.describe(slab), "a slab with chunks is missing");
                self.alloc.add_lost_slab(slab);
                self.alloc.load_group(slab, group, bits);
            }
            Ok(())
        })
    }

    /// Cleans a first batch of free slots per class, while nothing is in the way of the sync that takes.
    fn stock_clean_slots(&self) -> Result<(), ChunkError> {
        for class in Class::all() {
            if self.alloc.free_slots(class).0 > 0 {
                self.clean_slots(class, CLEAN_BATCH)?;
            }
        }
        Ok(())
    }
}
