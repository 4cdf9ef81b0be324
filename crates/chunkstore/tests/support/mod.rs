//! A target on a simulated disk that survives crashes and kills of the store on it.
#![allow(dead_code)] // each test file uses its own part
#![allow(clippy::unwrap_used)] // part of tests, which the lint does not see here

use ashlar_chunkstore::{
    ChunkError, ChunkStore, Config, RebuildReport, RecoveryReport, TargetIdentity, TargetUuid,
};
use ashlar_env::Env;
use ashlar_env::sim::{SimClock, SimDisk};
use ashlar_kv::MemoryEngine;
use ashlar_types::{ChunkId, ClusterId, InodeId, TargetId, Timespec};
use std::sync::Arc;

/// The target of all tests.
pub const IDENTITY: TargetIdentity = TargetIdentity {
    cluster: ClusterId(*b"cluster-of-tests"),
    target: TargetId(3),
    uuid: TargetUuid(*b"target-of-tests!"),
};

/// A disk, an engine and a clock that outlive the store.
pub struct World {
    pub disk: SimDisk,
    pub engine: MemoryEngine,
    pub env: Env,
    pub clock: Arc<SimClock>,
    pub config: Config,
}

impl World {
    /// A formatted target.
    pub fn new() -> World {
        let (env, clock) = Env::simulated(1, Timespec::new(1_000_000, 0));
        let disk = SimDisk::new();
        ChunkStore::format(&disk, &IDENTITY).unwrap();
        World { disk, engine: MemoryEngine::new(), env, clock, config: Config::small() }
    }

    /// Opens the target.
    pub fn try_open(&self) -> Result<(ChunkStore, RecoveryReport), ChunkError> {
        let engine = self.engine.clone();
        let disk = Arc::new(self.disk.clone());
        ChunkStore::open(disk, move || Ok(Box::new(engine)), &self.env, &IDENTITY, self.config.clone())
    }

    /// Opens the target, which must work.
    pub fn open(&self) -> ChunkStore {
        self.try_open().unwrap().0
    }

    /// Makes the index anew from what is in the slots.
    pub fn rebuild_index(&self) -> Result<RebuildReport, ChunkError> {
        let engine = self.engine.clone();
        let disk = Arc::new(self.disk.clone());
        ChunkStore::rebuild_index(disk, move || Ok(Box::new(engine)), &self.env, &IDENTITY, &self.config)
    }

    /// Ends the process.
    pub fn kill(&self, store: ChunkStore) {
        self.disk.kill_process();
        drop(store);
    }

    /// Cuts the power.
    pub fn crash(&self, store: ChunkStore, seed: u64) {
        self.disk.crash(seed);
        drop(store);
    }
}

/// A chunk's name.
pub fn chunk(inode: u64, index: u64) -> ChunkId {
    ChunkId { inode: InodeId(inode), generation: 1, index }
}

/// Bytes that tell which write they came from.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut out = Vec::with_capacity(len + 8);
    while out.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        out.extend_from_slice(&state.to_le_bytes());
    }
    out.truncate(len);
    out
}

/// The whole content of a chunk and how much of it exists.
pub fn content(store: &ChunkStore, id: ChunkId, chunk_bytes: u32) -> Result<(usize, Vec<u8>), ChunkError> {
    let mut out = vec![0xee; chunk_bytes as usize];
    let len = store.read(id, chunk_bytes, 0, &mut out)?;
    Ok((len, out))
}

/// Scrubs everything.
pub fn scrub_all(store: &ChunkStore) -> Vec<ashlar_chunkstore::Finding> {
    let mut findings = Vec::new();
    let mut cursor = None;
    loop {
        let part = store.scrub(cursor, 1 << 20).unwrap();
        findings.extend(part.findings);
        cursor = part.next;
        if cursor.is_none() {
            return findings;
        }
    }
}
