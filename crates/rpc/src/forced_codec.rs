//! In-process calls with every message encoded and decoded on the way, as a network would.
//!
//! A message that does not survive its own codec is a bug; it ends the call with `EPROTO`, which tests notice.

use crate::{Caller, MetaCalls, Payload, SessionEvents, SessionGrant, StorageCalls};
use ashlar_types::codec::{decode, encode};
use ashlar_types::message::{MetaReply, MetaRequest, SessionEvent, StorageReply, StorageRequest};
use ashlar_types::{Credentials, Errno, InodeId, NodeId, SessionId};
use std::sync::Arc;
use std::time::Duration;

/// A service behind its codec.
pub struct ForcedCodec<T: ?Sized>(pub Arc<T>);

struct EventsCodec(Arc<dyn SessionEvents>);

impl SessionEvents for EventsCodec {
    fn deliver(&self, event: SessionEvent) {
        let bytes = encode(&event);
        // INVARIANT: what was just encoded decodes; a mismatch is a bug in the types and must be loud.
        let decoded: SessionEvent = decode(&bytes, "session event").expect("an event survives its codec");
        assert_eq!(decoded, event);
        self.0.deliver(decoded);
    }

    fn is_busy(&self, inode: InodeId) -> bool {
        self.0.is_busy(inode)
    }

    fn revoke(&self) -> Duration {
        self.0.revoke()
    }

    fn met(&self) {
        self.0.met();
    }
}

fn through<T>(value: &T, what: &'static str) -> Result<T, Errno>
where
    T: serde::Serialize + serde::de::DeserializeOwned + PartialEq,
{
    let decoded = decode(&encode(value), what).map_err(|_| Errno::EPROTO)?;
    if &decoded == value { Ok(decoded) } else { Err(Errno::EPROTO) }
}

impl<T: MetaCalls + ?Sized> MetaCalls for ForcedCodec<T> {
    fn open_session(&self, events: Arc<dyn SessionEvents>) -> Result<SessionGrant, Errno> {
        self.0.open_session(Arc::new(EventsCodec(events)))
    }

    fn close_session(&self, session: SessionId) {
        self.0.close_session(session);
    }

    fn call(&self, caller: Caller<'_>, request: MetaRequest<'_>) -> Result<MetaReply, Errno> {
        let creds: Credentials = through(caller.creds, "credentials")?;
        let bytes = encode(&request);
        let decoded: MetaRequest<'_> = decode(&bytes, "metadata request").map_err(|_| Errno::EPROTO)?;
        if decoded != request {
            return Err(Errno::EPROTO);
        }
        let reply = self.0.call(Caller { creds: &creds, ..caller }, decoded)?;
        through(&reply, "metadata reply")
    }

    fn start_of(&self, session: SessionId, server: NodeId) -> u64 {
        self.0.start_of(session, server)
    }
}

impl<T: StorageCalls + ?Sized> StorageCalls for ForcedCodec<T> {
    fn call(&self, request: &StorageRequest, payload: Payload<'_>) -> Result<StorageReply, Errno> {
        let request = through(request, "storage request")?;
        let reply = self.0.call(&request, payload)?;
        Ok(through(&reply.sent(true), "storage reply")?.received())
    }
}
