//! Targets behind the network.

use crate::net::frame::{Frame, PAYLOAD_BYTES_MAX};
use crate::net::{Endpoint, Peer, Replier};
use crate::{Payload, StorageCalls};
use ashlar_types::codec::{decode, encode};
use ashlar_types::message::{StorageReply, StorageRequest};
use ashlar_types::{Errno, Role};
use std::sync::Arc;

/// See the module.
pub struct StorageEndpoint {
    storage: Arc<dyn StorageCalls>,
}

impl StorageEndpoint {
    /// Serves `storage`.
    pub fn new(storage: Arc<dyn StorageCalls>) -> StorageEndpoint {
        StorageEndpoint { storage }
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
