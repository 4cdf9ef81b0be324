//! The metadata service was started anew: it is told what this client has open, cached and locked, and everything goes on.
//!
//! Nobody is answered until all clients have told what they have, so what was granted before the start holds until then. What may be cached without
//! being listed, attributes and names, goes first. Whoever notes something that a service has granted looks afterwards whether that service
//! is still the one that was told ([`Client::era`]); if not, he tells it himself, or asks anew.

use crate::call::unexpected;
use crate::client::Client;
use crate::file::{Data, File, FileState};
use ashlar_rpc::SessionEvents;
use ashlar_types::message::{
    LeaseSet, MetaReply, MetaRequest, Recall, Reclaim, Reclaimed, ReclaimedFile, SessionEvent,
};
use ashlar_types::{Errno, InodeId, NodeId, SessionId};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

/// For how long the kernel is waited for, and between two looks.
const FORGET_MAX: Duration = Duration::from_secs(2);
const FORGET_PAUSE: Duration = Duration::from_millis(5);
/// Files and locks told of at once.
pub(crate) const BATCH: usize = 256;

/// Instead of the number of a start: whichever is the newest that the session was told of.
pub(crate) const NEWEST: u64 = 0;

/// What was told of a file.
struct Told {
    file: Arc<File>,
    leases: LeaseSet,
    lease_epoch: u64,
}

impl Client {
    /// The metadata server that has `inode`.
    pub(crate) fn server_of(&self, inode: InodeId) -> NodeId {
        self.map.read().primary(inode.home()).unwrap_or_default()
    }

    /// Tells `server`, in its start `incarnation`, what this client has there. In a thread of its own: one that is away again meanwhile, or waits itself, must not
    /// keep another one from being told, which would end the session after a minute, nor keep anything else from being heard.
    // LIMIT: of threads: one per server. Another one for the same server is for a newer start, in which whoever tells the one before is told that it has ended.
    pub(crate) fn begin_reclaiming(self: &Arc<Client>, server: NodeId, incarnation: u64) {
        let (client, session) = (self.clone(), self.session());
        let reclaim = Box::new(move || client.reclaim(session, server, incarnation));
        if self.env.tasks.spawn("ashlar-reclaim", reclaim).is_err() {
            tracing::error!(%server, "no thread can be started; whatever else metadata servers say waits until this one is told");
            self.reclaim(self.session(), server, incarnation);
        }
    }

    fn reclaim(self: &Arc<Client>, session: SessionId, server: NodeId, incarnation: u64) {
        // ORDER: before anything is looked at. Whoever notes something later sees that it may not have been told.
        self.era.fetch_add(1, SeqCst);
        self.lock_starts.note(server);
        match self.tell_everything(session, server, incarnation) {
            Ok(lost) => {
                self.ask_again_for_locks();
                lost.into_iter().for_each(|inode| self.drop_lost(inode));
            }
            // It was started once more, and this begins anew; or the session has ended, and the next one is told by whoever opens it.
            Err(Errno::EAGAIN | Errno::ENOTCONN) => {}
            Err(errno) => {
                tracing::error!(%errno, "the metadata server could not be told what this mount has; trying again");
                // It may have been told, and the answer lost; else whoever asks waits until it is.
                self.ask_again_for_locks();
            }
        }
    }

    /// Tells of all files and locks; the files of which cached content is not good any more.
    fn tell_everything(
        &self,
        session: SessionId,
        server: NodeId,
        incarnation: u64,
    ) -> Result<Vec<InodeId>, Errno> {
        // ORDER: before it answers anybody else. Who syncs afterwards is told.
        self.ask_for_losses(session, (server, incarnation))?;
        let mut lost = Vec::new();
        let is_there = |inode: InodeId| self.server_of(inode) == server;
        let files: Vec<_> = self.files.all().into_iter().filter(|file| is_there(file.inode)).collect();
        for files in files.chunks(BATCH) {
            lost.extend(self.tell_files(session, (server, incarnation), files, LeaseSet::CONTENT)?);
        }
        let locks = self.held_locks.all();
        let locks: Vec<_> = locks.into_iter().filter(|(request, _)| is_there(request.inode)).collect();
        for locks in locks.chunks(BATCH) {
            self.tell(session, (server, incarnation), Reclaim::Locks(locks.to_vec()))?;
        }
        self.drop_attributes();
        self.await_forgotten_pages();
        self.tell(session, (server, incarnation), Reclaim::Done)?;
        Ok(lost)
    }

