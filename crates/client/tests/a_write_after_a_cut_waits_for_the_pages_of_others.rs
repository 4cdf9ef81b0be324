//! Goal: who reads after a write has ended reads nothing from before it, also where the mount that wrote has cut the file at the same time as the reader's: of two that cut, one goes ahead of
//! the answer of the other, but what its programs write next does not. Method: two kernels in small that drop pages when they are told to.
#![allow(clippy::unwrap_used)] // the helpers of a test panic as the test does

mod support;

use ashlar_client::{Client, Dropping, Handle, KernelCache, OpenFlags, Who, WriteFlags};
use ashlar_types::InodeId;
use ashlar_types::message::SetAttr;
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;
use support::{Dropped, KIB64, World, content, eventually, make, write};

/// Pages that are dropped only while it is open.
#[derive(Default)]
struct Gated {
    is_open: Mutex<bool>,
    opened: Condvar,
}

impl Gated {
    fn set(&self, is_open: bool) {
        *self.is_open.lock() = is_open;
        self.opened.notify_all();
    }
}

impl KernelCache for Gated {
    fn drop_attributes(&self, _: InodeId) {}
    fn drop_content(&self, _: InodeId) {
        let mut is_open = self.is_open.lock();
        while !*is_open {
            self.opened.wait(&mut is_open);
        }
    }
    fn drop_range(&self, inode: InodeId, _: u64, _: u64) {
        self.drop_content(inode);
    }
    fn begin_to_drop(&self, inode: InodeId, _: u64, _: u64) -> Arc<dyn Dropping> {
        self.drop_content(inode);
        Arc::new(Dropped)
    }
    fn drop_entries(&self, _: InodeId) {}
}

struct Mount {
    client: Arc<Client>,
    kernel: Arc<Gated>,
    file: Arc<Handle>,
    has_cut: AtomicBool,
}

impl Mount {
    fn cut(&self, size: u64) {
        let changes = SetAttr { size: Some(size), ..SetAttr::default() };
        self.client.setattr(&Who::system(), self.file.file.inode, Some(&self.file), changes).unwrap();
        self.has_cut.store(true, SeqCst);
    }
}

fn cut_and_write(size: usize) {
    let world = World::new(64 << 20);
    let client = world.client();
    let file = make(&client, "f").unwrap();
    write(&client, &file, 0, &content(1, size)).unwrap();
    let flags = OpenFlags { read: true, write: true, ..OpenFlags::default() };
    let mounts = [(); 2].map(|()| {
        let (client, kernel) = (world.client(), Arc::new(Gated::default()));
        kernel.set(true);
        client.set_kernel_cache(kernel.clone());
        client.set_frees_filled_pages();
        let file = client.open(&Who::system(), file.file.inode, flags).unwrap().handle;
        Mount { client, kernel, file, has_cut: AtomicBool::new(false) }
    });
    for mount in &mounts {
        mount.client.fill_pages(&mount.file, 0, &mut [0; 4096]).unwrap();
    }
    mounts.iter().for_each(|mount| mount.kernel.set(false));
    let has_written = &AtomicBool::new(false);
    let went_ahead = std::thread::scope(|threads| {
        for mount in &mounts {
            threads.spawn(|| mount.cut(size as u64));
        }
        eventually(|| mounts.iter().any(|mount| mount.has_cut.load(SeqCst)));
        let (first, other) = match mounts[0].has_cut.load(SeqCst) {
            true => (&mounts[0], &mounts[1]),
            false => (&mounts[1], &mounts[0]),
        };
        threads.spawn(|| {
            let flags = WriteFlags { yields: true, ..WriteFlags::default() };
            assert_eq!(first.client.write(&first.file, 0, b"new", flags), Ok(3));
            has_written.store(true, SeqCst);
        });
        std::thread::sleep(Duration::from_millis(200));
        let went_ahead = has_written.load(SeqCst);
        // Its own answer may take longer: nobody waits for that.
        other.kernel.set(true);
        eventually(|| has_written.load(SeqCst));
        first.kernel.set(true);
        went_ahead
    });
    assert!(!went_ahead, "the other mount still had the pages");
    assert!(mounts.iter().all(|mount| mount.has_cut.load(SeqCst)));
}

#[test]
fn of_a_file_of_chunks() {
    cut_and_write(3 * KIB64);
}

#[test]
fn of_a_file_that_lives_with_its_inode() {
    cut_and_write(6_000);
}
