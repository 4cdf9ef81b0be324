//! Where new directories and new chunks go (`design.md` D3, D5).

use crate::MetaService;
use ashlar_namespace::Placement;
use ashlar_rpc::{Payload, StorageCalls};
use ashlar_types::map::{Chain, Shard, TargetState};
use ashlar_types::message::{StorageReply, StorageRequest};
use ashlar_types::{
    ChainId, ClusterMap, Epoch, Errno, InodeId, LayoutPolicy, NodeId, PoolId, ShardId, TargetChoice, TargetId,
};
use parking_lot::Mutex;
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// How long figures of free space are used before they are asked for again.
const SPACE_AGE_MAX: Duration = Duration::from_secs(2);
/// The same of targets that are about to be full, so that they get little more than they have room for.
const SPACE_AGE_NEARLY_FULL: Duration = Duration::from_millis(250);
/// Targets are asked for at most so great a part of the time, one in so many.
const SPACE_ASKING_PART: u32 = 4;
/// LIMIT: how long one asks for all. A disk that hangs longer does not keep the others from asking.
const SPACE_ASKING_MAX: Duration = Duration::from_secs(10);

/// For how long somebody waits for new figures who could use older ones.
const SPACE_WAIT_MAX: Duration = Duration::from_millis(500);

/// A target with less free space than so many hundredths of its size gets no new files while another one has more. Chains are not moved to it either (`manager/src/plan.rs`).
const FULL_BELOW_HUNDREDTHS: u64 = 3;
/// On a small target at least so much counts as none, bytes: about what files take that are being made meanwhile.
const FULL_BELOW_MIN: u64 = 64 << 20;
/// But no more than this part of a target.
const FULL_BELOW_PART: u64 = 8;

/// A metadata server that was waited for in vain for as long did not answer. A message that was lost at once has cost nobody anything.
const SILENT_AFTER: Duration = Duration::from_secs(1);
/// For so long a metadata server that did not answer gets no new directories: each would wait for it again. They go to the others meanwhile.
const SILENT_FOR: Duration = Duration::from_secs(10);

/// Total and free bytes of each target that answered.
pub(crate) type SpaceByTarget = FxHashMap<TargetId, (u64, u64)>;

/// Counters that spread load.
#[derive(Default)]
pub(crate) struct PlacementState {
    next_shard: AtomicU64,
    next_chain: AtomicU64,
    /// All shards, servers alternating, by the map of that epoch.
    shards: Mutex<Option<(Epoch, Arc<[ShardId]>)>>,
    /// Of the online targets that answered when they were last asked.
    space: Arc<Mutex<KnownSpace>>,
    /// Metadata servers that did not answer, and until when they are left alone, by the monotonic clock.
    // LIMIT: as there are servers.
    silent: Mutex<FxHashMap<NodeId, Duration>>,
}

#[derive(Default)]
struct KnownSpace {
    /// When all were asked last.
    all: Asked,
    /// When those were that are about to be full.
    nearly_full: Asked,
    /// Since when somebody asks, by the monotonic clock.
    asking_since: Option<Duration>,
    /// When the asking began whose answers were taken last.
    taken: Duration,
    /// How often the figures were said to be no good.
    forgotten: u64,
    by_target: SpaceByTarget,
    /// Those that did not answer. One that has come since was not asked.
    silent: FxHashSet<TargetId>,
    /// Those that were full when they last answered.
    full: FxHashSet<TargetId>,
}

/// When targets were asked.
#[derive(Clone, Copy, Default)]
struct Asked {
    /// When the last of them had answered, by the monotonic clock; `None` when they are to be asked anew. Not when it was begun: with slow targets all figures would be
    /// old before they are here.
    ended_at: Option<Duration>,
    took: Duration,
}

impl Asked {
    fn is_due(&self, now: Duration, age_max: Duration) -> bool {
        let age_max = age_max.max(self.took * SPACE_ASKING_PART);
        self.ended_at.is_none_or(|ended| now.saturating_sub(ended) >= age_max)
    }
}

/// Targets are asked by whoever has this.
struct Asking {
    /// `None`: all of them.
    only: Option<FxHashSet<TargetId>>,
    begun: Duration,
    forgotten: u64,
}

