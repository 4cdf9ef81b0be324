//! Getting leases back from those who hold them, with a bound.

use crate::MetaService;
use ashlar_namespace::lease::Conflict;
use ashlar_types::message::SessionEvent;
use ashlar_types::{Errno, SessionId};
use smallvec::SmallVec;
use std::time::{Duration, Instant};

/// A recall that is not answered in this time evicts the session (`design.md` D7).
pub(crate) const RECALL_MAX: Duration = Duration::from_secs(5);

impl MetaService {
    /// Recalls what is in the way and waits until it is given back.
    ///
    /// # Errors
    /// `ETIMEDOUT` when `deadline` is past.
    pub(crate) fn recall(&self, conflicts: &[Conflict], deadline: Instant) -> Result<(), Errno> {
        if Instant::now() > deadline {
            return Err(Errno::ETIMEDOUT);
        }
        let mut ids: SmallVec<[u64; 2]> = SmallVec::new();
        let mut to_send: SmallVec<[(SessionId, SessionEvent); 2]> = SmallVec::new();
        {
            let mut leases = self.leases.lock();
            for conflict in conflicts {
                let (id, recall) = leases.begin_recall(*conflict);
                ids.push(id);
                to_send.extend(recall.map(|recall| (conflict.session, SessionEvent::Recall(recall))));
            }
        }
        for (session, event) in to_send {
            self.sessions.deliver(session, event);
        }
        self.wait_for_recalls(&ids);
        Ok(())
    }

    fn wait_for_recalls(&self, ids: &[u64]) {
        let give_up = Instant::now() + RECALL_MAX;
        let mut leases = self.leases.lock();
        loop {
            let late = ids.iter().find_map(|&id| leases.recall_holder(id));
            let Some(holder) = late else { return };
            if self.leases_changed.wait_until(&mut leases, give_up).timed_out() {
                drop(leases);
                self.session_evict(holder);
                leases = self.leases.lock();
            }
        }
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
    pub(crate) fn wait_for_leases(&self, deadline: Instant) -> Result<(), Errno> {
        if Instant::now() > deadline {
            return Err(Errno::ETIMEDOUT);
        }
        let mut leases = self.leases.lock();
        // A change between the failed grant and this wait is not lost: the wait is short and the grant is tried again.
        self.leases_changed.wait_for(&mut leases, Duration::from_millis(20));
        Ok(())
    }
}
