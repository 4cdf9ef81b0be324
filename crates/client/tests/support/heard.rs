//! A metadata service whose sessions a test ends.

use super::{World, eventually};
use ashlar_client::{Client, OpenFlags, Who};
use ashlar_rpc::{Caller, MetaCalls, SessionEvents, SessionGrant};
use ashlar_types::message::{MetaReply, MetaRequest, SessionEvent, SetAttr};
use ashlar_types::{Errno, InodeId, SessionId};
use parking_lot::Mutex;
use std::sync::Arc;

/// Metadata, and whom it tells of what happens.
pub struct Heard {
    world: Arc<World>,
    events: Mutex<Option<Arc<dyn SessionEvents>>>,
}

impl Heard {
    pub fn new(world: &Arc<World>) -> Arc<Heard> {
        Arc::new(Heard { world: world.clone(), events: Mutex::default() })
    }

    pub fn tell(&self, event: SessionEvent) {
        let events = self.events.lock().clone().unwrap();
        events.deliver(event);
    }

    /// Ends the session of `client`, which has another one then.
    pub fn end_session(&self, client: &Client) {
        let ended = client.session();
        self.close_session(ended);
        self.tell(SessionEvent::Evicted { session: ended });
        eventually(|| client.session() != ended);
    }

    /// Cuts a file down to `size` bytes, as another client.
    pub fn cut(&self, inode: InodeId, size: u64) {
        let (who, other) = (Who::system(), self.world.client());
        let flags = OpenFlags { write: true, ..OpenFlags::default() };
        let opened = other.open(&who, inode, flags).unwrap().handle;
        let shorter = SetAttr { size: Some(size), ..SetAttr::default() };
        other.setattr(&who, inode, Some(&opened), shorter).unwrap();
        other.release(&opened);
    }
}

impl MetaCalls for Heard {
    fn open_session(&self, events: Arc<dyn SessionEvents>) -> Result<SessionGrant, Errno> {
        *self.events.lock() = Some(events.clone());
        self.world.meta.open_session(events)
    }
    fn close_session(&self, session: SessionId) {
        self.world.meta.close_session(session);
    }
    fn call(&self, caller: Caller<'_>, request: MetaRequest<'_>) -> Result<MetaReply, Errno> {
        self.world.meta.call(caller, request)
    }
}
