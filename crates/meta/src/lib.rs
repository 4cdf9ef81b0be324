//! The metadata service: sessions, leases and locks around the verbs of `namespace`, over one lane of `kv`.
//!
//! A call is decided under the lane's lock, and committed, if nobody else's lease is in the way; else the lock is dropped, the
//! leases are recalled, and the call is decided anew. So nothing waits while it holds the lane.
//!
//! Lock order: lane, then lease table, then open table; lock table and sessions are leaves of their own.
//!
//! What this crate is not: it knows no POSIX rule (that is `namespace`) and no transport (that is `rpc`).

mod across;
mod call;
mod collect;
mod execute;
mod kept;
mod lasting;
mod measures;
mod opens;
mod placement;
mod proposals;
mod recall;
mod reconcile;
mod recovery;
pub mod replica;
mod room;
mod sessions;
mod settle;
mod split;
mod trim;
mod uncompared;
mod unreleased;
mod unsettled;
mod waiting;

pub use across::{Transfer, Transferred, Unfinished};
pub use measures::MetaMeasures;
pub use recovery::RecoveryReport;
pub use split::SplitMeasures;

use ashlar_env::{Env, Signal};
use ashlar_kv::Lane;
use ashlar_namespace::lease::LeaseTable;
use ashlar_namespace::lock::LockTable;
use ashlar_rpc::{MetaPeers, Reports, StorageCalls};
use ashlar_types::{ClusterMap, NodeId};
use parking_lot::{Mutex, RwLock};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

/// What a metadata service is made of.
pub struct MetaConfig {
    /// Log, overlay and engine. With copies on other machines ([`replica::Replica`]) it stays open when the service ends.
    pub lane: Arc<Lane>,
    /// Clocks and randomness.
    pub env: Env,
    /// Key of the directory name hash.
    pub name_hash_key: [u8; 16],
    /// The cluster map, kept current by the manager.
    pub map: Arc<RwLock<Arc<ClusterMap>>>,
    /// Whether sessions go on that were there when the service ended: they are waited for ([`ashlar_rpc::LastingSessions`]).
    pub keeps_sessions: bool,
    /// The storage services, for what metadata itself asks of them: cutting, deleting, measuring.
    pub storage: Arc<dyn StorageCalls>,
    /// Whether something that was acknowledged and not synced may be missing in `lane`: sessions that outlive the service are told.
    pub has_lost: bool,
    /// Other metadata servers, and which node this one is; `None` where it is the only one for ever. With others it has the shards that the map says.
    pub peers: Option<(Arc<dyn MetaPeers>, NodeId)>,
}

/// See the crate.
pub struct MetaService {
    lane: Arc<Lane>,
    env: Env,
    name_hash_key: [u8; 16],
    map: Arc<RwLock<Arc<ClusterMap>>>,
    storage: Arc<dyn StorageCalls>,
    across: across::Across,
    placement: placement::PlacementState,
    sessions: sessions::SessionTable,
    awaited: lasting::Awaited,
    unmet: across::Unmet,
    /// Which start this is.
    incarnation: u64,
    /// The last one after which something that was acknowledged may have been lost; 0 for none.
    lost_since: u64,
    opens: Mutex<opens::OpenTable>,
    leases: Mutex<LeaseTable>,
    /// Signalled when a recall or a block ends.
    leases_changed: Signal,
    /// Signalled when the trimmer is to end.
    trim_pause: Signal,
    locks: Mutex<LockTable>,
    garbage: collect::GarbageQueue,
    cutting: collect::CutsUnderWay,
    /// Layouts that were handed out and not bound yet.
    proposals: proposals::Proposals,
    /// Files whose length nobody knows.
    unsettled: unsettled::Unsettled,
    /// Files without a name that could not be removed when they were closed.
    unreleased: unreleased::Unreleased,
    /// Targets whose suspects were not compared since something was lost.
    uncompared: uncompared::Uncompared,
    /// Files that were written in a session that has ended, and could not be measured then.
    unmeasured: unreleased::Unreleased,
    /// Held by whoever makes room.
    making_room: room::MakingRoom,
    splits: split::Splits,
    /// Calls that wait for somebody else.
    waiting: waiting::Waiting,
    is_stopping: AtomicBool,
    reports: OnceLock<Arc<dyn Reports>>,
}

impl MetaService {
    /// Whether the service is about to stop.
    pub(crate) fn is_ending(&self) -> bool {
        self.is_stopping.load(std::sync::atomic::Ordering::Acquire)
    }

    /// Has damage told to `reports`. Only the first one that is given counts.
    pub fn report_to(&self, reports: Arc<dyn Reports>) {
        let _ = self.reports.set(reports);
    }

    /// Why the metadata takes no more changes; `None` while it does.
    pub fn stopped(&self) -> Option<String> {
        self.lane.stopped()
    }
}
