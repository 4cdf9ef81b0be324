//! Goal: two mounts that write and read one file through the kernel's page cache never wait for each other, whoever has which lease. Method:
//! a kernel in small holds a page during each of its reads and writes, and needs it to answer a recall, as Linux does.
#![allow(clippy::unwrap_used)] // the helpers of a test panic as the test does

mod support;

use ashlar_client::{Client, Handle, OpenFlags, Who, WriteFlags};
use ashlar_types::message::SetAttr;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};
use support::{KIB64, LockedPages, World, content, make, write};

/// Less than the time after which a session that does not answer is ended: nothing waits long here, but on a machine that is busy.
const PATIENCE: Duration = Duration::from_secs(4);

struct Mount {
    client: Arc<Client>,
    pages: Arc<LockedPages>,
    file: Arc<Handle>,
}

impl Mount {
    /// False when the session was ended.
    fn write(&self, bytes: &[u8], flags: WriteFlags) -> bool {
        let _page = self.pages.0.lock();
        self.client.write(&self.file, 0, bytes, flags).is_ok()
    }

    /// Gives the file a set-user-id bit.
    fn arm(&self) -> bool {
        let changes = SetAttr { mode: Some(0o4755), ..SetAttr::default() };
        self.client.setattr(&Who::system(), self.file.file.inode, None, changes).is_ok()
    }

    fn read(&self) -> bool {
        let _page = self.pages.0.lock();
        self.client.read(&self.file, 0, &mut [0; 100]).is_ok()
    }
}

/// Both mounts read, then both write at once and report, on and on.
fn take_turns(size: usize, flags: WriteFlags) {
    const ROUNDS: usize = 2_000;
    let world = World::new(64 << 20);
    let client = world.client();
    let file = make(&client, "f").unwrap();
    write(&client, &file, 0, &content(1, size)).unwrap();
    let open_flags = OpenFlags { read: true, write: true, ..OpenFlags::default() };
    let mounts = [(); 2].map(|()| {
        let client = world.client();
        let pages = Arc::new(LockedPages::default());
        client.set_kernel_cache(pages.clone());
        let file = client.open(&Who::system(), file.file.inode, open_flags).unwrap().handle;
        Mount { client, pages, file }
    });
    // Nobody panics while others wait for him.
    let (barrier, has_failed) = (Barrier::new(4), AtomicBool::new(false));
    let check = |is_well: bool| has_failed.fetch_or(!is_well, SeqCst);
    std::thread::scope(|threads| {
        for mount in &mounts {
            threads.spawn(|| {
                for round in 0..ROUNDS {
                    check(mount.read() && (!flags.kill_set_id || mount.arm()));
                    barrier.wait();
                    let begun = Instant::now();
                    check(mount.write(&content(round, 100), flags) && begun.elapsed() < PATIENCE);
                    barrier.wait();
                }
            });
            // What is written is reported at once, and asked for from the other side.
            threads.spawn(|| {
                for _ in 0..ROUNDS {
                    barrier.wait();
                    check(mount.client.fsync(&mount.file).is_ok());
                    check(mount.client.getattr(&Who::system(), mount.file.file.inode).is_ok());
                    barrier.wait();
                }
            });
        }
    });
    assert!(!has_failed.load(SeqCst), "a session was ended, or about to be");
}

#[test]
fn with_a_file_that_lives_with_its_inode() {
    take_turns(100, WriteFlags::default());
}

#[test]
fn with_a_file_of_chunks() {
    take_turns(3 * KIB64, WriteFlags::default());
}

/// Before such a write into chunks, what clears the bits is a call of its own, under the same page.
#[test]
fn with_writes_that_clear_set_id_bits() {
    take_turns(3 * KIB64, WriteFlags { kill_set_id: true, ..WriteFlags::default() });
}
