//! How a call is decided: transaction, lease check, commit, grant.

use crate::MetaService;
use crate::call::verb as number;
use crate::kept::Told;
use crate::recall::{Reported, Wanting};
use ashlar_kv::{Frame, KvError, Snapshot, Urgency};
use ashlar_namespace::lease::LeaseTable;
use ashlar_namespace::{NsError, OpContext, Txn, TxnOutcome, key};
use ashlar_rpc::Caller;
use ashlar_types::{Errno, InodeId, SessionId, Timespec};
use smallvec::SmallVec;
use std::time::Duration;

/// Longest time a call waits for leases of others in all; then it ends with `ETIMEDOUT`. A single recall is bounded more tightly.
pub(crate) const DECIDE_MAX: Duration = Duration::from_secs(20);

/// The caller of what the service does by itself.
pub(crate) fn itself() -> ashlar_types::Credentials {
    ashlar_types::Credentials::root()
}

impl MetaService {
    fn context<'a>(
        &'a self,
        caller: Caller<'a>,
        now: Timespec,
        open_in: &'a dyn Fn(InodeId) -> SmallVec<[SessionId; 2]>,
    ) -> OpContext<'a> {
        OpContext {
            now,
            creds: caller.creds,
            session: caller.op.session,
            hash_key: &self.name_hash_key,
            placement: self,
            open_in,
        }
    }

    /// Decides a call that changes nothing. `grant` runs while the state it was decided on is still the current one.
    ///
    /// # Errors
    /// What `decide` answers; `ETIMEDOUT` when leases of others stay in the way.
    pub(crate) fn inspect<R, T>(
        &self,
        caller: Caller<'_>,
        decide: impl Fn(&mut Txn<'_>, &OpContext<'_>) -> Result<R, NsError>,
        grant: impl FnOnce(R, &mut LeaseTable) -> T,
    ) -> Result<T, Errno> {
        let session = caller.op.session;
        // What the service does by itself has no number, and settling is part of it.
        let is_of_a_client = caller.op.sequence != 0;
        let deadline = self.env.clock.monotonic() + DECIDE_MAX;
        let mut reported = Reported::new(self);
        loop {
            let conflicts = {
                let reader = self.lane.read();
                let open_in = |inode| self.opens.lock().sessions(inode);
                let context = self.context(caller, self.env.clock.now(), &open_in);
                let mut txn = Txn::new(&reader);
                let reply = decide(&mut txn, &context).map_err(|error| self.answer(&error))?;
                let outcome = txn.finish().map_err(|error| self.answer(&error))?;
                debug_assert!(outcome.writes.is_empty(), "a call that changes nothing must not write");
                let mut leases = self.leases.lock();
                let is_settling = is_of_a_client && leases.is_settling(&outcome);
                let conflicts = leases.conflicts(session, &outcome, &reported.writers(&leases));
                if conflicts.is_empty() && !is_settling {
                    return Ok(grant(reply, &mut leases));
                }
                conflicts
            };
            if conflicts.is_empty() {
                self.wait_for_leases(deadline)?;
                continue;
            }
            self.recall_reports(&conflicts, session, deadline, &mut reported)?;
        }
    }

    /// Decides a call that changes something, and commits it. `grant` runs before anybody else can see the change.
    ///
    /// # Errors
    /// What `decide` answers; `ENOSPC`, `EIO` from the log; `ETIMEDOUT` when leases of others stay in the way.
    pub(crate) fn mutate<R: Told, T>(
        &self,
        caller: Caller<'_>,
        verb: u8,
        decide: impl Fn(&mut Txn<'_>, &OpContext<'_>) -> Result<R, NsError>,
        grant: impl FnOnce(R, &mut LeaseTable) -> T,
    ) -> Result<T, Errno> {
        let session = caller.op.session;
        // What the service does by itself has no number, and settling is part of it.
        let is_of_a_client = caller.op.sequence != 0;
        let deadline = self.env.clock.monotonic() + DECIDE_MAX;
        let mut reported = Reported::new(self);
        let mut has_made_room = false;
        let mut _wanting = None;
        loop {
            let conflicts = {
                let mut writer = self.lane.write();
                // ORDER: under the lane's lock. A session is taken off the list before what it left is cleaned up; what it committed after
                // that, nobody would. (The service's own calls on behalf of a session that has ended have no number.)
                if is_of_a_client && !self.sessions.has(session) {
                    return Err(Errno::ENOTCONN);
                }
                let open_in = |inode| self.opens.lock().sessions(inode);
                let context = self.context(caller, self.env.clock.now(), &open_in);
                let snapshot: &dyn Snapshot = &writer;
                let mut txn = Txn::new(snapshot);
                let reply = decide(&mut txn, &context).map_err(|error| self.answer(&error))?;
                let mut outcome = txn.finish().map_err(|error| self.answer(&error))?;
                let (is_settling, conflicts) = {
                    let leases = self.leases.lock();
                    let is_settling = is_of_a_client && leases.is_settling(&outcome);
                    (is_settling, leases.conflicts(session, &outcome, &reported.writers(&leases)))
                };
                if conflicts.is_empty() && !is_settling {
                    self.keep_reply(caller, &reply, &mut outcome);
                    let committed = self.commit(&mut writer, caller, verb, &mut outcome);
                    // What makes room is not helped by making room.
                    if committed == Err(Errno::ENOSPC) && !outcome.frees_space && !has_made_room {
                        drop(writer);
                        has_made_room = true;
                        self.make_room();
                        continue;
                    }
                    let (is_sync, position) = committed?;
                    let mut leases = self.leases.lock();
                    self.forget_removed(&outcome, &mut leases);
                    // Before any other change of attributes the writer's client reports by itself.
                    if matches!(verb, number::LINK | number::UNLINK | number::RENAME) {
                        leases.note_links_changed(&outcome.changed);
                    }
                    let granted = grant(reply, &mut leases);
                    drop(leases);
                    drop(writer);
                    if is_sync {
                        self.lane.flush(position).map_err(|error| self.answer(&error.into()))?;
                    }
                    return Ok(granted);
                }
                conflicts
            };
            let Some(first) = conflicts.first() else {
                self.wait_for_leases(deadline)?;
                continue;
            };
            if matches!(verb, number::WRITE_INLINE | number::CLEAR_SET_ID) {
                // It may hold the page that the answer to a recall of its own session waits for, and so may the write that it waits for.
                _wanting.get_or_insert_with(|| Wanting::begin(self, session, first.inode));
            }
            self.recall_reports(&conflicts, session, deadline, &mut reported)?;
        }
    }

    fn commit(
        &self,
        writer: &mut ashlar_kv::LaneWriter<'_>,
        caller: Caller<'_>,
        verb: u8,
        outcome: &mut TxnOutcome,
    ) -> Result<(bool, ashlar_kv::Position), Errno> {
        if outcome.writes.is_empty() {
            return Ok((false, ashlar_kv::Position::default()));
        }
        let epoch = self.map.read().epoch;
        self.note_orphans_and_garbage(outcome);
        let frames = std::mem::take(&mut outcome.writes)
            .into_iter()
            .map(|(shard, writes)| Frame {
                shard,
                epoch,
                op: caller.op,
                verb,
                writes,
                reply: bytes::Bytes::new(),
            })
            .collect();
        let urgency = if outcome.frees_space { Urgency::FreesSpace } else { Urgency::Normal };
        let position = writer.commit(frames, urgency).map_err(|error| self.answer(&error.into()))?;
        if outcome.has_garbage {
            self.garbage.wake(position);
        }
        Ok((outcome.is_sync, position))
    }

    fn note_orphans_and_garbage(&self, outcome: &mut TxnOutcome) {
        for (_, writes) in &outcome.writes {
            for (changed_key, value) in &writes.0 {
                match (changed_key.get(2), value) {
                    (Some(b'O'), Some(_)) => {
                        if let Some(inode) = key::inode_of(changed_key) {
                            self.opens.lock().note_orphan(inode);
                        }
                    }
                    (Some(b'I'), None) => outcome.removed.extend(key::inode_of(changed_key)),
                    _ => {}
                }
            }
        }
    }

    fn forget_removed(&self, outcome: &TxnOutcome, leases: &mut LeaseTable) {
        for &inode in &outcome.removed {
            leases.forget_inode(inode);
            self.unsettled.forget(inode);
        }
    }

    /// The one place where a failure of the store becomes an errno, and is logged.
    pub(crate) fn answer(&self, error: &NsError) -> Errno {
        match error {
            NsError::Errno(_) | NsError::Kv(KvError::NoSpace { .. }) => {}
            NsError::Kv(error) => tracing::error!(%error, "the metadata store failed"),
        }
        error.errno()
    }
}