/// Free bytes below which a target of `bytes_total` is full.
fn full_below(bytes_total: u64) -> u64 {
    let share = bytes_total / 100 * FULL_BELOW_HUNDREDTHS;
    share.max(FULL_BELOW_MIN.min(bytes_total / FULL_BELOW_PART))
}

/// Whether a target is full: it becomes so at one amount of free space, and ends being so at a third more, so that what is made and removed in turn does not go to and fro.
fn is_full(was_full: bool, (bytes_total, bytes_free): (u64, u64)) -> bool {
    let below = full_below(bytes_total);
    bytes_free < if was_full { below + below / 3 } else { below }
}

impl KnownSpace {
    /// Whom the caller is to ask; `None`: nobody, what is known is new enough, or somebody else asks.
    fn begin(&mut self, now: Duration) -> Option<Asking> {
        let is_asked = self.asking_since.is_some_and(|since| now.saturating_sub(since) < SPACE_ASKING_MAX);
        // While nothing is known there is nothing to be used meanwhile.
        if is_asked && !self.by_target.is_empty() {
            return None;
        }
        let only = if self.all.is_due(now, SPACE_AGE_MAX) {
            None
        } else {
            let is_nearly_full = |&(target, &(total, free)): &(&TargetId, &(u64, u64))| {
                !self.full.contains(target) && free / 4 < full_below(total)
            };
            let only: FxHashSet<TargetId> =
                self.by_target.iter().filter(is_nearly_full).map(|(target, _)| *target).collect();
            if only.is_empty() || !self.nearly_full.is_due(now, SPACE_AGE_NEARLY_FULL) {
                return None;
            }
            Some(only)
        };
        self.asking_since = Some(now);
        Some(Asking { only, begun: now, forgotten: self.forgotten })
    }

    /// Takes answers; those that did not answer are as full as they were. Of two who have asked at the same time the one who began later counts.
    fn take(&mut self, now: Duration, asking: &Asking, answered: SpaceByTarget, silent: FxHashSet<TargetId>) {
        if asking.begun < self.taken {
            return;
        }
        self.taken = asking.begun;
        if asking.only.is_none() {
            (self.by_target, self.silent) = (answered, silent);
        } else {
            self.silent.retain(|target| !answered.contains_key(target));
            self.by_target.retain(|target, _| !silent.contains(target));
            self.by_target.extend(answered);
            self.silent.extend(silent);
        }
        let still_full = self.full.iter().copied().filter(|target| self.silent.contains(target));
        let full_now =
            self.by_target.iter().filter(|(target, space)| is_full(self.full.contains(target), **space));
        let full: FxHashSet<TargetId> = full_now.map(|(target, _)| *target).chain(still_full).collect();
        if full != self.full {
            tracing::info!(targets = ?full, "targets that are full: new files go to others while there are some");
        }
        self.full = full;
        // What was asked before somebody made room says nothing of it.
        let is_good = asking.forgotten == self.forgotten;
        let asked = Asked { ended_at: is_good.then_some(now), took: now.saturating_sub(asking.begun) };
        if asking.only.is_none() {
            self.all = asked;
            // A round of a few takes no longer than one of all; how long, the first one shows.
            self.nearly_full.ended_at = asked.ended_at;
        } else {
            self.nearly_full = asked;
        }
        if self.asking_since == Some(asking.begun) {
            self.asking_since = None;
        }
    }

    /// Has all be asked anew.
    fn forget(&mut self) {
        self.forgotten += 1;
        self.all.ended_at = None;
    }

    /// As [`MetaService::has_answered`].
    fn has_answered(&self, target: TargetId) -> bool {
        self.by_target.is_empty() || !self.silent.contains(&target)
    }

    /// Leaves those of `targets` that have room. If none has, those that have about as much as the one that has most.
    fn retain_roomy(&self, targets: &mut Vec<TargetId>) {
        if targets.iter().any(|target| !self.full.contains(target)) {
            targets.retain(|target| !self.full.contains(target));
            return;
        }
        let free = |target: &TargetId| self.by_target.get(target).map_or(0, |(_, free)| *free);
        let most = targets.iter().map(free).max().unwrap_or(0);
        targets.retain(|target| free(target) >= most / 2);
    }
}

impl PlacementState {
    /// Lets the next question about space ask the targets.
    pub(crate) fn forget_space(&self) {
        self.space.lock().forget();
    }
}

