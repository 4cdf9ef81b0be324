//! Goal: who has got a lock reads what was written under it last, also where his mount waits to write elsewhere in that file. Method: a kernel in small per mount, with
//! pages that are locked, filled and dropped as Linux does it (`fuse_fill_write_pages`, `fuse_send_write_pages`, `invalidate_inode_pages2_range`); programs on
//! two mounts that count up in one file, each count under a lock of its own.
#![allow(clippy::unwrap_used)] // the helpers of a test panic as the test does

mod support;

use ashlar_client::{Client, Handle, KernelCache, OpenFlags, Who, WriteFlags};
use ashlar_types::InodeId;
use parking_lot::{Condvar, Mutex};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};
use support::{KIB64, World, content, make, write};

const PAGE: u64 = 4096;
/// Less than the time after which a session that does not answer is ended.
const PATIENCE: Duration = Duration::from_secs(4);

/// A page of the kernel. Without content it is not taken for read.
#[derive(Default)]
struct Page {
    bytes: Option<Vec<u8>>,
    is_locked: bool,
}

/// The pages of one file on one mount.
#[derive(Default)]
struct Kernel {
    pages: Mutex<BTreeMap<u64, Page>>,
    unlocked: Condvar,
    /// Of the inode: one write(2) at a time.
    writing: Mutex<()>,
    /// Pages that were left because they were locked.
    left: AtomicU64,
}

impl Kernel {
    /// Waits for `page`, and locks it; there is one then.
    fn lock(&self, page: u64) {
        let mut pages = self.pages.lock();
        while pages.entry(page).or_default().is_locked {
            self.unlocked.wait(&mut pages);
        }
        pages.entry(page).or_default().is_locked = true;
    }

    fn unlock(&self, page: u64, bytes: Option<Vec<u8>>) {
        let mut pages = self.pages.lock();
        let own = pages.get_mut(&page).unwrap();
        own.is_locked = false;
        if bytes.is_some() {
            own.bytes = bytes;
        }
        self.unlocked.notify_all();
    }

    fn drop_pages(&self, range: Range<u64>) {
        let mut pages = self.pages.lock();
        let mut at = range.start;
        while let Some((&page, found)) = pages.range(at..range.end).next() {
            if found.is_locked {
                self.unlocked.wait(&mut pages);
                continue;
            }
            pages.remove(&page);
            at = page + 1;
        }
    }
}

impl KernelCache for Kernel {
    fn drop_attributes(&self, _: InodeId) {}
    fn drop_content(&self, _: InodeId) {
        self.drop_pages(0..u64::MAX);
    }
    fn drop_range(&self, _: InodeId, offset: u64, bytes: u64) {
        self.drop_pages(offset / PAGE..(offset + bytes).div_ceil(PAGE));
    }
    fn drop_unless_locked(&self, _: InodeId, offset: u64, _: u64) -> bool {
        let mut pages = self.pages.lock();
        if pages.get(&(offset / PAGE)).is_some_and(|page| page.is_locked) {
            self.left.fetch_add(1, SeqCst);
            return false;
        }
        pages.remove(&(offset / PAGE));
        true
    }
    fn drop_entries(&self, _: InodeId) {}
}

struct Mount {
    client: Arc<Client>,
    kernel: Arc<Kernel>,
    file: Arc<Handle>,
}

impl Mount {
    fn read(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut out = Vec::new();
        for page in offset / PAGE..(offset + len as u64).div_ceil(PAGE) {
            self.kernel.lock(page);
            let known = self.kernel.pages.lock().get(&page).unwrap().bytes.clone();
            let bytes = known.unwrap_or_else(|| {
                let mut bytes = vec![0; PAGE as usize];
                self.client.fill_pages(&self.file, page * PAGE, &mut bytes).unwrap();
                bytes
            });
            out.extend_from_slice(&bytes);
            self.kernel.unlock(page, Some(bytes));
        }
        out[(offset % PAGE) as usize..][..len].to_vec()
    }

    fn write(&self, offset: u64, data: &[u8]) {
        let _inode = self.kernel.writing.lock();
        let mut at = 0;
        while at < data.len() {
            at += self.write_some(offset + at as u64, &data[at..]);
        }
    }

