//! Sessions that go on when the service is started anew: their owners are on other machines, and have files open, content cached and locks
//! held that the service has forgotten.
//!
//! | state of a session | event | becomes |
//! |---|---|---|
//! | known from before the start | [`Reclaim::Files`], [`Reclaim::Locks`] | what it tells is noted |
//! | | [`Reclaim::Done`] | open |
//! | | its owner is silent for too long | ended as any other |
//!
//! While any session is awaited, nothing is carried out but reclaiming, and answers to recalls of sessions that have come back
//! ([`LastingSessions::is_awaiting`]): so no lease and no lock can be given to one that another still has. Records of orphans and writers of awaited sessions stay ([`crate::recovery`]).

use crate::MetaService;
use crate::across::Inside;
use crate::call::verb as number;
use crate::execute::itself;
use crate::waiting::Waiter;
use ashlar_namespace::lock::LockFrom;
use ashlar_namespace::record::Inode;
use ashlar_namespace::{OpContext, Txn, key, verb};
use ashlar_rpc::wire::{BackupStep, BackupTold, MoveInfo, Withdrawal};
use ashlar_rpc::{Caller, LastingSessions, SessionEvents, SessionGrant, SessionHolds, SessionHosts};
use ashlar_types::message::{
    LeaseSet, LockRequest, MetaReply, MetaRequest, Reclaim, Reclaimed, ReclaimedFile,
};
use ashlar_types::node::SessionOwner;
use ashlar_types::{
    DescriptionId, Epoch, Errno, FilesetId, InodeId, NodeId, OpId, SessionId, ShardId, Timespec,
};
use parking_lot::Mutex;
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

/// Sessions of which the service does not know what they have.
#[derive(Default)]
pub(crate) struct Awaited {
    // LIMIT: as sessions.
    sessions: Mutex<FxHashMap<SessionId, SessionOwner>>,
    /// How many: asked for every call.
    count: AtomicUsize,
    /// Those that may tell yet what they have open; the others are being ended.
    // LIMIT: as sessions.
    telling: Mutex<FxHashSet<SessionId>>,
    /// Sessions whose record is in the log.
    lasting: Mutex<FxHashSet<SessionId>>,
}

impl Awaited {
    /// Notes sessions that are to outlive the service.
    pub(crate) fn note_lasting(&self, sessions: &[(SessionId, SessionOwner)]) {
        self.lasting.lock().extend(sessions.iter().map(|(session, _)| *session));
    }

    /// Awaits `sessions`, at a start.
    pub(crate) fn begin(&self, sessions: Vec<(SessionId, SessionOwner)>) {
        self.telling.lock().extend(sessions.iter().map(|(session, _)| *session));
        let mut awaited = self.sessions.lock();
        awaited.extend(sessions);
        self.count.store(awaited.len(), SeqCst);
    }

    /// Ends it for a session; tells whether it was awaited.
    pub(crate) fn end(&self, session: SessionId) -> bool {
        self.telling.lock().remove(&session);
        let mut awaited = self.sessions.lock();
        let was_awaited = awaited.remove(&session).is_some();
        self.count.store(awaited.len(), SeqCst);
        was_awaited
    }

    pub(crate) fn has(&self, session: SessionId) -> bool {
        self.sessions.lock().contains_key(&session)
    }

    /// A session that is being ended tells nothing any more.
    pub(crate) fn give_up(&self, session: SessionId) {
        self.telling.lock().remove(&session);
    }

    /// Whether some session may tell yet what it has open.
    pub(crate) fn may_tell(&self) -> bool {
        !self.telling.lock().is_empty()
    }
}

