//! One chain at one target: the machine, and what is noted on the disk for it.

use super::mend::Damaged;
use super::note::{CopyNote, LackNote};
use ashlar_chunkstore::{ChunkError, ChunkStore, Lack};
use ashlar_replication::chain::{ChainReplica, Command};
use ashlar_replication::membership;
use ashlar_types::message::ChainChange;
use ashlar_types::{ChainId, ChunkId, Epoch, InodeId, TargetId};
use parking_lot::{Mutex, RwLock};
use rustc_hash::FxHasher;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

/// What is known to be noted of what others lack, so that it is not noted again with each change.
// LIMIT: of a chain; beyond it is noted anew.
const KNOWN_LACKS_MAX: usize = 65_536;

/// Chunks and files of a chain are spread over so many locks.
const CHUNK_LOCKS: usize = 64;
const FILE_LOCKS: usize = 16;

fn locks(count: usize) -> Vec<RwLock<()>> {
    (0..count).map(|_| RwLock::default()).collect()
}

fn spread(what: impl Hash, over: usize) -> usize {
    let mut hasher = FxHasher::default();
    what.hash(&mut hasher);
    (hasher.finish() >> 32) as usize % over
}

/// See the module.
pub(super) struct Group {
    pub chain: ChainId,
    pub store: Arc<ChunkStore>,
    pub state: Mutex<State>,
    /// Somebody brings the target behind up to date.
    pub is_tended: AtomicBool,
    /// Written by who changes a chunk, from before it is changed here until it is behind; read by who reads it.
    chunks: Vec<RwLock<()>>,
    /// Written by who deletes chunks of a file, read by who changes one.
    files: Vec<RwLock<()>>,
    /// Chunks and bytes that were sent whole since it was compared last.
    pub sent: (AtomicU64, AtomicU64),
    pub damaged: Damaged,
    /// How often the target behind was told the mark of the chain.
    pub marks_told: AtomicU64,
    /// At which epoch it came from in front the last time, and the turn of that there. Held until it is taken: an earlier one may come later.
    pub mark_taken: Mutex<(Epoch, u64)>,
}

/// What happens to a group is under this lock, and nobody waits for another target while he holds it.
pub(super) struct State {
    pub replica: ChainReplica<TargetId>,
    /// As in [`CopyNote`].
    pub in_sync_at: Option<Epoch>,
    /// Chunks that are noted on the disk as uncertain.
    // LIMIT: as under way, and were within the time between two turns.
    pub noted: BTreeSet<ChunkId>,
    /// Who lacks something.
    // LIMIT: members that a chain remembers.
    pub lacking: BTreeMap<TargetId, LackNote>,
    known_lacks: BTreeSet<Lack>,
    /// The group has asked for these since the last turn.
    pub proposals: Vec<ChainChange>,
    /// Whom it asks for leases.
    pub beacons: Vec<(TargetId, Epoch)>,
}

impl State {
    pub fn new(replica: ChainReplica<TargetId>, in_sync_at: Option<Epoch>) -> State {
        State {
            replica,
            in_sync_at,
            noted: BTreeSet::new(),
            lacking: BTreeMap::new(),
            known_lacks: BTreeSet::new(),
            proposals: Vec::new(),
            beacons: Vec::new(),
        }
    }

    /// What is to be on the disk of its part in the group.
    pub fn note(&self) -> CopyNote {
        CopyNote { stored: self.replica.member().to_store(), in_sync_at: self.in_sync_at }
    }
}

impl Group {
    pub fn new(chain: ChainId, store: Arc<ChunkStore>, state: State) -> Group {
        Group {
            chain,
            store,
            state: Mutex::new(state),
            is_tended: AtomicBool::new(false),
            chunks: locks(CHUNK_LOCKS),
            files: locks(FILE_LOCKS),
            sent: Default::default(),
            damaged: Damaged::default(),
            marks_told: AtomicU64::new(0),
            mark_taken: Mutex::default(),
        }
    }

    pub fn chunk(&self, chunk: ChunkId) -> &RwLock<()> {
        &self.chunks[spread(chunk, CHUNK_LOCKS)]
    }

    pub fn file(&self, inode: InodeId) -> &RwLock<()> {
        &self.files[spread(inode, FILE_LOCKS)]
    }

