//! Other metadata servers, for a metadata server.

use super::Routes;
use crate::MetaPeers;
use crate::net::{Call, Service};
use crate::wire::{MetaAnswer, MetaCall};
use ashlar_types::codec::{decode, encode};
use ashlar_types::{Errno, NodeId, Role};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// See the module.
pub struct RemotePeers {
    routes: Arc<Routes>,
}

impl RemotePeers {
    /// Those in the map of `routes`.
    pub fn new(routes: Arc<Routes>) -> RemotePeers {
        RemotePeers { routes }
    }
}

impl MetaPeers for RemotePeers {
    fn ask(&self, server: NodeId, message: &[u8], is_urgent: bool, wait: Duration) -> Result<Vec<u8>, Errno> {
        if !self.routes.has_address(server, Role::Meta) {
            return Err(Errno::EHOSTDOWN);
        }
        let head = encode(&MetaCall::Peer(message));
        // What is said may be heard twice; whoever hears it knows.
        let call = Call {
            service: Service::Meta,
            head: &head,
            payload: &[],
            is_once: false,
            may_repeat: true,
            is_urgent,
        };
        let answer =
            self.routes.link(server, Role::Meta).call(&call, Instant::now() + wait).map_err(|error| {
                tracing::debug!(%error, %server, "a metadata server does not answer");
                Errno::EHOSTDOWN
            })?;
        match decode(answer.head(), "answer of metadata") {
            Ok(MetaAnswer::Peer(answer)) => Ok(answer),
            // Its copies are silent, or another machine answers for it by now.
            Ok(MetaAnswer::Later) => Err(Errno::EHOSTDOWN),
            _ => Err(Errno::EPROTO),
        }
    }
}