    fn tell(
        &self,
        session: SessionId,
        (server, incarnation): (NodeId, u64),
        part: Reclaim,
    ) -> Result<(), Errno> {
        match self.call_in(session, MetaRequest::Reclaim { server, incarnation, part })? {
            MetaReply::Done => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// Waits until the kernel has forgotten pages that it has from before this process: nobody tells the server that they are there.
    fn await_forgotten_pages(&self) {
        let give_up = self.env.clock.monotonic() + FORGET_MAX;
        while self.are_pages_unknown.load(SeqCst) && self.env.clock.monotonic() < give_up {
            self.env.tasks.pause(FORGET_PAUSE);
        }
    }

    /// Has the kernel forget all names, and attributes that others could not change.
    pub(crate) fn drop_attributes(&self) {
        self.ahead.clear();
        let Some(kernel) = self.kernel.get() else { return };
        let until = {
            // ORDER: who finds that another thread has taken them waits until they are gone, or the server that he tells would let somebody change them before.
            let _turn = self.dropping_attributes.lock();
            let (inodes, until) = self.attributes_told.take();
            // Of all directories.
            kernel.drop_entries(InodeId::ROOT);
            let shown = inodes.into_iter().map(|inode| self.split_directories.shown(inode));
            shown.for_each(|inode| kernel.drop_attributes(inode));
            until
        };
        let left = until.saturating_sub(self.env.clock.monotonic());
        if !left.is_zero() {
            tracing::warn!(
                ?left,
                "waiting until the kernel has forgotten attributes of more files than are remembered"
            );
            self.env.tasks.pause(left);
        }
    }

    /// Tells a server, in this start of it, of `files` that it has, and what of `leases` is held on them; those of which that is lost.
    pub(crate) fn tell_files(
        &self,
        session: SessionId,
        (server, incarnation): (NodeId, u64),
        files: &[Arc<File>],
        leases: LeaseSet,
    ) -> Result<Vec<InodeId>, Errno> {
        let (mut told, mut parts) = (Vec::new(), Vec::new());
        for file in files {
            let state = file.state.lock();
            let (handles, proof) = (state.handles.to_vec(), state.proof);
            let claimed = claimed(&state).and(leases);
            parts.push(ReclaimedFile { inode: file.inode, handles, leases: claimed, proof });
            let leases = state.leases.and(leases);
            told.push(Told { file: file.clone(), leases, lease_epoch: state.lease_epoch });
        }
        let request = MetaRequest::Reclaim { server, incarnation, part: Reclaim::Files(parts) };
        let answers = match self.call_in(session, request)? {
            MetaReply::Reclaimed { files } if files.len() == told.len() => files,
            other => return Err(unexpected(&other)),
        };
        let is_lost = |(told, answer): (Told, Result<Reclaimed, Errno>)| {
            if let Err(errno) = answer {
                tracing::warn!(%errno, inode = %told.file.inode, "an open file is not known to the metadata server any more");
            }
            told.is_lost(answer).then_some(told.file.inode)
        };
        Ok(told.into_iter().zip(answers).filter_map(is_lost).collect())
    }

    /// Tells of a file that was opened while the service was started anew.
    ///
    /// # Errors
    /// `ESTALE` when it is gone, `ETIMEDOUT` when the service does not answer.
    pub(crate) fn tell_open(&self, file: &Arc<File>) -> Result<(), Errno> {
        // LIMIT: a turn per start of the service, and per move of the shard.
        loop {
            let (era, server) = (self.era(), self.server_of(file.inode));
            let files = std::slice::from_ref(file);
            let outcome = self.tell_files(self.session(), (server, NEWEST), files, LeaseSet::NONE);
            if self.era() == era {
                match outcome {
                    // A newer one is not known here yet: it will be told everything.
                    Err(Errno::EAGAIN) => return Ok(()),
                    // Its shard has another server by now.
                    Err(Errno::EHOSTDOWN) if self.server_of(file.inode) != server => {}
                    other => return other.map(drop),
                }
            }
        }
    }

    /// Has content dropped that was cached under a lease which is lost, as if it had been recalled.
    fn drop_lost(&self, inode: InodeId) {
        tracing::warn!(%inode, "cached content of a file is not good any more after a start of the metadata server");
        let recall = Recall { id: 0, inode, leases: LeaseSet::CONTENT, flush_only: false };
        self.queue.deliver(SessionEvent::Recall(recall));
    }
}

/// The leases that a service which was started anew is told of. One under which something was written is given back, for the service, when that has
/// been reported: given back here and not reported, somebody else would get it with the length from before.
fn claimed(state: &FileState) -> LeaseSet {
    match state.mtime_shared {
        _ if !state.is_unreported() || state.leases.meets(LeaseSet::WRITING) => state.leases,
        Some(_) => state.leases.with(LeaseSet::SHARE),
        None => state.leases.with(LeaseSet::WRITE),
    }
}

impl Told {
    /// Whether the lease is gone, or what it covers is not what this client knows: then it is given up.
    fn is_lost(&self, answer: Result<Reclaimed, Errno>) -> bool {
        let mut state = self.file.state.lock();
        // What has changed meanwhile was asked of the new service, or given back.
        if self.leases == LeaseSet::NONE || state.lease_epoch != self.lease_epoch {
            return false;
        }
        let generation = match &state.data {
            Data::Chunks(layout) => Some(layout.generation),
            Data::Inline(_) => None,
        };
        let is_whole = |known: Reclaimed| {
            let is_same = state.is_dirty
                || state.reporting.is_some()
                || state.inline_writes > 0
                // Others make it longer all the time.
                || self.leases.has(LeaseSet::SHARE)
                || known.size == state.size;
            known.leases.has(self.leases) && known.generation == generation && is_same
        };
        if answer.is_ok_and(is_whole) {
            return false;
        }
        state.lose_leases();
        true
    }
}