impl Placement for MetaService {
    fn shard_for_directory(&self, parent: InodeId) -> ShardId {
        let shards = self.alternating_shards();
        // Not all servers begin with the same one.
        let begin = self.across.node().0 as usize;
        let next = || {
            let turn = self.placement.next_shard.fetch_add(1, Relaxed) as usize;
            shards[turn.wrapping_add(begin) % shards.len()]
        };
        // Not one that is about to leave: whoever makes something in it may have to come again.
        shards
            .iter()
            .map(|_| next())
            .find(|shard| !self.is_to_be_sent(*shard) && !self.is_silent(*shard))
            .unwrap_or_else(|| parent.home())
    }

    fn shards_for_slices(&self, but: ShardId, count: u16) -> Vec<ShardId> {
        let map = self.map.read().clone();
        let turn = self.placement.next_shard.fetch_add(1, Relaxed) as usize;
        let in_turn = (0..map.shards.len()).map(|at| &map.shards[(turn + at) % map.shards.len()]);
        // Not one that is about to leave, as above.
        let usable = in_turn.filter(|shard| shard.id != but && !self.is_to_be_sent(shard.id));
        // This server first: it has the directory, or the one that it is made in.
        let mut found = rounds(usable, Some(self.across.node())).concat();
        found.truncate(usize::from(count));
        // A directory is split once. While a server does not answer that would have a part it is not: the others would have all of it for good.
        if found.iter().any(|shard| self.is_silent(*shard)) {
            found.clear();
        }
        found
    }

    fn chains_for_file(&self, policy: &LayoutPolicy) -> SmallVec<[ChainId; 4]> {
        let map = self.map.read().clone();
        let (pool, choice) = (policy.pool.unwrap_or_default(), policy.choice.unwrap_or_default());
        let wanted = |targets: usize| match policy.stripe_count.unwrap_or(1) {
            0 => targets,
            count => usize::from(count).min(targets),
        };
        let usable = self.usable_targets(&map, pool);
        let copies = policy.copies.unwrap_or(1);
        if copies > 1 {
            let by_head = chains_by_head(&map, (pool, copies), &usable);
            let heads = self.in_order(&map, by_head.keys().copied().collect(), choice);
            let turn = self.placement.next_chain.fetch_add(1, Relaxed);
            // Every head has had its turn before its next chain has: so all of them are used.
            let round = turn / (heads.len() as u64).max(1);
            let chain_of = |head: &TargetId| {
                let chains = by_head.get(head)?;
                chains.get((round % (chains.len() as u64).max(1)) as usize).copied()
            };
            return heads.iter().take(wanted(heads.len())).filter_map(chain_of).collect();
        }
        let targets = self.in_order(&map, usable, choice);
        let turn = self.placement.next_chain.fetch_add(1, Relaxed);
        let wanted = wanted(targets.len());
        targets.iter().take(wanted).filter_map(|&target| chain_of(&map, pool, target, turn)).collect()
    }

    fn first_generation(&self) -> u32 {
        first_generation_since(self.lost_since)
    }
}

/// The first generation of a service that has begun with start `lost_since` after a loss, or later: above all that were given out before, but to a file that was emptied and written again
/// 32,768 times for each start.
// LIMIT: half of all numbers; after that many starts generations go on where they are.
fn first_generation_since(lost_since: u64) -> u32 {
    u32::try_from(lost_since).unwrap_or(u32::MAX).min(0x7fff) << 16
}

/// `shards` in rounds, in each of which every server has one as long as it has some; `first`: the server that comes first.
fn rounds<'a>(shards: impl Iterator<Item = &'a Shard>, first: Option<NodeId>) -> Vec<Vec<ShardId>> {
    let mut by_server: Vec<(NodeId, VecDeque<ShardId>)> =
        first.into_iter().map(|server| (server, VecDeque::new())).collect();
    for shard in shards {
        match by_server.iter_mut().find(|(server, _)| *server == shard.primary) {
            Some((_, shards)) => shards.push_back(shard.id),
            None => by_server.push((shard.primary, VecDeque::from([shard.id]))),
        }
    }
    let mut found = Vec::new();
    while by_server.iter().any(|(_, shards)| !shards.is_empty()) {
        found.push(by_server.iter_mut().filter_map(|(_, shards)| shards.pop_front()).collect());
    }
    found
}

