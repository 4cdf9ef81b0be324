//! The same that the port shows, over the network of the servers: for consoles and administrators, who show a certificate.

use crate::registry::Registry;
use ashlar_rpc::net::frame::Frame;
use ashlar_rpc::net::{Endpoint, Peer, Replier};
use ashlar_rpc::wire::{ProcessAnswer, ProcessCall};
use ashlar_types::codec::{decode, encode};
use std::sync::Arc;

/// See the module.
pub struct ProcessEndpoint {
    registry: Arc<Registry>,
}

impl ProcessEndpoint {
    /// Tells what `registry` has.
    pub fn new(registry: Arc<Registry>) -> ProcessEndpoint {
        ProcessEndpoint { registry }
    }
}

impl Endpoint for ProcessEndpoint {
    fn serve(&self, peer: &Peer, request: Frame, replier: Replier) {
        if !peer.role.is_of_management() {
            return replier.refuse("a server tells of itself to consoles and administrators");
        }
        match decode::<ProcessCall>(request.head(), "call to a process") {
            Ok(ProcessCall::Metrics) => {
                replier.reply(&encode(&ProcessAnswer::Metrics(self.registry.text())), &[]);
            }
            Err(_) => replier.refuse("that is no call to a process"),
        }
    }
}
