//! Chains of the site: the manager that says whose they are, who wants them elsewhere, and what must hold of them when everything has ended.

use super::storage::{Call, Storage};
use super::{CHAINS, CLUSTER, Course, FIRST_STORAGE, QUIET_MAX, Site, SitePlan, TARGETS_EACH};
use crate::audit;
use ashlar_chunkstore::{ChainNote, ChunkStore};
use ashlar_coord::local_file::LocalFile;
use ashlar_env::sim::{SimDisk, SimEntropy};
use ashlar_env::{Disk, Env};
use ashlar_manager::{Manager, ManagerService};
use ashlar_rpc::{Payload, StorageCalls};
use ashlar_storage::moves::{End, Told};
use ashlar_types::map::{Chain, Move, Target, TargetState};
use ashlar_types::message::{ManagerReply, ManagerRequest, StorageRequest};
use ashlar_types::{
    ChainId, ChunkId, ClusterMap, Epoch, Errno, InodeId, LayoutPolicy, NodeId, OfChains, PeerId, PoolId,
    Role, TargetId,
};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

/// For how long an answer is waited for that nobody needs.
const ASKED_FOR: Duration = Duration::from_millis(50);

/// The targets of the first map.
pub(super) fn first_targets(plan: &SitePlan) -> Vec<Target> {
    let target = |number: usize| Target {
        id: TargetId(1 + number as u32),
        uuid: [1 + number as u8; 16],
        node: NodeId(FIRST_STORAGE + (number / TARGETS_EACH) as u32),
        pool: PoolId(0),
        state: TargetState::Online,
        path: format!("/{number}"),
        is_draining: false,
    };
    (0..plan.storage * TARGETS_EACH).map(target).collect()
}

/// The chains of the first map.
pub(super) fn first_chains(plan: &SitePlan) -> Vec<Chain> {
    let targets = (plan.storage * TARGETS_EACH) as u64;
    let chain = |number: u64| Chain {
        id: ChainId(number as u32),
        pool: PoolId(0),
        targets: [TargetId(1 + (number % targets) as u32)].into_iter().collect(),
        moving: None,
        copies: None,
    };
    if targets == 0 { Vec::new() } else { (0..CHAINS).map(chain).collect() }
}

/// The production manager, with `map` as its first one.
///
/// # Errors
/// In words.
pub(super) fn manager(env: Env, map: &ClusterMap) -> Result<ManagerService, String> {
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::new());
    let mut draft = Manager::draft(&disk, "", &env).map_err(|error| format!("draft: {error}"))?;
    draft.map = map.clone();
    let manager = Manager::create(draft, Box::new(LocalFile::new(disk, "")));
    let manager = manager.map_err(|error| format!("create: {error}"))?;
    ManagerService::new(manager, env, String::new()).map_err(|error| format!("no manager: {error}"))
}

/// Chains of which a target has chunks or notes although they are elsewhere.
fn left_over(map: &ClusterMap, target: TargetId, store: &ChunkStore) -> Result<Vec<String>, String> {
    let failed = |error| format!("{target} cannot be looked at: {error}");
    let is_elsewhere = |chain: &Option<ChainId>| chain.is_none_or(|chain| map.head(chain) != Some(target));
    let bytes = store.bytes_by_chain().map_err(failed)?;
    let chunks = bytes.keys().filter(|chain| is_elsewhere(chain)).map(|chain| format!("chunks of {chain:?}"));
    let notes = store.chain_notes().map_err(failed)?;
    let noted = notes
        .iter()
        .filter(|(chain, note)| is_elsewhere(&Some(**chain)) || matches!(note, ChainNote::Leaving { .. }));
    let noted = noted.map(|(chain, note)| format!("of {chain} the note {note:?}"));
    Ok(chunks.chain(noted).map(|what| format!("{target} has {what}")).collect())
}

impl Site {
    /// The server that a target is on.
    pub fn storage_of(&self, target: TargetId) -> Option<&Storage> {
        self.storage.get((target.0 as usize).checked_sub(1)? / TARGETS_EACH)
    }

    /// Has the manager change its map.
    pub fn change_map(&self, change: impl Fn(&mut ClusterMap)) {
        let Some(manager) = &self.manager else { return change(&mut self.truth.lock()) };
        let changed = manager.manager().change(|state| {
            change(&mut state.map);
            Ok(())
        });
        if let Err(error) = changed {
            self.fail(format!("the map cannot be changed: {error}"));
        }
        *self.truth.lock() = manager.map().read().as_ref().clone();
    }

