//! The cluster map: which targets, pools, chains and shards there are, at which epoch. Only the manager writes it.

use crate::{ChainId, ClusterId, Epoch, FileLayout, Fileset, Node, NodeId, PoolId, Role, ShardId, TargetId};
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use std::net::SocketAddr;

pub use crate::chain::{Chain, ChainCopies, Move};

/// Whether a target serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TargetState {
    /// Serving.
    Online,
    /// Known, but its directory is not there or was taken out of service.
    Offline,
}

/// A storage target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Target {
    /// Its id, never reused.
    pub id: TargetId,
    /// Drawn at random when the target was made; also in the target's own header.
    pub uuid: [u8; 16],
    /// The server it is on.
    pub node: NodeId,
    /// The pool it belongs to.
    pub pool: PoolId,
    /// Whether it serves.
    pub state: TargetState,
    /// Where it was last seen: the data directory's path.
    pub path: String,
    /// Whether its chains are to go to other targets, and no new ones come.
    pub is_draining: bool,
}

/// A pool of targets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pool {
    /// Its id.
    pub id: PoolId,
    /// Its unique name.
    pub name: String,
}

/// A metadata shard and the server that is its primary.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shard {
    /// Its id.
    pub id: ShardId,
    /// The server that answers for it.
    pub primary: NodeId,
}

/// How chains are moved between targets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MovePolicy {
    /// Nothing is copied for now; what has begun stays as far as it is.
    pub is_paused: bool,
    /// Bytes that a server may send for moves, MiB per second; 0: as many as it can.
    pub rate_mib_s: u32,
    /// Pools whose targets are to be equally full.
    // LIMIT: as pools.
    pub rebalancing: Vec<PoolId>,
}

/// The whole map at one epoch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterMap {
    /// The file system.
    pub cluster: ClusterId,
    /// Grows by one with every change.
    pub epoch: Epoch,
    /// Pools, by id.
    pub pools: Vec<Pool>,
    /// Targets, by id.
    pub targets: Vec<Target>,
    /// Chains, by id: chain `i` is at position `i`.
    pub chains: Vec<Chain>,
    /// Shards, by id: shard `i` is at position `i`.
    pub shards: Vec<Shard>,
    /// Machines, by id. On a single machine: that one, which listens nowhere.
    pub nodes: Vec<Node>,
    /// How chains are moved.
    pub moves: MovePolicy,
    /// Filesets that were made of directories, by id: fileset `i` is at position `i - 1`.
    pub filesets: Vec<Fileset>,
}

impl ClusterMap {
    /// Chains a new target brings with it (`design.md` D5: about 100 per target).
    pub const CHAINS_PER_TARGET: u32 = 100;

