//! What a process of a mount leaves to the next one, which goes on with its session: leases, locks and open files stay as they are for metadata, and
//! nobody who uses the mount notices.
//!
//! | | who keeps it |
//! |---|---|
//! | leases, what is open, locks | metadata: the session goes on |
//! | what was written and not told | nobody: it is told before |
//! | under which marks chunks were changed and not synced, and in which starts of its servers metadata was | [`Remains::unsynced`], [`Remains::unsynced_meta`] |
//! | pages, names and attributes in the kernel | the kernel: they are good for as long as the leases are |
//! | recalls that are not answered | metadata says them once more |
//! | which locks there are, to tell them to a server that is started anew | [`Remains`] |
//! | requests of the kernel under way | the kernel gives them out once more |

use crate::adopt::Adopted;
use crate::call::Who;
use crate::client::Client;
use crate::file::{FileState, Handle};
use crate::io::BlockDoubt;
use crate::locks::note_lock;
use crate::unsynced::UnsyncedFile;
use crate::unsynced_meta::UnsyncedInode;
use ashlar_types::message::{LockRequest, MetaRequest};
use ashlar_types::{DescriptionId, Durability, Errno, InodeId, SessionId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

/// Time between two looks whether everything is answered and told.
const LOOK: Duration = Duration::from_millis(1);
/// Calls that the process before may have numbered after it was looked at: those that renew, and answer nobody.
const SEQUENCE_SPARE: u64 = 1 << 20;

/// See the module. Good for one process of the same instance, while this one does nothing more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Remains {
    /// The session.
    pub session: SessionId,
    /// Above the numbers of all calls that were made.
    pub(crate) sequence: u64,
    /// Handles made ever.
    pub(crate) handles_made: u64,
    /// Locks that are held, and through which descriptions.
    locks: Vec<(LockRequest, DescriptionId)>,
    /// Locks that are waited for, and by which tickets.
    waiting: Vec<(u64, LockRequest, DescriptionId)>,
    /// Files that are open.
    files: Vec<OpenFile>,
    /// Of which inodes the kernel may have attributes, and whether it may of others.
    told: (Vec<InodeId>, bool),
    /// Directories that are split, of whose parts it may have some.
    split: Vec<InodeId>,
    /// A part by itself, of which earlier programs know nothing.
    #[serde(skip)]
    pub unsynced: UnsyncedLeft,
    /// Another one, of which somewhat later ones know nothing: inodes of which metadata was changed and not synced.
    #[serde(skip)]
    pub unsynced_meta: Vec<UnsyncedInode>,
}

/// What an fsync has to know of what was changed before.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnsyncedLeft {
    /// Files and the generations of their chunks, each with the mark that came with the first change of each chain since the last sync.
    files: Vec<UnsyncedFile>,
    /// Files of which something is lost, and descriptions that have not heard of it.
    untold: Vec<(InodeId, Vec<DescriptionId>)>,
}

impl UnsyncedLeft {
    /// Whether there is nothing to know.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty() && self.untold.is_empty()
    }
}

/// What is known here of a file that is open, and would have to be asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct OpenFile {
    inode: InodeId,
    inline_bytes: u64,
    durability: Durability,
    /// Whether its chunks may take more than anybody was told.
    is_unsure: bool,
    /// Descriptions that had locks which are lost.
    lost_locks: Vec<DescriptionId>,
}

impl Client {
    /// Waits until everything that servers have said is answered, for `bound`. To be called when nothing more is heard.
    ///
    /// # Errors
    /// `ETIMEDOUT`.
    pub fn await_answers(&self, bound: Duration) -> Result<(), Errno> {
        self.look_until(bound, || self.queue.is_at_rest())
    }

