//! Getting leases back from those who hold them, with a bound.

use crate::MetaService;
use crate::waiting::Waiter;
use ashlar_namespace::lease::{Conflict, LeaseTable, RecallUnderWay};
use ashlar_rpc::Caller;
use ashlar_types::message::{LeaseSet, SessionEvent};
use ashlar_types::{Errno, InodeId, SessionId};
use smallvec::SmallVec;
use std::time::Duration;

/// A recall that is not answered in this time evicts the session (`design.md` D7), unless it says that it is waiting for a disk. Time in which this server tells nothing, as its copies are waited for,
/// does not count: it is as long as that until a copy that has died is gone from the group.
pub(crate) const RECALL_MAX: Duration = Duration::from_secs(5);

/// A recall that is not answered in this time evicts the session whatever it says.
const BUSY_MAX: Duration = Duration::from_secs(60);

/// Time between looks at whether a session is still busy.
const BUSY_PAUSE: Duration = Duration::from_secs(1);

/// Time between looks at whether an eviction by another call has ended a recall.
const EVICTION_PAUSE: Duration = Duration::from_millis(20);

/// Time between looks of who cannot come again, while a shard is about to leave.
const CLOSING_PAUSE: Duration = Duration::from_millis(10);

/// How often a writer is asked at the most because its file got or lost a name just after it had reported.
// LIMIT: a session that links and writes one file on and on would keep everybody else's stat from ending. Past it a stat may tell the links
// after, and the size before.
const ROUNDS_MAX: u32 = 8;

/// Writers that have reported since a call began.
pub(crate) struct Reported<'a> {
    service: &'a MetaService,
    /// Who, about what, and the newest change of its links before; `None`: the lease was given back.
    writers: SmallVec<[(SessionId, InodeId, Option<u64>); 2]>,
    /// Files whose links are watched for this call.
    asked: SmallVec<[InodeId; 2]>,
    rounds: u32,
    /// The newest recall when the call first met somebody's lease. One that is older may have been answered with a size from before the
    /// call: it is waited for, and does not count.
    mark: Option<u64>,
}

impl Drop for Reported<'_> {
    fn drop(&mut self) {
        if !self.asked.is_empty() {
            let mut leases = self.service.leases.lock();
            self.asked.iter().for_each(|&inode| leases.end_asking(inode));
        }
    }
}

impl<'a> Reported<'a> {
    pub(crate) fn new(service: &'a MetaService) -> Reported<'a> {
        let (writers, asked) = (SmallVec::new(), SmallVec::new());
        Reported { service, writers, asked, rounds: 0, mark: None }
    }

    /// Who, about what: those whose report goes with what the inode is now. A writer that has linked the file since may have written more
    /// before, and nobody has ever seen the new link with the old size.
    pub(crate) fn writers(&self, leases: &LeaseTable) -> SmallVec<[(SessionId, InodeId); 2]> {
        let is_current = |&&(_, inode, change): &&(SessionId, InodeId, Option<u64>)| {
            self.rounds >= ROUNDS_MAX || change.is_none_or(|change| change == leases.change_of(inode))
        };
        self.writers.iter().filter(is_current).map(|&(session, inode, _)| (session, inode)).collect()
    }

    /// Begins to recall `conflict`, unless nothing of it is left.
    fn begin(
        &mut self,
        leases: &mut LeaseTable,
        conflict: Conflict,
        now: Duration,
    ) -> Option<(u64, Option<(SessionId, SessionEvent)>)> {
        let Conflict { session, inode, flush_only, .. } = conflict;
        let mark = *self.mark.get_or_insert(leases.recall_mark());
        if flush_only && !self.asked.contains(&inode) {
            leases.begin_asking(inode);
            self.asked.push(inode);
        }
        let (id, recall) = leases.begin_recall(conflict, now)?;
        if id > mark {
            let change = leases.change_before_recall(id).filter(|_| flush_only);
            self.writers.retain(|known| (known.0, known.1) != (session, inode));
            self.writers.push((session, inode, change));
        }
        Some((id, recall.map(|recall| (session, SessionEvent::Recall(recall)))))
    }
}

/// A call that wants WRITE, or to write with the inode, and may hold a page that the answer of its session waits for, for as long as it lives.
pub(crate) struct Wanting<'a> {
    service: &'a MetaService,
    session: SessionId,
    inode: InodeId,
}