/// All of `shards`, each server once in a round, and the rounds begin with different ones. Always the same order would give every second directory to one of two
/// servers: all of one kind, where a program makes those of two kinds in turn.
fn in_turn<'a>(shards: impl Iterator<Item = &'a Shard>) -> Vec<ShardId> {
    let turned = |(number, mut round): (usize, Vec<ShardId>)| {
        // The part behind the point of multiples of the golden ratio is spread evenly, also that of every second, third and so on.
        let part = (number as u32).wrapping_mul(0x9E37_79B9);
        let begin = (u64::from(part) * round.len() as u64) >> 32;
        round.rotate_left(begin as usize);
        round
    };
    rounds(shards, None).into_iter().enumerate().flat_map(turned).collect()
}

/// The chain of `target` whose turn it is.
fn chain_of(map: &ClusterMap, pool: PoolId, target: TargetId, turn: u64) -> Option<ChainId> {
    let chains: SmallVec<[ChainId; 128]> = map
        .chains_of(pool, 1)
        .filter(|chain| chain.targets.first() == Some(&target))
        .map(|chain| chain.id)
        .collect();
    let count = chains.len() as u64;
    (count > 0).then(|| chains[(turn % count) as usize])
}

/// Leaves of `all` those that are better, if there are such.
fn prefer<T>(all: &mut Vec<T>, is_better: impl Fn(&T) -> bool) {
    if all.iter().any(&is_better) {
        all.retain(is_better);
    }
}

/// The chains of a pool with so many copies that new files are to use, by the target in front: if there are such, those whose targets can all take something; and of these, those that lack no
/// copy. A target that is just back is in front of none.
fn chains_by_head(
    map: &ClusterMap,
    (pool, copies): (PoolId, u8),
    usable: &[TargetId],
) -> BTreeMap<TargetId, Vec<ChainId>> {
    let usable: FxHashSet<TargetId> = usable.iter().copied().collect();
    let mut chains: Vec<&Chain> = map.chains_of(pool, copies).collect();
    let can_take = |chain: &&Chain| chain.targets.iter().all(|target| usable.contains(target));
    let is_whole = |chain: &&Chain| !chain.is_short();
    prefer(&mut chains, can_take);
    prefer(&mut chains, is_whole);
    let mut by_head: BTreeMap<TargetId, Vec<ChainId>> = BTreeMap::new();
    for chain in chains {
        let Some(head) = chain.targets.first() else { continue };
        by_head.entry(*head).or_default().push(chain.id);
    }
    by_head
}

impl MetaService {
    /// All shards. Those of a server have neighbouring numbers, so taking them by number would give all directories of a program to one server.
    fn alternating_shards(&self) -> Arc<[ShardId]> {
        let map = self.map.read().clone();
        let mut kept = self.placement.shards.lock();
        match &*kept {
            Some((epoch, shards)) if *epoch == map.epoch => shards.clone(),
            _ => {
                let shards: Arc<[ShardId]> = in_turn(map.shards.iter()).into();
                *kept = Some((map.epoch, shards.clone()));
                shards
            }
        }
    }

    /// Notes that the server of `shard`, which was asked at `asked_at` by the monotonic clock, has not answered. What it has given for later use is not used: nobody is to hold anything while he waits for it.
    pub(crate) fn note_silent(&self, shard: ShardId, asked_at: Duration) {
        let now = self.env.clock.monotonic();
        if now.saturating_sub(asked_at) < SILENT_AFTER {
            return;
        }
        let map = self.map.read().clone();
        let Some(server) = map.primary(shard).filter(|server| *server != self.across.node()) else { return };
        self.placement.silent.lock().insert(server, now + SILENT_FOR);
        self.across.reserved.lock().retain(|shard, _| map.primary(*shard) != Some(server));
    }

    /// Whether the server of `shard` did not answer a moment ago.
    pub(crate) fn is_silent(&self, shard: ShardId) -> bool {
        // ORDER: read before the next lock is taken. Under it, a new map that waits for readers would be waited for by this one.
        let server = self.map.read().primary(shard);
        let now = self.env.clock.monotonic();
        let mut silent = self.placement.silent.lock();
        silent.retain(|_, until| *until > now);
        server.is_some_and(|server| silent.contains_key(&server))
    }

