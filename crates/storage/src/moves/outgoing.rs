//! A chain that goes to another target: its copy, and changes of it meanwhile.

use super::Place;
use crate::call::changed_chunk;
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

/// Numbers of deletions.
static DELETIONS: AtomicU64 = AtomicU64::new(0);

/// What was copied so far.
enum Frontier {
    /// Chunks below this one were listed, the others not; `None`: no chunk was.
    Below(Option<ChunkId>),
    /// All chunks were.
    Beyond,
}

/// A deletion that is under way: of chunks of one generation of a file from an index on.
struct Deletion {
    number: u64,
    range: (InodeId, u32, u64),
    /// Chunks that were changed meanwhile. Which of that the deletion took away here is not known; they are copied once more.
    changed: BTreeSet<ChunkId>,
}

impl Deletion {
    fn is_of(&self, chunk: ChunkId) -> bool {
        let (inode, generation, from_index) = self.range;
        (chunk.inode, chunk.generation) == (inode, generation) && chunk.index >= from_index
    }
}

/// See the module. Whoever changes a chunk holds the chunk's lock until both targets have the change, and so does who copies a piece of it: so both targets see
/// the same changes of a chunk in the same order. No lock is held for longer than a change or a piece takes.
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
    deletions: Mutex<Vec<Deletion>>,
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
            deletions: Mutex::default(),
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

    /// Whether a deletion of `chunk`, whose lock is held, is under way: it is not copied meanwhile.
    pub(super) fn is_being_deleted(&self, chunk: ChunkId) -> bool {
        self.deletions.lock().iter().any(|deletion| deletion.is_of(chunk))
    }

    /// Notes that `chunk`, whose lock is held, is changed, if it is also being deleted: it is copied once more then, and the change is not told.
    fn is_changed_under_deletion(&self, chunk: ChunkId) -> bool {
        let mut deletions = self.deletions.lock();
        let mut is_deleted = false;
        for deletion in deletions.iter_mut().filter(|deletion| deletion.is_of(chunk)) {
            deletion.changed.insert(chunk);
            is_deleted = true;
        }
        is_deleted
    }

    fn copy_once_more(&self, chunks: impl IntoIterator<Item = ChunkId>) {
        let mut again = self.again.lock();
        again.extend(chunks);
        if again.len() > AGAIN_MAX {
            self.spoil(|| "too many changes failed while it was copied".to_owned());
        }
    }

    /// A change of one chunk, which `run` makes here.
    pub(super) fn change(
        &self,
        request: &StorageRequest,
        payload: Payload<'_>,
        run: impl FnOnce(Payload<'_>) -> Result<StorageReply, Errno>,
    ) -> Result<StorageReply, Errno> {
        let Some(chunk) = changed_chunk(request) else { return run(payload) };
        let data = if let Payload::Write(data) = &payload { Some(*data) } else { None };
        let frontier = self.frontier.read();
        let is_below = match &*frontier {
            Frontier::Below(end) => end.is_some_and(|end| chunk < end),
            Frontier::Beyond => true,
        };
        if !is_below {
            // It is copied later, with what was done now.
            return run(payload);
        }
        // It stays below. Whoever lists chunks does not wait for the other target.
        drop(frontier);
        let _alone = self.lock(chunk);
        if self.is_changed_under_deletion(chunk) {
            return run(payload);
        }
        let outcome = run(payload);
        if outcome.is_err() {
            // Nobody knows how much of it was done.
            self.copy_once_more([chunk]);
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
        let number = DELETIONS.fetch_add(1, Relaxed);
        for outgoing in copying {
            let deletion =
                Deletion { number, range: (inode, generation, from_index), changed: BTreeSet::new() };
            outgoing.deletions.lock().push(deletion);
            // ORDER: whatever did not find the deletion is through on both targets before anything is deleted.
            outgoing.chunks.iter().for_each(|chunk| drop(outgoing.take(chunk)));
        }
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
        for outgoing in copying {
            let mut deletions = outgoing.deletions.lock();
            let ended = deletions.extract_if(.., |deletion| deletion.number == number);
            // ORDER: while nobody can find that it has ended.
            outgoing.copy_once_more(ended.flat_map(|deletion| deletion.changed));
        }
        outcome
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use ashlar_env::Env;
    use ashlar_types::Epoch;
    use std::sync::mpsc::{Receiver, Sender, channel};

    /// Something that was sent to the other target, which answers when it is told to.
    struct Sent(StorageRequest, Sender<()>);

    struct Slow(Mutex<Sender<Sent>>);

    impl OtherTargets for Slow {
        fn call_in_attempt(
            &self,
            _: u64,
            request: &StorageRequest,
            _: Payload<'_>,
            wait: Duration,
        ) -> Result<StorageReply, Errno> {
            let (answer, answered) = channel();
            self.0.lock().send(Sent(request.clone(), answer)).unwrap();
            answered.recv_timeout(wait).map_err(|_| Errno::ETIMEDOUT)?;
            Ok(match request {
                StorageRequest::DeleteGeneration { .. } => {
                    StorageReply::Deleted { blocks: 8, is_done: true, may_be_second: false }
                }
                _ => StorageReply::Done,
            })
        }
    }

    const FILE: InodeId = InodeId(9);

    fn chunk(inode: InodeId, index: u64) -> ChunkId {
        ChunkId { inode, generation: 1, index }
    }

    /// A chain of which everything was listed.
    fn outgoing() -> (Arc<Outgoing>, Receiver<Sent>) {
        let (sender, sent) = channel();
        let place = (TargetId(1), ChainId(0));
        let moving = Move { to: TargetId(2), since: Epoch(5) };
        let peers = Arc::new(Slow(Mutex::new(sender)));
        let outgoing = Outgoing::new((place, 1), moving, peers, Env::os().tasks);
        outgoing.list(|_| Ok::<_, ()>(((), None))).unwrap();
        (Arc::new(outgoing), sent)
    }

    fn cut(outgoing: &Outgoing, chunk: ChunkId) -> Result<StorageReply, Errno> {
        let (target, chain, chunk_bytes) = (TargetId(1), ChainId(0), 65_536);
        let request = StorageRequest::Truncate { target, chunk, chain, chunk_bytes, len: 1 };
        outgoing.change(&request, Payload::None, |_| Ok(StorageReply::Done))
    }

    #[test]
    fn a_deletion_that_takes_long_there_holds_up_nobody_and_what_is_changed_meanwhile_is_copied_once_more() {
        let (outgoing, sent) = outgoing();
        let deleting = outgoing.clone();
        let deletion = std::thread::spawn(move || {
            Outgoing::delete(&[deleting], (FILE, 1, 2), || {
                Ok(StorageReply::Deleted { blocks: 8, is_done: true, may_be_second: false })
            })
        });
        let Sent(request, deleted) = sent.recv().unwrap();
        assert!(matches!(request, StorageRequest::DeleteGeneration { from_index: 2, .. }));
        // What is not deleted goes to both targets meanwhile: chunks of all locks.
        let (others, changing) =
            ((0..LOCKS as u64).map(|file| chunk(InodeId(100 + file), 0)), outgoing.clone());
        let others: Vec<ChunkId> = others.chain([chunk(FILE, 1)]).collect();
        let changes =
            std::thread::spawn(move || others.iter().for_each(|other| drop(cut(&changing, *other).unwrap())));
        for _ in 0..=LOCKS {
            let Sent(request, answer) = sent
                .recv_timeout(Duration::from_secs(60))
                .expect("a change waits for a deletion of another file");
            assert!(matches!(request, StorageRequest::Truncate { .. }));
            answer.send(()).unwrap();
        }
        changes.join().unwrap();
        // What is may have been changed before it is deleted there, or after: it is copied when that is known.
        cut(&outgoing, chunk(FILE, 2)).unwrap();
        cut(&outgoing, chunk(FILE, 7)).unwrap();
        assert!(sent.try_recv().is_err(), "a change that overtakes a deletion");
        assert!(outgoing.is_being_deleted(chunk(FILE, 2)) && !outgoing.is_being_deleted(chunk(FILE, 1)));
        assert!(outgoing.take_again().is_empty(), "copied once more before it is deleted there");
        deleted.send(()).unwrap();
        deletion.join().unwrap().unwrap();
        assert!(outgoing.take_again().into_iter().eq([chunk(FILE, 2), chunk(FILE, 7)]));
        assert!(!outgoing.is_being_deleted(chunk(FILE, 2)) && outgoing.broken().is_none());
    }

    #[test]
    fn a_change_that_is_under_way_arrives_before_the_deletion_that_comes_after_it() {
        let (outgoing, sent) = outgoing();
        let (changing, deleting) = (outgoing.clone(), outgoing.clone());
        let change = std::thread::spawn(move || cut(&changing, chunk(FILE, 2)));
        let Sent(_, changed) = sent.recv().unwrap();
        let (begun, has_begun) = channel();
        let deletion = std::thread::spawn(move || {
            Outgoing::delete(&[deleting], (FILE, 1, 0), || {
                begun.send(()).unwrap();
                Ok(StorageReply::Deleted { blocks: 8, is_done: true, may_be_second: false })
            })
        });
        let bound = Duration::from_millis(100);
        assert!(has_begun.recv_timeout(bound).is_err(), "deleted here while a change is on its way there");
        changed.send(()).unwrap();
        change.join().unwrap().unwrap();
        has_begun.recv().unwrap();
        let Sent(request, deleted) = sent.recv().unwrap();
        assert!(matches!(request, StorageRequest::DeleteGeneration { .. }));
        deleted.send(()).unwrap();
        deletion.join().unwrap().unwrap();
        assert!(outgoing.take_again().is_empty());
    }

    #[test]
    fn who_lists_chunks_waits_for_no_change_that_is_on_its_way() {
        let (outgoing, sent) = outgoing();
        let changing = outgoing.clone();
        let change = std::thread::spawn(move || cut(&changing, chunk(FILE, 2)));
        let Sent(_, changed) = sent.recv().unwrap();
        assert!(outgoing.frontier.try_write().is_some());
        changed.send(()).unwrap();
        change.join().unwrap().unwrap();
    }
}
