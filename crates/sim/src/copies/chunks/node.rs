//! Storage servers: how they are started, and killed.

use super::network::Wire;
use super::{CLUSTER, Life, MANAGERS, PIECE_BYTES, Site, target_of};
use ashlar_chunkstore::{ChunkStore, Config, TargetIdentity, TargetUuid};
use ashlar_env::{Disk, Entropy};
use ashlar_kv::Engine;
use ashlar_replication::membership::Proposer;
use ashlar_storage::StorageService;
use ashlar_storage::moves::{Moves, Outside, Told};
use ashlar_types::TargetId;
use ashlar_types::membership::Change;
use ashlar_types::message::ChainChange;
use parking_lot::RwLock;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

fn open(site: &Arc<Site>, at: usize) -> Arc<ChunkStore> {
    let node = &site.nodes[at];
    let disk: Arc<dyn Disk> = Arc::new(node.disk.clone());
    let engine = || Ok(Box::new(node.engine.clone()) as Box<dyn Engine>);
    let env = site.env(format!("n{at}-"));
    Arc::new(ChunkStore::open(disk, engine, &env, &identity(at), Config::small()).unwrap().0)
}

pub(super) fn identity(at: usize) -> TargetIdentity {
    TargetIdentity { cluster: CLUSTER, target: target_of(at), uuid: TargetUuid([at as u8; 16]) }
}

pub(super) fn start(site: &Arc<Site>, at: usize) {
    let store = open(site, at);
    let map = Arc::new(RwLock::new(site.map()));
    let is_over = Arc::new(AtomicBool::new(false));
    let wire = Wire { site: site.clone(), from: at, is_over: is_over.clone() };
    let (theirs, over) = (site.clone(), is_over.clone());
    let change_chains = move |by: TargetId, changes: Vec<ChainChange>| {
        theirs.sleep(theirs.dice.below(40_000));
        let is_lost = theirs.chance(5) || theirs.is_cut(at, MANAGERS) || over.load(SeqCst);
        // A removal that was asked for before the disk of the asker failed: two have failed then, and what is left may be nothing.
        let has_failed = theirs.cut_at.lock()[at] == u64::MAX;
        let is_void = |change: &ChainChange| matches!(change.change, Change::Remove(target) if has_failed && target != by);
        if !is_lost {
            let changes = changes.into_iter().filter(|change| !is_void(change));
            changes.for_each(|change| theirs.change(Proposer::Replica(by), change));
        }
    };
    let moves = Arc::new(Moves::new(Outside {
        map: map.clone(),
        is_kept: Box::new(|_| true),
        peers: Arc::new(wire),
        end_move: Box::new(|_| Told::NotAsked),
        change_chains: Box::new(change_chains),
        env: site.env(format!("n{at}-")),
        piece_bytes: PIECE_BYTES,
    }));
    let service = Arc::new(StorageService::with_moves(moves.clone()));
    if site.durable == Some(at) {
        service.answer_when_durable(target_of(at));
    }
    moves.take_target(target_of(at), &store).unwrap();
    service.add_target(target_of(at), store.clone());
    let life = Arc::new(Life { is_over: AtomicBool::new(false), service, moves, map, store });
    *site.nodes[at].life.lock() = Some(life.clone());
    let theirs = site.clone();
    let turns = move || {
        loop {
            theirs.sleep(50_000 + theirs.dice.below(60_000));
            if !theirs.is_cut(at, MANAGERS) && theirs.dice.below(3) > 0 {
                *life.map.write() = theirs.map();
            }
            life.moves.turn(&life.service);
            let _ = life.store.background_tick(64);
        }
    };
    site.scheduler.start_detached(&format!("n{at}-turns"), Box::new(turns));
}

/// Ends the process of a node; it starts again.
pub(super) fn kill(site: &Arc<Site>, at: usize, is_power_cut: bool) {
    site.scheduler.note(&|| format!("node {at} is killed, power cut: {is_power_cut}"));
    if let Some(life) = site.nodes[at].life.lock().take() {
        life.is_over.store(true, SeqCst);
    }
    *site.nodes[at].frozen_until.lock() = Duration::ZERO;
    site.scheduler.kill(&format!("n{at}-"));
    match is_power_cut {
        true => site.nodes[at].disk.crash(site.dice.next_u64()),
        false => site.nodes[at].disk.kill_process(),
    }
    start(site, at);
}