impl<'a> Wanting<'a> {
    /// For a call that may hold a page which the answer of its own session waits for.
    pub(crate) fn begin(service: &'a MetaService, session: SessionId, inode: InodeId) -> Wanting<'a> {
        service.leases.lock().begin_wanting(session, inode);
        // Another session that wants to write, too, need not wait for the answer of this one any more.
        service.leases_changed.notify_all();
        Wanting { service, session, inode }
    }

    /// The same, unless recalls are answered while `caller` waits.
    pub(crate) fn begin_for(
        service: &'a MetaService,
        caller: Caller<'_>,
        inode: InodeId,
    ) -> Option<Wanting<'a>> {
        (!caller.yields).then(|| Wanting::begin(service, caller.op.session, inode))
    }
}

impl Drop for Wanting<'_> {
    fn drop(&mut self) {
        self.service.leases.lock().end_wanting(self.session, self.inode);
    }
}

/// A call that has SHARE taken back, for as long as it lives: nobody gets it again meanwhile.
pub(crate) struct Alone<'a> {
    service: &'a MetaService,
    inode: InodeId,
}

impl<'a> Alone<'a> {
    /// For the file on which one of `conflicts` is SHARE, if any is.
    pub(crate) fn begin(service: &'a MetaService, conflicts: &[Conflict]) -> Option<Alone<'a>> {
        let is_share = |conflict: &&Conflict| conflict.leases.has(LeaseSet::SHARE) && !conflict.flush_only;
        let inode = conflicts.iter().find(is_share)?.inode;
        service.leases.lock().begin_alone(inode);
        Some(Alone { service, inode })
    }
}

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        self.service.leases.lock().end_alone(self.inode);
        self.service.leases_changed.notify_all();
    }
}

impl MetaService {
    /// Recalls what is in the way and waits until it is given back; `deadline` is a time of the monotonic clock.
    ///
    /// # Errors
    /// [`Waiter::out_of_time`] when `deadline` is past; `EHOSTDOWN` when too many wait already: all is recalled, and the call is to come again.
    pub(crate) fn recall(
        &self,
        waiter: Waiter,
        conflicts: &[Conflict],
        deadline: Duration,
    ) -> Result<(), Errno> {
        self.recall_until(waiter, conflicts, deadline, &mut Reported::new(self), |_, _| false)
    }

    /// As [`MetaService::recall`] for a call of `session`, and notes who has reported. Ends early when the wait would be for a session that
    /// waits for this one, see [`LeaseTable::has_gone_before`].
    ///
    /// # Errors
    /// As [`MetaService::recall`].
    pub(crate) fn recall_reports(
        &self,
        waiter: Waiter,
        conflicts: &[Conflict],
        session: SessionId,
        deadline: Duration,
        reported: &mut Reported<'_>,
    ) -> Result<(), Errno> {
        self.recall_until(waiter, conflicts, deadline, reported, |leases, late| {
            late.is_of_pages && leases.has_gone_before(session, late.session, late.inode)
        })
    }

    /// Recalls content that is in the way of a read or write of `session`. Ends early when the wait would be for a session that may be waiting
    /// for this one, see [`LeaseTable::may_go_before`].
    ///
    /// # Errors
    /// As [`MetaService::recall`].
    pub(crate) fn recall_data(
        &self,
        waiter: Waiter,
        conflicts: &[Conflict],
        (session, inode): (SessionId, InodeId),
        deadline: Duration,
    ) -> Result<(), Errno> {
        self.recall_until(waiter, conflicts, deadline, &mut Reported::new(self), |leases, late| {
            late.is_of_pages && leases.may_go_before(session, late.session, inode)
        })
    }

