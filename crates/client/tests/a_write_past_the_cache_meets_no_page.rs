//! Goal: what a write past the kernel's page cache has written is never undone by a page that was read before it and is written back after it with a
//! store of somebody else, and is in every page that is read after it. Method: a kernel in small with one page, which programs store into all the time.
#![allow(clippy::unwrap_used)] // the helpers of a test panic as the test does

mod support;

use ashlar_client::{Client, Dropping, Handle, KernelCache, OpenFlags, Who, WriteFlags, Written};
use ashlar_types::{InodeId, LayoutPolicy};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use support::{Dropped, KIB64, World, content, make, write};

const PAGE_BYTES: usize = 4096;

/// Where the program that stores has its number, and where the one that writes.
const STORED_AT: usize = 64;
const WRITTEN_AT: usize = 0;

struct Page {
    bytes: Vec<u8>,
    is_dirty: bool,
}

/// The page, locked as the kernel locks it: while it is filled, and while it is written back or dropped.
#[derive(Default)]
struct Kernel {
    page: Mutex<Option<Page>>,
    mount: OnceLock<(Arc<Client>, Arc<Handle>)>,
    place: u64,
    drops: AtomicU64,
}

impl Kernel {
    /// Runs `touch` on the page, which is filled first if it is not there, as by a fault.
    fn with_page<T>(&self, touch: impl FnOnce(&mut Page) -> T) -> T {
        let mut page = self.page.lock();
        if page.is_none() {
            let (client, handle) = self.mount.get().unwrap();
            client.begin_pages(&handle.file, self.place, PAGE_BYTES as u64).unwrap();
            let mut bytes = vec![0; PAGE_BYTES];
            client.read(handle, self.place, &mut bytes).unwrap();
            *page = Some(Page { bytes, is_dirty: false });
        }
        touch(page.as_mut().unwrap())
    }
}

impl KernelCache for Kernel {
    fn drop_attributes(&self, _: InodeId) {}
    fn drop_content(&self, inode: InodeId) {
        self.drop_range(inode, 0, u64::MAX);
    }
    fn drop_range(&self, _: InodeId, _: u64, _: u64) {
        self.drops.fetch_add(1, SeqCst);
        let mut page = self.page.lock();
        if let Some(dropped) = page.take().filter(|page| page.is_dirty) {
            let (client, handle) = self.mount.get().unwrap();
            let flags = WriteFlags { is_writeback: true, ..WriteFlags::default() };
            client.write(handle, self.place, &dropped.bytes, flags).unwrap();
        }
    }
    fn begin_to_drop(&self, inode: InodeId, offset: u64, bytes: u64) -> Arc<dyn Dropping> {
        self.drop_range(inode, offset, bytes);
        Arc::new(Dropped)
    }
    fn drop_entries(&self, _: InodeId) {}
}

fn number(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap())
}

/// Writes past the cache while others store and look; tells how many writes were undone or not seen, and how many stores undone.
fn lost(size: usize, place: u64) -> (u32, u32) {
    const WRITES: u64 = 3_000;
    let world = World::new(64 << 20);
    let client = world.client();
    let file = make(&client, "f").unwrap();
    write(&client, &file, 0, &content(1, size)).unwrap();
    let flags = OpenFlags { read: true, write: true, ..OpenFlags::default() };
    let handle = client.open(&Who::system(), file.file.inode, flags).unwrap().handle;
    let kernel = Arc::new(Kernel { place, ..Kernel::default() });
    assert!(kernel.mount.set((client.clone(), handle.clone())).is_ok());
    client.set_kernel_cache(kernel.clone());
    write(&client, &file, place, &[0; PAGE_BYTES]).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|threads| {
        let storer = threads.spawn(|| {
            let (mut stored, mut undone) = (0u64, 0);
            while !stop.load(SeqCst) {
                kernel.with_page(|page| {
                    undone += u32::from(number(&page.bytes, STORED_AT) != stored);
                    stored += 1;
                    page.bytes[STORED_AT..STORED_AT + 8].copy_from_slice(&stored.to_ne_bytes());
                    page.is_dirty = true;
                });
            }
            undone
        });
        let mut undone = 0;
        for count in 1..=WRITES {
            let who = Who::system();
            let (at, data) = (place + WRITTEN_AT as u64, count.to_ne_bytes());
            let flags = WriteFlags { is_past_cache: true, ..WriteFlags::default() };
            let written = match client.write_as(&who, &handle, at, &data, flags).unwrap() {
                Written::MeetsPages => {
                    let mut taken = None;
                    client.write_over_pages(&who, &handle, at, &data, flags, |answer| taken = Some(answer));
                    taken.unwrap().unwrap()
                }
                Written::Done(taken, left) => {
                    if left.drop_pages {
                        kernel.drop_range(handle.file.inode, at, 8);
                    }
                    taken
                }
            };
            assert_eq!((written.offset, written.bytes), (at, 8));
            undone += u32::from(kernel.with_page(|page| number(&page.bytes, WRITTEN_AT)) != count);
        }
        stop.store(true, SeqCst);
        assert!(kernel.drops.load(SeqCst) >= WRITES - 1, "the page was dropped ahead of each write");
        (undone, storer.join().unwrap())
    })
}

