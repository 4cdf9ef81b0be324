//! Sessions of a metadata server, for an administrator.

use super::Routes;
use crate::net::{Call, NetError, Service};
use crate::wire::{MetaAnswer, MetaCall, SessionInfo};
use ashlar_types::codec::{decode, encode};
use ashlar_types::{Errno, NodeId, Role, SessionId};
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

    fn ask(&self, call: &MetaCall<'_>, deadline: Instant) -> Result<MetaAnswer, NetError> {
        let call = Call {
            service: Service::Meta,
            head: &encode(call),
            payload: &[],
            // To end a session twice is to end it once.
            is_once: false,
            may_repeat: true,
            is_urgent: false,
        };
        let answer = self.routes.link(self.node, Role::Meta).call(&call, deadline)?;
        decode(answer.head(), "answer of metadata").map_err(|_| NetError::Malformed("an answer that is none"))
    }

    /// All of them, by id.
    ///
    /// # Errors
    /// [`NetError`]; [`NetError::Refused`] for who is no administrator.
    pub fn list(&self, deadline: Instant) -> Result<Vec<SessionInfo>, NetError> {
        match self.ask(&MetaCall::Sessions, deadline)? {
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
        match self.ask(&MetaCall::EndSession(session), deadline)? {
            MetaAnswer::Done => Ok(true),
            MetaAnswer::Failed(Errno::ENOENT) => Ok(false),
            MetaAnswer::Failed(errno) => Err(NetError::Errno(errno)),
            _ => Err(NetError::Malformed("an answer of the wrong kind")),
        }
    }
}