    /// A storage server asks the manager to end a move.
    pub fn end_chain_move(&self, at: usize, end: End) -> Told {
        let Some(manager) = &self.manager else { return Told::NotAsked };
        let End { chain, from, since, is_given_up } = end;
        let roles = Role::ALL.into_iter().collect();
        let peer = PeerId { cluster: CLUSTER, node: NodeId(FIRST_STORAGE + at as u32), roles, host: None };
        let before = self.truth.lock().head(chain);
        let reply = manager.call(peer, None, ManagerRequest::EndMove { chain, from, since, is_given_up });
        *self.truth.lock() = manager.map().read().as_ref().clone();
        let now = self.truth.lock().head(chain);
        self.scheduler.note(&|| format!("{end:?}: {reply:?}"));
        if now != before {
            self.scheduler.note(&|| format!("{chain} is {now:?}'s"));
            self.chains_moved.fetch_add(1, SeqCst);
            self.content.note_moved(chain);
        }
        match reply {
            ManagerReply::MoveEnded { is_finished } => Told::Ended { is_finished },
            other => {
                self.fail(format!("the end of a move is answered {other:?}"));
                Told::Unknown
            }
        }
    }

    /// Checks, in the moment in which a target has answered a call, that what it is about is there.
    pub fn require_served(&self, request: &StorageRequest) {
        let chains: Vec<ChainId> = match request {
            StorageRequest::DeleteGeneration { chains: OfChains::Only(chains), .. }
            | StorageRequest::Sync { chains: OfChains::Only(chains), .. } => chains.to_vec(),
            other => other.chain().into_iter().collect(),
        };
        let truth = self.truth.lock();
        let (target, epoch) = (request.target(), truth.epoch);
        let others: Vec<_> = chains.into_iter().filter(|chain| truth.head(*chain) != Some(target)).collect();
        drop(truth);
        if !others.is_empty() {
            self.fail(format!("{target} answers {request:?}, and {others:?} are elsewhere in {epoch:?}"));
        }
    }

    /// Storage servers, and the manager, hear of what is late.
    pub fn spread_chains(&self, newest: &Arc<ClusterMap>) {
        for storage in &self.storage {
            let is_told = self.trouble(4) == 0 || !self.is_troubled.load(SeqCst);
            let keeps = self.trouble(self.plan.keep_one_in) == 0 || !self.is_troubled.load(SeqCst);
            storage.hear(self, newest, is_told, keeps);
        }
        if self.storage.is_empty() || self.trouble(6) < 5 && self.is_troubled.load(SeqCst) {
            return;
        }
        let late = std::mem::take(&mut *self.late_ends.lock());
        for (at, end) in late {
            // Nobody waits for the answer any more.
            let _ = self.end_chain_move(at, end);
        }
    }

    /// An administrator, or a plan, wants a chain to be elsewhere, or where it is after all, or all of them to wait.
    pub fn want_a_chain_elsewhere(&self) {
        let chain = self.dice.below(CHAINS) as usize;
        let to = TargetId(1 + self.dice.below((self.storage.len() * TARGETS_EACH) as u64) as u32);
        let (kind, rate) = (self.dice.below(16), self.dice.below(4) as u32);
        self.change_map(|map| {
            let since = Epoch(map.epoch.0 + 1);
            match kind {
                0 => map.moves.rate_mib_s = if rate == 0 { 1 } else { 0 },
                1 => map.moves.is_paused = true,
                _ if map.moves.is_paused && kind % 3 != 0 => map.moves.is_paused = false,
                _ => {
                    let chain = &mut map.chains[chain];
                    if chain.moving.is_some() {
                        chain.moving = chain.moving.filter(|_| kind > 4);
                    } else if chain.targets[0] != to {
                        chain.moving = Some(Move { to, since });
                    }
                }
            }
        });
    }

    /// Somebody with an old map asks a target about a chain that was there once, or never: who answers is looked at as for everybody.
    pub fn ask_by_an_old_map(self: &Arc<Site>) {
        let target = TargetId(1 + self.dice.below((self.storage.len() * TARGETS_EACH) as u64) as u32);
        let request = question(target, ChainId(self.dice.below(CHAINS) as u32));
        if let Some(storage) = self.storage_of(target) {
            let call = Call { request, data: Vec::new(), from: None, after_ms: 0 };
            let until = self.now() + ASKED_FOR;
            storage.ask(self, call, &|| self.now() < until);
        }
    }

    /// What is not as it must be once moves have come to their ends.
    fn unsettled(&self) -> Result<Vec<String>, String> {
        let map = self.truth.lock().clone();
        let moving = map.chains.iter().filter(|chain| chain.moving.is_some());
        let mut found: Vec<String> = moving.map(|chain| format!("{chain:?}")).collect();
        for storage in &self.storage {
            let Some(life) = storage.life() else {
                found.push("a storage server is away".to_owned());
                continue;
            };
            if life.map.read().epoch != map.epoch || !storage.has_kept(map.epoch) {
                found.push(format!("a storage server has not heard of {:?}", map.epoch));
            }
            for (target, store) in life.service.targets() {
                found.extend(left_over(&map, target, &store)?);
            }
        }
        Ok(found)
    }
}

/// A read of a chunk that there is not.
fn question(target: TargetId, chain: ChainId) -> StorageRequest {
    let chunk = ChunkId { inode: InodeId(1), generation: 1, index: 0 };
    let (chunk_bytes, offset, len) = (LayoutPolicy::CHUNK_BYTES_MIN, 0, 1);
    StorageRequest::Read { target, chunk, chain, chunk_bytes, offset, len, want_sums: false }
}

