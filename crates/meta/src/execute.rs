//! How a call is decided: transaction, lease check, commit, grant.

use crate::MetaService;
use crate::across::{Decision, Known, PlacementOnce, Voted};
use crate::call::verb as number;
use crate::kept::Told;
use crate::recall::{Alone, Reported, Wanting};
use crate::waiting::Waiter;
use ashlar_kv::{Frame, Key, KvError, LaneWriter, Snapshot, Urgency, WriteSet};
use ashlar_namespace::lease::{Conflict, LeaseTable};
use ashlar_namespace::{NsError, OpContext, Placement, Txn, TxnOutcome, key};
use ashlar_replication::transaction::TransactionId;
use ashlar_rpc::Caller;
use ashlar_types::{Durability, Errno, EventKind, InodeId, OpId, SessionId, ShardId, Timespec};
use bytes::Bytes;
use smallvec::SmallVec;
use std::time::Duration;

/// Longest time a call waits for leases of others in all; then it ends with `ETIMEDOUT`. A single recall is bounded more tightly.
pub(crate) const DECIDE_MAX: Duration = Duration::from_secs(20);

/// How often a call is answered the same in a row, by what others tell anew each time, before that is taken for so although it changes all the time.
const LOOKS_MAX: u32 = 8;

/// The caller of what the service does by itself.
pub(crate) fn itself() -> ashlar_types::Credentials {
    ashlar_types::Credentials::root()
}

/// What a call goes by that changes something.
struct View<'a> {
    /// Of which shards are here.
    generation: u64,
    known: Option<Known>,
    placement: PlacementOnce<'a>,
    /// What it went by when it was to change nothing, and how often the same came out in a row.
    doubt: Option<(Doubt, u32)>,
}

impl<'a> View<'a> {
    fn new(service: &'a MetaService) -> View<'a> {
        let generation = service.across.generation();
        View { generation, known: service.known(), placement: PlacementOnce::new(service), doubt: None }
    }
}

impl View<'_> {
    /// Whether a call that is to change nothing need not be looked at again. What it went by is as it was before others were asked anew, so it was so all at once in between. In a directory that never
    /// stays as it is that may not come about: then the same answer many times is enough.
    fn is_settled(&self, doubt: &Doubt) -> bool {
        self.doubt.as_ref().is_some_and(|(before, looks)| {
            before == doubt || before.errno == doubt.errno && *looks >= LOOKS_MAX
        })
    }
}

/// What a call goes by that is to change nothing, of this server and others, and what it is answered.
#[derive(PartialEq, Eq)]
struct Doubt {
    errno: Option<Errno>,
    // LIMIT: what one call reads.
    read: Vec<(Key, Option<Bytes>)>,
}

impl Doubt {
    /// `None` where all was read at one moment, or a change is to be voted on.
    fn of(
        here: &dyn Snapshot,
        refusal: Option<&NsError>,
        outcome: &TxnOutcome,
    ) -> Result<Option<Doubt>, Errno> {
        if outcome.parts.is_empty() || refusal.is_none() && !outcome.changes_nothing() {
            return Ok(None);
        }
        let mut read = Vec::with_capacity(outcome.reads.len());
        for key in &outcome.reads {
            read.push((key.clone(), here.get(key).map_err(|_| Errno::EIO)?));
        }
        read.extend(outcome.parts.iter().flat_map(|(_, part)| part.reads.iter().cloned()));
        Ok(Some(Doubt { errno: refusal.map(NsError::errno), read }))
    }
}

/// What came of one try to decide a call that changes something.
enum Tried<'a, R> {
    /// It can be committed at once.
    Ready(LaneWriter<'a>, R, TxnOutcome),
    /// Leases of others are in the way.
    Conflicts(SmallVec<[Conflict; 2]>),
    /// A file is being settled.
    Settling,
    /// Other servers have to be asked.
    Elsewhere,
    /// A shard has changed hands.
    Moved,
    /// A transaction of several servers holds what is needed.
    Held,
    /// Other servers have a part in it; what is here is held for it.
    Spans(TransactionId, R, TxnOutcome),
    /// It changes nothing, but what other servers have told is of several moments: it stands if all of it is so at one.
    Doubtful(Doubt),
}

