//! The manager behind the network: questions for a newer map are held back until there is one.

use crate::{ManagerService, token_key};
use ashlar_rpc::net::frame::Frame;
use ashlar_rpc::net::{Endpoint, Epochs, Peer, Replier};
use ashlar_types::codec::{decode, encode};
use ashlar_types::message::{ManagerReply, ManagerRequest};
use ashlar_types::{ClusterMap, Epoch, NodeId, Role};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// For how long a question for a newer map is held back.
const PARKED_MAX: Duration = Duration::from_secs(20);

/// Is told of every call that is carried out: what, how long it took, and whether it was refused.
pub type Observe = dyn Fn(&ManagerRequest, Duration, bool) + Send + Sync;

/// See the module.
pub struct ManagerEndpoint {
    service: Arc<ManagerService>,
    epochs: Arc<Epochs>,
    // LIMIT: one of each process that is connected.
    parked: Mutex<Vec<(Replier, Epoch, Instant)>>,
    observe: Option<Box<Observe>>,
}

impl ManagerEndpoint {
    /// Serves `service`.
    pub fn new(service: Arc<ManagerService>, epochs: Arc<Epochs>) -> ManagerEndpoint {
        epochs.note_known(service.map().read().epoch);
        ManagerEndpoint { service, epochs, parked: Mutex::default(), observe: None }
    }

    /// Has `observe` told of calls from now on, but for questions for the map that are held back.
    pub fn observed_by(self, observe: Box<Observe>) -> ManagerEndpoint {
        ManagerEndpoint { observe: Some(observe), ..self }
    }

    /// Whether this public key is that of a token that can be used: which.
    pub fn token(&self, info: &[u8]) -> Option<[u8; 32]> {
        token_key(info).filter(|key| self.service.knows_token(key))
    }

    /// Whether a node may be connected: it must be one still.
    ///
    /// # Errors
    /// A text for the node.
    pub fn admit(&self, peer: &Peer) -> Result<(), String> {
        let known = admit(&self.service.map().read(), peer);
        if known.is_err() && self.service.has_looked_anew() {
            return admit(&self.service.map().read(), peer);
        }
        known
    }

    /// Has a question for a newer map wait. One that the same process has asked before is answered: its connection broke, and it asks again.
    fn park(&self, replier: Replier, have: Epoch) {
        let peer = replier.peer();
        let before = {
            let mut parked = self.parked.lock();
            let before = parked.iter().position(|(other, ..)| other.peer() == peer);
            let before = before.map(|at| parked.swap_remove(at));
            parked.push((replier, have, Instant::now()));
            before
        };
        if let Some((replier, ..)) = before {
            replier.reply(&answer_of(&self.service.map().read().clone()), &[]);
        }
    }

    /// Answers who waits for a newer map, if there is one or they have waited for long. To be called often.
    pub fn tidy(&self) {
        let map = self.service.map().read().clone();
        self.epochs.note_known(map.epoch);
        let now = Instant::now();
        let ready: Vec<Replier> = {
            let mut parked = self.parked.lock();
            let is_ready = |(_, have, since): &mut (Replier, Epoch, Instant)| {
                map.epoch > *have || now.duration_since(*since) > PARKED_MAX
            };
            parked.extract_if(.., is_ready).map(|(replier, ..)| replier).collect()
        };
        if !ready.is_empty() {
            let answer = answer_of(&map);
            ready.into_iter().for_each(|replier| replier.reply(&answer, &[]));
        }
    }
}

/// The answer to a question for a map.
fn answer_of(map: &ClusterMap) -> Vec<u8> {
    encode(&ManagerReply::Map(Box::new(map.clone())))
}

/// Whether `peer` may be connected, going by `map`: both who it is and, if another machine comes in its place, that one.
///
/// # Errors
/// A text for the node.
pub fn admit(map: &ClusterMap, peer: &Peer) -> Result<(), String> {
    if let Some(host) = peer.id.host
        && !map.node(host).is_some_and(|node| node.roles.has(Role::Meta))
    {
        return Err(format!(
            "{host}, which comes in the place of {}, is no metadata server in the file system (any more)",
            peer.id.node
        ));
    }
    match map.node(peer.id.node) {
        Some(node) if node.roles.has(peer.role) => Ok(()),
        Some(_) => Err(format!("{} is no {} any more", peer.id.node, peer.role)),
        None if peer.id.node == NodeId(0) && peer.role == Role::Joiner => Ok(()),
        None => Err(format!(
            "{} is not in the file system (any more): `ashlar join` with a new token makes it a node",
            peer.id.node
        )),
    }
}

impl Endpoint for ManagerEndpoint {
    fn serve(&self, peer: &Peer, frame: Frame, replier: Replier) {
        let Ok(request) = decode::<ManagerRequest>(frame.head(), "call to the manager") else {
            return replier.refuse("that is no call to a manager");
        };
        // Somebody has heard of a newer map than this manager: another one has made it.
        if frame.header.epoch > self.service.map().read().epoch {
            self.service.has_looked_anew();
        }
        if !self.service.is_in_place(peer.id) {
            return replier.refuse("that machine keeps no copy of this metadata server (any more)");
        }
        if let ManagerRequest::Map { have } = request
            && have.0 > 0
            && peer.token.is_none()
        {
            self.park(replier, have);
            return self.tidy();
        }
        let mut id = peer.id;
        if peer.token.is_none() {
            // ORDER: what a node may be says the map, which is newer than its certificate.
            let map = self.service.map().read().clone();
            // And its certificate may be for less: it has it in the place of that node, for one of its roles.
            id.roles = id.roles.and(map.node(id.node).map(|node| node.roles).unwrap_or_default());
        }
        let reply = match &self.observe {
            None => self.service.call(id, peer.token, request),
            Some(observe) => {
                let (begun, observed) = (Instant::now(), request.clone());
                let reply = self.service.call(id, peer.token, request);
                observe(&observed, begun.elapsed(), matches!(reply, ManagerReply::Refused(_)));
                reply
            }
        };
        // ORDER: first those who wait for a newer map, if this call has made or brought one. Who is answered may stop this manager.
        self.tidy();
        replier.reply(&encode(&reply), &[]);
    }
}