    /// Refuses settings with a pool that the map does not have, where no file could get chunks: `EINVAL`.
    pub(crate) fn require_pool(&self, policy: &LayoutPolicy) -> Result<(), Errno> {
        let is_known = |id| self.map.read().pools.iter().any(|pool| pool.id == id);
        policy.pool.is_none_or(is_known).then_some(()).ok_or(Errno::EINVAL)
    }

    /// Refuses settings with more copies than one of which the pool has no chains, where no file could get chunks: `EINVAL`.
    pub(crate) fn require_chains(&self, policy: &LayoutPolicy) -> Result<(), Errno> {
        let (pool, copies) = (policy.pool.unwrap_or_default(), policy.copies.unwrap_or(1));
        let is_of_them = |chain: &Chain| chain.pool == pool && chain.copies_wanted() == copies;
        let is_met = copies == 1 || self.map.read().chains.iter().any(is_of_them);
        is_met.then_some(()).ok_or(Errno::EINVAL)
    }

    /// Refuses settings that pin directories to a shard which the map does not have, where none could be made: `ENODEV`.
    pub(crate) fn require_shard(&self, policy: &LayoutPolicy) -> Result<(), Errno> {
        let is_known = |shard| self.map.read().primary(shard).is_some();
        policy.pin().is_none_or(is_known).then_some(()).ok_or(Errno::ENODEV)
    }

    /// Targets of a pool that new files are to use. Those that are away, to be emptied or full come only where no other is left.
    fn usable_targets(&self, map: &ClusterMap, pool: PoolId) -> Vec<TargetId> {
        let mut targets: Vec<TargetId> = map
            .targets
            .iter()
            .filter(|target| target.pool == pool && target.state == TargetState::Online)
            .map(|target| target.id)
            .collect();
        let known = self.placement.space.lock();
        // Where all are away whoever writes waits for one to be back: there may be room.
        prefer(&mut targets, |id| known.has_answered(*id));
        prefer(&mut targets, |id| map.target(*id).is_some_and(|target| !target.is_draining));
        known.retain_roomy(&mut targets);
        drop(known);
        // What was lost with the end of a log may be there yet.
        prefer(&mut targets, |id| !self.uncompared.has(*id));
        targets
    }

    /// `targets` in the order in which a new file takes them: failure domains alternate.
    fn in_order(&self, map: &ClusterMap, mut targets: Vec<TargetId>, choice: TargetChoice) -> Vec<TargetId> {
        if targets.is_empty() {
            return targets;
        }
        match choice {
            TargetChoice::RoundRobin => {
                // Before it is turned, so that the targets of a domain come first equally often.
                targets = map.spread_over_domains(&targets);
                let turn = self.placement.next_chain.load(Relaxed) as usize % targets.len();
                targets.rotate_left(turn);
            }
            TargetChoice::Scatter => self.shuffle(&mut targets, |_| 1),
            TargetChoice::FreeSpace => {
                let space = self.placement.space.lock().by_target.clone();
                self.shuffle(&mut targets, |target| {
                    space.get(&target).map_or(1, |(_, free)| (free >> 20).max(1))
                });
            }
        }
        map.spread_over_domains(&targets)
    }

    /// A random order in which heavier ones tend to come first.
    fn shuffle(&self, targets: &mut [TargetId], weight: impl Fn(TargetId) -> u64) {
        for at in 0..targets.len() {
            let total: u64 = targets[at..].iter().map(|&target| weight(target)).sum();
            let mut pick = self.env.entropy.next_u64() % total.max(1);
            let chosen = targets[at..].iter().position(|&target| {
                let own = weight(target);
                let is_it = pick < own;
                pick = pick.saturating_sub(own);
                is_it
            });
            targets.swap(at, at + chosen.unwrap_or(0));
        }
    }

