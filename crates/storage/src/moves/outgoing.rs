//! A chain that goes to another target: its copy, and changes of it meanwhile.

use super::Place;
use ashlar_env::Tasks;
use ashlar_rpc::{OtherTargets, Payload};
use ashlar_types::map::Move;
use ashlar_types::message::{StorageReply, StorageRequest};
use ashlar_types::{ChainId, ChunkId, Errno, InodeId, OfChains, TargetId};
use parking_lot::{Mutex, MutexGuard, RwLock};
use rustc_hash::FxHasher;
use smallvec::smallvec;
use std::collections::BTreeSet;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// For how long the other target may take for a change.
const PEER_MAX: Duration = Duration::from_secs(3);
/// Chunks are spread over this many locks.
const LOCKS: usize = 64;
// LIMIT: chunks that are copied once more because a change of them failed half way; beyond it all are.
const AGAIN_MAX: usize = 1024;

/// What was copied so far.
enum Frontier {
    /// Chunks below this one were listed, the others not; `None`: no chunk was.
    Below(Option<ChunkId>),
    /// All chunks were.
    Beyond,
}

/// See the module. Whoever changes a chunk holds the chunk's lock until both targets have the change, and so does who copies it: so both targets see
/// the same changes of a chunk in the same order.
pub(super) struct Outgoing {
    place: Place,
    moving: Move,
    /// Tells its calls from those of earlier attempts.
    attempt: u64,
    peers: Arc<dyn OtherTargets>,
    tasks: Arc<dyn Tasks>,
    chunks: Vec<Mutex<()>>,
    /// Read by whoever changes a chunk, written by who lists chunks: one that is made while others are listed is either on the list or below the
    /// frontier.
    frontier: RwLock<Frontier>,
    again: Mutex<BTreeSet<ChunkId>>,
    /// Why the copy is of no use.
    broken: Mutex<Option<String>>,
    chunks_sent: AtomicU64,
    bytes_sent: AtomicU64,
}

impl Outgoing {
    pub(super) fn new(
        (place, attempt): (Place, u64),
        moving: Move,
        peers: Arc<dyn OtherTargets>,
        tasks: Arc<dyn Tasks>,
    ) -> Outgoing {
        Outgoing {
            place,
            attempt,
            moving,
            peers,
            tasks,
            chunks: (0..LOCKS).map(|_| Mutex::new(())).collect(),
            frontier: RwLock::new(Frontier::Below(None)),
            again: Mutex::default(),
            broken: Mutex::default(),
            chunks_sent: AtomicU64::new(0),
            bytes_sent: AtomicU64::new(0),
        }
    }

    pub(super) fn place(&self) -> Place {
        self.place
    }

    pub(super) fn chain(&self) -> ChainId {
        self.place.1
    }

    pub(super) fn moving(&self) -> Move {
        self.moving
    }

    pub(super) fn to(&self) -> TargetId {
        self.moving.to
    }

    /// Chunks and bytes that were sent.
    pub(super) fn sent(&self) -> (u64, u64) {
        (self.chunks_sent.load(Relaxed), self.bytes_sent.load(Relaxed))
    }

    pub(super) fn note_sent(&self, chunks: u64, bytes: u64) {
        self.chunks_sent.fetch_add(chunks, Relaxed);
        self.bytes_sent.fetch_add(bytes, Relaxed);
    }

