//! Goal: where a write fails in the middle that was begun under a lease which is lost since, what it has left behind the end of the file does not make the file longer: somebody else may
//! have cut it meanwhile, and zeros would come back there. Method: a write of four chunks the first of which fails when the session has ended, or its leases have.
#![allow(clippy::unwrap_used)] // the helpers of a test panic as the test does

mod support;

use ashlar_client::{Client, Dropping, Handle, KernelCache, Who, WriteFlags};
use ashlar_rpc::{Payload, StorageCalls};
use ashlar_types::message::{SessionEvent, StorageReply, StorageRequest};
use ashlar_types::{Errno, InodeId};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use support::heard::Heard;
use support::{Dropped, KIB64, World, content, eventually, make, write};

/// The chunk to which writes fail, once they are let.
const FAILING: u64 = 2;
/// Where the write begins that fails; the file is as long before.
const END: u64 = FAILING * KIB64 as u64;

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
    let heard = Heard::new(&world);
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
        heard.end_session(client);
        heard.cut(file.file.inode, 100);
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