    /// Does what the machine wants but storing its membership, for which it tells the epoch: that waits for the disk.
    ///
    /// # Errors
    /// Those of the index.
    pub fn carry_out(
        &self,
        state: &mut State,
        commands: Vec<Command<TargetId>>,
    ) -> Result<Option<Epoch>, ChunkError> {
        let mut to_store = None;
        for command in commands {
            match command {
                Command::Member(membership::Command::Store(stored)) => {
                    to_store = Some(stored.membership.epoch)
                }
                Command::Member(membership::Command::Propose { expected, change }) => {
                    let asked = ChainChange { chain: self.chain, expected, change };
                    state.proposals.retain(|known| known.expected == expected && *known != asked);
                    state.proposals.push(asked);
                }
                Command::Member(membership::Command::Beacon { to, epoch, .. }) => {
                    state.beacons.retain(|(known, _)| *known != to);
                    state.beacons.push((to, epoch));
                }
                // A grant goes with the answer to a beacon, and the map is kept current by somebody else.
                Command::Member(membership::Command::Grant { .. } | membership::Command::Refresh) => {}
                Command::Lacks { replica, from, to, chunks } => {
                    let note = LackNote { from, to };
                    self.store.end_lacks((self.chain, replica))?;
                    self.store.begin_lacks((self.chain, replica), note.encode(), &chunks)?;
                    state.lacking.insert(replica, note);
                    state.known_lacks.clear();
                }
            }
        }
        Ok(to_store)
    }

    /// The membership that was to be stored is: takes part, and notes who is in sync again or is to be forgotten.
    ///
    /// # Errors
    /// Those of the index.
    pub fn stored(&self, epoch: Epoch, former: &[TargetId]) -> Result<(), ChunkError> {
        let mut state = self.state.lock();
        let mut out = Vec::new();
        state.replica.membership_stored(epoch, &mut out);
        self.carry_out(&mut state, out)?;
        let member = state.replica.member();
        let is_in_sync = member.membership().is_in_sync(member.id());
        // Who is not in sync does not see what others lack.
        let stays = |target: &TargetId| is_in_sync && former.contains(target);
        let over: Vec<TargetId> = state.lacking.keys().filter(|target| !stays(target)).copied().collect();
        for target in over {
            self.store.end_lacks((self.chain, target))?;
            state.lacking.remove(&target);
        }
        Ok(())
    }

    /// Notes what the next process must know before `chunk` is changed.
    ///
    /// # Errors
    /// Those of the index; `NoSpace` when it is full.
    pub fn note_change(&self, state: &mut State, chunk: ChunkId) -> Result<(), ChunkError> {
        self.note_uncertain(state, chunk)?;
        self.note_lack(state, Lack::Chunk(chunk))
    }

    /// Notes that what is here of `chunk` may not be what counts.
    ///
    /// # Errors
    /// As [`Group::note_change`].
    pub fn note_uncertain(&self, state: &mut State, chunk: ChunkId) -> Result<(), ChunkError> {
        if !state.noted.contains(&chunk) {
            self.store.note_uncertain(self.chain, chunk)?;
            state.noted.insert(chunk);
        }
        Ok(())
    }

    /// Notes that those who are away lack something more.
    ///
    /// # Errors
    /// As [`Group::note_change`].
    pub fn note_lack(&self, state: &mut State, lack: Lack) -> Result<(), ChunkError> {
        if state.lacking.is_empty() || state.known_lacks.contains(&lack) {
            return Ok(());
        }
        let targets: Vec<TargetId> = state.lacking.keys().copied().collect();
        self.store.note_lack(self.chain, &targets, lack)?;
        if state.known_lacks.len() >= KNOWN_LACKS_MAX {
            state.known_lacks.clear();
        }
        state.known_lacks.insert(lack);
        Ok(())
    }

    /// Forgets the notes of chunks that are certain by now.
    ///
    /// # Errors
    /// Those of the index.
    pub fn forget_notes(&self) -> Result<(), ChunkError> {
        let mut state = self.state.lock();
        let over: Vec<ChunkId> =
            state.noted.iter().filter(|chunk| !state.replica.is_noted(**chunk)).copied().collect();
        if over.is_empty() {
            return Ok(());
        }
        for chunk in &over {
            state.noted.remove(chunk);
        }
        let over: Vec<(ChainId, ChunkId)> = over.into_iter().map(|chunk| (self.chain, chunk)).collect();
        // ORDER: before anybody notes one of them anew.
        self.store.forget_uncertain(&over)
    }
}
