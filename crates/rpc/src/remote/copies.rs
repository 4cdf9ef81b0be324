//! Copies of logs of metadata servers on other machines, for those on this one.

use crate::net::frame::{PAYLOAD_BYTES_MAX, REQUEST_BYTES_MAX};
use crate::net::{Call, Caller, Link, NetError, Service, Wanted};
use ashlar_types::{Errno, NodeId, Role};
use parking_lot::RwLock;
use rustc_hash::FxHashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Connections to each machine, without that for late answers: a lease does not wait behind the groups that are sent there.
const CHANNELS: u32 = 4;

/// Where the machines that keep copies hear each other; whoever made it keeps it current.
type Places = Arc<RwLock<FxHashMap<NodeId, Vec<SocketAddr>>>>;

/// See the module.
pub struct CopyLinks {
    caller: Arc<Caller>,
    places: Places,
    // LIMIT: one per machine that keeps copies; of those that are gone until the next one is made.
    links: RwLock<FxHashMap<NodeId, Arc<Link>>>,
}

impl CopyLinks {
    /// Links of `caller` to the machines of `places`, by what that says at the time.
    pub fn new(caller: Arc<Caller>, places: Places) -> CopyLinks {
        CopyLinks { caller, places, links: RwLock::default() }
    }

    /// Has the copy of the log of metadata server `server` on the machine `node` hear `head`, of at most 1 MiB less 4 bytes, and `payload`, of at most 16 MiB; its answer.
    ///
    /// # Errors
    /// `EHOSTDOWN` when there is none within `wait`, at once where nothing says where the machine is, or for more bytes than may be; it may have been heard all the same, also twice.
    pub fn ask(
        &self,
        server: NodeId,
        node: NodeId,
        head: &[u8],
        payload: &[u8],
        wait: Duration,
    ) -> Result<Vec<u8>, Errno> {
        self.call((server, node), head, payload, wait).map_err(|error| {
            tracing::debug!(%error, %server, %node, "a copy does not answer");
            Errno::EHOSTDOWN
        })
    }

    /// Tells the copy of the log of metadata server `server` on the machine `node`, as an administrator, that the machine `lost` never comes back.
    ///
    /// # Errors
    /// [`NetError::Refused`] where that machine is there, and no such copy of it works; others where it does not answer within `wait`.
    pub fn go_on_without(
        &self,
        (server, node): (NodeId, NodeId),
        lost: NodeId,
        wait: Duration,
    ) -> Result<(), NetError> {
        self.call((server, node), &lost.0.to_le_bytes(), &[], wait).map(drop)
    }

    fn call(
        &self,
        (server, node): (NodeId, NodeId),
        head: &[u8],
        payload: &[u8],
        wait: Duration,
    ) -> Result<Vec<u8>, NetError> {
        let deadline = Instant::now() + wait;
        let link = self.link(node).ok_or(NetError::NoAddress)?;
        let head = [&server.0.to_le_bytes(), head].concat();
        if head.len() > REQUEST_BYTES_MAX || payload.len() > PAYLOAD_BYTES_MAX {
            // Its server would end the connection, with what others have said on it.
            tracing::error!(%server, head = head.len(), payload = payload.len(), "a message to a copy is too long");
            return Err(NetError::Stuck);
        }
        let call = Call {
            service: Service::Copies,
            head: &head,
            payload,
            // What is said may be heard twice; whoever hears it knows. The copies of all others wait for it, and so does everybody who has asked for something.
            is_once: false,
            may_repeat: true,
            is_urgent: true,
        };
        Ok(link.call(&call, deadline)?.head().to_vec())
    }

    /// The link to `node`, if it is known where that is.
    fn link(&self, node: NodeId) -> Option<Arc<Link>> {
        if self.places.read().get(&node).is_none_or(Vec::is_empty) {
            self.links.write().remove(&node);
            return None;
        }
        if let Some(link) = self.links.read().get(&node) {
            return Some(link.clone());
        }
        let places = self.places.clone();
        let addresses = move || (places.read().get(&node).cloned().unwrap_or_default(), Vec::new());
        let wanted = Wanted { role: Role::Meta, node: Some(node) };
        let make = || Arc::new(Link::new(self.caller.clone(), wanted, Box::new(addresses), CHANNELS));
        let mut links = self.links.write();
        links.retain(|known, _| self.places.read().contains_key(known));
        Some(links.entry(node).or_insert_with(make).clone())
    }
}