    /// Total and free bytes of the online targets, about [`SPACE_AGE_MAX`] old at most, and less of those that are about to be full; older where it takes long to ask,
    /// while somebody else does, and while a target does not answer. One that does not answer in the end is left out.
    pub(crate) fn space(&self, map: &ClusterMap) -> SpaceByTarget {
        let (asking, has_older) = {
            let mut known = self.placement.space.lock();
            match known.begin(self.env.clock.monotonic()) {
                Some(asking) => (asking, !known.by_target.is_empty()),
                None => return known.by_target.clone(),
            }
        };
        let online = map.targets.iter().filter(|target| target.state == TargetState::Online);
        let is_asked = |id: &TargetId| asking.only.as_ref().is_none_or(|only| only.contains(id));
        let targets: Vec<TargetId> = online.map(|target| target.id).filter(is_asked).collect();
        let (storage, space, clock) =
            (self.storage.clone(), self.placement.space.clone(), self.env.clock.clone());
        // Not under the lock: a disk that hangs holds up nobody but whoever asks it.
        let ask = move || {
            let (answered, silent) = ask_for_space(&*storage, targets);
            space.lock().take(clock.monotonic(), &asking, answered, silent);
        };
        // Where all content has one copy, whoever cuts a file is to know whether its target is there (`check_can_be_cut`), and waits for that.
        let has_copies = map.chains_of_copies().next().is_some();
        if has_older && has_copies {
            self.ask_beside(ask);
        } else {
            ask();
        }
        self.placement.space.lock().by_target.clone()
    }

    /// Has `ask` be done, and waits for it for a moment: a server that has just died must not hold up whoever makes a file.
    fn ask_beside(&self, ask: impl FnOnce() + Send + 'static) {
        let is_over = Arc::new((Mutex::new(false), self.env.tasks.signal()));
        let told = is_over.clone();
        let run = move || {
            ask();
            *told.0.lock() = true;
            told.1.notify_all();
        };
        if let Err(error) = self.env.tasks.spawn("ashlar-space", Box::new(run)) {
            tracing::warn!(%error, "no thread can be started that asks how much space targets have; older figures are used");
            return;
        }
        let give_up = self.env.clock.monotonic() + SPACE_WAIT_MAX;
        let mut is_done = is_over.0.lock();
        while !*is_done {
            let left = give_up.saturating_sub(self.env.clock.monotonic());
            if left.is_zero() {
                return;
            }
            is_over.1.wait_for(&mut is_done, left);
        }
    }

    /// Whether `target` answered when the targets were last asked ([`MetaService::space`]), or was not there yet; one that has stopped does not. Asks nobody, so
    /// that it may be used under the lane's lock. If none answered, whoever uses one is to hear what is wrong from it.
    pub(crate) fn has_answered(&self, target: TargetId) -> bool {
        self.placement.space.lock().has_answered(target)
    }
}