impl LastingSessions for MetaService {
    fn open_lasting(
        &self,
        session: Option<SessionId>,
        owner: SessionOwner,
        events: Arc<dyn SessionEvents>,
    ) -> Result<SessionGrant, Errno> {
        let grant = self.session_open(session, None, events)?;
        let session = grant.session;
        self.awaited.lasting.lock().insert(session);
        let creds = itself();
        let noted = self
            .mutate(
                Caller::new(OpId::default(), &creds),
                number::OPEN_SESSION,
                |txn, _| verb::open_session(txn, session, owner),
                |(), _| (),
            )
            // ORDER: durable before anybody relies on it; a client that comes back to a service that does not know it loses its locks.
            .and_then(|()| self.lane.flush_all().map_err(|error| self.answer(&error.into())));
        match noted {
            Ok(()) => Ok(grant),
            Err(errno) => {
                self.session_end(session);
                Err(errno)
            }
        }
    }

    fn unmet(&self) -> Vec<(SessionId, SessionOwner)> {
        self.unmet.all()
    }

    fn meet(&self, session: SessionId) -> Result<(), Errno> {
        self.meet_holder(session)
    }

    fn takes_shards_since(&self) -> Option<Duration> {
        self.arriving_since()
    }

    fn awaited(&self) -> Vec<(SessionId, SessionOwner)> {
        self.awaited.sessions.lock().iter().map(|(session, owner)| (*session, *owner)).collect()
    }

    fn kept(&self, caller: Caller<'_>, request: &MetaRequest<'_>) -> Result<Option<MetaReply>, Errno> {
        self.kept_reply(caller, request)
    }

    fn opened(&self, session: SessionId, inode: InodeId) -> Option<bool> {
        self.opens.lock().opened(session, inode)
    }

    fn adopt(&self, session: SessionId, events: Arc<dyn SessionEvents>) {
        if self.awaited.has(session) || self.unmet.has(session) {
            self.sessions.adopt(session, events);
            self.leases.lock().begin_session(session);
        }
    }

    fn is_awaiting(&self) -> bool {
        self.awaited.count.load(SeqCst) > 0
    }

    fn give_up_on(&self, sessions: &[SessionId]) {
        sessions.iter().for_each(|&session| self.awaited.give_up(session));
        if self.is_awaiting() {
            // What waited for them holds what their end needs.
            self.resume_across();
        }
    }

    fn is_awaited(&self, session: SessionId) -> bool {
        self.awaited.has(session)
    }

    fn incarnation(&self) -> u64 {
        self.incarnation
    }

    fn has_home_of(&self, inode: InodeId) -> bool {
        self.is_here(inode.home())
    }

    fn hear(&self, message: &[u8], hosts: &dyn SessionHosts) -> Result<Vec<u8>, Errno> {
        if !self.across.has_peers() {
            return Err(Errno::EPROTO);
        }
        Ok(self.hear_peer(message, hosts))
    }

    fn map_to_renew_by(&self) -> Option<Epoch> {
        MetaService::map_to_renew_by(self)
    }

    fn move_shards(&self, shards: &[ShardId], to: NodeId, asker: SessionOwner) -> Result<(), Errno> {
        if shards.is_empty() {
            return self.end_share();
        }
        self.send_shards(shards, to, Some(asker))
    }

    fn moves(&self) -> Vec<MoveInfo> {
        self.moves_shown()
    }

    fn withdraw_moves(&self, shards: &[ShardId]) -> Vec<(ShardId, Option<NodeId>, Withdrawal)> {
        self.withdraw(shards)
    }

    fn backup(&self, backup: u64, step: BackupStep) -> Result<BackupTold, Errno> {
        self.back_up(backup, step)
    }

    fn may_use(&self, session: SessionId, inode: InodeId, generation: u32) -> Result<bool, Errno> {
        let may_write = self.opens.lock().opened(session, inode).ok_or(Errno::EBADF)?;
        if self.proposals.has(session, inode, generation) {
            return Ok(may_write);
        }
        // Nobody's lease is in the way: it was asked for when the session was told where the content is.
        let reader = self.lane.read();
        let mut txn = Txn::new(&reader);
        let found = txn.find_inode(inode).map_err(|error| self.answer(&error))?;
        match found.map(Self::generation_of) {
            Some(Some(current)) if current == generation => Ok(may_write),
            _ => Err(Errno::ESTALE),
        }
    }

