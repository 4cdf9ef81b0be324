//! What is in chunks: what mounts have written to them, in which order, and what of it was answered; so everybody knows what a chunk may show.
//!
//! A chunk is changed by one mount, one change after the other, and read by all of them. Who reads sees what was answered before, or something that was
//! begun since. After a power cut of the server that has its chain a chunk may show anything that was written since it was made durable, until it is made
//! durable again and looked at.

use crate::content::Content as Bytes;
use ashlar_types::{ChainId, ChunkId, ClusterMap, TargetId};
use parking_lot::Mutex;
use std::collections::BTreeMap;

/// One chunk.
struct Chunk {
    chain: ChainId,
    /// Everything that was ever written, the newest last.
    versions: Vec<Bytes>,
    /// The newest that was answered.
    answered: usize,
    /// The newest that is known to be durable.
    durable: usize,
    /// Power cuts of servers that had its chain.
    cuts: u64,
    /// There was one since `durable`.
    is_in_doubt: bool,
    /// It is being deleted: nobody knows what it shows.
    is_going: bool,
}

/// What there was of a chunk when somebody began to read it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Begun {
    answered: usize,
    durable: usize,
    cuts: u64,
    is_in_doubt: bool,
}

impl Begun {
    /// Whether nobody knows what there is of it, after a power cut.
    pub fn is_in_doubt(&self) -> bool {
        self.is_in_doubt
    }
}

/// See the module.
#[derive(Default)]
pub(super) struct Content(Mutex<BTreeMap<ChunkId, Chunk>>);

impl Content {
    /// The chunk is used from now on, and empty.
    pub fn begin(&self, chunk: ChunkId, chain: ChainId) {
        let versions = vec![Bytes::default()];
        let (answered, durable, cuts, is_in_doubt, is_going) = (0, 0, 0, false, false);
        self.0
            .lock()
            .insert(chunk, Chunk { chain, versions, answered, durable, cuts, is_in_doubt, is_going });
    }

    /// The chunk is about to be deleted: nobody knows any more what it shows.
    pub fn is_going(&self, chunk: ChunkId) {
        if let Some(known) = self.0.lock().get_mut(&chunk) {
            known.is_going = true;
        }
    }

    /// The chunk is deleted, durably.
    pub fn forget(&self, chunk: ChunkId) {
        self.0.lock().remove(&chunk);
    }

    /// One of all chunks that are used, and its chain.
    pub fn some(&self, below: impl FnOnce(u64) -> u64) -> Option<(ChunkId, ChainId)> {
        let chunks = self.0.lock();
        let at = below(chunks.len() as u64) as usize;
        chunks.iter().nth(at).map(|(chunk, known)| (*chunk, known.chain))
    }

    /// Whether the chunk is used, on that chain.
    pub fn is_used(&self, chunk: ChunkId, chain: ChainId) -> bool {
        self.0.lock().get(&chunk).is_some_and(|known| known.chain == chain)
    }

    /// Somebody begins to change the chunk.
    pub fn change(&self, chunk: ChunkId, change: impl FnOnce(&mut Bytes)) {
        if let Some(known) = self.0.lock().get_mut(&chunk) {
            let mut next = known.versions.last().cloned().unwrap_or_default();
            change(&mut next);
            known.versions.push(next);
        }
    }

    /// What was begun is answered.
    pub fn answered(&self, chunk: ChunkId) {
        if let Some(known) = self.0.lock().get_mut(&chunk) {
            known.answered = known.versions.len() - 1;
        }
    }

    /// Somebody begins to read the chunk, or to make it durable.
    pub fn look(&self, chunk: ChunkId) -> Option<Begun> {
        self.0.lock().get(&chunk).map(|known| Begun {
            answered: known.answered,
            durable: known.durable,
            cuts: known.cuts,
            is_in_doubt: known.is_in_doubt,
        })
    }

    /// What was read, by somebody who began with `begun`, and what is wrong with it.
    pub fn check(&self, chunk: ChunkId, begun: Begun, found: &[u8]) -> Result<(), String> {
        let chunks = self.0.lock();
        // It was deleted meanwhile.
        let Some(known) = chunks.get(&chunk).filter(|known| !known.is_going) else { return Ok(()) };
        let is_in_doubt = begun.is_in_doubt || known.cuts != begun.cuts;
        let oldest = if is_in_doubt { begun.durable } else { begun.answered };
        let allowed = &known.versions[oldest..];
        if allowed.iter().rev().any(|version| is_same(version, found)) || is_mixture(found, allowed) {
            return Ok(());
        }
        let wrong = Bytes::first_foreign(found, allowed).unwrap_or(0);
        let was: Vec<u8> = allowed.iter().map(|version| version.byte(wrong)).collect();
        let before = known.versions[..oldest].iter().rposition(|version| is_same(version, found));
        Err(format!(
            "{chunk} of {}: byte {wrong} is {}, and was {was:?} from version {oldest} on{}",
            known.chain,
            found[wrong as usize],
            before.map(|version| format!("; it is as in version {version}")).unwrap_or_default()
        ))
    }

    /// The chunk was made durable by its one writer, who began with `begun`. False when it has to be read, as nobody knows what of it there is.
    pub fn synced(&self, chunk: ChunkId, begun: Begun) -> bool {
        let mut chunks = self.0.lock();
        let Some(known) = chunks.get_mut(&chunk) else { return true };
        let is_known = !begun.is_in_doubt && known.cuts == begun.cuts;
        if is_known {
            known.durable = known.durable.max(begun.answered);
        }
        is_known
    }

    /// The same for one that was read after that, by the writer, who began with `begun`; false when there was another power cut meanwhile.
    pub fn settle(&self, chunk: ChunkId, begun: Begun, found: &[u8]) -> bool {
        let mut chunks = self.0.lock();
        let Some(known) = chunks.get_mut(&chunk) else { return true };
        if known.cuts != begun.cuts {
            return false;
        }
        let mut now = Bytes::default();
        now.write(0, found);
        known.versions.push(now);
        known.answered = known.versions.len() - 1;
        (known.durable, known.is_in_doubt) = (known.answered, false);
        true
    }

    /// A chain is another target's: there is all of it that was answered, durably.
    pub fn note_moved(&self, chain: ChainId) {
        for known in self.0.lock().values_mut().filter(|known| known.chain == chain && !known.is_in_doubt) {
            known.durable = known.answered;
        }
    }

    /// Power was cut where those targets are.
    pub fn note_cut(&self, map: &ClusterMap, targets: &[TargetId]) {
        for known in self.0.lock().values_mut() {
            if map.head(known.chain).is_some_and(|head| targets.contains(&head)) {
                known.cuts += 1;
                known.is_in_doubt = true;
            }
        }
    }

    /// Power cuts of servers that had the chain of the chunk.
    pub fn cuts(&self, chunk: ChunkId) -> u64 {
        self.0.lock().get(&chunk).map_or(0, |known| known.cuts)
    }
}

fn is_same(version: &Bytes, found: &[u8]) -> bool {
    let mut bytes = version.read(0, found.len() as u64);
    bytes.resize(found.len(), 0);
    bytes == found
}

fn is_mixture(found: &[u8], versions: &[Bytes]) -> bool {
    Bytes::is_mixture(0, found, versions)
}
