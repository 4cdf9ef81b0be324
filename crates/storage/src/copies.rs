//! Chains of several copies: a target's part in each. [ADR 0030](../../../docs/adr/0030-chunks-are-copied-along-chains.md) has the reasons, `ashlar_replication::chain` the machine that decides.
//!
//! | who | answers |
//! |---|---|
//! | head | changes, once all in sync have made them; what there is of whole files |
//! | any in sync, while all others grant it a lease | reads of chunks that are settled |
//! | others | nobody but the target in front |
//!
//! ```text
//!  caller     head                        next
//!    │ Write   │ locks the chunk, notes it, writes
//!    ├────────▶│ Write, epoch, turn         │ the same
//!    │         ├───────────────────────────▶│
//!    │◀────────┤◀───────────────────────────┤
//! ```
//!
//! At each new epoch the target in front asks the one behind what it may lack (`CopyCompare`), and sends those chunks whole, each followed by `CopySettled`. One that has nothing is
//! emptied first (`CopyEmpty`); one that was away gets what was noted of it ([`ashlar_chunkstore::Lack`]).
//!
//! Invariants:
//! - Locks are of one chain, so that whoever waits for one waits for somebody further behind in the same chain. They are taken in this order: file, chunk, state of the group. Nobody waits for another target while he holds the last.
//! - Who waits for another target waits for one further behind in a chain, and calls by place have threads of their own (`ashlar_rpc::serve`).
//! - What the next process must know of a chunk is noted before the chunk is changed.

mod change;
mod compare;
mod group;
mod lease;
mod mend;
mod note;
mod peer;
mod read;
mod settle;
mod watch;

use crate::moves::Outside;
use crate::pace::Paces;
use crate::throttle::Throttle;
use ashlar_chunkstore::{ChunkError, ChunkStore};
use ashlar_env::Signal;
use ashlar_replication::chain::ChainReplica;
use ashlar_replication::membership::{Content, LeaseTerms, Stored};
use ashlar_rpc::{Payload, Reports};
use ashlar_types::map::{Chain, ChainCopies};
use ashlar_types::message::{MoveProgress, StorageReply, StorageRequest};
use ashlar_types::{ChainId, ChunkId, ClusterMap, Epoch, Errno, OfChains, TargetId};
pub(crate) use compare::ComparePlace;
use group::{Group, State};
pub(crate) use mend::Mended;
use note::{CopyNote, LackNote};
use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use watch::{AtDisk, HANG_AFTER, SYNC_HANG_AFTER, Watch};

/// For how long the target behind may take for a change, to say what it has, to say that it is there, and to make everything durable.
const PASS_ON_MAX: Duration = Duration::from_secs(3);
const COMPARE_MAX: Duration = Duration::from_secs(10);
const BEACON_MAX: Duration = Duration::from_secs(1);
const SYNC_MAX: Duration = Duration::from_secs(60);
/// When the thread of a target ends that nobody has do anything.
const TURNS_END_AFTER: Duration = Duration::from_secs(2);
/// For how long groups may be busy, all together, that are told something.
const TOLD_MAX: Duration = Duration::from_millis(300);
/// Time between two looks whether something is over.
const LOOK: Duration = Duration::from_millis(20);

/// What there is at one target.
struct AtTarget {
    id: TargetId,
    store: Arc<ChunkStore>,
    /// Chains that it has, or had, a copy of.
    groups: RwLock<BTreeMap<ChainId, Arc<Group>>>,
    /// What the process before has noted of chains that this one has not got to yet.
    before: Mutex<Before>,
    /// Targets that are just being asked for leases.
    asking: Mutex<BTreeSet<TargetId>>,
    is_proposing: AtomicBool,
    is_asking_again: AtomicBool,
    looked_at: Mutex<Option<Epoch>>,
    watch: Watch,
    /// Since when chains wait for targets that are not heard, and of whom that was said.
    waits: Mutex<Option<(Duration, BTreeSet<TargetId>)>>,
    turns: Arc<Turns>,
    /// It may lack what it had acknowledged before it was opened, notes included, and not all of its chains have heard of that.
    has_lost: AtomicBool,
}

/// When the thread that tends a target is to look around.
struct Turns {
    /// Whether that is due; nothing while there is no such thread.
    is_due: Mutex<Option<bool>>,
    signal: Signal,
}

#[derive(Default)]
struct Before {
    notes: BTreeMap<ChainId, CopyNote>,
    uncertain: BTreeMap<ChainId, BTreeSet<ChunkId>>,
    lacking: BTreeMap<ChainId, BTreeMap<TargetId, LackNote>>,
}