    fn fileset_of(&self, inode: InodeId) -> Result<Option<FilesetId>, Errno> {
        self.of_inode(inode, |found| found.fileset)
    }

    fn born(&self, inode: InodeId) -> Result<Option<Timespec>, Errno> {
        self.of_inode(inode, |found| found.btime)
    }

    fn holds(&self) -> FxHashMap<SessionId, SessionHolds> {
        self.holds_by_session()
    }
}

impl MetaService {
    /// What never changes of an inode but for an administrator, so nobody's lease is in the way, and no transaction.
    fn of_inode<T>(&self, inode: InodeId, what: impl FnOnce(&Inode) -> T) -> Result<Option<T>, Errno> {
        let reader = self.lane.read();
        let mut txn = Txn::new(&reader);
        let found = txn.find_inode(inode).map_err(|error| self.answer(&error))?;
        Ok(found.map(what))
    }

    /// Notes what a session tells that it has.
    ///
    /// # Errors
    /// `EIO` when the store cannot answer.
    pub(crate) fn reclaim(&self, session: SessionId, part: Reclaim) -> Result<MetaReply, Errno> {
        match part {
            Reclaim::Files(files) => {
                let _inside = self.enter_homes(files.iter().map(|file| file.inode))?;
                let files = files.iter().map(|file| self.reclaim_file(session, file)).collect();
                Ok(MetaReply::Reclaimed { files })
            }
            Reclaim::Locks(locks) => {
                let _inside = self.enter_homes(locks.iter().map(|(request, _)| request.inode))?;
                self.reclaim_locks(session, &locks)?;
                Ok(MetaReply::Done)
            }
            Reclaim::Done => {
                if self.awaited.end(session) {
                    tracing::info!(%session, "a session has come back");
                }
                Ok(MetaReply::Done)
            }
            Reclaim::Losses => Ok(MetaReply::LostSince(self.lost_since)),
        }
    }