#[test]
fn in_a_file_that_lives_with_its_inode() {
    assert_eq!(lost(100, 0), (0, 0));
}

#[test]
fn in_a_file_with_chunks() {
    assert_eq!(lost(3 * KIB64, KIB64 as u64), (0, 0));
}

/// A kernel that wants pages of the file again whenever it has dropped some.
#[derive(Default)]
struct Greedy {
    mount: OnceLock<(Arc<Client>, Arc<Handle>)>,
    drops: AtomicU64,
}

impl KernelCache for Greedy {
    fn drop_attributes(&self, _: InodeId) {}
    fn drop_content(&self, inode: InodeId) {
        self.drop_range(inode, 0, u64::MAX);
    }
    fn drop_range(&self, _: InodeId, _: u64, _: u64) {
        self.drops.fetch_add(1, SeqCst);
        let (client, handle) = self.mount.get().unwrap();
        client.begin_pages(&handle.file, 0, PAGE_BYTES as u64).unwrap();
    }
    fn begin_to_drop(&self, inode: InodeId, offset: u64, bytes: u64) -> Arc<dyn Dropping> {
        self.drop_range(inode, offset, bytes);
        Arc::new(Dropped)
    }
    fn drop_entries(&self, _: InodeId) {}
}

#[test]
fn where_pages_are_wanted_all_the_time_the_write_is_done_all_the_same_also_if_the_file_outgrows_its_inode_then()
 {
    let world = World::new(64 << 20);
    let client = world.client();
    let file = make(&client, "f").unwrap();
    // So that an append finds only there that it outgrows the inode.
    let at = LayoutPolicy::root_default().inline_bytes.unwrap() - 50;
    write(&client, &file, 0, &content(3, at as usize)).unwrap();
    let kernel = Arc::new(Greedy::default());
    assert!(kernel.mount.set((client.clone(), file.clone())).is_ok());
    client.set_kernel_cache(kernel.clone());
    client.begin_pages(&file.file, 0, PAGE_BYTES as u64).unwrap();
    let data = content(7, 100);
    let flags = WriteFlags { is_past_cache: true, append: Some(true), ..WriteFlags::default() };
    let who = Who::system();
    let mut taken =
        Some(client.write_as(&who, &file, at.into(), &data, flags).map(|written| match written {
            Written::Done(taken, _) => Some(taken),
            Written::MeetsPages => None,
        }));
    let is_done = AtomicBool::new(false);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            while !is_done.load(SeqCst) {
                std::thread::sleep(Duration::from_millis(1));
                world.clock.advance(Duration::from_millis(1));
            }
        });
        if taken == Some(Ok(None)) {
            client.write_over_pages(&who, &file, at.into(), &data, flags, |answer| {
                taken = Some(answer.map(Some))
            });
        }
        is_done.store(true, SeqCst);
    });
    assert_eq!(taken.unwrap().unwrap().unwrap().bytes, data.len());
    assert!(kernel.drops.load(SeqCst) > 40, "it was not the last try: {:?}", kernel.drops);
    let mut back = vec![0; data.len()];
    assert_eq!(client.read(&file, at.into(), &mut back).unwrap(), data.len());
    assert_eq!(back, data);
}
