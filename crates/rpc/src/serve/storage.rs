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

/// Who may call targets.
const CALLERS: [Role; 3] = [Role::Client, Role::Meta, Role::Admin];

impl Endpoint for StorageEndpoint {
    fn serve(&self, peer: &Peer, frame: Frame, replier: Replier) {
        if !CALLERS.contains(&peer.role) {
            return replier.refuse("targets serve clients and metadata servers");
        }
        let Ok(request) = decode::<StorageRequest>(frame.head(), "storage request") else {
            return replier.refuse("that is no request to a target");
        };
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