    /// Begins work on what a session tells. Of a shard that is on its way it is told anew, to whoever has it then.
    fn enter_homes(&self, inodes: impl Iterator<Item = InodeId>) -> Result<Vec<Inside<'_>>, Errno> {
        let mut shards: Vec<ShardId> = inodes.map(InodeId::home).collect();
        shards.sort();
        shards.dedup();
        shards.into_iter().map(|shard| self.enter(shard)).collect()
    }

    fn reclaim_file(&self, session: SessionId, file: &ReclaimedFile) -> Result<Reclaimed, Errno> {
        let creds = itself();
        let inode = file.inode;
        if !self.awaited.has(session) && !file.handles.is_empty() {
            self.hold_unlinked(session, file)?;
        }
        self.inspect_for(
            self.teller(),
            Caller::new(OpId { session, sequence: 0 }, &creds),
            |txn, _| {
                let found = txn.find_inode(inode)?.ok_or(Errno::ESTALE)?;
                let (size, generation) = (found.size, Self::generation_of(found));
                let is_unlinked = found.nlink == 0;
                // Without its record a writer's length could not be settled: a power cut has taken what let it write.
                let may_write = generation.is_none() || txn.get(&key::writer_of(inode, session))?.is_some();
                Ok((Reclaimed { leases: LeaseSet::NONE, size, generation }, is_unlinked, may_write))
            },
            |(found, is_unlinked, may_write), leases| {
                if !leases.has_session(session) {
                    return Err(Errno::ENOTCONN);
                }
                let mut opens = self.opens.lock();
                for &handle in &file.handles {
                    opens.reopen(session, inode, handle);
                }
                if is_unlinked && !file.handles.is_empty() {
                    opens.note_orphan(inode);
                }
                drop(opens);
                let wanted = match file.leases.and(LeaseSet::CONTENT) {
                    // Later it asks as everybody does.
                    _ if !self.awaited.has(session) => LeaseSet::NONE,
                    all if may_write => all,
                    all => all.without(LeaseSet::WRITING),
                };
                let leases = match wanted {
                    LeaseSet::NONE => LeaseSet::NONE,
                    wanted => leases.grant(session, inode, wanted),
                };
                Ok(Reclaimed { leases, ..found })
            },
        )?
    }

    /// Who tells what he has open. While sessions are awaited parts of transactions wait for just that, and no call of a client is being decided that would hold anything else.
    fn teller(&self) -> Waiter {
        if self.is_awaiting() { Waiter::PastKeys } else { Waiter::Itself }
    }

    /// Has a session that has lost another one's records hold a file, should it have no name any more.
    fn hold_unlinked(&self, session: SessionId, file: &ReclaimedFile) -> Result<(), Errno> {
        let (creds, inode) = (itself(), file.inode);
        // ORDER: noted before. A file without a name is opened only by who has it open.
        {
            let leases = self.leases.lock();
            if !leases.has_session(session) {
                return Err(Errno::ENOTCONN);
            }
            let mut opens = self.opens.lock();
            file.handles.iter().for_each(|&handle| opens.reopen(session, inode, handle));
        }
        let args = verb::OpenArgs { is_granted: true, ..verb::OpenArgs::default() };
        let caller = Caller::new(OpId { session, sequence: 0 }, &creds);
        let has_name = self.inspect_for(
            self.teller(),
            caller,
            |txn, _| Ok(txn.find_inode(inode)?.is_some_and(|found| found.nlink > 0)),
            |has_name, _| has_name,
        );
        let hold = |txn: &mut Txn<'_>, context: &OpContext<'_>| match txn
            .find_inode(inode)?
            .map(|found| found.nlink)
        {
            None => Err(Errno::ESTALE.into()),
            Some(0) => verb::open(txn, context, inode, &args).map(drop),
            Some(_) => Ok(()),
        };
        let held = match has_name {
            Ok(true) => Ok(()),
            Ok(false) => self.mutate(caller, number::OPEN, hold, |(), _| ()),
            Err(errno) => Err(errno),
        };
        if held.is_err() {
            let mut opens = self.opens.lock();
            for (handle, _) in &file.handles {
                opens.close(session, inode, *handle);
            }
        }
        held
    }

    fn reclaim_locks(&self, session: SessionId, locks: &[(LockRequest, DescriptionId)]) -> Result<(), Errno> {
        let mut grants = Vec::new();
        let mut table = self.locks.lock();
        // ORDER: asked under the lock of the table, as of any lock: nobody drops what a session gets after its locks were dropped.
        if !self.sessions.has(session) {
            return Err(Errno::ENOTCONN);
        }
        if !self.awaited.has(session) {
            tracing::warn!(%session, count = locks.len(), "locks of a session that is not awaited");
            return Ok(());
        }
        for (request, through) in locks {
            let from = LockFrom { session, through: *through };
            // Nobody else can have it: it was held, and nothing was given to anybody since. The bounds are those it was taken under.
            if let Err(errno) = table.lock(from, request, &mut grants) {
                tracing::error!(%errno, %session, inode = %request.inode, "a lock from before the start could not be taken again");
            }
        }
        drop(table);
        self.announce_locks(grants);
        Ok(())
    }

    /// Forgets that a session was to outlive the service; tells whether it was awaited, and so may have written what it has told nobody of.
    pub(crate) fn end_lasting(&self, session: SessionId) -> bool {
        let was_awaited = self.awaited.has(session);
        self.unmet.remove(session);
        let is_lasting = self.awaited.lasting.lock().remove(&session);
        if is_lasting && let Err(errno) = self.forget_session(session) {
            tracing::error!(%errno, %session, "a session that has ended could not be forgotten; the next start waits for it");
        }
        was_awaited
    }

    /// Takes a session, and the answers kept for it, out of the log.
    pub(crate) fn forget_session(&self, session: SessionId) -> Result<(), Errno> {
        let creds = itself();
        self.mutate(
            Caller::new(OpId::default(), &creds),
            number::CLOSE_SESSION,
            |txn, _| verb::close_session(txn, session),
            |(), _| (),
        )
    }
}