    /// Recalls what is in the way of SHARE for a write of `session`. Ends early when that has got READ or WRITE meanwhile, for a page that it reads: then somebody may want that back, and
    /// the answer wait for the very write. It has to ask for WRITE, like all whose answers wait ([`LeaseTable::may_go_before`]).
    ///
    /// # Errors
    /// As [`MetaService::recall`].
    pub(crate) fn recall_to_share(
        &self,
        waiter: Waiter,
        conflicts: &[Conflict],
        (session, inode): (SessionId, InodeId),
        deadline: Duration,
    ) -> Result<(), Errno> {
        self.recall_until(waiter, conflicts, deadline, &mut Reported::new(self), |leases, _| {
            leases.held(session, inode).meets(LeaseSet::PAGES)
        })
    }

    fn recall_until(
        &self,
        waiter: Waiter,
        conflicts: &[Conflict],
        deadline: Duration,
        reported: &mut Reported<'_>,
        is_excused: impl Fn(&LeaseTable, RecallUnderWay) -> bool,
    ) -> Result<(), Errno> {
        if self.env.clock.monotonic() > deadline {
            return Err(waiter.out_of_time());
        }
        let mut ids: SmallVec<[u64; 2]> = SmallVec::new();
        let mut to_send: SmallVec<[(SessionId, SessionEvent); 2]> = SmallVec::new();
        {
            let now = self.env.clock.monotonic();
            let mut leases = self.leases.lock();
            reported.rounds += 1;
            for conflict in conflicts {
                if let Some((id, event)) = reported.begin(&mut leases, *conflict, now) {
                    ids.push(id);
                    to_send.extend(event);
                }
            }
        }
        if !to_send.is_empty() {
            // Who waits for a session that is now asked itself may be excused from waiting.
            self.leases_changed.notify_all();
        }
        for (session, event) in to_send {
            self.sessions.deliver(session, event);
        }
        self.wait_for_recalls(waiter, &ids, deadline, is_excused)
    }

    /// Waits until none of `ids` is under way but with holders that are excused, and evicts who does not answer.
    ///
    /// # Errors
    /// [`Waiter::out_of_time`] when `deadline` is past; `EHOSTDOWN` when too many wait already.
    fn wait_for_recalls(
        &self,
        waiter: Waiter,
        ids: &[u64],
        deadline: Duration,
        is_excused: impl Fn(&LeaseTable, RecallUnderWay) -> bool,
    ) -> Result<(), Errno> {
        let mut give_up = self.env.clock.monotonic() + RECALL_MAX;
        let mut turn = None;
        let mut leases = self.leases.lock();
        loop {
            let late = ids
                .iter()
                .filter_map(|&id| leases.recall_under_way(id))
                .find(|late| !is_excused(&leases, *late));
            let Some(late) = late else { return Ok(()) };
            if self.across.is_closing() {
                // Whoever comes again does, and the others look again in a moment.
                self.leases_changed.wait_for(&mut leases, CLOSING_PAUSE);
                return Ok(());
            }
            let turn = match &mut turn {
                Some(turn) => turn,
                none => match self.waiting.begin_or_look(waiter) {
                    Ok(turn) => {
                        let left = turn.at_most(RECALL_MAX);
                        give_up = self.env.clock.monotonic() + left;
                        none.insert(turn)
                    }
                    Err(errno) => {
                        drop(leases);
                        self.evict_if_due(late);
                        return Err(errno);
                    }
                },
            };
            let left = give_up.min(deadline).saturating_sub(self.env.clock.monotonic());
            if self.leases_changed.wait_for(&mut leases, left) {
                if is_excused(&leases, late)
                    || ids.iter().all(|&id| leases.recall_under_way(id) != Some(late))
                {
                    // It came at the last moment.
                    continue;
                }
                drop(leases);
                if self.env.clock.monotonic() >= deadline {
                    return Err(waiter.out_of_time());
                }
                if turn.is_short() {
                    self.evict_if_due(late);
                    return Err(Errno::EHOSTDOWN);
                }
                give_up = self.env.clock.monotonic().saturating_add(self.evict_unless_busy(late));
                leases = self.leases.lock();
            }
        }
    }

