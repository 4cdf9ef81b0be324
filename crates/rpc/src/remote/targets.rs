//! Directories that a storage server is to take into service as targets, for an administrator.

use super::Routes;
use crate::net::{Call, NetError, Service};
use crate::wire::{StorageCall, TakenTarget, TargetPlace};
use ashlar_types::codec::{decode, encode};
use ashlar_types::{NodeId, Role};
use std::sync::Arc;
use std::time::Instant;

/// See the module.
pub struct RemoteTargets {
    routes: Arc<Routes>,
    node: NodeId,
}

impl RemoteTargets {
    /// Those of the storage server on `node`.
    pub fn new(routes: Arc<Routes>, node: NodeId) -> RemoteTargets {
        RemoteTargets { routes, node }
    }

    /// Has `place` taken into service; the target that it is then, or why it is not.
    ///
    /// # Errors
    /// [`NetError`]; [`NetError::Refused`] for who is no administrator, and by a server of an older version; [`NetError::Restarted`] when the server
    /// was started anew meanwhile, and may have done it or not.
    pub fn take(&self, place: TargetPlace, deadline: Instant) -> Result<TakenTarget, NetError> {
        let call = Call {
            service: Service::Storage,
            head: &encode(&StorageCall::TakeTarget(place)),
            payload: &[],
            is_once: true,
            may_repeat: false,
            is_urgent: false,
        };
        let answer = self.routes.link(self.node, Role::Storage).call(&call, deadline)?;
        decode(answer.head(), "answer about a target")
            .map_err(|_| NetError::Malformed("an answer that is none"))
    }
}
