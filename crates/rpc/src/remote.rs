//! The services of other machines, as the traits of this crate: what a client is given instead of the services themselves.

mod manager;
mod meta;
mod patience;
mod peers;
mod routes;
mod sessions;
mod slots;
mod storage;

pub use manager::{ManagerCalls, MapWatcher};
pub use meta::RemoteMeta;
pub use patience::Patience;
pub use peers::RemotePeers;
pub use routes::Routes;
pub use sessions::RemoteSessions;
pub use storage::RemoteStorage;

use crate::net::NetError;
use ashlar_types::Errno;

/// The one place where what the network did becomes an errno, and is logged.
fn errno_of(error: &NetError, what: &str) -> Errno {
    match error {
        NetError::Io(_) | NetError::Closed | NetError::Stuck | NetError::NoAddress => {
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
