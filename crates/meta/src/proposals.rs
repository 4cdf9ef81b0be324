//! Layouts that were proposed to a session and not bound yet: when it ends or gives up, they are withdrawn, so that the collector
//! deletes what was written there.
//!
//! The proposal itself is in the log (a garbage record under the generation the inode has); here is only whose it is. A start knows
//! that nobody is left and withdraws all.

use crate::MetaService;
use crate::call::verb as number;
use crate::execute::itself;
use ashlar_namespace::verb;
use ashlar_rpc::Caller;
use ashlar_types::message::MetaReply;
use ashlar_types::{Errno, InodeId, OpId, SessionId, ShardId};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

/// Generations proposed to each session.
#[derive(Default)]
pub(crate) struct Proposals {
    // LIMIT: one per file that a session is moving to chunks; a proposal to the same session replaces the one before.
    by_session: Mutex<FxHashMap<SessionId, FxHashMap<InodeId, u32>>>,
}

impl Proposals {
    /// Notes one.
    pub(crate) fn note(&self, session: SessionId, inode: InodeId, generation: u32) {
        self.by_session.lock().entry(session).or_default().insert(inode, generation);
    }

    /// Forgets one that was bound or withdrawn.
    pub(crate) fn forget(&self, session: SessionId, inode: InodeId, generation: u32) {
        let mut all = self.by_session.lock();
        let Some(of_session) = all.get_mut(&session) else { return };
        if of_session.get(&inode) == Some(&generation) {
            of_session.remove(&inode);
        }
        if of_session.is_empty() {
            all.remove(&session);
        }
    }

    /// Whether it was proposed to this session, and neither bound nor withdrawn since.
    pub(crate) fn has(&self, session: SessionId, inode: InodeId, generation: u32) -> bool {
        let all = self.by_session.lock();
        all.get(&session).is_some_and(|of_session| of_session.get(&inode) == Some(&generation))
    }

    /// All for files of `shard`.
    pub(crate) fn of_shard(&self, shard: ShardId) -> Vec<(SessionId, InodeId, u32)> {
        let all = self.by_session.lock();
        let proposed =
            all.iter().flat_map(|(session, files)| files.iter().map(|(inode, n)| (*session, *inode, *n)));
        proposed.filter(|(_, inode, _)| inode.home() == shard).collect()
    }

    /// Forgets them: another server knows.
    pub(crate) fn forget_shard(&self, shard: ShardId) {
        let mut all = self.by_session.lock();
        all.values_mut().for_each(|files| files.retain(|inode, _| inode.home() != shard));
        all.retain(|_, files| !files.is_empty());
    }

    fn take(&self, session: SessionId) -> FxHashMap<InodeId, u32> {
        self.by_session.lock().remove(&session).unwrap_or_default()
    }
}

impl MetaService {
    /// Proposes a layout, and notes to whom, unless it could be bound at once.
    pub(crate) fn propose_layout(&self, caller: Caller<'_>, inode: InodeId) -> Result<MetaReply, Errno> {
        let session = caller.op.session;
        // Asked before the lane is held: the choice leaves out targets that do not answer.
        let map = self.map.read().clone();
        self.space(&map);
        let verb::Proposal { layout, is_bound } = self.mutate(
            caller,
            number::PROPOSE_LAYOUT,
            |txn, context| verb::propose_layout(txn, context, inode),
            |proposal, _| {
                if !proposal.is_bound {
                    self.proposals.note(session, inode, proposal.layout.generation);
                }
                proposal
            },
        )?;
        // ORDER: noted, then asked whether the session is still there; its end removes the session and then takes the notes. So
        // one of the two withdraws.
        if !self.sessions.has(session) {
            self.withdraw_layouts_of(session)?;
            return Err(Errno::ENOTCONN);
        }
        Ok(MetaReply::Layout { layout, is_bound })
    }

    /// Makes one proposal void; nothing when it was bound, withdrawn or replaced by a newer one.
    pub(crate) fn withdraw_layout(
        &self,
        session: SessionId,
        inode: InodeId,
        generation: u32,
    ) -> Result<(), Errno> {
        let creds = itself();
        // The commit wakes the collector if there is garbage now.
        self.mutate(
            // In the name of the session: its own lease on the file is not in its way.
            Caller::new(OpId { session, sequence: 0 }, &creds),
            number::PROPOSE_LAYOUT,
            |txn, context| verb::withdraw_layout(txn, context, inode, Some(generation)),
            |_, _| self.proposals.forget(session, inode, generation),
        )
    }

    /// Makes the proposals to a session that has ended void.
    pub(crate) fn withdraw_layouts_of(&self, session: SessionId) -> Result<(), Errno> {
        let mut outcome = Ok(());
        // Those of a shard that has gone are withdrawn where it is.
        let proposed =
            self.proposals.take(session).into_iter().filter(|(inode, _)| self.is_here(inode.home()));
        for (inode, generation) in proposed {
            outcome = outcome.and(self.withdraw_layout(session, inode, generation));
        }
        outcome
    }
}