impl AtTarget {
    fn group(&self, chain: ChainId) -> Option<Arc<Group>> {
        self.groups.read().get(&chain).cloned()
    }

    fn groups(&self) -> Vec<Arc<Group>> {
        self.groups.read().values().cloned().collect()
    }
}

/// What is to be stored of a group.
struct Learned {
    group: Arc<Group>,
    epoch: Epoch,
    note: CopyNote,
    former: Vec<TargetId>,
}

/// See the module.
pub(crate) struct Copies {
    outside: Arc<Outside>,
    // LIMIT: as targets here.
    targets: RwLock<BTreeMap<TargetId, Arc<AtTarget>>>,
    throttle: Arc<Throttle>,
    paces: Arc<Paces>,
    is_stopping: AtomicBool,
    /// Who is told of damage that is none any more.
    reports: OnceLock<Arc<dyn Reports>>,
    /// Blocks that were brought back from other copies.
    mended: AtomicU64,
}

impl Copies {
    /// Copies at the rate that `throttle` allows, with whoever else copies by it, and notes in `paces` how fast that is.
    pub fn new(outside: Arc<Outside>, throttle: Arc<Throttle>, paces: Arc<Paces>) -> Copies {
        Copies {
            outside,
            targets: RwLock::default(),
            throttle,
            paces,
            is_stopping: AtomicBool::new(false),
            reports: OnceLock::new(),
            mended: AtomicU64::new(0),
        }
    }

    /// Has `reports` told of damage that was mended. Only the first one that is given counts.
    pub fn report_to(&self, reports: Arc<dyn Reports>) {
        let _ = self.reports.set(reports);
    }

    fn map(&self) -> Arc<ClusterMap> {
        self.outside.map.read().clone()
    }

    fn at(&self, target: TargetId) -> Option<Arc<AtTarget>> {
        self.targets.read().get(&target).cloned()
    }

    fn is_stopping(&self) -> bool {
        self.is_stopping.load(SeqCst)
    }

    /// Whether a target is of no use: its disk has failed, or does not answer.
    fn is_out(&self, at: &AtTarget) -> bool {
        at.store.stopped().is_some() || at.watch.is_hanging(self.outside.env.clock.monotonic())
    }

    /// The same of a target by its name.
    pub fn is_target_out(&self, target: TargetId) -> bool {
        self.at(target).is_some_and(|at| self.is_out(&at))
    }

