//! Sessions of a metadata server, for an administrator.

use super::Routes;
use crate::net::NetError;
use crate::wire::{MetaAnswer, MetaCall, SessionInfo};
use ashlar_types::{Errno, NodeId, SessionId};
use std::sync::Arc;
use std::time::Instant;

/// See the module.
pub struct RemoteSessions {
    routes: Arc<Routes>,
    node: NodeId,
}

impl RemoteSessions {
    /// Those of the metadata server on `node`.
    pub fn new(routes: Arc<Routes>, node: NodeId) -> RemoteSessions {
        RemoteSessions { routes, node }
    }

    /// All of them, by id.
    ///
    /// # Errors
    /// [`NetError`]; [`NetError::Refused`] for who is no administrator.
    pub fn list(&self, deadline: Instant) -> Result<Vec<SessionInfo>, NetError> {
        match self.routes.administer(self.node, &MetaCall::Sessions, deadline)? {
            MetaAnswer::Sessions(all) => Ok(all),
            MetaAnswer::Failed(errno) => Err(NetError::Errno(errno)),
            _ => Err(NetError::Malformed("an answer of the wrong kind")),
        }
    }

    /// Begins to end one, as silence would: its holder is told, and what it has goes to others when its leases have run out. Tells whether
    /// there is one.
    ///
    /// # Errors
    /// As [`RemoteSessions::list`].
    pub fn end(&self, session: SessionId, deadline: Instant) -> Result<bool, NetError> {
        match self.routes.administer(self.node, &MetaCall::EndSession(session), deadline)? {
            MetaAnswer::Done => Ok(true),
            MetaAnswer::Failed(Errno::ENOENT) => Ok(false),
            MetaAnswer::Failed(errno) => Err(NetError::Errno(errno)),
            _ => Err(NetError::Malformed("an answer of the wrong kind")),
        }
    }
}
