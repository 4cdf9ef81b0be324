//! Copies of logs of metadata servers behind the network: what those on other machines say to the ones here.

use crate::net::frame::Frame;
use crate::net::{Endpoint, Peer, Replier};
use ashlar_types::{NodeId, Role};
use std::sync::Arc;

/// The copies on this machine.
pub trait HearsCopies: Send + Sync {
    /// Has the copy of the log of metadata server `server` hear `head` and `payload` from the one on the machine `from`, and tells what it answers: both are theirs alone, and bytes here.
    /// May wait for a disk, and for nothing longer. `None`: no copy of that metadata server is here.
    fn hear(&self, server: NodeId, from: NodeId, head: &[u8], payload: &[u8]) -> Option<Vec<u8>>;

    /// An administrator says that the machine `lost` never comes back: if the copy of the log of metadata server `server` waits for it, and hears nobody, it has it removed. Does not wait. `None`: no copy
    /// of that metadata server is here that works.
    fn go_on_without(&self, server: NodeId, lost: NodeId) -> Option<()>;
}

/// See the module. The head of a request is the number of the metadata server, 4 bytes little-endian, and the message behind it; of an administrator the number of a machine
/// that never comes back, in the same form.
pub struct CopiesEndpoint {
    copies: Arc<dyn HearsCopies>,
}

impl CopiesEndpoint {
    /// Serves `copies` to metadata servers.
    pub fn new(copies: Arc<dyn HearsCopies>) -> CopiesEndpoint {
        CopiesEndpoint { copies }
    }
}

impl CopiesEndpoint {
    fn serve_admin(&self, request: &Frame, replier: Replier) {
        let number = |bytes: &[u8]| bytes.try_into().ok().map(|bytes| NodeId(u32::from_le_bytes(bytes)));
        let said = request.head().split_at_checked(4);
        let Some((server, lost)) = said.and_then(|(server, lost)| Some((number(server)?, number(lost)?)))
        else {
            return replier.refuse("that is nothing an administrator says to a copy");
        };
        match self.copies.go_on_without(server, lost) {
            Some(()) => replier.reply(&[], &[]),
            None => replier.refuse("no copy of that metadata server works here"),
        }
    }
}

impl Endpoint for CopiesEndpoint {
    fn serve(&self, peer: &Peer, request: Frame, replier: Replier) {
        if peer.role == Role::Admin {
            return self.serve_admin(&request, replier);
        }
        if peer.role != Role::Meta {
            return replier.refuse("copies hear metadata servers alone");
        }
        // Who speaks is a member of the group or not: that is a machine, and never the metadata server that is kept.
        if peer.id.host.is_some() {
            return replier.refuse("copies hear machines in their own name alone");
        }
        let Some((server, head)) = request.head().split_first_chunk() else {
            return replier.refuse("that is no message to a copy");
        };
        let server = NodeId(u32::from_le_bytes(*server));
        match self.copies.hear(server, peer.id.node, head, request.payload()) {
            Some(answer) => replier.reply(&answer, &[]),
            None => replier.refuse("no copy of that metadata server is here"),
        }
    }
}