    /// To be held while something is at the disk of a target.
    fn at_disk<'a>(&self, at: &'a AtTarget) -> AtDisk<'a> {
        at.watch.enter(self.outside.env.clock.monotonic() + HANG_AFTER)
    }

    pub fn stop(&self) {
        self.is_stopping.store(true, SeqCst);
    }

    /// Whoever holds it may be waiting for another target.
    fn read_lock<'a>(&self, lock: &'a RwLock<()>) -> RwLockReadGuard<'a, ()> {
        self.outside.env.tasks.take(|| lock.try_read(), || lock.read())
    }

    fn write_lock<'a>(&self, lock: &'a RwLock<()>) -> RwLockWriteGuard<'a, ()> {
        self.outside.env.tasks.take(|| lock.try_write(), || lock.write())
    }

    /// Learns what a target that is about to be served has noted.
    ///
    /// # Errors
    /// Those of its index.
    pub fn take_target(&self, id: TargetId, store: &Arc<ChunkStore>) -> Result<(), ChunkError> {
        let malformed = |what: String| ChunkError::Corrupt { file: "index".into(), what };
        let mut before = Before::default();
        let has_lost = store.has_lost()?;
        for (chain, note) in store.copy_notes()? {
            let mut note = CopyNote::decode(&note).map_err(|error| malformed(error.to_string()))?;
            if has_lost {
                // ORDER: durable before it begins; see `Member::recover`.
                note.stored.content = Content::Short;
                note.in_sync_at = None;
                store.note_copy(chain, Some(note.encode()))?;
            }
            before.notes.insert(chain, note);
        }
        for (chain, chunk) in store.uncertain()? {
            before.uncertain.entry(chain).or_default().insert(chunk);
        }
        for ((chain, target), note) in store.lack_notes()? {
            if has_lost {
                // Notes may be lost with the rest.
                store.end_lacks((chain, target))?;
                continue;
            }
            let note = LackNote::decode(&note).map_err(|error| malformed(error.to_string()))?;
            before.lacking.entry(chain).or_default().insert(target, note);
        }
        let at = AtTarget {
            id,
            store: store.clone(),
            groups: RwLock::default(),
            before: Mutex::new(before),
            asking: Mutex::default(),
            is_proposing: AtomicBool::new(false),
            is_asking_again: AtomicBool::new(false),
            looked_at: Mutex::default(),
            watch: Watch::default(),
            waits: Mutex::default(),
            turns: Arc::new(Turns { is_due: Mutex::new(None), signal: self.outside.env.tasks.signal() }),
            has_lost: AtomicBool::new(has_lost),
        };
        self.targets.write().insert(id, Arc::new(at));
        Ok(())
    }

    pub fn forget_target(&self, id: TargetId) {
        self.targets.write().remove(&id);
    }

    /// Has what is due be done, for each target by a thread of its own: its disk may not answer. To be called a few times a second, by one thread.
    pub fn turn(self: &Arc<Self>) {
        let targets: Vec<Arc<AtTarget>> = self.targets.read().values().cloned().collect();
        for at in targets.into_iter().filter(|_| !self.is_stopping()) {
            if self.is_out(&at) {
                self.leave_all(&at);
            }
            let mut is_due = at.turns.is_due.lock();
            let is_first = is_due.replace(true).is_none();
            at.turns.signal.notify_all();
            drop(is_due);
            if is_first {
                self.start_turns(&at);
            }
        }
    }

    fn start_turns(self: &Arc<Self>, at: &AtTarget) {
        // It keeps neither the target nor this from going.
        let (copies, id, turns) = (Arc::downgrade(self), at.id, at.turns.clone());
        let run = Box::new(move || {
            loop {
                let mut is_due = turns.is_due.lock();
                if *is_due != Some(true) {
                    turns.signal.wait_for(&mut is_due, TURNS_END_AFTER);
                }
                let goes_on = is_due.replace(false) == Some(true);
                if !goes_on {
                    // Nobody calls any more; the next one who does starts another thread.
                    *is_due = None;
                    return;
                }
                drop(is_due);
                let Some(copies) = copies.upgrade() else { return };
                let Some(at) = copies.at(id).filter(|at| Arc::ptr_eq(&at.turns, &turns)) else { return };
                if !copies.is_stopping() {
                    copies.turn_at(&at);
                }
            }
        });
        if let Err(error) = self.outside.env.tasks.spawn("ashlar-copies", run) {
            tracing::error!(%error, target = %at.id, "no thread can be started; copies are tended later");
            *at.turns.is_due.lock() = None;
        }
    }

    fn turn_at(self: &Arc<Self>, at: &Arc<AtTarget>) {
        if at.store.stopped().is_some() {
            self.forget_left(at);
            return self.pass_time(at);
        }
        self.look_at_map(at);
        self.pass_time(at);
        self.ask_again(at);
        for group in at.groups() {
            self.tend(at, &group);
            if let Err(error) = group.forget_notes() {
                tracing::error!(%error, chain = %group.chain, target = %at.id, "notes about a copy cannot be made");
            }
        }
    }

    /// Ends what there is of chains that a target which can note nothing any more has left, or that have begun an epoch without it knowing.
    fn forget_left(&self, at: &AtTarget) {
        let map = self.map();
        let is_newer = |group: &Arc<Group>| {
            let epoch = map.chain(group.chain).and_then(Chain::group).map(|group| group.epoch);
            // Who has it for long waits for the disk.
            let known = group.state.try_lock().map(|state| state.replica.member().epoch());
            epoch.zip(known).is_some_and(|(epoch, known)| epoch > known)
        };
        let left: Vec<ChainId> =
            at.groups().iter().filter(|group| is_newer(group)).map(|group| group.chain).collect();
        let mut groups = at.groups.write();
        left.iter().for_each(|chain| drop(groups.remove(chain)));
    }

    /// Goes by the newest map.
    fn look_at_map(&self, at: &AtTarget) {
        let map = self.map();
        if *at.looked_at.lock() == Some(map.epoch) {
            return;
        }
        let known: BTreeSet<ChainId> = at.groups.read().keys().copied().collect();
        let noted: BTreeSet<ChainId> = at.before.lock().notes.keys().copied().collect();
        let is_of_here =
            |chain: &Chain| chain.is_member(at.id) || known.contains(&chain.id) || noted.contains(&chain.id);
        let mut is_done = true;
        let mut learned = Vec::new();
        for (chain, copies) in map.chains_of_copies().filter(|(chain, _)| is_of_here(chain)) {
            match self.learn(at, (chain, copies)) {
                Ok(one) => learned.extend(one),
                Err(error) => {
                    tracing::error!(%error, chain = %chain.id, target = %at.id, "what a copy is to be cannot be noted");
                    is_done = false;
                }
            }
        }
        if let Err(error) = self.store_all(at, learned) {
            tracing::error!(%error, target = %at.id, "what copies are to be cannot be noted");
            is_done = false;
        }
        for (chain, copies) in map.chains_of_copies() {
            if let Some(group) = at.group(chain.id).filter(|_| !chain.is_kept_at(at.id))
                && let Err(error) = self.forget(at, &group)
            {
                tracing::error!(%error, chain = %chain.id, target = %at.id, "a chain that has left is not forgotten");
                is_done = false;
            }
            if let Some(group) = at.group(chain.id).filter(|_| chain.is_member(at.id)) {
                self.leave(at, &group, copies.wanted);
            }
        }
        if is_done && at.has_lost.load(SeqCst) {
            match at.store.forget_loss() {
                Ok(()) => at.has_lost.store(false, SeqCst),
                Err(error) => {
                    tracing::error!(%error, target = %at.id, "what was lost is noted again with the next start")
                }
            }
        }
        if is_done {
            *at.looked_at.lock() = Some(map.epoch);
        }
    }

    /// Has a group learn what the map says of it; what it wants to be stored before it takes part, if it does.
    fn learn(
        &self,
        at: &AtTarget,
        (chain, copies): (&Chain, &ChainCopies),
    ) -> Result<Option<Learned>, ChunkError> {
        let Some(membership) = chain.group() else { return Ok(None) };
        let now = self.outside.env.clock.monotonic();
        let group = match at.group(chain.id) {
            Some(group) => group,
            None => {
                let group = Arc::new(self.begin(at, chain.id, &membership, now)?);
                at.groups.write().insert(chain.id, group.clone());
                group
            }
        };
        let to_store = {
            let mut state = group.state.lock();
            let mut out = Vec::new();
            state.replica.learn(&membership, now, &mut out);
            let to_store = group.carry_out(&mut state, out)?;
            let is_waiting = state.replica.member().is_storing();
            let epoch = to_store.or(is_waiting.then(|| state.replica.member().epoch()));
            epoch.map(|epoch| {
                let Stored { membership, content } = state.replica.member().to_store();
                if membership.is_in_sync(at.id) && content == Content::Whole {
                    state.in_sync_at = Some(epoch);
                }
                (epoch, state.note())
            })
        };
        let former = copies.former.to_vec();
        Ok(to_store.map(|(epoch, note)| Learned { group, epoch, note, former }))
    }

    /// Stores what groups are to be, with one wait for the disk for all of them, and has them take part.
    fn store_all(&self, at: &AtTarget, learned: Vec<Learned>) -> Result<(), ChunkError> {
        let notes = learned.iter().map(|one| (one.group.chain, Some(one.note.encode())));
        at.store.note_copies(notes.collect())?;
        learned.into_iter().try_for_each(|Learned { group, epoch, former, .. }| group.stored(epoch, &former))
    }

    /// The target has nothing to do with a chain any more. What is left of its chunks is deleted as that of other chains which have gone (`moves::leftover`).
    fn forget(&self, at: &AtTarget, group: &Group) -> Result<(), ChunkError> {
        let noted: Vec<_> = group.state.lock().noted.iter().map(|chunk| (group.chain, *chunk)).collect();
        group.store.forget_uncertain(&noted)?;
        group.store.note_copy(group.chain, None)?;
        at.groups.write().remove(&group.chain);
        Ok(())
    }

    /// The group of a chain that this process has not seen yet.
    fn begin(
        &self,
        at: &AtTarget,
        chain: ChainId,
        membership: &ashlar_types::Membership<TargetId>,
        now: Duration,
    ) -> Result<Group, ChunkError> {
        let terms = LeaseTerms::DEFAULT;
        let mut before = at.before.lock();
        let noted = before.uncertain.get(&chain).cloned().unwrap_or_default();
        let mut out = Vec::new();
        let mut state = match before.notes.get(&chain) {
            Some(note) => {
                let stored = note.stored.clone();
                let replica =
                    ChainReplica::recover(at.id, terms, stored, noted.iter().copied(), now, &mut out);
                State::new(replica, note.in_sync_at)
            }
            // A note may be lost with the rest.
            None if at.has_lost.load(SeqCst) => {
                let stored = Stored { membership: membership.clone(), content: Content::Short };
                let replica = ChainReplica::recover(at.id, terms, stored, [], now, &mut out);
                State::new(replica, None)
            }
            None => State::new(ChainReplica::join(at.id, terms, membership.clone(), now, &mut out), None),
        };
        state.noted = noted;
        state.lacking = before.lacking.get(&chain).cloned().unwrap_or_default();
        let group = Group::new(chain, at.store.clone(), state);
        {
            let mut state = group.state.lock();
            group.carry_out(&mut state, out)?;
        }
        before.notes.remove(&chain);
        before.uncertain.remove(&chain);
        before.lacking.remove(&chain);
        Ok(group)
    }

    /// Carries out a call about one chunk of a chain of several copies, which is not passed on by another target.
    ///
    /// # Errors
    /// `EREMCHG` when it is not for this target, or not now, and what `run` answers.
    pub fn guard(
        &self,
        chain: ChainId,
        request: &StorageRequest,
        payload: Payload<'_>,
        run: impl FnOnce(Payload<'_>) -> Result<StorageReply, Errno>,
    ) -> Result<StorageReply, Errno> {
        let at = self.at(request.target()).ok_or(Errno::EREMCHG)?;
        // Who waits for a disk that hangs has nobody else to ask if it has the only copy.
        if at.store.stopped().is_some() || self.is_out(&at) && !self.is_alone(&at, chain) {
            return Err(self.of_target_out(&at, chain));
        }
        let group = at.group(chain).ok_or(Errno::EREMCHG)?;
        let reply = match request {
            StorageRequest::Read { chunk, .. } | StorageRequest::Seek { chunk, .. } => {
                self.read((&at, &group), *chunk, payload, run)
            }
            _ => self.change((&at, &group), (request, payload), None, run),
        };
        match reply {
            // Its disk has failed meanwhile.
            Err(Errno::EIO) if at.store.stopped().is_some() => Err(self.of_target_out(&at, chain)),
            reply => reply,
        }
    }

    /// Whether what there is of files on `chain` may be told at a target.
    pub fn tells(&self, target: TargetId, chain: ChainId) -> bool {
        let group = self.at(target).and_then(|at| at.group(chain));
        group.is_some_and(|group| self.may_tell(&group))
    }

    /// Carries out a deletion of chunks of a file, also behind those of `chains` that have several copies. `run` is told which of these are deleted here.
    ///
    /// # Errors
    /// As [`Copies::guard`].
    pub fn delete(
        &self,
        request: &StorageRequest,
        map: &ClusterMap,
        run: impl FnOnce(&dyn Fn(ChainId) -> bool) -> Result<StorageReply, Errno>,
    ) -> Result<StorageReply, Errno> {
        let StorageRequest::DeleteGeneration { inode, generation, from_index, ref chains, .. } = *request
        else {
            return Err(Errno::EINVAL);
        };
        let copied = copied_of(map, request.target(), chains);
        if copied.is_empty() {
            return run(&|_| false);
        }
        let at = self.at(request.target()).ok_or(Errno::EREMCHG)?;
        let groups = self.groups_of(&at, &copied)?;
        let meant: BTreeSet<ChainId> = groups.iter().map(|group| group.chain).collect();
        // In the order of chains.
        let alone: Vec<_> = groups.iter().map(|group| self.write_lock(group.file(inode))).collect();
        let first = ChunkId { inode, generation, index: from_index };
        let delete = || {
            let begun = self.begin_deletions(&at, groups.clone(), first, None)?;
            let deleted = {
                let _at_disk = self.at_disk(&at);
                run(&|chain| meant.contains(&chain))
            };
            self.end_deletions(&at, begun, (inode, generation, from_index))?;
            deleted
        };
        let deleted = delete();
        drop(alone);
        let is_elsewhere = |chain: &ChainId| self.of_target_out(&at, *chain) == Errno::EREMCHG;
        match deleted {
            // Its disk has failed meanwhile, and whoever is head next has what is to be deleted.
            Err(Errno::EIO) if at.store.stopped().is_some() && copied.iter().all(is_elsewhere) => {
                Err(Errno::EREMCHG)
            }
            deleted => deleted,
        }
    }

    /// Carries out a sync with `run`, also behind.
    ///
    /// # Errors
    /// As [`Copies::guard`].
    pub fn sync(
        &self,
        target: TargetId,
        chains: &OfChains,
        run: impl FnOnce() -> Result<StorageReply, Errno>,
    ) -> Result<StorageReply, Errno> {
        let copied = copied_of(&self.map(), target, chains);
        if copied.is_empty() {
            return run();
        }
        let at = self.at(target).ok_or(Errno::EREMCHG)?;
        let groups: Vec<(Arc<Group>, Epoch)> =
            self.groups_of(&at, &copied)?.into_iter().map(with_epoch).collect();
        let reply = {
            let now = self.outside.env.clock.monotonic();
            let _at_disk = at.watch.enter(now + SYNC_HANG_AFTER);
            run()
        };
        let is_elsewhere = |group: &Group| self.of_target_out(&at, group.chain) == Errno::EREMCHG;
        if reply == Err(Errno::EIO) && groups.iter().all(|(group, _)| is_elsewhere(group)) {
            // Those behind have what is to be durable, and one of them is head in a moment.
            return Err(Errno::EREMCHG);
        }
        self.sync_behind(&at, &groups, None)?;
        reply
    }

    /// The groups of chains whose head is here by the map.
    ///
    /// # Errors
    /// `EREMCHG` when one of them has not been begun yet: what it is to do is not known.
    fn groups_of(&self, at: &AtTarget, chains: &[ChainId]) -> Result<Vec<Arc<Group>>, Errno> {
        let chains: BTreeSet<ChainId> = chains.iter().copied().collect();
        chains.into_iter().map(|chain| at.group(chain).ok_or(Errno::EREMCHG)).collect()
    }

    /// As [`super::Moves::is_passed_on`].
    pub fn is_passed_on(&self, target: TargetId, chain: ChainId) -> bool {
        let group = self.at(target).and_then(|at| at.group(chain));
        group.is_some_and(|group| group.state.lock().replica.is_behind_required())
    }

    /// As [`super::Moves::go_on_without`].
    pub fn go_on_without(&self, target: TargetId, lost: TargetId) -> bool {
        let Some(at) = self.at(target).filter(|at| !self.is_out(at)) else { return false };
        let now = self.outside.env.clock.monotonic();
        let (mut count, mut have_all_heard, give_up) = (0, true, Instant::now() + TOLD_MAX);
        for group in at.groups() {
            // Whoever has it for long waits for the disk.
            let Some(mut state) = group.state.try_lock_until(give_up) else {
                have_all_heard = false;
                continue;
            };
            let member = state.replica.member_mut();
            if member.waits_for(now).any(|waited_for| waited_for == lost) {
                member.give_up(lost);
                count += 1;
            }
        }
        if count > 0 {
            tracing::warn!(%target, %lost, chains = count, "the operator says that a target never comes back: chains go on with what is here");
        }
        have_all_heard
    }

    /// Chains of a target of which the one behind is being brought up to date: how far that is.
    pub fn progress(&self, target: TargetId) -> Vec<MoveProgress> {
        let Some(at) = self.at(target) else { return Vec::new() };
        let map = self.map();
        let open = |group: Arc<Group>| {
            let state = group.state.lock();
            let to = state.replica.successor().filter(|_| !state.replica.is_behind_required())?;
            let (chunks_done, bytes_done) = (group.sent.0.load(Relaxed), group.sent.1.load(Relaxed));
            let is_held_up = settle::is_held_up(&map, group.chain);
            let obstacle = if is_held_up { "moves are paused".to_owned() } else { String::new() };
            Some(MoveProgress { chain: group.chain, to, chunks_done, bytes_done, bytes_total: 0, obstacle })
        };
        at.groups().into_iter().filter_map(open).collect()
    }
}

/// A group with the epoch that it has now.
fn with_epoch(group: Arc<Group>) -> (Arc<Group>, Epoch) {
    let epoch = group.state.lock().replica.member().epoch();
    (group, epoch)
}

/// Those of `chains` that have several copies, and whose head is `target`, or that are named.
fn copied_of(map: &ClusterMap, target: TargetId, chains: &OfChains) -> Vec<ChainId> {
    match chains {
        OfChains::Only(chains) => chains.iter().copied().filter(|chain| map.is_copied(*chain)).collect(),
        OfChains::All | OfChains::Except(_) => {
            let here = map.chains_of_copies().map(|(chain, _)| chain);
            let is_meant =
                |chain: &&Chain| chain.targets.first() == Some(&target) && chains.has(Some(chain.id));
            here.filter(is_meant).map(|chain| chain.id).collect()
        }
    }
}
