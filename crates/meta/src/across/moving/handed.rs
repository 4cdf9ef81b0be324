//! What a server has of a shard only in memory: told to the next server, taken over from the one before, forgotten.

use super::super::message::Hold;
use crate::MetaService;
use ashlar_kv::Snapshot;
use ashlar_namespace::lock::{LockHeld, LockWaiting};
use ashlar_namespace::{Txn, key};
use ashlar_types::message::LeaseSet;
use ashlar_types::{DescriptionId, Errno, InodeId, NodeId, SessionId, ShardId};
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::atomic::Ordering::SeqCst;

/// The same, by kind.
#[derive(Default)]
struct Sorted {
    opens: Vec<(SessionId, InodeId, (DescriptionId, bool))>,
    leases: Vec<(InodeId, SessionId, LeaseSet)>,
    locks: Vec<LockHeld>,
    waits: Vec<LockWaiting>,
    proposals: Vec<(SessionId, InodeId, u32)>,
    unsettled: Vec<(InodeId, u32, Errno)>,
}

impl Sorted {
    fn of(holds: &[Hold]) -> Sorted {
        let mut sorted = Sorted::default();
        for hold in holds {
            match *hold {
                Hold::Open(session, inode, handle, write) => {
                    sorted.opens.push((session, inode, (handle, write)))
                }
                Hold::Lease(inode, session, leases) => sorted.leases.push((inode, session, leases)),
                Hold::Lock(lock) => sorted.locks.push(lock),
                Hold::LockWait(wait) => sorted.waits.push(wait),
                Hold::Proposal(session, inode, generation) => {
                    sorted.proposals.push((session, inode, generation))
                }
                Hold::Unsettled(inode, generation, errno) => {
                    sorted.unsettled.push((inode, generation, errno))
                }
            }
        }
        sorted
    }
}

impl MetaService {
    /// All of `shard`. Nobody may be at work in it.
    pub(super) fn holds_of(&self, shard: ShardId) -> Vec<Hold> {
        let mut holds = Vec::new();
        let leases = self.leases.lock().of_shard(shard);
        holds.extend(leases.into_iter().map(|(inode, session, set)| Hold::Lease(inode, session, set)));
        let opens = self.opens.lock().of_shard(shard);
        let open = |(session, inode, (handle, write))| Hold::Open(session, inode, handle, write);
        holds.extend(opens.into_iter().map(open));
        let (held, waiting) = self.locks.lock().of_shard(shard);
        holds.extend(held.into_iter().map(Hold::Lock));
        holds.extend(waiting.into_iter().map(Hold::LockWait));
        let proposals = self.proposals.of_shard(shard);
        holds.extend(
            proposals.into_iter().map(|(session, inode, number)| Hold::Proposal(session, inode, number)),
        );
        let unsettled = self.unsettled.of_shard(shard);
        holds.extend(
            unsettled.into_iter().map(|(inode, number, errno)| Hold::Unsettled(inode, number, errno)),
        );
        holds
    }

    /// Takes over what the server before had of `shard`, whose newest recall was `recall_mark`. What belongs to sessions that have ended here meanwhile is
    /// left to whoever cleans up after them.
    pub(super) fn take_holds(&self, shard: ShardId, holds: &[Hold], recall_mark: u64) -> Result<(), Errno> {
        let sorted = Sorted::of(holds);
        {
            let mut leases = self.leases.lock();
            leases.raise_recalls(recall_mark);
            leases.take_over(&sorted.leases);
            let mut opens = self.opens.lock();
            for (session, inode, handle) in sorted.opens {
                if leases.has_session(session) {
                    // What the server before has promised is not known here.
                    opens.reopen(session, inode, handle);
                }
            }
        }
        self.note_orphans_in(shard)?;
        let mut grants = Vec::new();
        {
            let mut locks = self.locks.lock();
            let held: Vec<LockHeld> =
                sorted.locks.into_iter().filter(|lock| self.sessions.has(lock.session)).collect();
            let is_there = |wait: &LockWaiting| self.sessions.has(wait.wanted.session);
            let waiting: Vec<LockWaiting> = sorted.waits.into_iter().filter(is_there).collect();
            locks.take_over((&held, &waiting), self.env.clock.monotonic(), &mut grants);
        }
        self.announce_locks(grants);
        for (session, inode, generation) in sorted.proposals {
            self.proposals.note(session, inode, generation);
        }
        for (inode, generation, errno) in sorted.unsettled {
            self.unsettled.note(inode, generation, errno);
        }
        self.note_unmeasured_of(shard)
    }

    /// The map says that `shard` is the server's `to`: nothing of it is known here any more, and what is stored of it goes.
    pub(super) fn forget_given(&self, shard: ShardId, to: NodeId) {
        debug_assert!(to != self.across.node, "a shard is not given to oneself");
        // ORDER: from now on sessions are renewed only if they know of this map, and so of the next server.
        self.across.renew_by.fetch_max(self.map.read().epoch.0, SeqCst);
        self.leases.lock().forget_shard(shard);
        self.opens.lock().forget_shard(shard);
        self.locks.lock().forget_shard(shard);
        self.proposals.forget_shard(shard);
        self.unsettled.forget_shard(shard);
        self.across.with(|machines| machines.forget(shard));
        {
            let mut hands = self.across.hands.lock();
            hands.frozen.remove(&shard);
            hands.left_behind.insert(shard, key::shard_prefix(shard));
        }
        self.across.look_again();
        self.across.gates.open(shard);
        self.leases_changed.notify_all();
    }

    /// Cleans up in `shard`, whose gate is closed, after sessions that ended while it was nobody's, and opens the gate.
    pub(super) fn serve_again(&self, shard: ShardId) {
        let cleaned = self.strangers_in(shard).and_then(|strangers| {
            strangers.into_iter().try_for_each(|session| {
                tracing::info!(%session, %shard, "cleaning up after a session that ended while the shard was on its way");
                self.reap_shard(shard, session, None)
            })
        });
        if let Err(errno) = cleaned {
            tracing::error!(%errno, %shard, "could not clean up after sessions that have ended; the next start does it");
        }
        self.across.gates.open(shard);
        self.across.changed.notify_all();
        self.garbage.wake(self.lane.appended());
        self.resume_across();
    }

    /// Sessions that there are not, with records of orphans or writers in `shard`. Files of which nobody can tell the length yet have such records, too.
    fn strangers_in(&self, shard: ShardId) -> Result<BTreeSet<SessionId>, Errno> {
        let mut found = BTreeSet::new();
        for table in [b'O', b'W'] {
            let (from, to) = key::table_range(shard, table);
            let mut visit = |record_key: &[u8], _: &[u8]| {
                let is_waited_for = key::inode_of(record_key).is_some_and(|inode| self.unsettled.has(inode));
                let session = key::session_of_record(record_key);
                found.extend(session.filter(|session| !is_waited_for && !self.sessions.has(*session)));
                ControlFlow::Continue(())
            };
            let scanned = self.lane.read().scan(&from, &to, &mut visit);
            scanned.map_err(|error| self.answer(&error.into()))?;
        }
        Ok(found)
    }

    /// How many starts are noted: the next one has a higher number.
    pub(super) fn noted_starts(&self) -> Result<u64, Errno> {
        let reader = self.lane.read();
        let noted = Txn::new(&reader as &dyn Snapshot).get_record(&key::incarnation(), "number of starts");
        Ok(noted.map_err(|error| self.answer(&error))?.unwrap_or(0))
    }
}
