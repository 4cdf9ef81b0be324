//! Goal: where a write fails in the middle that was begun under a lease which is lost since, what it has left behind the end of the file does not make the file longer: somebody else may
//! have cut it meanwhile, and zeros would come back there. Method: a write of four chunks the first of which fails when the session has ended, or its leases have.
#![allow(clippy::unwrap_used)] // the helpers of a test panic as the test does

mod support;

use ashlar_client::{Client, Dropping, Handle, KernelCache, OpenFlags, Who, WriteFlags};
use ashlar_rpc::{Caller, MetaCalls, Payload, SessionEvents, SessionGrant, StorageCalls};
use ashlar_types::message::{MetaReply, MetaRequest, SessionEvent, SetAttr, StorageReply, StorageRequest};
use ashlar_types::{Errno, InodeId, SessionId};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use support::{Dropped, KIB64, World, content, eventually, make, write};

/// The chunk to which writes fail, once they are let.
const FAILING: u64 = 2;
/// Where the write begins that fails; the file is as long before.
const END: u64 = FAILING * KIB64 as u64;

/// Metadata, and whom it tells of what happens.
struct Heard {
    world: Arc<World>,
    events: Mutex<Option<Arc<dyn SessionEvents>>>,
}

impl Heard {
    fn tell(&self, event: SessionEvent) {
        let events = self.events.lock().clone().unwrap();
        events.deliver(event);
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

struct Failing {
    storage: Arc<dyn StorageCalls>,
    is_let: AtomicBool,
    /// Pieces behind the one that fails.
    behind: AtomicUsize,
}

impl StorageCalls for Failing {
    fn call(&self, request: &StorageRequest, payload: Payload<'_>) -> Result<StorageReply, Errno> {
        let reply = match request {
            StorageRequest::Write { chunk, .. } if chunk.index == FAILING => {
                eventually(|| self.is_let.load(SeqCst));
                return Err(Errno::EIO);
            }
            _ => self.storage.call(request, payload),
        };
        if matches!(request, StorageRequest::Write { chunk, .. } if chunk.index > FAILING) {
            self.behind.fetch_add(1, SeqCst);
        }
        reply
    }
}

/// Notes that pages were dropped.
#[derive(Default)]
struct Noted(AtomicBool);

impl KernelCache for Noted {
    fn drop_attributes(&self, _: InodeId) {}
    fn drop_content(&self, _: InodeId) {
        self.0.store(true, SeqCst);
    }
    fn drop_range(&self, _: InodeId, _: u64, _: u64) {}
    fn begin_to_drop(&self, _: InodeId, _: u64, _: u64) -> Arc<dyn Dropping> {
        Arc::new(Dropped)
    }
    fn drop_entries(&self, _: InodeId) {}
}

/// The length of the file after a write behind its end has failed, with what `meanwhile` does before.
fn length_after(meanwhile: impl FnOnce(&Heard, &Arc<Client>, &Handle)) -> u64 {
    let world = Arc::new(World::new(64 << 20));
    let heard = Arc::new(Heard { world: world.clone(), events: Mutex::default() });
    let (is_let, behind) = (AtomicBool::new(false), AtomicUsize::new(0));
    let failing = Arc::new(Failing { storage: world.storage.clone(), is_let, behind });
    let client = world.client_that_comes_back(heard.clone(), failing.clone());
    let file = make(&client, "f").unwrap();
    write(&client, &file, 0, &content(1, END as usize)).unwrap();
    // That much is told, whatever becomes of the session.
    client.fsync(&file).unwrap();
    std::thread::scope(|scope| {
        let writes = || client.write(&file, END, &[0xAB; 4 * KIB64], WriteFlags::default());
        let writer = scope.spawn(writes);
        eventually(|| failing.behind.load(SeqCst) == 3);
        meanwhile(&heard, &client, &file);
        failing.is_let.store(true, SeqCst);
        assert_eq!(writer.join().unwrap(), Err(Errno::EIO));
    });
    world.client().getattr(&Who::system(), file.file.inode).unwrap().attr.size
}

#[test]
fn when_another_session_has_the_file_since() {
    let length = length_after(|heard, client, file| {
        let ended = client.session();
        heard.close_session(ended);
        heard.tell(SessionEvent::Evicted { session: ended });
        eventually(|| client.session() != ended);
        let (who, other) = (Who::system(), heard.world.client());
        let flags = OpenFlags { write: true, ..OpenFlags::default() };
        let opened = other.open(&who, file.file.inode, flags).unwrap().handle;
        let shorter = SetAttr { size: Some(100), ..SetAttr::default() };
        other.setattr(&who, file.file.inode, Some(&opened), shorter).unwrap();
        other.release(&opened);
        // With WRITE, which the new session has from here on.
        write(client, file, 50, b"new").unwrap();
    });
    assert_eq!(length, 100, "as others have cut it");
}

#[test]
fn when_its_leases_have_run_out() {
    let length = length_after(|heard, client, _| {
        let noted = Arc::new(Noted::default());
        client.set_kernel_cache(noted.clone());
        heard.tell(SessionEvent::Expired);
        eventually(|| noted.0.load(SeqCst));
    });
    assert_eq!(length, END);
}
