//! Engines whose disk gives back what was not written, and what becomes of the copy then, as `ashlar meta` has it.

use super::{NODES, Site, at_of, node, node_of};
use ashlar_kv::{
    Engine, EngineChanges, EngineReport, KvError, LastingSnapshot, MemoryEngine, Snapshot, Visit,
};
use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

/// An engine that cannot be read from some moment on.
#[derive(Clone, Default)]
pub(super) struct Rotting {
    engine: MemoryEngine,
    is_damaged: Arc<AtomicBool>,
}

impl Rotting {
    fn look(&self) -> Result<(), KvError> {
        match self.is_damaged.load(SeqCst) {
            true => Err(KvError::Corrupt { what: "a checksum does not match".into() }),
            false => Ok(()),
        }
    }

    pub fn set_damaged(&self, is_damaged: bool) {
        self.is_damaged.store(is_damaged, SeqCst);
    }

    pub fn is_damaged(&self) -> bool {
        self.is_damaged.load(SeqCst)
    }
}

impl Engine for Rotting {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, KvError> {
        self.look()?;
        self.engine.get(key)
    }

    fn scan(&self, from: &[u8], to: &[u8], visit: &mut Visit<'_>) -> Result<(), KvError> {
        self.look()?;
        self.engine.scan(from, to, visit)
    }

    fn snapshot(&self) -> Result<LastingSnapshot, KvError> {
        Ok(Box::new(Still { content: self.engine.snapshot()?, rotting: self.clone() }))
    }

    fn apply(&self, changes: &mut EngineChanges<'_>, note: &[u8]) -> Result<(), KvError> {
        self.engine.apply(changes, note)
    }

    fn note(&self) -> Result<Option<Bytes>, KvError> {
        self.engine.note()
    }

    fn verify(&self) -> Result<EngineReport, KvError> {
        self.engine.verify()
    }

    fn bytes_used(&self) -> u64 {
        self.engine.bytes_used()
    }

    fn close(&self) -> Result<(), KvError> {
        self.engine.close()
    }
}

struct Still {
    content: LastingSnapshot,
    rotting: Rotting,
}

impl Snapshot for Still {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, KvError> {
        self.rotting.look()?;
        self.content.get(key)
    }

    fn scan(&self, from: &[u8], to: &[u8], visit: &mut Visit<'_>) -> Result<(), KvError> {
        self.rotting.look()?;
        self.content.scan(from, to, visit)
    }
}

/// Has what a node holds be damaged, if another one that is in sync holds all of it.
pub(super) fn strike(site: &Site, at: usize) {
    let in_sync = site.map.lock().1.in_sync.clone();
    let is_sound = |other: usize| {
        other != at && !site.may_lack.lock().contains(&other) && !site.nodes[other].disk.is_damaged()
    };
    if in_sync.iter().any(|node| is_sound(at_of(*node))) {
        site.scheduler.note(&|| format!("what node {at} holds is damaged"));
        site.nodes[at].disk.set_damaged(true);
    }
}

/// Has nodes that have found damage begin anew.
pub(super) fn tend(site: &Arc<Site>) {
    for at in 0..NODES {
        let replica = site.nodes[at].life.lock().replica.lock().clone();
        let has_found = site.nodes[at].has_found_damage.load(SeqCst);
        let is_left = has_found && !site.map.lock().1.is_in_sync(node_of(at));
        if is_left || replica.and_then(|replica| replica.damage()).is_some() {
            site.nodes[at].has_found_damage.store(true, SeqCst);
            node::kill(site, at, false);
        }
    }
}

/// Before a node begins: what it holds is set aside if it is damaged and others go on without it. What managers told by then may be old.
pub(super) fn set_aside(site: &Arc<Site>, at: usize) -> Result<(), KvError> {
    let has_found = site.nodes[at].has_found_damage.load(SeqCst);
    if !has_found || site.map.lock().1.is_in_sync(node_of(at)) {
        return Ok(());
    }
    if site.chance(3) {
        site.sleep(site.dice.below(3_000_000));
    }
    site.scheduler.note(&|| format!("what node {at} holds is set aside"));
    let io = |source| KvError::Io { what: "set a copy aside".into(), source };
    site.nodes[at].disk.set_aside().map_err(io)?;
    site.nodes[at].has_found_damage.store(false, SeqCst);
    site.nodes[at].has_lost_all.store(true, SeqCst);
    site.told.lock().set_aside += 1;
    // If it has come to be in sync meanwhile, what it has counts for nothing.
    site.may_lack.lock().insert(at);
    Ok(())
}