    /// Whether the map keeps its own rules, as every map does that was stored: ids are where they belong and once, and what is named is
    /// there.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub fn check(&self) -> Result<(), &'static str> {
        let has_pool = |id: PoolId| self.pools.iter().any(|pool| pool.id == id);
        let in_order = |mut ids: std::slice::Windows<'_, Target>| ids.all(|pair| pair[0].id < pair[1].id);
        let is_chain_sound = |(at, chain): (usize, &Chain)| {
            let is_known =
                |target: &TargetId| self.targets.binary_search_by_key(target, |known| known.id).is_ok();
            chain.id.0 as usize == at
                && has_pool(chain.pool)
                && chain.is_sound()
                && chain.everybody().all(|known| is_known(&known))
        };
        let rules = [
            (self.epoch.0 <= u64::MAX / 2, "its epoch is out of range"),
            (!self.shards.is_empty(), "it has no shard"),
            (self.nodes.windows(2).all(|pair| pair[0].id < pair[1].id), "its nodes are out of order"),
            (
                self.nodes.last().is_none_or(|node| node.id.0 <= u32::MAX / 2),
                "the id of a node is out of range",
            ),
            (
                self.nodes.iter().all(|node| node.policy.check().is_ok()),
                "the policy of a node contradicts itself",
            ),
            (self.targets.iter().all(|target| self.node(target.node).is_some()), "a target is on no node"),
            (self.shards.iter().all(|shard| self.node(shard.primary).is_some()), "a shard is on no node"),
            (
                (0..).zip(&self.shards).all(|(at, shard)| usize::from(shard.id.0) == at),
                "its shards are out of order",
            ),
            (self.pools.windows(2).all(|pair| pair[0].id < pair[1].id), "its pools are out of order"),
            (self.are_filesets_sound(), "its filesets are out of order, or in themselves"),
            (in_order(self.targets.windows(2)), "its targets are out of order"),
            (
                self.targets.last().is_none_or(|target| target.id.0 <= u32::MAX / 2),
                "the id of a target is out of range",
            ),
            (self.targets.iter().all(|target| has_pool(target.pool)), "a target is of no pool"),
            (
                self.chains.iter().enumerate().all(is_chain_sound),
                "a chain is out of order, or of no pool or target",
            ),
            (
                self.moves.rebalancing.iter().all(|pool| has_pool(*pool)),
                "a pool is rebalanced that is not there",
            ),
        ];
        rules.into_iter().find(|(holds, _)| !holds).map_or(Ok(()), |(_, what)| Err(what))
    }

    /// The chain `id`, if the map has it.
    pub fn chain(&self, id: ChainId) -> Option<&Chain> {
        self.chains.get(id.0 as usize).filter(|chain| chain.id == id)
    }

    /// The target `id`, if the map has it.
    pub fn target(&self, id: TargetId) -> Option<&Target> {
        self.targets.iter().find(|target| target.id == id)
    }

    /// The node `id`, if the map has it.
    pub fn node(&self, id: NodeId) -> Option<&Node> {
        self.nodes.binary_search_by_key(&id, |node| node.id).ok().and_then(|at| self.nodes.get(at))
    }

    /// Nodes that listen as `role`.
    pub fn listening(&self, role: Role) -> impl Iterator<Item = &Node> {
        self.nodes.iter().filter(move |node| !node.addresses(role).is_empty())
    }

    /// The server that answers for `shard`, if the map has it.
    pub fn primary(&self, shard: ShardId) -> Option<NodeId> {
        self.shards.get(usize::from(shard.0)).map(|shard| shard.primary)
    }

    /// Where nodes listen as `role`.
    pub fn addresses(&self, role: Role) -> Vec<SocketAddr> {
        self.listening(role).flat_map(|node| node.addresses(role)).copied().collect()
    }

    /// Where `caller` finds managers: first, and if nobody answers there.
    pub fn managers_of(&self, caller: Role) -> (Vec<SocketAddr>, Vec<SocketAddr>) {
        let (mut first, mut then) = (Vec::new(), Vec::new());
        for node in self.listening(Role::Manager) {
            let reached = node.reached_by(caller, Role::Manager);
            first.extend(reached.0);
            then.extend(reached.1);
        }
        (first, then)
    }

    /// The target at the head of chain `id`, if the map has it.
    pub fn head(&self, id: ChainId) -> Option<TargetId> {
        self.chain(id)?.targets.first().copied()
    }

    /// The targets at the heads of a file's chains, each once, by id, with those of the chains that it has.
    pub fn places_of(&self, layout: &FileLayout) -> Vec<(TargetId, SmallVec<[ChainId; 4]>)> {
        let mut places: Vec<(TargetId, SmallVec<[ChainId; 4]>)> = Vec::new();
        for &chain in &layout.chains {
            let Some(target) = self.head(chain) else { continue };
            match places.iter_mut().find(|(known, _)| *known == target) {
                Some((_, chains)) => chains.push(chain),
                None => places.push((target, smallvec::smallvec![chain])),
            }
        }
        places.sort_by_key(|(target, _)| *target);
        places
    }

    /// Chains of several copies, with the rest of their groups.
    pub fn chains_of_copies(&self) -> impl Iterator<Item = (&Chain, &ChainCopies)> {
        self.chains.iter().filter_map(|chain| Some((chain, chain.copies.as_ref()?)))
    }

    /// Whether chain `id` has several copies.
    pub fn is_copied(&self, id: ChainId) -> bool {
        self.chain(id).is_some_and(|chain| chain.copies.is_some())
    }

    /// Chains of which `target` has, or is being given, all chunks.
    pub fn chains_with(&self, target: TargetId) -> impl Iterator<Item = &Chain> {
        self.chains.iter().filter(move |chain| chain.is_member(target))
    }

    /// Chains whose head is `target`.
    pub fn chains_at(&self, target: TargetId) -> impl Iterator<Item = &Chain> {
        self.chains.iter().filter(move |chain| chain.targets.first() == Some(&target))
    }

    /// The targets at the heads of a file's chains, each once, by id.
    pub fn targets_of(&self, layout: &FileLayout) -> Vec<TargetId> {
        let mut targets: Vec<TargetId> = layout.chains.iter().filter_map(|&id| self.head(id)).collect();
        targets.sort();
        targets.dedup();
        targets
    }

    /// Chains of `pool` that keep `copies` copies and whose head target is online; those that are to leave it among them.
    pub fn chains_of(&self, pool: PoolId, copies: u8) -> impl Iterator<Item = &Chain> {
        self.chains.iter().filter(move |chain| {
            chain.pool == pool
                && chain.copies_wanted() == copies
                && chain
                    .targets
                    .first()
                    .and_then(|&t| self.target(t))
                    .is_some_and(|t| t.state == TargetState::Online)
        })
    }
}
