//! Getting leases back from those who hold them, with a bound.

use crate::MetaService;
use ashlar_namespace::lease::{Conflict, LeaseTable, RecallUnderWay};
use ashlar_types::message::SessionEvent;
use ashlar_types::{Errno, InodeId, SessionId};
use smallvec::SmallVec;
use std::time::Duration;

/// A recall that is not answered in this time evicts the session (`design.md` D7), unless it says that it is waiting for a disk.
pub(crate) const RECALL_MAX: Duration = Duration::from_secs(5);

/// A recall that is not answered in this time evicts the session whatever it says.
const BUSY_MAX: Duration = Duration::from_secs(60);

/// Time between looks at whether a session is still busy.
const BUSY_PAUSE: Duration = Duration::from_secs(1);

/// Time between looks at whether an eviction by another call has ended a recall.
const EVICTION_PAUSE: Duration = Duration::from_millis(20);

/// Writers that have reported since a call began.
#[derive(Default)]
pub(crate) struct Reported {
    writers: SmallVec<[(SessionId, InodeId); 2]>,
    /// The newest recall when the call first met somebody's lease. One that is older may have been answered with a size from before the
    /// call: it is waited for, and does not count.
    mark: Option<u64>,
}

impl Reported {
    /// Who, about what.
    pub(crate) fn writers(&self) -> &[(SessionId, InodeId)] {
        &self.writers
    }
}

impl MetaService {
    /// Recalls what is in the way and waits until it is given back; `deadline` is a time of the monotonic clock.
    ///
    /// # Errors
    /// `ETIMEDOUT` when `deadline` is past.
    pub(crate) fn recall(&self, conflicts: &[Conflict], deadline: Duration) -> Result<(), Errno> {
        self.recall_reports(conflicts, deadline, &mut Reported::default())
    }

    /// As [`MetaService::recall`], and notes who has reported.
    ///
    /// # Errors
    /// `ETIMEDOUT` when `deadline` is past.
    pub(crate) fn recall_reports(
        &self,
        conflicts: &[Conflict],
        deadline: Duration,
        reported: &mut Reported,
    ) -> Result<(), Errno> {
        self.recall_until(conflicts, deadline, reported, |_, _| false)
    }

    /// Recalls content that is in the way of a read or write of `session`. Ends early when the wait would be for a session that may be waiting
    /// for this one, see [`LeaseTable::may_go_before`].
    ///
    /// # Errors
    /// `ETIMEDOUT` when `deadline` is past.
    pub(crate) fn recall_data(
        &self,
        conflicts: &[Conflict],
        (session, inode): (SessionId, InodeId),
        deadline: Duration,
    ) -> Result<(), Errno> {
        self.recall_until(conflicts, deadline, &mut Reported::default(), |leases, holder| {
            leases.may_go_before(session, holder, inode)
        })
    }

    fn recall_until(
        &self,
        conflicts: &[Conflict],
        deadline: Duration,
        reported: &mut Reported,
        is_excused: impl Fn(&LeaseTable, SessionId) -> bool,
    ) -> Result<(), Errno> {
        if self.env.clock.monotonic() > deadline {
            return Err(Errno::ETIMEDOUT);
        }
        let mut ids: SmallVec<[u64; 2]> = SmallVec::new();
        let mut to_send: SmallVec<[(SessionId, SessionEvent); 2]> = SmallVec::new();
        {
            let now = self.env.clock.monotonic();
            let mut leases = self.leases.lock();
            let mark = *reported.mark.get_or_insert(leases.recall_mark());
            for conflict in conflicts {
                let (id, recall) = leases.begin_recall(*conflict, now);
                ids.push(id);
                if id > mark {
                    reported.writers.push((conflict.session, conflict.inode));
                }
                to_send.extend(recall.map(|recall| (conflict.session, SessionEvent::Recall(recall))));
            }
        }
        for (session, event) in to_send {
            self.sessions.deliver(session, event);
        }
        self.wait_for_recalls(&ids, deadline, is_excused)
    }

    /// Waits until none of `ids` is under way but with holders that are excused, and evicts who does not answer.
    ///
    /// # Errors
    /// `ETIMEDOUT` when `deadline` is past.
    fn wait_for_recalls(
        &self,
        ids: &[u64],
        deadline: Duration,
        is_excused: impl Fn(&LeaseTable, SessionId) -> bool,
    ) -> Result<(), Errno> {
        let mut give_up = self.env.clock.monotonic() + RECALL_MAX;
        let mut leases = self.leases.lock();
        loop {
            let late = ids
                .iter()
                .filter_map(|&id| leases.recall_under_way(id))
                .find(|late| !is_excused(&leases, late.session));
            let Some(late) = late else { return Ok(()) };
            let left = give_up.min(deadline).saturating_sub(self.env.clock.monotonic());
            if self.leases_changed.wait_for(&mut leases, left) {
                if ids.iter().all(|&id| leases.recall_under_way(id) != Some(late)) {
                    // It came at the last moment.
                    continue;
                }
                drop(leases);
                if self.env.clock.monotonic() >= deadline {
                    return Err(Errno::ETIMEDOUT);
                }
                give_up = self.env.clock.monotonic().saturating_add(self.evict_unless_busy(late));
                leases = self.leases.lock();
            }
        }
    }

    /// Evicts the session whose answer to a recall is late, unless it waits for a disk as everybody would; tells when to look again.
    fn evict_unless_busy(&self, late: RecallUnderWay) -> Duration {
        let age = self.env.clock.monotonic().saturating_sub(late.since);
        if age < BUSY_MAX && self.sessions.is_busy(late.session, late.inode) {
            tracing::warn!(session = %late.session, inode = %late.inode, "a recall waits for a slow disk");
            return BUSY_PAUSE;
        }
        self.session_evict(late.session);
        // Another call may be ending the same session just now: its recalls end with it, a moment later.
        EVICTION_PAUSE
    }

    /// A session has given back what was recalled.
    pub(crate) fn recall_done(&self, id: u64) {
        self.leases.lock().end_recall(id);
        self.leases_changed.notify_all();
    }

    /// Waits a moment for a recall or block by others to end.
    ///
    /// # Errors
    /// `ETIMEDOUT` when `deadline` is past.
    pub(crate) fn wait_for_leases(&self, deadline: Duration) -> Result<(), Errno> {
        if self.env.clock.monotonic() > deadline {
            return Err(Errno::ETIMEDOUT);
        }
        let mut leases = self.leases.lock();
        // A change between the failed grant and this wait is not lost: the wait is short and the grant is tried again.
        self.leases_changed.wait_for(&mut leases, Duration::from_millis(20));
        Ok(())
    }
}