impl MetaService {
    pub(crate) fn context<'a>(
        &'a self,
        caller: Caller<'a>,
        now: Timespec,
        placement: &'a dyn Placement,
        open_in: &'a dyn Fn(InodeId) -> SmallVec<[SessionId; 2]>,
    ) -> OpContext<'a> {
        OpContext {
            now,
            creds: caller.creds,
            session: caller.op.session,
            hash_key: &self.name_hash_key,
            placement,
            open_in,
        }
    }

    /// Decides a call that changes nothing. `grant` runs while the state it was decided on is still the current one.
    ///
    /// # Errors
    /// What `decide` answers; `ETIMEDOUT` when leases of others stay in the way; `EHOSTDOWN` when it has to come again.
    pub(crate) fn inspect<R, T>(
        &self,
        caller: Caller<'_>,
        decide: impl Fn(&mut Txn<'_>, &OpContext<'_>) -> Result<R, NsError>,
        grant: impl FnOnce(R, &mut LeaseTable) -> T,
    ) -> Result<T, Errno> {
        self.inspect_for(self.waiter(caller.op), caller, decide, grant)
    }

    /// The same for whoever waits as `waiter`.
    pub(crate) fn inspect_for<R, T>(
        &self,
        waiter: Waiter,
        caller: Caller<'_>,
        decide: impl Fn(&mut Txn<'_>, &OpContext<'_>) -> Result<R, NsError>,
        grant: impl FnOnce(R, &mut LeaseTable) -> T,
    ) -> Result<T, Errno> {
        let session = caller.op.session;
        // What the service does by itself has no number, and settling is part of it.
        let is_of_a_client = caller.op.sequence != 0;
        let deadline = self.env.clock.monotonic() + DECIDE_MAX;
        let mut reported = Reported::new(self);
        let (mut generation, mut known) = (self.across.generation(), self.known());
        let mut is_again = false;
        loop {
            self.come_again_if_closing(is_again && is_of_a_client)?;
            is_again = true;
            let conflicts = {
                let reader = self.lane.read();
                if self.across.generation() != generation {
                    drop(reader);
                    (generation, known) = (self.across.generation(), self.known());
                    continue;
                }
                let open_in = |inode| self.opens.lock().sessions(inode);
                let context = self.context(caller, self.env.clock.now(), self, &open_in);
                let mut txn = transaction(&reader, known.as_ref()).within(caller.reach);
                let decided = decide(&mut txn, &context);
                let outcome = self.finish(txn, decided.is_ok())?;
                if waiter != Waiter::PastKeys && self.is_blocked(&outcome) {
                    drop(reader);
                    self.wait_for_keys(waiter, deadline)?;
                    continue;
                }
                let reply = decided.map_err(|error| self.answer(&error))?;
                debug_assert!(outcome.writes.is_empty(), "a call that changes nothing must not write");
                let mut leases = self.leases.lock();
                let is_settling = is_of_a_client && leases.is_settling(&outcome);
                let conflicts = self.conflicts(&leases, session, &outcome, &reported);
                if conflicts.is_empty() && !is_settling {
                    leases.withhold(&outcome.in_split);
                    return Ok(grant(reply, &mut leases));
                }
                conflicts
            };
            if conflicts.is_empty() {
                self.wait_for_leases(waiter, deadline)?;
                continue;
            }
            self.recall_reports(waiter, &conflicts, session, deadline, &mut reported)?;
        }
    }

    /// Decides a call that changes something, and commits it. `grant` runs before anybody else can see the change.
    ///
    /// # Errors
    /// What `decide` answers; `ENOSPC`, `EIO` from the log; `ETIMEDOUT` when leases of others stay in the way; `EHOSTDOWN` when another
    /// server that has a part in it does not answer: nothing was done.
    pub(crate) fn mutate<R: Told, T>(
        &self,
        caller: Caller<'_>,
        verb: u8,
        decide: impl Fn(&mut Txn<'_>, &OpContext<'_>) -> Result<R, NsError>,
        grant: impl FnOnce(R, &mut LeaseTable) -> T,
    ) -> Result<T, Errno> {
        let (op, waiter) = (caller.op, self.waiter(caller.op));
        let session = op.session;
        let deadline = self.env.clock.monotonic() + DECIDE_MAX;
        let mut reported = Reported::new(self);
        let mut view = View::new(self);
        let (mut has_made_room, mut is_again) = (false, false);
        let (mut _wanting, mut _alone) = (None, None);
        loop {
            // So does who splits directories.
            let comes_again = caller.op.sequence != 0 || verb == number::SPLIT_STEP;
            self.come_again_if_closing(is_again && comes_again)?;
            is_again = true;
            let mut keeps_elsewhere = false;
            let (mut writer, reply, mut outcome, across) =
                match self.try_to_decide(caller, &decide, &view, &reported)? {
                    Tried::Ready(writer, reply, outcome) => (writer, reply, outcome, None),
                    Tried::Spans(id, reply, outcome) => match self.collect_votes(id, op, &outcome.parts)? {
                        Voted::Yes { keeps_entries } => match self.lock_unless_moved(id, &view) {
                            Some(writer) => {
                                keeps_elsewhere = keeps_entries;
                                (writer, reply, outcome, Some(id))
                            }
                            None => continue,
                        },
                        voted => {
                            self.try_again(voted, &mut view, deadline)?;
                            continue;
                        }
                    },
                    Tried::Doubtful(doubt) => {
                        self.look_again(&mut view, doubt, deadline)?;
                        continue;
                    }
                    Tried::Elsewhere => {
                        self.ask_what_is_missing(&mut view, op, deadline)?;
                        continue;
                    }
                    Tried::Moved => {
                        view = View::new(self);
                        self.back_off(deadline)?;
                        continue;
                    }
                    Tried::Held => {
                        self.wait_for_keys(waiter, deadline)?;
                        continue;
                    }
                    Tried::Settling => {
                        self.wait_for_leases(waiter, deadline)?;
                        continue;
                    }
                    Tried::Conflicts(conflicts) => {
                        if let (number::WRITE_INLINE | number::CLEAR_SET_ID, Some(first)) =
                            (verb, conflicts.first())
                        {
                            // It may hold the page that the answer to a recall of its own session waits for, and so may the write that it waits for.
                            _wanting = _wanting.or_else(|| Wanting::begin_for(self, caller, first.inode));
                        }
                        _alone = _alone.or_else(|| Alone::begin(self, &conflicts));
                        self.recall_reports(waiter, &conflicts, session, deadline, &mut reported)?;
                        continue;
                    }
                };
            let decision =
                across.map(|id| self.decide_across(&writer, caller, id, &mut outcome)).transpose()?;
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
            let granted =
                self.adjust_leases(verb, (&outcome, keeps_elsewhere), |leases| grant(reply, leases));
            drop(writer);
            self.let_go(&outcome);
            self.note_grown(&outcome.grown);
            if let Some(decision) = decision {
                self.tell_decision(decision, position);
            }
            if is_sync {
                self.lane.flush(position).map_err(|error| self.answer(&error.into()))?;
            }
            return Ok(granted);
        }
    }

    /// Has leases know of a change that `verb` has made, and then `grant` some.
    fn adjust_leases<T>(
        &self,
        verb: u8,
        (outcome, keeps_elsewhere): (&TxnOutcome, bool),
        grant: impl FnOnce(&mut LeaseTable) -> T,
    ) -> T {
        let mut leases = self.leases.lock();
        self.forget_removed(outcome, &mut leases);
        // Before any other change of attributes the writer's client reports by itself.
        if matches!(verb, number::LINK | number::UNLINK | number::RENAME) {
            leases.note_links_changed(&outcome.changed);
        }
        leases.withhold(&outcome.in_split);
        leases.note_kept_elsewhere(keeps_elsewhere);
        grant(&mut leases)
    }

    /// What a transaction comes to. One that was refused has only read; what it read may be held, and the refusal be from the half of an operation.
    fn finish(&self, txn: Txn<'_>, is_good: bool) -> Result<TxnOutcome, Errno> {
        if !is_good {
            return Ok(txn.into_refused());
        }
        txn.finish().map_err(|error| self.answer(&error))
    }

    /// Takes the lane for the decision of the transaction `id`, which all have voted for. It does not happen if a shard has gone or come meanwhile: its
    /// participants may be others.
    fn lock_unless_moved(&self, id: TransactionId, view: &View<'_>) -> Option<LaneWriter<'_>> {
        let writer = self.lane.write();
        if self.across.generation() == view.generation {
            return Some(writer);
        }
        drop(writer);
        self.abort_across(id);
        None
    }

    /// Has others told anew what a call goes by that is to change nothing.
    ///
    /// # Errors
    /// When the time is up.
    fn look_again(&self, view: &mut View<'_>, doubt: Doubt, deadline: Duration) -> Result<(), Errno> {
        let is_like_before = view.doubt.as_ref().is_some_and(|(before, _)| before.errno == doubt.errno);
        let looks = view.doubt.as_ref().filter(|_| is_like_before).map_or(1, |(_, looks)| looks + 1);
        view.doubt = Some((doubt, looks));
        if let Some(known) = &mut view.known {
            known.forget(|shard| self.is_silent(shard));
        }
        // At once the first time: hardly ever has anything changed.
        if looks > 1 { self.back_off(deadline) } else { Ok(()) }
    }

    /// Decides once, under the lane's lock.
    fn try_to_decide<R>(
        &self,
        caller: Caller<'_>,
        decide: &impl Fn(&mut Txn<'_>, &OpContext<'_>) -> Result<R, NsError>,
        view: &View<'_>,
        reported: &Reported<'_>,
    ) -> Result<Tried<'_, R>, Errno> {
        // What the service does by itself has no number, and settling is part of it.
        let is_of_a_client = caller.op.sequence != 0;
        let writer = self.lane.write();
        // ORDER: under the lane's lock, which whoever gives a shard away takes after it is not here any more.
        if self.across.generation() != view.generation {
            return Ok(Tried::Moved);
        }
        // ORDER: under the lane's lock. A session is taken off the list before what it left is cleaned up; what it committed after
        // that, nobody would. (The service's own calls on behalf of a session that has ended have no number.)
        if is_of_a_client && !self.sessions.has(caller.op.session) {
            return Err(Errno::ENOTCONN);
        }
        let open_in = |inode| self.opens.lock().sessions(inode);
        let context = self.context(caller, self.env.clock.now(), &view.placement, &open_in);
        let mut txn = transaction(&writer, view.known.as_ref()).within(caller.reach);
        let decided = decide(&mut txn, &context);
        if let Err(NsError::Elsewhere) = decided {
            return Ok(Tried::Elsewhere);
        }
        let outcome = self.finish(txn, decided.is_ok())?;
        if self.is_blocked(&outcome) {
            return Ok(Tried::Held);
        }
        if let Some(doubt) = Doubt::of(&writer, decided.as_ref().err(), &outcome)?
            && !view.is_settled(&doubt)
        {
            return Ok(Tried::Doubtful(doubt));
        }
        let reply = decided.map_err(|error| self.answer(&error))?;
        // What the service does by itself may be in a shard that has gone.
        let is_good = |(shard, writes): &(ShardId, WriteSet)| {
            self.is_here(*shard) || writes.0.iter().all(|(key, _)| key::is_of_server(key))
        };
        if view.known.is_some() && !outcome.writes.iter().all(is_good) {
            return Err(Errno::EHOSTDOWN);
        }
        let leases = self.leases.lock();
        let conflicts = self.conflicts(&leases, caller.op.session, &outcome, reported);
        if !conflicts.is_empty() {
            return Ok(Tried::Conflicts(conflicts));
        }
        if is_of_a_client && leases.is_settling(&outcome) {
            return Ok(Tried::Settling);
        }
        drop(leases);
        if outcome.parts.is_empty() || outcome.changes_nothing() {
            return Ok(Tried::Ready(writer, reply, outcome));
        }
        if !outcome.frees_space && writer.is_space_low() {
            return Err(Errno::ENOSPC);
        }
        Ok(match self.begin_across(&outcome) {
            Some(id) => Tried::Spans(id, reply, outcome),
            None => Tried::Held,
        })
    }

    /// What must be given back, or reported, before `session` may be told or commit `outcome`.
    fn conflicts(
        &self,
        leases: &LeaseTable,
        session: SessionId,
        outcome: &TxnOutcome,
        reported: &Reported<'_>,
    ) -> SmallVec<[Conflict; 2]> {
        let mut conflicts = leases.conflicts(session, outcome, &reported.writers(leases));
        if !conflicts.is_empty() {
            leases.excuse(session, &mut conflicts, self.env.clock.monotonic());
        }
        conflicts
    }

    /// Asks others what a call has to know of their shards.
    fn ask_what_is_missing(&self, view: &mut View<'_>, op: OpId, deadline: Duration) -> Result<(), Errno> {
        let asked = view.known.as_mut().map(|known| self.ask(known, op, deadline));
        match asked.unwrap_or(Err(Errno::EIO)) {
            Err(Errno::EHOSTDOWN) if view.placement.is_silent() => {
                // It can be made here instead.
                view.placement.prefer_home();
                Ok(())
            }
            outcome => outcome,
        }
    }

    /// Makes ready for another try after not all parts could be locked.
    fn try_again(&self, voted: Voted, view: &mut View<'_>, deadline: Duration) -> Result<(), Errno> {
        if let Some(known) = &mut view.known {
            known.forget(|shard| self.is_silent(shard));
        }
        if voted == Voted::Silence {
            // A directory can be made here instead.
            view.placement.prefer_home();
        }
        self.back_off(deadline)
    }

    /// Makes of `outcome` what is committed when all parts are locked.
    fn decide_across(
        &self,
        writer: &LaneWriter<'_>,
        caller: Caller<'_>,
        id: TransactionId,
        outcome: &mut TxnOutcome,
    ) -> Result<Decision, Errno> {
        let open_in = |inode| self.opens.lock().sessions(inode);
        let context = self.context(caller, self.env.clock.now(), self, &open_in);
        let is_gone = caller.op.sequence != 0 && !self.sessions.has(caller.op.session);
        let written = match is_gone {
            true => Err(Errno::ENOTCONN),
            false => self.write_decision(writer, &context, id, outcome),
        };
        written.inspect_err(|_| self.abort_across(id))
    }

    pub(crate) fn commit(
        &self,
        writer: &mut LaneWriter<'_>,
        caller: Caller<'_>,
        verb: u8,
        outcome: &mut TxnOutcome,
    ) -> Result<(bool, ashlar_kv::Position), Errno> {
        if outcome.writes.is_empty() {
            return Ok((false, ashlar_kv::Position::default()));
        }
        self.note_orphans_and_garbage(outcome);
        // The stronger one counts of what the mount wants and what the directory does. Access times that are told late nobody waits for.
        let is_sync = outcome.is_sync
            || caller.op.session.durability() == Durability::Sync && !outcome.changed.is_empty();
        let urgency = if outcome.frees_space { Urgency::FreesSpace } else { Urgency::Normal };
        let writes = std::mem::take(&mut outcome.writes);
        let position = self.append(writer, caller.op, verb, writes, urgency)?;
        if outcome.has_garbage {
            self.garbage.wake(position);
        }
        Ok((is_sync, position))
    }

    /// Appends changes to the log as one group, a frame per shard.
    pub(crate) fn append(
        &self,
        writer: &mut LaneWriter<'_>,
        op: OpId,
        verb: u8,
        writes: Vec<(ShardId, WriteSet)>,
        urgency: Urgency,
    ) -> Result<ashlar_kv::Position, Errno> {
        self.append_raw(writer, op, verb, writes, urgency).map_err(|error| self.answer(&error.into()))
    }

    /// As [`MetaService::append`], for whoever tells failures of the log apart.
    pub(crate) fn append_raw(
        &self,
        writer: &mut LaneWriter<'_>,
        op: OpId,
        verb: u8,
        writes: Vec<(ShardId, WriteSet)>,
        urgency: Urgency,
    ) -> Result<ashlar_kv::Position, KvError> {
        let epoch = self.map.read().epoch;
        let tracked = self.across.tracked(&writes);
        let frame = |(shard, writes)| Frame { shard, epoch, op, verb, writes, reply: bytes::Bytes::new() };
        let frames = writes.into_iter().map(frame).collect();
        let position = writer.commit(frames, urgency)?;
        self.across.note_changed(tracked);
        Ok(position)
    }

    fn note_orphans_and_garbage(&self, outcome: &mut TxnOutcome) {
        for (_, writes) in &outcome.writes {
            for (changed_key, value) in &writes.0 {
                match (changed_key.get(2), value) {
                    (Some(b'O'), Some(_)) => {
                        if let Some(orphan) = key::orphan_of(changed_key) {
                            self.opens.lock().note_orphan(orphan.0);
                            outcome.orphaned.push(orphan);
                        }
                    }
                    (Some(b'O'), None) => {
                        let orphan = key::orphan_of(changed_key).map(|(inode, _)| inode);
                        outcome.named.extend(orphan.filter(|inode| is_written(writes, *inode)));
                    }
                    (Some(b'I'), None) => outcome.removed.extend(key::inode_of(changed_key)),
                    _ => {}
                }
            }
        }
    }

    /// Removes what was closed while it lost its last name: whoever closed it did not know yet that it was an orphan.
    pub(crate) fn let_go(&self, outcome: &TxnOutcome) {
        for &(inode, session) in &outcome.orphaned {
            if self.opens.lock().sessions(inode).contains(&session) {
                continue;
            }
            if let Err(errno) = self.release_orphan(inode, session) {
                tracing::debug!(%errno, %inode, "a file without a name that nobody has open cannot be removed yet");
            }
        }
    }

    pub(crate) fn forget_removed(&self, outcome: &TxnOutcome, leases: &mut LeaseTable) {
        for &inode in &outcome.removed {
            leases.forget_inode(inode);
            self.opens.lock().forget_orphan(inode);
            self.unsettled.forget(inode);
        }
        outcome.named.iter().for_each(|&inode| self.opens.lock().forget_orphan(inode));
    }

    /// The one place where a failure of the store becomes an errno, and is logged.
    pub(crate) fn answer(&self, error: &NsError) -> Errno {
        match error {
            NsError::Errno(_)
            | NsError::Kv(KvError::NoSpace { .. } | KvError::NotPrimary { .. })
            | NsError::Elsewhere => {}
            NsError::Kv(error) => {
                tracing::error!(%error, "the metadata store failed");
                if let (KvError::Corrupt { .. }, Some(reports)) = (error, self.reports.get()) {
                    reports.report(EventKind::DamageFound, "metadata", &error.to_string());
                }
            }
        }
        error.errno()
    }
}

/// Whether `writes` change the record of `inode`. With records of those who have it open without a name taken out beside it that is a link, which takes them all; a
/// close leaves the record as it is, or takes it out, too.
fn is_written(writes: &WriteSet, inode: InodeId) -> bool {
    let record = key::inode(inode);
    writes.0.iter().any(|(written, value)| value.is_some() && *written == record)
}

/// A transaction on what is here, and on what is `known` of other servers.
fn transaction<'a>(here: &'a dyn Snapshot, known: Option<&'a Known>) -> Txn<'a> {
    match known {
        Some(known) => Txn::spanning(here, known),
        None => Txn::new(here),
    }
}
