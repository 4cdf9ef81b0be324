//! How much the service has in its tables, and what its lane has counted.

use crate::MetaService;
use ashlar_kv::LaneStats;
use ashlar_rpc::SessionHolds;
use ashlar_types::SessionId;
use rustc_hash::FxHashMap;

/// Sizes at this moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MetaMeasures {
    /// Sessions.
    pub sessions: usize,
    /// Inodes under lease.
    pub leased_inodes: usize,
    /// Locks that are held.
    pub locks_held: usize,
    /// Requests that wait for a lock.
    pub locks_awaited: usize,
    /// Inodes that somebody has open.
    pub open_inodes: usize,
    /// Directories that are split.
    pub splits: crate::SplitMeasures,
    /// The log and the engine.
    pub lane: LaneStats,
}

impl MetaService {
    /// How much each session has. The tables are gone through one after the other.
    pub(crate) fn holds_by_session(&self) -> FxHashMap<SessionId, SessionHolds> {
        let mut holds: FxHashMap<SessionId, SessionHolds> = FxHashMap::default();
        let leases = self.leases.lock().inodes_by_session();
        leases.into_iter().for_each(|(session, count)| holds.entry(session).or_default().leases = count);
        let opens = self.opens.lock().inodes_by_session();
        opens.into_iter().for_each(|(session, count)| holds.entry(session).or_default().opens = count);
        let locks = self.locks.lock().files_by_session();
        locks.into_iter().for_each(|(session, count)| holds.entry(session).or_default().locks = count);
        holds
    }

    /// See [`MetaMeasures`]. Each number is right by itself; they are not taken at one moment.
    pub fn measures(&self) -> MetaMeasures {
        let sessions = self.sessions.len();
        let leased_inodes = self.leases.lock().len();
        let (locks_held, locks_awaited) = {
            let locks = self.locks.lock();
            (locks.held_count(), locks.waiting_count())
        };
        let open_inodes = self.opens.lock().len();
        MetaMeasures {
            sessions,
            leased_inodes,
            locks_held,
            locks_awaited,
            open_inodes,
            splits: self.splits.measures(),
            lane: self.lane.stats(),
        }
    }
}