    /// Whether a session whose answer is late waits for a disk, as everybody would, and not for too long yet.
    fn is_excused_by_disk(&self, late: RecallUnderWay) -> bool {
        let age = self.env.clock.monotonic().saturating_sub(late.since);
        age < BUSY_MAX && self.sessions.is_busy(late.session, late.inode)
    }

    /// Evicts the session whose answer to a recall is late, unless it waits for a disk as everybody would; tells when to look again.
    fn evict_unless_busy(&self, late: RecallUnderWay) -> Duration {
        if self.is_excused_by_disk(late) {
            tracing::warn!(session = %late.session, inode = %late.inode, "a recall waits for a slow disk");
            return BUSY_PAUSE;
        }
        // Whoever has waited has waited long enough otherwise.
        if self.lane.held_up_at() > late.since {
            let left = RECALL_MAX.saturating_sub(self.waited_for(late));
            if !left.is_zero() {
                tracing::debug!(session = %late.session, "a recall may have been held up here: its answer has more time");
                return left;
            }
        }
        let left = self.session_evict(late.session);
        // Another call may be ending the same session just now: its recalls end with it, a moment later.
        left.max(EVICTION_PAUSE)
    }

    /// The same for who does not wait: whoever comes again may find nobody who does.
    fn evict_if_due(&self, late: RecallUnderWay) {
        if self.waited_for(late) >= RECALL_MAX {
            self.evict_unless_busy(late);
        }
    }

    /// For how long a session has had time to answer. While what it is told, or what it asks for its answer, is held up here, it has none; but as long as for a disk at the most.
    fn waited_for(&self, late: RecallUnderWay) -> Duration {
        let now = self.env.clock.monotonic();
        let age = now.saturating_sub(late.since);
        if age >= BUSY_MAX { age } else { age.min(now.saturating_sub(self.lane.held_up_at())) }
    }

    /// As [`MetaService::wait_for_leases`] for one who is granted nothing on `inode`, as something of it is recalled. Who has recalled it need not wait for the answer (see
    /// [`LeaseTable::may_go_before`]): then nobody else evicts a session that does not give it. It gets twice the time, as it may wait for another one that is late.
    ///
    /// # Errors
    /// As [`MetaService::wait_for_leases`].
    pub(crate) fn wait_to_be_granted(
        &self,
        waiter: Waiter,
        inode: InodeId,
        deadline: Duration,
    ) -> Result<(), Errno> {
        self.wait_for_leases(waiter, deadline)?;
        let late = self.leases.lock().oldest_recall_of(inode);
        let late = late.filter(|late| self.waited_for(*late) >= 2 * RECALL_MAX);
        // Looked at after each short wait: one that is excused is not warned of each time.
        if let Some(late) = late.filter(|late| !self.is_excused_by_disk(*late)) {
            self.session_evict(late.session);
        }
        Ok(())
    }

    /// A session has given back what was recalled.
    pub(crate) fn recall_done(&self, id: u64, session: SessionId, inode: InodeId) {
        self.leases.lock().end_recall_of(id, session, inode);
        self.leases_changed.notify_all();
    }

    /// Waits a moment for a recall or block by others to end.
    ///
    /// # Errors
    /// [`Waiter::out_of_time`] when `deadline` is past; `EHOSTDOWN` when too many wait already.
    pub(crate) fn wait_for_leases(&self, waiter: Waiter, deadline: Duration) -> Result<(), Errno> {
        if self.env.clock.monotonic() > deadline {
            return Err(waiter.out_of_time());
        }
        let turn = self.waiting.begin_or_look(waiter)?;
        let mut leases = self.leases.lock();
        // A change between the failed grant and this wait is not lost: the wait is short and the grant is tried again.
        self.leases_changed.wait_for(&mut leases, turn.at_most(Duration::from_millis(20)));
        drop(leases);
        turn.end()
    }
}