impl Course {
    /// Nothing goes wrong any more: moves end, and nothing of them is left.
    pub(super) fn settle_chains(&mut self) -> Result<(), String> {
        self.site.change_map(|map| {
            (map.moves.is_paused, map.moves.rate_mib_s) = (false, 0);
        });
        let until = self.site.now() + QUIET_MAX;
        loop {
            self.sleep(500)?;
            let left = self.site.unsettled()?;
            if left.is_empty() || self.site.has_failed() {
                return Ok(());
            }
            if self.site.now() > until {
                return Err(format!("of moves is left after {QUIET_MAX:?}: {}", left.join("; ")));
            }
        }
    }
}

/// Checks what storage servers have, and that each chain is served by the target that the map says and by no other, and ends them in good order.
///
/// # Errors
/// In words: what does not hold.
pub(super) fn end_and_check(site: &Site) -> Result<(), String> {
    let map = site.truth.lock().clone();
    for storage in &site.storage {
        let life = storage.life().ok_or("a storage server is not there at the end")?;
        for (target, store) in life.service.targets() {
            for chain in (0..CHAINS).map(|chain| ChainId(chain as u32)) {
                let mut byte = [0];
                let told = life.service.call(&question(target, chain), Payload::Read(&mut byte));
                let is_right = match map.head(chain) == Some(target) {
                    true => told.is_ok(),
                    false => told == Err(Errno::EREMCHG),
                };
                if !is_right {
                    return Err(format!("{target} answers {told:?} about {chain} of {:?}", map.head(chain)));
                }
                check_chunks(site, &store, (target, chain))?;
            }
            let left = left_over(&map, target, &store)?;
            if !left.is_empty() {
                return Err(format!("at the end: {}", left.join("; ")));
            }
            audit::scrub(target, &store)?;
        }
    }
    site.storage.iter().try_for_each(|storage| storage.end(site))
}

/// Every chunk of a chain is one that is used: what was deleted did not come back with a copy.
fn check_chunks(site: &Site, store: &ChunkStore, (target, chain): (TargetId, ChainId)) -> Result<(), String> {
    let mut from = None;
    loop {
        let page = store.list_chain(chain, from).map_err(|error| format!("{target}: {error}"))?;
        if let Some(chunk) = page.chunks.iter().find(|chunk| !site.content.is_used(**chunk, chain)) {
            return Err(format!(
                "{target} has {chunk} of {chain}, which was deleted, or is not on that chain"
            ));
        }
        from = page.next;
        if from.is_none() {
            return Ok(());
        }
    }
}

impl SitePlan {
    /// With storage servers, and chains that move between their targets; less is done with names.
    pub(super) fn with_chains(mut self, seed: u64) -> SitePlan {
        let random = SimEntropy::new(seed ^ 0x0000_C4A1_4500_0000);
        let pick = |list: &[u64]| list[random.below(list.len() as u64) as usize];
        self.storage = 2 + random.below(2) as usize;
        self.operations = pick(&[10, 30]) as usize;
        self.changes = pick(&[30, 80, 160]) as usize;
        self.change_pause_ms = pick(&[5, 40, 150]);
        self.chain_every_ms = pick(&[20, 100, 400, 2000]);
        self.keep_one_in = pick(&[1, 4, 30]);
        let (servers, mounts, storage) = (self.servers as u64, self.mounts as u64, self.storage as u64);
        let troubles = (0..2 + random.below(7)).map(|_| {
            let trouble = super::Trouble::of_chains(&random, (servers, mounts, storage));
            (pick(&[0, 200, 1500, 5000]) + random.below(500), trouble)
        });
        self.troubles = troubles.collect();
        self
    }
}

impl super::Trouble {
    fn of_chains(random: &SimEntropy, (servers, mounts, storage): (u64, u64, u64)) -> super::Trouble {
        use super::Trouble;
        let pick = |list: &[u64]| list[random.below(list.len() as u64) as usize];
        match random.below(12) {
            0 => Trouble::Freeze { mount: random.below(mounts) as usize, for_ms: pick(&[800, 4000, 30_000]) },
            1 => Trouble::Stop {
                server: random.below(servers) as usize,
                after: (random.below(2) == 0).then(|| random.below(40)),
                away_ms: pick(&[10, 300, 3000]),
            },
            2 | 3 => Trouble::KeepNothing {
                server: random.below(storage) as usize,
                for_ms: pick(&[500, 5000, 20_000]),
            },
            _ => Trouble::StopStorage {
                server: random.below(storage) as usize,
                after: (random.below(3) > 0).then(|| random.below(1 << (2 + random.below(8)))),
                away_ms: pick(&[10, 300, 3000, 9000]),
            },
        }
    }
}

/// For how long a storage server that cannot keep a map does not.
pub(super) fn keep_nothing(site: &Site, server: usize, for_ms: u64) {
    site.storage[server].keep_nothing_until(site.now() + Duration::from_millis(for_ms));
}
