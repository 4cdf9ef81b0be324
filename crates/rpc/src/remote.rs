//! The services of other machines, as the traits of this crate: what a client is given instead of the services themselves.

mod administer;
mod backup;
mod copies;
mod granter;
mod manager;
mod meta;
mod patience;
mod peers;
mod process;
mod reporter;
mod routes;
mod sessions;
mod shards;
mod slots;
mod storage;
mod targets;
mod wallet;

pub use backup::RemoteBackup;
pub use copies::CopyLinks;
pub use granter::{Granter, Granting, ServiceStart};
pub use manager::{KeepMap, ManagerCalls, MapWatcher, ask_managers, tell_managers};
pub use meta::{LeftSession, RemoteMeta};
pub use patience::Patience;
pub use peers::RemotePeers;
pub use process::RemoteProcess;
pub use reporter::Reporter;
pub use routes::Routes;
pub use sessions::RemoteSessions;
pub use shards::RemoteShards;
pub use storage::RemoteStorage;
pub use targets::RemoteTargets;

use crate::net::NetError;
use ashlar_types::Errno;

/// The one place where what the network did becomes an errno, and is logged.
fn errno_of(error: &NetError, what: &str) -> Errno {
    match error {
        NetError::Io(_) | NetError::Closed | NetError::Stuck | NetError::Elsewhere | NetError::NoAddress => {
            tracing::warn!(%error, what, "a server could not be reached in the time there was");
            Errno::ETIMEDOUT
        }
        NetError::Crowded => Errno::EAGAIN,
        other => {
            tracing::error!(error = %other, what, "a call to a server failed");
            Errno::EIO
        }
    }
}
