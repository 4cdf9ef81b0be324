//! Targets behind the network.

use crate::net::frame::{Frame, PAYLOAD_BYTES_MAX};
use crate::net::{Endpoint, Peer, Replier};
use crate::{Payload, StorageCalls};
use ashlar_types::codec::{decode, encode};
use ashlar_types::message::{StorageReply, StorageRequest};
use ashlar_types::{ClusterMap, Errno, Role};
use parking_lot::RwLock;
use std::sync::Arc;

/// See the module.
pub struct StorageEndpoint {
    storage: Arc<dyn StorageCalls>,
    map: Arc<RwLock<Arc<ClusterMap>>>,
}

impl StorageEndpoint {
    /// Serves `storage`, to nodes as the policies in `map` say, which somebody keeps current.
    pub fn new(storage: Arc<dyn StorageCalls>, map: Arc<RwLock<Arc<ClusterMap>>>) -> StorageEndpoint {
        StorageEndpoint { storage, map }
    }

    /// Refuses changes of content by a node that may only read.
    ///
    /// # Errors
    /// `EROFS`.
    fn require_writable(&self, peer: &Peer, request: &StorageRequest) -> Result<(), Errno> {
        if peer.role != Role::Client || !is_change(request) {
            return Ok(());
        }
        match self.map.read().node(peer.id.node) {
            Some(node) if !node.policy.read_only => Ok(()),
            _ => Err(Errno::EROFS),
        }
    }
}

/// Whether `role` may ask for that: clients for content, metadata servers for what keeps targets and metadata together, administrators for
/// what there is.
fn may_ask(role: Role, request: &StorageRequest) -> bool {
    match request {
        StorageRequest::Write { .. }
        | StorageRequest::Read { .. }
        | StorageRequest::Punch { .. }
        | StorageRequest::Allocate { .. }
        | StorageRequest::Seek { .. }
        | StorageRequest::NextChunk { .. } => role == Role::Client,
        StorageRequest::Truncate { .. }
        | StorageRequest::DeleteGeneration { .. }
        | StorageRequest::Extent { .. }
        | StorageRequest::GiveBack { .. }
        | StorageRequest::Suspects { .. }
        | StorageRequest::Confirm { .. } => role == Role::Meta,
        StorageRequest::Space { .. } => matches!(role, Role::Meta | Role::Admin),
        StorageRequest::Sync { .. } => matches!(role, Role::Client | Role::Meta),
    }
}

/// Whether the content of a target is another one afterwards. Every request is named, so that a new one is thought about.
fn is_change(request: &StorageRequest) -> bool {
    match request {
        StorageRequest::Write { .. }
        | StorageRequest::Truncate { .. }
        | StorageRequest::Punch { .. }
        | StorageRequest::Allocate { .. }
        | StorageRequest::DeleteGeneration { .. } => true,
        StorageRequest::Read { .. }
        | StorageRequest::Seek { .. }
        | StorageRequest::Extent { .. }
        | StorageRequest::Sync { .. }
        | StorageRequest::Space { .. }
        | StorageRequest::GiveBack { .. }
        | StorageRequest::Suspects { .. }
        | StorageRequest::Confirm { .. }
        | StorageRequest::NextChunk { .. } => false,
    }
}

/// Who may call targets at all.
const CALLERS: [Role; 3] = [Role::Client, Role::Meta, Role::Admin];

impl Endpoint for StorageEndpoint {
    fn serve(&self, peer: &Peer, frame: Frame, replier: Replier) {
        if !CALLERS.contains(&peer.role) {
            return replier.refuse("targets serve clients and metadata servers");
        }
        let Ok(request) = decode::<StorageRequest>(frame.head(), "storage request") else {
            return replier.refuse("that is no request to a target");
        };
        if !may_ask(peer.role, &request) {
            return replier.refuse("that is not for the role it was asked in");
        }
        if let Err(errno) = self.require_writable(peer, &request) {
            let answer: Result<StorageReply, Errno> = Err(errno);
            return replier.reply(&encode(&answer), &[]);
        }
        let mut out = Vec::new();
        let outcome = match &request {
            StorageRequest::Write { .. } => self.storage.call(&request, Payload::Write(frame.payload())),
            StorageRequest::Read { len, .. } if *len as usize > PAYLOAD_BYTES_MAX => Err(Errno::EINVAL),
            StorageRequest::Read { len, .. } => {
                out = vec![0; *len as usize];
                self.storage.call(&request, Payload::Read(&mut out))
            }
            _ => self.storage.call(&request, Payload::None),
        };
        if outcome.is_err() {
            out.clear();
        }
        let answer: Result<StorageReply, Errno> = outcome;
        replier.reply(&encode(&answer), &out);
    }
}