/// Asks each of `targets`: what they answer, and who does not.
fn ask_for_space(storage: &dyn StorageCalls, targets: Vec<TargetId>) -> (SpaceByTarget, FxHashSet<TargetId>) {
    let (mut answered, mut silent) = (SpaceByTarget::default(), FxHashSet::default());
    for target in targets {
        match storage.call(&StorageRequest::Space { target }, Payload::None) {
            Ok(StorageReply::Space { bytes_total, bytes_free }) => {
                answered.insert(target, (bytes_total, bytes_free));
            }
            // It is on its way from one server to another, and not missing.
            Err(Errno::EBUSY) => {}
            _ => {
                silent.insert(target);
            }
        }
    }
    (answered, silent)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const MS: Duration = Duration::from_millis(1);

    fn shards(primaries: &[u32]) -> Vec<Shard> {
        let shard =
            |(at, primary): (usize, &u32)| Shard { id: ShardId(at as u16), primary: NodeId(*primary) };
        primaries.iter().enumerate().map(shard).collect()
    }

    fn known(free: &[(u32, u64)], before: KnownSpace) -> KnownSpace {
        let mut known = before;
        let asking = Asking { only: None, begun: SECOND, forgotten: known.forgotten };
        known.take(SECOND, &asking, answers(free), FxHashSet::default());
        known
    }

    fn answers(free: &[(u32, u64)]) -> SpaceByTarget {
        free.iter().map(|(target, free)| (TargetId(*target), (1000 << 30, *free << 30))).collect()
    }

    fn roomy(known: &KnownSpace, targets: &[u32]) -> Vec<u32> {
        let mut targets = targets.iter().map(|target| TargetId(*target)).collect();
        known.retain_roomy(&mut targets);
        targets.into_iter().map(|target| target.0).collect()
    }

    #[test]
    fn a_full_target_is_left_out_until_it_has_clearly_more_room() {
        let free = known(&[(1, 29), (2, 500)], KnownSpace::default());
        assert_eq!(roomy(&free, &[1, 2]), [2]);
        assert_eq!(roomy(&free, &[1, 2, 3]), [2, 3], "one that has come since was not asked");
        assert_eq!(roomy(&free, &[1]), [1], "there is no other");
        let free = known(&[(1, 35), (2, 500)], free);
        assert_eq!(roomy(&free, &[1, 2]), [2], "not yet");
        let free = known(&[(1, 41), (2, 500)], free);
        assert_eq!(roomy(&free, &[1, 2]), [1, 2]);
        let free = known(&[(1, 35), (2, 500)], free);
        assert_eq!(roomy(&free, &[1, 2]), [1, 2]);
    }

    #[test]
    fn of_full_targets_those_with_most_room_are_used() {
        let free = known(&[(1, 0), (2, 10), (3, 19), (4, 20)], KnownSpace::default());
        assert_eq!(roomy(&free, &[1, 2, 3, 4]), [2, 3, 4]);
        let free = known(&[(1, 0), (2, 0)], free);
        assert_eq!(roomy(&free, &[1, 2]), [1, 2]);
        assert!(roomy(&free, &[]).is_empty());
    }

    #[test]
    fn only_targets_that_are_about_to_be_full_are_asked_more_often() {
        let mut known = known(&[(1, 10), (2, 121)], KnownSpace::default());
        assert!(known.begin(SECOND + SPACE_AGE_NEARLY_FULL).is_none(), "one is full, the other has room");
        assert!(known.begin(SECOND + SPACE_AGE_MAX).is_some_and(|asking| asking.only.is_none()));
        known.asking_since = None;
        let mut known = self::known(&[(1, 500), (2, 119)], KnownSpace::default());
        assert!(known.begin(SECOND + SPACE_AGE_NEARLY_FULL - MS).is_none());
        let asking = known.begin(SECOND + SPACE_AGE_NEARLY_FULL).unwrap();
        assert_eq!(asking.only, Some([TargetId(2)].into_iter().collect()));
        known.take(asking.begun, &asking, answers(&[(2, 29)]), FxHashSet::default());
        assert_eq!(roomy(&known, &[1, 2]), [1]);
        assert_eq!(known.by_target[&TargetId(1)].1, 500 << 30, "what is known of others stays");
        assert!(known.begin(SECOND + SPACE_AGE_MAX).is_some_and(|asking| asking.only.is_none()));
        assert_eq!(full_below(64 << 20), 8 << 20);
        assert_eq!(full_below(1 << 30), 64 << 20);
    }

    /// Each first write asked all targets, one after another.
    #[test]
    fn figures_that_took_long_to_get_are_used_for_longer_and_one_asks_for_all() {
        let mut known = known(&[(1, 500), (2, 119)], KnownSpace::default());
        let begun = SECOND + SPACE_AGE_NEARLY_FULL;
        let asking = known.begin(begun).unwrap();
        assert!(known.begin(begun + SECOND).is_none(), "others use what is known");
        assert!(known.begin(begun + SPACE_ASKING_MAX).is_some(), "but not for ever");
        let ended = begun + SECOND;
        known.take(ended, &asking, answers(&[(2, 118)]), FxHashSet::default());
        known.all.ended_at = Some(ended);
        known.asking_since = None;
        assert!(known.begin(ended + SECOND).is_none(), "it takes a second, so it is asked for every fifth");
        // All of them, for three seconds.
        let begun = ended + SPACE_AGE_MAX;
        let asking = known.begin(begun).unwrap();
        assert!(asking.only.is_none());
        let ended = begun + 3 * SECOND;
        known.take(ended, &asking, answers(&[(1, 500), (2, 300)]), FxHashSet::default());
        assert!(known.begin(ended + 11 * SECOND).is_none() && known.begin(ended + 12 * SECOND).is_some());
    }

    #[test]
    fn figures_from_before_room_was_made_are_asked_for_again() {
        let mut known = known(&[(1, 5), (2, 500)], KnownSpace::default());
        known.forget();
        let asking = known.begin(SECOND).unwrap();
        known.forget();
        known.take(SECOND, &asking, answers(&[(1, 5), (2, 500)]), FxHashSet::default());
        let asking = known.begin(SECOND).unwrap();
        known.take(SECOND, &asking, answers(&[(1, 50), (2, 500)]), FxHashSet::default());
        assert_eq!(roomy(&known, &[1, 2]), [1, 2]);
        assert!(known.begin(SECOND).is_none());
        let mut unknown = KnownSpace::default();
        assert!(unknown.begin(SECOND).is_some() && unknown.begin(SECOND).is_some(), "nothing is known yet");
    }

    #[test]
    fn new_files_use_chains_whose_targets_all_take_something_and_that_lack_no_copy() {
        use ashlar_types::map::ChainCopies;
        use ashlar_types::testing::map_in_domains;
        let mut map = map_in_domains(&[0, 1, 2, 3], &[""; 4]);
        let chain = |(id, targets): (u32, &[u32])| {
            let wanted = targets.len() as u8;
            let (changed, catching_up, former) = Default::default();
            let copies = (wanted > 1).then_some(ChainCopies { wanted, changed, catching_up, former });
            let targets = targets.iter().copied().map(TargetId).collect();
            Chain { id: ChainId(id), pool: PoolId(0), targets, moving: None, copies }
        };
        let chains: [&[u32]; 6] = [&[0], &[0, 1], &[0, 2], &[1, 3], &[3, 1], &[0, 1, 2]];
        map.chains = (0..).zip(chains).map(chain).collect();
        let used = |map: &ClusterMap, usable: &[u32]| {
            let usable: Vec<TargetId> = usable.iter().copied().map(TargetId).collect();
            let by_head = chains_by_head(map, (PoolId(0), 2), &usable);
            let plain = |(head, chains): (TargetId, Vec<ChainId>)| {
                (head.0, chains.into_iter().map(|chain| chain.0).collect::<Vec<_>>())
            };
            by_head.into_iter().map(plain).collect::<Vec<_>>()
        };
        let all = [0, 1, 2, 3];
        assert_eq!(used(&map, &all), [(0, vec![1, 2]), (1, vec![3]), (3, vec![4])]);
        assert_eq!(used(&map, &[0, 1, 2]), [(0, vec![1, 2])], "target 3 is full");
        assert_eq!(used(&map, &[2]), used(&map, &all), "wherever one looks one is full");
        map.chains[2].targets.truncate(1);
        map.chains[3].targets.truncate(1);
        assert_eq!(used(&map, &all), [(0, vec![1]), (3, vec![4])], "those lack a copy");
        assert_eq!(used(&map, &[0]), [(0, vec![2])], "better than a full target");
        map.targets[0].state = TargetState::Offline;
        assert_eq!(used(&map, &all), [(3, vec![4])]);
    }

    fn numbers(found: Vec<ShardId>) -> Vec<u16> {
        found.into_iter().map(|shard| shard.0).collect()
    }

    #[test]
    fn directories_made_one_after_the_other_go_to_servers_in_turn() {
        let map = shards(&[1, 1, 1, 2, 2, 3, 3, 3]);
        let alternate = |first| numbers(rounds(map.iter(), first).concat());
        assert_eq!(alternate(None), [0, 3, 5, 1, 4, 6, 2, 7]);
        assert_eq!(alternate(Some(NodeId(3))), [5, 0, 3, 6, 1, 4, 7, 2]);
        assert_eq!(alternate(Some(NodeId(9))), [0, 3, 5, 1, 4, 6, 2, 7]);
        assert!(rounds([].iter(), None).is_empty());
    }

    /// All directories of one kind were at one server where a program made those of two kinds in turn.
    #[test]
    fn every_so_manieth_directory_is_on_each_server() {
        for servers in [2, 4, 8] {
            let map = shards(&(0..64).map(|at| at / (64 / servers)).collect::<Vec<_>>());
            let order = in_turn(map.iter());
            let server_of = |shard: &ShardId| map[usize::from(shard.0)].primary.0;
            for round in order.chunks(servers as usize) {
                assert_eq!(round.iter().map(server_of).collect::<FxHashSet<_>>().len(), servers as usize);
            }
            for kinds in 1..=64 / (4 * servers as usize) {
                for kind in 0..kinds {
                    let of_kind = order.iter().skip(kind).step_by(kinds);
                    let found: FxHashSet<u32> = of_kind.map(server_of).collect();
                    assert_eq!(found.len(), servers as usize, "every {kinds}th of {servers} servers");
                }
            }
        }
        let one = shards(&[1; 8]);
        assert_eq!(numbers(in_turn(one.iter())), [0, 1, 2, 3, 4, 5, 6, 7]);
    }
}
