//! What servers tell of themselves, for a console or an administrator.

use super::Routes;
use crate::net::{Call, NetError, Service};
use crate::wire::{ProcessAnswer, ProcessCall};
use ashlar_types::codec::{decode, encode};
use ashlar_types::{NodeId, Role};
use std::sync::Arc;
use std::time::Instant;

/// See the module.
pub struct RemoteProcess {
    routes: Arc<Routes>,
    node: NodeId,
    role: Role,
}

impl RemoteProcess {
    /// The server on `node` that is `role`.
    pub fn new(routes: Arc<Routes>, node: NodeId, role: Role) -> RemoteProcess {
        RemoteProcess { routes, node, role }
    }

    /// What it counts, in the text format of Prometheus.
    ///
    /// # Errors
    /// [`NetError`]; [`NetError::Refused`] for who is neither console nor administrator.
    pub fn metrics(&self, deadline: Instant) -> Result<String, NetError> {
        let call = Call {
            service: Service::Process,
            head: &encode(&ProcessCall::Metrics),
            payload: &[],
            is_once: false,
            may_repeat: true,
            is_urgent: false,
        };
        let answer = self.routes.link(self.node, self.role).call(&call, deadline)?;
        match decode(answer.head(), "answer of a process") {
            Ok(ProcessAnswer::Metrics(text)) => Ok(text),
            Err(_) => Err(NetError::Malformed("an answer that is none")),
        }
    }
}