    /// One request: up to the first page that is neither there nor filled whole.
    fn write_some(&self, offset: u64, data: &[u8]) -> usize {
        let (mut len, mut locked, mut filled) = (0, None, Vec::new());
        while len < data.len() && locked.is_none() {
            let (page, within) = ((offset + len as u64) / PAGE, (offset + len as u64) % PAGE);
            let part = &data[len..data.len().min(len + (PAGE - within) as usize)];
            self.kernel.lock(page);
            let mut bytes = self.kernel.pages.lock().get(&page).unwrap().bytes.clone();
            if part.len() as u64 == PAGE {
                bytes = Some(part.to_vec());
                filled.push(page);
            } else if let Some(bytes) = &mut bytes {
                bytes[within as usize..][..part.len()].copy_from_slice(part);
            }
            len += part.len();
            match bytes {
                Some(_) => self.kernel.unlock(page, bytes),
                None => locked = Some(page),
            }
        }
        self.send(offset, &data[..len], &filled);
        if let Some(page) = locked {
            self.kernel.unlock(page, None);
        }
        len
    }

    fn send(&self, offset: u64, data: &[u8], filled: &[u64]) {
        let (client, file, len) = (&self.client, &self.file, data.len() as u64);
        let (last, end) = ((offset + len - 1) / PAGE * PAGE, offset + len);
        let is_whole = offset <= last && end == last + PAGE;
        let through = client.begin_through_pages(file, offset, len, (!is_whole).then_some((last, PAGE)));
        if client.goes_beside(file, false) {
            let filled = filled.first().map(|first| (first * PAGE, filled.len() as u64 * PAGE));
            let (put, flags) = ((offset, data), WriteFlags::default());
            let mut is_done = false;
            client.write_beside(&Who::system(), file, put, flags, filled, |taken, stays| {
                let pages = through.end();
                if stays {
                    pages.carry_out(&*self.kernel, &file.file);
                }
                is_done = taken.unwrap().bytes == data.len();
            });
            return assert!(is_done);
        }
        client.begin_pages(&file.file, offset, len).unwrap();
        assert_eq!(client.write(file, offset, data, WriteFlags::default()).unwrap(), data.len());
        through.end().carry_out(&*self.kernel, &file.file);
    }
}

/// Counts, each under a lock of its own, at `places` in a file that is `size` bytes long at first.
fn count(size: usize, places: &[u64]) -> u64 {
    const TURNS: u64 = 1_500;
    let world = World::new(64 << 20);
    let client = world.client();
    let file = make(&client, "f").unwrap();
    write(&client, &file, 0, &content(1, size)).unwrap();
    let flags = OpenFlags { read: true, write: true, ..OpenFlags::default() };
    let mounts = [(); 2].map(|()| {
        let (client, kernel) = (world.client(), Arc::new(Kernel::default()));
        client.set_kernel_cache(kernel.clone());
        client.set_frees_filled_pages();
        let file = client.open(&Who::system(), file.file.inode, flags).unwrap().handle;
        Mount { client, kernel, file }
    });
    places.iter().for_each(|&place| mounts[0].write(place, &[0; 8]));
    let counts: Vec<Mutex<u64>> = places.iter().map(|_| Mutex::new(0)).collect();
    let (counts, mounts) = (&counts, &mounts);
    std::thread::scope(|threads| {
        for thread in 0..4 {
            threads.spawn(move || {
                let mount = &mounts[thread % 2];
                let mut random = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(thread as u64 + 1);
                for _ in 0..TURNS {
                    random ^= random << 13;
                    random ^= random >> 7;
                    random ^= random << 17;
                    let number = (random >> 8) as usize % places.len();
                    let begun = Instant::now();
                    let mut count = counts[number].lock();
                    if random & 1 == 0 {
                        let found = mount.read(places[number], 8);
                        assert_eq!(
                            u64::from_le_bytes(found.try_into().unwrap()),
                            *count,
                            "at {}",
                            places[number]
                        );
                    }
                    *count += 1;
                    mount.write(places[number], &count.to_le_bytes());
                    drop(count);
                    assert!(begun.elapsed() < PATIENCE, "a session was about to be ended");
                }
            });
        }
    });
    mounts.iter().map(|mount| mount.kernel.left.load(SeqCst)).sum()
}

#[test]
fn in_a_file_that_lives_with_its_inode() {
    count(600, &[0, 8, 500]);
}

#[test]
fn in_a_file_that_lives_with_its_inode_and_has_several_pages() {
    count(6_000, &[0, 8, 4_092, 5_000]);
}

#[test]
fn in_a_file_of_chunks() {
    count(3 * KIB64, &[0, 8, PAGE - 4, 5_000, 3 * PAGE - 4, 40_000, KIB64 as u64 + 100]);
}
