//! Where new directories and new chunks go (`design.md` D3, D5).

use crate::MetaService;
use ashlar_namespace::Placement;
use ashlar_rpc::Payload;
use ashlar_types::map::TargetState;
use ashlar_types::message::{StorageReply, StorageRequest};
use ashlar_types::{
    ChainId, ClusterMap, Errno, InodeId, LayoutPolicy, PoolId, ShardId, TargetChoice, TargetId,
};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// How long figures of free space are used before they are asked for again.
const SPACE_AGE_MAX: Duration = Duration::from_secs(2);

/// Total and free bytes of each target that answered.
pub(crate) type SpaceByTarget = FxHashMap<TargetId, (u64, u64)>;

/// Counters that spread load.
#[derive(Default)]
pub(crate) struct PlacementState {
    next_shard: AtomicU64,
    next_chain: AtomicU64,
    /// Of the online targets that answered when they were last asked.
    space: Mutex<KnownSpace>,
}

#[derive(Default)]
struct KnownSpace {
    /// When it was asked for, by the monotonic clock; `None` when it is to be asked for anew.
    asked_at: Option<Duration>,
    by_target: SpaceByTarget,
}

impl PlacementState {
    /// Lets the next question about space ask the targets.
    pub(crate) fn forget_space(&self) {
        self.space.lock().asked_at = None;
    }
}

impl Placement for MetaService {
    fn shard_for_directory(&self, parent: InodeId) -> ShardId {
        let shards = self.map.read().shards.len().max(1) as u64;
        let next = || ShardId((self.placement.next_shard.fetch_add(1, Relaxed) % shards) as u16);
        (0..shards).map(|_| next()).find(|shard| !self.is_offered(*shard)).unwrap_or_else(|| parent.home())
    }

    fn chains_for_file(&self, policy: &LayoutPolicy) -> SmallVec<[ChainId; 4]> {
        let map = self.map.read().clone();
        let pool = policy.pool.unwrap_or_default();
        let targets = self.targets_by_choice(&map, pool, policy.choice.unwrap_or_default());
        let wanted = match policy.stripe_count.unwrap_or(1) {
            0 => targets.len(),
            count => usize::from(count).min(targets.len()),
        };
        let turn = self.placement.next_chain.fetch_add(1, Relaxed);
        targets.iter().take(wanted).filter_map(|&target| chain_of(&map, pool, target, turn)).collect()
    }
}

/// The chain of `target` whose turn it is.
fn chain_of(map: &ClusterMap, pool: PoolId, target: TargetId, turn: u64) -> Option<ChainId> {
    let chains: SmallVec<[ChainId; 128]> = map
        .chains_of(pool)
        .filter(|chain| chain.targets.first() == Some(&target))
        .map(|chain| chain.id)
        .collect();
    let count = chains.len() as u64;
    (count > 0).then(|| chains[(turn % count) as usize])
}

impl MetaService {
    /// Refuses settings with a pool that the map does not have, where no file could get chunks: `EINVAL`.
    pub(crate) fn require_pool(&self, policy: &LayoutPolicy) -> Result<(), Errno> {
        let is_known = |id| self.map.read().pools.iter().any(|pool| pool.id == id);
        policy.pool.is_none_or(is_known).then_some(()).ok_or(Errno::EINVAL)
    }

    /// Usable targets of a pool, in the order in which a new file takes them.
    fn targets_by_choice(&self, map: &ClusterMap, pool: PoolId, choice: TargetChoice) -> Vec<TargetId> {
        let mut targets: Vec<TargetId> = map
            .targets
            .iter()
            .filter(|target| target.pool == pool && target.state == TargetState::Online)
            .filter(|target| self.has_answered(target.id))
            .map(|target| target.id)
            .collect();
        if targets.is_empty() {
            return targets;
        }
        match choice {
            TargetChoice::RoundRobin => {
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
        targets
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

    /// Total and free bytes of the online targets, at most [`SPACE_AGE_MAX`] old. A target that does not answer is left out.
    pub(crate) fn space(&self, map: &ClusterMap) -> SpaceByTarget {
        let now = self.env.clock.monotonic();
        {
            let known = self.placement.space.lock();
            if known.asked_at.is_some_and(|when| now.saturating_sub(when) < SPACE_AGE_MAX) {
                return known.by_target.clone();
            }
        }
        // Not under the lock: a disk that hangs holds up nobody but whoever asks it.
        let online = map.targets.iter().filter(|target| target.state == TargetState::Online);
        let space: SpaceByTarget = online
            .filter_map(|target| {
                match self.storage.call(&StorageRequest::Space { target: target.id }, Payload::None) {
                    Ok(StorageReply::Space { bytes_total, bytes_free }) => {
                        Some((target.id, (bytes_total, bytes_free)))
                    }
                    _ => None,
                }
            })
            .collect();
        *self.placement.space.lock() = KnownSpace { asked_at: Some(now), by_target: space.clone() };
        space
    }

    /// Whether `target` answered when the targets were last asked ([`MetaService::space`]); one that has stopped does not. Asks nobody, so
    /// that it may be used under the lane's lock. If none answered, whoever uses one is to hear what is wrong from it.
    pub(crate) fn has_answered(&self, target: TargetId) -> bool {
        let known = self.placement.space.lock();
        known.by_target.is_empty() || known.by_target.contains_key(&target)
    }
}
