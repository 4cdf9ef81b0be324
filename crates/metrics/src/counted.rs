//! A service whose calls are counted.

use crate::calls::Calls;
use crate::kind::{kind_of_meta_call, kind_of_storage_call};
use ashlar_rpc::wire::{BackupStep, BackupTold, MoveInfo, Withdrawal};
use ashlar_rpc::{
    Caller, LastingSessions, MetaCalls, Payload, SessionEvents, SessionGrant, SessionHolds, SessionHosts,
    StorageCalls,
};
use ashlar_types::message::{MetaReply, MetaRequest, StorageReply, StorageRequest};
use ashlar_types::node::SessionOwner;
use ashlar_types::{Epoch, Errno, FilesetId, InodeId, NodeId, SessionId, ShardId, Timespec};
use rustc_hash::FxHashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// See the module. The calls go on as they are.
pub struct Counted<T: ?Sized> {
    inner: Arc<T>,
    calls: Arc<Calls>,
}

impl<T: ?Sized> Counted<T> {
    /// Counts calls to `inner`.
    pub fn new(inner: Arc<T>, calls: Arc<Calls>) -> Counted<T> {
        Counted { inner, calls }
    }
}

impl<T: MetaCalls + ?Sized> MetaCalls for Counted<T> {
    fn open_session(&self, events: Arc<dyn SessionEvents>) -> Result<SessionGrant, Errno> {
        self.inner.open_session(events)
    }

    fn close_session(&self, session: SessionId) {
        self.inner.close_session(session);
    }

    fn call(&self, caller: Caller<'_>, request: MetaRequest<'_>) -> Result<MetaReply, Errno> {
        let (kind, begun) = (kind_of_meta_call(&request), Instant::now());
        let outcome = self.inner.call(caller, request);
        self.calls.note(kind, begun.elapsed(), outcome.as_ref().err().copied());
        outcome
    }

    fn start_of(&self, session: SessionId, server: NodeId) -> u64 {
        self.inner.start_of(session, server)
    }
}

impl<T: LastingSessions + ?Sized> LastingSessions for Counted<T> {
    fn open_lasting(
        &self,
        session: Option<SessionId>,
        owner: SessionOwner,
        events: Arc<dyn SessionEvents>,
    ) -> Result<SessionGrant, Errno> {
        self.inner.open_lasting(session, owner, events)
    }

    fn unmet(&self) -> Vec<(SessionId, SessionOwner)> {
        self.inner.unmet()
    }

    fn meet(&self, session: SessionId) -> Result<(), Errno> {
        self.inner.meet(session)
    }

    fn takes_shards_since(&self) -> Option<Duration> {
        self.inner.takes_shards_since()
    }

    fn awaited(&self) -> Vec<(SessionId, SessionOwner)> {
        self.inner.awaited()
    }

    fn adopt(&self, session: SessionId, events: Arc<dyn SessionEvents>) {
        self.inner.adopt(session, events);
    }

    fn is_awaiting(&self) -> bool {
        self.inner.is_awaiting()
    }

    fn give_up_on(&self, sessions: &[SessionId]) {
        self.inner.give_up_on(sessions);
    }

    fn is_awaited(&self, session: SessionId) -> bool {
        self.inner.is_awaited(session)
    }

    fn incarnation(&self) -> u64 {
        self.inner.incarnation()
    }

    fn born(&self, inode: InodeId) -> Result<Option<Timespec>, Errno> {
        self.inner.born(inode)
    }

    fn fileset_of(&self, inode: InodeId) -> Result<Option<FilesetId>, Errno> {
        self.inner.fileset_of(inode)
    }

    fn has_home_of(&self, inode: InodeId) -> bool {
        self.inner.has_home_of(inode)
    }

    fn hear(&self, message: &[u8], hosts: &dyn SessionHosts) -> Result<Vec<u8>, Errno> {
        self.inner.hear(message, hosts)
    }

    fn map_to_renew_by(&self) -> Option<Epoch> {
        self.inner.map_to_renew_by()
    }

    fn move_shards(&self, shards: &[ShardId], to: NodeId, asker: SessionOwner) -> Result<(), Errno> {
        self.inner.move_shards(shards, to, asker)
    }

    fn moves(&self) -> Vec<MoveInfo> {
        self.inner.moves()
    }

    fn withdraw_moves(&self, shards: &[ShardId]) -> Vec<(ShardId, Option<NodeId>, Withdrawal)> {
        self.inner.withdraw_moves(shards)
    }

    fn backup(&self, backup: u64, step: BackupStep) -> Result<BackupTold, Errno> {
        self.inner.backup(backup, step)
    }

    fn kept(&self, caller: Caller<'_>, request: &MetaRequest<'_>) -> Result<Option<MetaReply>, Errno> {
        self.inner.kept(caller, request)
    }

    fn opened(&self, session: SessionId, inode: InodeId) -> Option<bool> {
        self.inner.opened(session, inode)
    }

    fn may_use(&self, session: SessionId, inode: InodeId, generation: u32) -> Result<bool, Errno> {
        self.inner.may_use(session, inode, generation)
    }

    fn holds(&self) -> FxHashMap<SessionId, SessionHolds> {
        self.inner.holds()
    }
}

impl<T: StorageCalls + ?Sized> StorageCalls for Counted<T> {
    fn call(&self, request: &StorageRequest, payload: Payload<'_>) -> Result<StorageReply, Errno> {
        self.count(request, payload, |payload| self.inner.call(request, payload))
    }

    fn call_in(
        &self,
        session: SessionId,
        request: &StorageRequest,
        payload: Payload<'_>,
    ) -> Result<StorageReply, Errno> {
        self.count(request, payload, |payload| self.inner.call_in(session, request, payload))
    }
}

impl<T: StorageCalls + ?Sized> Counted<T> {
    fn count(
        &self,
        request: &StorageRequest,
        payload: Payload<'_>,
        call: impl FnOnce(Payload<'_>) -> Result<StorageReply, Errno>,
    ) -> Result<StorageReply, Errno> {
        let (read, written) = match &payload {
            Payload::None => (0, 0),
            Payload::Write(data) => (0, data.len()),
            Payload::Read(out) => (out.len(), 0),
        };
        let begun = Instant::now();
        let outcome = call(payload);
        self.calls.note(kind_of_storage_call(request), begun.elapsed(), outcome.as_ref().err().copied());
        if outcome.is_ok() && read > 0 {
            self.calls.note_read(read);
        }
        if outcome.is_ok() && written > 0 {
            self.calls.note_written(written);
        }
        outcome
    }
}