    /// Tells what is only known here, and what the next process has to know. To be called when nobody asks this client for anything any more.
    ///
    /// # Errors
    /// When something cannot be told within `bound`, and `EAGAIN` while something is under way; this client goes on then.
    pub fn leave(&self, bound: Duration) -> Result<Remains, Errno> {
        if !self.untold.is_empty() {
            return Err(Errno::EAGAIN);
        }
        let (mut files, mut untold) = (Vec::new(), Vec::new());
        for file in self.files.all() {
            {
                let state = file.state.lock();
                if state.in_flight > 0 || state.inline_writes > 0 || state.is_draining {
                    return Err(Errno::EAGAIN);
                }
            }
            match self.report(&file, false) {
                // Of a file that is gone nothing can be told; its next fsync says so, from here or from the next process.
                Ok(()) | Err(Errno::ESTALE) => {}
                Err(errno) => return Err(errno),
            }
            let state = file.state.lock();
            if !state.untold_losses.is_empty() {
                untold.push((file.inode, state.untold_losses.to_vec()));
            }
            files.push(OpenFile {
                inode: file.inode,
                inline_bytes: state.inline_bytes,
                durability: state.durability,
                is_unsure: state.block_doubt != BlockDoubt::None,
                lost_locks: state.lost_locks.to_vec(),
            });
        }
        self.look_until(bound, || self.are_closes_told())?;
        let told = self.attributes_told.all(&*self.env.clock);
        Ok(Remains {
            session: self.session(),
            sequence: self.sequence.load(SeqCst).saturating_add(SEQUENCE_SPARE),
            handles_made: self.handles_made.load(SeqCst),
            locks: self.held_locks.all(),
            waiting: self.lock_waits.all(),
            files,
            split: told
                .0
                .iter()
                .map(|inode| (*inode, self.split_directories.shown(*inode)))
                .filter(|(inode, shown)| inode != shown)
                .map(|(_, shown)| shown)
                .collect(),
            told,
            unsynced: UnsyncedLeft { files: self.unsynced.all(), untold },
            unsynced_meta: self.unsynced_meta.all(),
        })
    }

    /// Has the kernel forget attributes of directories that are split: recalls name their parts, of which is not known here to what they belong. Before recalls are answered.
    pub fn forget_split(&self, remains: &Remains) {
        let Some(kernel) = self.kernel.get() else { return };
        remains.split.iter().for_each(|directory| kernel.drop_attributes(*directory));
    }

    fn look_until(&self, bound: Duration, mut is_so: impl FnMut() -> bool) -> Result<(), Errno> {
        let give_up = self.env.clock.monotonic().saturating_add(bound);
        while !is_so() {
            if self.env.clock.monotonic() > give_up {
                return Err(Errno::ETIMEDOUT);
            }
            self.env.tasks.pause(LOOK);
        }
        Ok(())
    }

    /// Takes over what the process before had open in the session that goes on, by its descriptions. No server is told: they know.
    ///
    /// # Errors
    /// When metadata cannot be told that nobody waits for locks any more.
    pub fn take_up(
        &self,
        descriptions: &[(DescriptionId, Adopted)],
        remains: &Remains,
    ) -> Result<Vec<Arc<Handle>>, Errno> {
        self.are_pages_unknown.store(true, SeqCst);
        self.attributes_told.note_others(&remains.told, &*self.env.clock);
        let (locks, waiting) = (&remains.locks, &remains.waiting);
        let mut handles = Vec::with_capacity(descriptions.len());
        for (number, adopted) in descriptions {
            let opened = (*number, adopted.flags, adopted.is_shared);
            let (file, _) = self.files.open(adopted.inode, opened, adopted.proof, FileState::unknown, |_| {});
            handles.push(Arc::new(Handle::new(number.0, file, adopted.flags, adopted.is_shared)));
        }
        let known: BTreeMap<u64, &Arc<Handle>> =
            handles.iter().map(|handle| (handle.number, handle)).collect();
        let find = |number: &DescriptionId| known.get(&number.0).copied();
        for (request, through) in locks {
            self.held_locks.note(request, *through);
            find(through).into_iter().for_each(|handle| note_lock(handle, request));
        }
        for (ticket, request, through) in waiting {
            // Asked for once more by whoever waits. One that was granted meanwhile (ENOENT) is held, and goes with the close of the description.
            let cancel = MetaRequest::LockCancel { inode: request.inode, ticket: *ticket };
            match self.call_done(&Who::system(), cancel) {
                Ok(()) | Err(Errno::ENOENT) => {}
                Err(errno) => return Err(errno),
            }
            find(through).into_iter().for_each(|handle| note_lock(handle, request));
        }
        self.unsynced.take_up(&remains.unsynced.files);
        self.unsynced_meta.take_up(&remains.unsynced_meta);
        for (inode, untold) in &remains.unsynced.untold {
            if let Some(file) = self.files.find(*inode) {
                file.state.lock().untold_losses.extend(untold.iter().copied());
            }
        }
        for known in &remains.files {
            let Some(file) = self.files.find(known.inode) else { continue };
            let mut state = file.state.lock();
            (state.inline_bytes, state.durability) = (known.inline_bytes, known.durability);
            state.lost_locks.extend(known.lost_locks.iter().copied());
            if known.is_unsure {
                state.doubt_blocks(BlockDoubt::MadeAgain);
            }
        }
        Ok(handles)
    }
}