    pub(super) fn lock(&self, chunk: ChunkId) -> MutexGuard<'_, ()> {
        let mut hasher = FxHasher::default();
        chunk.hash(&mut hasher);
        self.take(&self.chunks[(hasher.finish() >> 32) as usize % LOCKS])
    }

    /// Whoever holds it may be waiting for the other target.
    fn take<'a>(&self, chunk: &'a Mutex<()>) -> MutexGuard<'a, ()> {
        self.tasks.take(|| chunk.try_lock(), || chunk.lock())
    }

    /// Why the copy is of no use, if it is not.
    pub(super) fn broken(&self) -> Option<String> {
        self.broken.lock().clone()
    }

    pub(super) fn spoil(&self, why: impl FnOnce() -> String) {
        self.broken.lock().get_or_insert_with(why);
    }

    /// Sends a request about the chain to the other target.
    pub(super) fn send(&self, request: StorageRequest, payload: Payload<'_>) -> Result<StorageReply, Errno> {
        self.send_within(request, payload, PEER_MAX)
    }

    /// The same, and waits for `wait` at the most.
    pub(super) fn send_within(
        &self,
        request: StorageRequest,
        payload: Payload<'_>,
        wait: Duration,
    ) -> Result<StorageReply, Errno> {
        self.peers.call_in_attempt(self.attempt, &request.at(self.moving.to), payload, wait)
    }

    /// Lists chunks while none is changed; `list` is given where to go on, and tells where the next list begins.
    pub(super) fn list<T, E>(
        &self,
        list: impl FnOnce(Option<ChunkId>) -> Result<(T, Option<ChunkId>), E>,
    ) -> Result<(T, bool), E> {
        // Whoever changes a chunk may be waiting for the other target.
        let mut frontier = self.tasks.take(|| self.frontier.try_write(), || self.frontier.write());
        let from = match &*frontier {
            Frontier::Below(from) => *from,
            Frontier::Beyond => None,
        };
        let (found, next) = list(from)?;
        *frontier = next.map_or(Frontier::Beyond, |next| Frontier::Below(Some(next)));
        Ok((found, next.is_some()))
    }

    /// Chunks that are to be copied once more.
    pub(super) fn take_again(&self) -> BTreeSet<ChunkId> {
        std::mem::take(&mut self.again.lock())
    }

    /// A change of one chunk, which `run` makes here.
    pub(super) fn change(
        &self,
        request: &StorageRequest,
        payload: Payload<'_>,
        run: impl FnOnce(Payload<'_>) -> Result<StorageReply, Errno>,
    ) -> Result<StorageReply, Errno> {
        let Some(chunk) = chunk_of(request) else { return run(payload) };
        let data = if let Payload::Write(data) = &payload { Some(*data) } else { None };
        let frontier = self.frontier.read();
        let is_below = match &*frontier {
            Frontier::Below(end) => end.is_some_and(|end| chunk < end),
            Frontier::Beyond => true,
        };
        let _alone = self.lock(chunk);
        let outcome = run(payload);
        if !is_below {
            // It is copied later, with what was done now.
            return outcome;
        }
        if outcome.is_err() {
            // Nobody knows how much of it was done.
            let mut again = self.again.lock();
            again.insert(chunk);
            if again.len() > AGAIN_MAX {
                self.spoil(|| "too many changes failed while it was copied".to_owned());
            }
        } else if self.broken().is_none()
            && let Err(errno) = self.send(request.clone(), data.map_or(Payload::None, Payload::Write))
        {
            self.spoil(|| format!("{} did not take a change: {errno}", self.moving.to));
        }
        outcome
    }

    /// A deletion of chunks of one generation of a file from an index on, which `run` carries out here, while `copying` chains of it are copied.
    pub(super) fn delete(
        copying: &[Arc<Outgoing>],
        (inode, generation, from_index): (InodeId, u32, u64),
        run: impl FnOnce() -> Result<StorageReply, Errno>,
    ) -> Result<StorageReply, Errno> {
        let _listed: Vec<_> = copying.iter().map(|outgoing| outgoing.frontier.read()).collect();
        let locks =
            copying.iter().flat_map(|outgoing| outgoing.chunks.iter().map(move |chunk| (outgoing, chunk)));
        let _alone: Vec<_> = locks.map(|(outgoing, chunk)| outgoing.take(chunk)).collect();
        let outcome = run();
        for outgoing in copying.iter().filter(|outgoing| outgoing.broken().is_none()) {
            // What is gone there and not yet here goes with the next call: whoever deletes goes on until nothing is left.
            let chains = OfChains::Only(smallvec![outgoing.chain()]);
            let target = outgoing.moving.to;
            let request = StorageRequest::DeleteGeneration { target, inode, generation, chains, from_index };
            loop {
                match outgoing.send(request.clone(), Payload::None) {
                    Ok(StorageReply::Deleted { is_done: false, .. }) => {}
                    Ok(_) => break,
                    Err(errno) => {
                        outgoing.spoil(|| format!("{target} did not take a deletion: {errno}"));
                        break;
                    }
                }
            }
        }
        outcome
    }
}

/// The chunk of a change.
fn chunk_of(request: &StorageRequest) -> Option<ChunkId> {
    match request {
        StorageRequest::Write { chunk, .. }
        | StorageRequest::Truncate { chunk, .. }
        | StorageRequest::Punch { chunk, .. }
        | StorageRequest::Allocate { chunk, .. } => Some(*chunk),
        _ => None,
    }
}
