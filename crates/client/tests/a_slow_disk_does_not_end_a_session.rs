//! Goal: a disk that stalls for longer than a recall may take does not cost the mount whose write waits for it its session; whoever
//! recalls waits, and then reads what was written. Method: a write of one session is held up on its way to the target while another
//! session reads the file.
#![allow(clippy::unwrap_used)] // the helpers of a test panic as the test does

mod support;

use ashlar_client::{OpenFlags, Who};
use ashlar_rpc::{Payload, StorageCalls};
use ashlar_types::Errno;
use ashlar_types::message::{StorageReply, StorageRequest};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};
use support::{World, content, eventually, make, read, write};

/// Longer than a recall may go unanswered.
const STALL: Duration = Duration::from_millis(6500);

/// Targets whose writes can be held up.
struct SlowDisk {
    storage: Arc<dyn StorageCalls>,
    is_stalled: AtomicBool,
    has_waiter: AtomicBool,
}

impl StorageCalls for SlowDisk {
    fn call(&self, request: &StorageRequest, payload: Payload<'_>) -> Result<StorageReply, Errno> {
        if matches!(request, StorageRequest::Write { .. }) {
            while self.is_stalled.load(SeqCst) {
                self.has_waiter.store(true, SeqCst);
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        self.storage.call(request, payload)
    }
}

#[test]
fn a_write_that_waits_for_its_disk_for_seconds_keeps_its_session() {
    let world = World::new(48 << 20);
    let disk = Arc::new(SlowDisk {
        storage: world.storage.clone(),
        is_stalled: AtomicBool::new(false),
        has_waiter: AtomicBool::new(false),
    });
    let (writer, reader) = (world.client_through(world.meta.clone(), disk.clone()), world.client());
    let file = make(&writer, "f").unwrap();
    write(&writer, &file, 0, &content(1, 300_000)).unwrap();
    disk.is_stalled.store(true, SeqCst);
    std::thread::scope(|threads| {
        let writing = threads.spawn(|| write(&writer, &file, 0, &content(2, 100_000)));
        eventually(|| disk.has_waiter.load(SeqCst));
        let reading = threads.spawn(|| {
            let flags = OpenFlags { read: true, ..OpenFlags::default() };
            let opened = reader.open(&Who::system(), file.file.inode, flags).unwrap();
            read(&reader, &opened.handle, 100_000)
        });
        let begun = Instant::now();
        while begun.elapsed() < STALL {
            assert!(!reading.is_finished(), "nobody reads while the write is under way");
            std::thread::sleep(Duration::from_millis(20));
        }
        disk.is_stalled.store(false, SeqCst);
        writing.join().unwrap().unwrap();
        assert_eq!(reading.join().unwrap(), content(2, 100_000));
    });
    // The session lives: it can go on with what it had open, and make something new.
    write(&writer, &file, 300_000, &content(3, 1000)).unwrap();
    make(&writer, "g").unwrap();
}
