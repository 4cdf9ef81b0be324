//! Goal: who has got a lock reads what was written under it last, also where his mount waits to write elsewhere in that file, and nobody waits for ever. Method: a
//! kernel in small per mount, with pages that are locked, filled, stored into, written back and dropped as Linux does it (`fuse_fill_write_pages`, `fuse_send_write_pages`,
//! `invalidate_inode_pages2_range`, `fuse_set_nowrite`); programs on two mounts that count up in one file, each count under a lock of its own, beside others that read, store and cut.
#![allow(clippy::unwrap_used)] // the helpers of a test panic as the test does

mod support;

use ashlar_client::{Client, Dropping, Handle, KernelCache, OpenFlags, Who, WriteFlags};
use ashlar_types::InodeId;
use ashlar_types::message::SetAttr;
use parking_lot::{Condvar, Mutex, RwLock};
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};
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
    is_dirty: bool,
}

/// The pages of one file on one mount.
#[derive(Default)]
struct Pages {
    all: Mutex<BTreeMap<u64, Page>>,
    changed: Condvar,
    /// Of the inode: one write(2) or truncation at a time.
    inode: Mutex<()>,
    /// Nothing is written back while a truncation is under way.
    nowrite: RwLock<()>,
    mount: OnceLock<(Arc<Client>, Arc<Handle>)>,
    /// Pages that were found locked.
    waited: AtomicU64,
}

impl Pages {
    /// Waits for `page`, and locks it; there is one then.
    fn lock(&self, page: u64) -> Option<Vec<u8>> {
        let mut all = self.all.lock();
        while all.entry(page).or_default().is_locked {
            self.changed.wait(&mut all);
        }
        let own = all.entry(page).or_default();
        own.is_locked = true;
        own.bytes.clone()
    }

    fn unlock(&self, page: u64, change: impl FnOnce(&mut Page)) {
        let mut all = self.all.lock();
        let own = all.get_mut(&page).unwrap();
        own.is_locked = false;
        change(own);
        self.changed.notify_all();
    }

    /// Drops pages one after the other. Each is waited for, and written back if somebody has stored into it.
    fn drop_pages(&self, range: Range<u64>) {
        let mut at = range.start;
        loop {
            let mut all = self.all.lock();
            let Some((&page, found)) = all.range_mut(at..range.end).next() else { return };
            if found.is_locked {
                self.waited.fetch_add(1, SeqCst);
                self.changed.wait(&mut all);
                continue;
            }
            at = page + 1;
            if !found.is_dirty {
                all.remove(&page);
                continue;
            }
            (found.is_locked, found.is_dirty) = (true, false);
            let bytes = found.bytes.clone().unwrap();
            drop(all);
            self.write_back(page, &bytes);
            let mut all = self.all.lock();
            all.remove(&page);
            self.changed.notify_all();
        }
    }

    fn write_back(&self, page: u64, bytes: &[u8]) {
        let _may_write = self.nowrite.read();
        let (client, file) = self.mount.get().unwrap();
        let flags = WriteFlags { is_writeback: true, ..WriteFlags::default() };
        client.write(file, page * PAGE, bytes, flags).unwrap();
    }

    fn fill(&self, page: u64) -> Vec<u8> {
        let (client, file) = self.mount.get().unwrap();
        let mut bytes = vec![0; PAGE as usize];
        client.fill_pages(file, page * PAGE, &mut bytes).unwrap();
        bytes
    }
}

/// A thread of the kernel's that drops a page.
struct Thread {
    is_done: Mutex<bool>,
    done: Condvar,
    pages: Arc<Pages>,
    page: u64,
}

impl fmt::Debug for Thread {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "dropping page {}", self.page)
    }
}

impl Dropping for Thread {
    fn wait(&self, at_most: Duration) -> bool {
        let mut is_done = self.is_done.lock();
        if !*is_done {
            self.done.wait_for(&mut is_done, at_most);
        }
        *is_done
    }
    fn is_blocked(&self) -> bool {
        self.pages.all.lock().get(&self.page).is_some_and(|page| page.is_locked)
    }
}

struct Kernel(Arc<Pages>);

impl KernelCache for Kernel {
    fn drop_attributes(&self, _: InodeId) {}
    fn drop_content(&self, _: InodeId) {
        self.0.drop_pages(0..u64::MAX);
    }
    fn drop_range(&self, _: InodeId, offset: u64, bytes: u64) {
        self.0.drop_pages(offset / PAGE..(offset + bytes).div_ceil(PAGE));
    }
    fn begin_to_drop(&self, _: InodeId, offset: u64, _: u64) -> Arc<dyn Dropping> {
        let (pages, page) = (self.0.clone(), offset / PAGE);
        let thread = Arc::new(Thread { is_done: Mutex::new(false), done: Condvar::new(), pages, page });
        let (pages, own) = (self.0.clone(), thread.clone());
        std::thread::spawn(move || {
            pages.drop_pages(offset / PAGE..offset / PAGE + 1);
            *own.is_done.lock() = true;
            own.done.notify_all();
        });
        thread
    }
    fn drop_entries(&self, _: InodeId) {}
}

struct Mount {
    client: Arc<Client>,
    pages: Arc<Pages>,
    file: Arc<Handle>,
}

impl Mount {
    fn read(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut out = Vec::new();
        for page in offset / PAGE..(offset + len as u64).div_ceil(PAGE) {
            // What is there is read without a lock.
            let known = self.pages.all.lock().get(&page).and_then(|page| page.bytes.clone());
            let bytes = known.unwrap_or_else(|| {
                let bytes = self.pages.lock(page).unwrap_or_else(|| self.pages.fill(page));
                self.pages.unlock(page, |page| page.bytes = Some(bytes.clone()));
                bytes
            });
            out.extend_from_slice(&bytes);
        }
        out[(offset % PAGE) as usize..][..len].to_vec()
    }

    /// Stores into a mapping.
    fn store(&self, offset: u64, data: &[u8]) {
        let page = offset / PAGE;
        let bytes = self.pages.lock(page).unwrap_or_else(|| self.pages.fill(page));
        self.pages.unlock(page, |page| {
            let mut bytes = bytes;
            bytes[(offset % PAGE) as usize..][..data.len()].copy_from_slice(data);
            (page.bytes, page.is_dirty) = (Some(bytes), true);
        });
    }

    /// A truncation that changes no length.
    fn cut(&self, size: u64) {
        let _inode = self.pages.inode.lock();
        let _nowrite = self.pages.nowrite.write();
        let changes = SetAttr { size: Some(size), ..SetAttr::default() };
        self.client.setattr(&Who::system(), self.file.file.inode, Some(&self.file), changes).unwrap();
    }

    fn write(&self, offset: u64, data: &[u8]) {
        let _inode = self.pages.inode.lock();
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
            let mut bytes = self.pages.lock(page);
            if part.len() as u64 == PAGE {
                bytes = Some(part.to_vec());
                filled.push(page);
            } else if let Some(bytes) = &mut bytes {
                bytes[within as usize..][..part.len()].copy_from_slice(part);
            }
            len += part.len();
            match bytes {
                Some(bytes) => self.pages.unlock(page, |page| page.bytes = Some(bytes)),
                None => locked = Some(page),
            }
        }
        self.send(offset, &data[..len], &filled);
        if let Some(page) = locked {
            self.pages.unlock(page, |_| {});
        }
        len
    }

    fn send(&self, offset: u64, data: &[u8], filled: &[u64]) {
        let (client, file, len) = (&self.client, &self.file, data.len() as u64);
        let (last, end) = ((offset + len - 1) / PAGE * PAGE, offset + len);
        let is_whole = offset <= last && end == last + PAGE;
        let kernel = Kernel(self.pages.clone());
        let last = (!is_whole).then_some((last, PAGE));
        let through = client.begin_through_pages(file, (offset, len), last, false);
        let flags = WriteFlags { yields: through.yields(), ..WriteFlags::default() };
        if client.goes_beside(file, false) {
            let filled = filled.first().map(|first| (first * PAGE, filled.len() as u64 * PAGE));
            let mut is_done = false;
            client.write_beside(&Who::system(), file, (offset, data), flags, filled, |taken, stays| {
                let pages = through.end();
                if stays {
                    pages.carry_out(&kernel, &file.file);
                }
                is_done = taken.unwrap().bytes == data.len();
            });
            return assert!(is_done);
        }
        client.begin_pages_through(&through).unwrap();
        assert_eq!(client.write(file, offset, data, flags).unwrap(), data.len());
        through.end().carry_out(&kernel, &file.file);
    }
}

/// What goes on beside the counting.
#[derive(Clone, Copy, Default)]
struct Beside {
    /// Programs read all the time, through the cache and past it.
    readers: bool,
    /// Mounts on which a program stores into a mapping of a page of its own all the time.
    storers: usize,
    /// Programs cut the file to the length it has.
    cuts: bool,
}

struct Counting {
    mounts: [Mount; 2],
    places: Vec<u64>,
    counts: Vec<Mutex<u64>>,
    size: u64,
    is_over: AtomicBool,
}

impl Counting {
    fn begin(size: usize, places: &[u64]) -> (World, Counting) {
        let world = World::new(64 << 20);
        let client = world.client();
        let file = make(&client, "f").unwrap();
        write(&client, &file, 0, &content(1, size)).unwrap();
        let flags = OpenFlags { read: true, write: true, ..OpenFlags::default() };
        let mounts = [(); 2].map(|()| {
            let (client, pages) = (world.client(), Arc::new(Pages::default()));
            client.set_kernel_cache(Arc::new(Kernel(pages.clone())));
            client.set_frees_filled_pages();
            let file = client.open(&Who::system(), file.file.inode, flags).unwrap().handle;
            assert!(pages.mount.set((client.clone(), file.clone())).is_ok());
            Mount { client, pages, file }
        });
        places.iter().for_each(|&place| mounts[0].write(place, &[0; 8]));
        let counts = places.iter().map(|_| Mutex::new(0)).collect();
        let (places, size, is_over) = (places.to_vec(), size as u64, AtomicBool::new(false));
        (world, Counting { mounts, places, counts, size, is_over })
    }

    /// Reads, if it does, what the last holder of the lock wrote, and counts up.
    fn count(&self, thread: usize, turns: u64, is_strict: bool) {
        let mount = &self.mounts[thread % 2];
        let mut random = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(thread as u64 + 1);
        for _ in 0..turns {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let number = (random >> 8) as usize % self.places.len();
            let begun = Instant::now();
            let mut count = self.counts[number].lock();
            if random & 1 == 0 {
                let found = u64::from_le_bytes(mount.read(self.places[number], 8).try_into().unwrap());
                assert!(!is_strict || found == *count, "at {}: {found}, not {count}", self.places[number]);
            }
            *count += 1;
            mount.write(self.places[number], &count.to_le_bytes());
            drop(count);
            assert!(begun.elapsed() < PATIENCE, "a session was about to be ended");
        }
    }

    /// Stores ever greater numbers into a page of its own, and never finds an older one there.
    fn store(&self, at: usize) {
        let place = self.size.next_multiple_of(PAGE) + (at as u64 + 1) * PAGE;
        self.mounts[at].write(place, &[0; PAGE as usize]);
        for number in 1_u64.. {
            let begun = Instant::now();
            let found = u64::from_le_bytes(self.mounts[at].read(place, 8).try_into().unwrap());
            assert_eq!(found, number - 1, "a store of mount {at} was undone");
            self.mounts[at].store(place, &number.to_le_bytes());
            assert!(begun.elapsed() < PATIENCE, "a session was about to be ended");
            if self.is_over.load(SeqCst) {
                return;
            }
        }
    }

    fn read(&self, at: usize) {
        let mount = &self.mounts[at];
        for turn in 0.. {
            let begun = Instant::now();
            mount.read(self.places[turn % self.places.len()] / PAGE * PAGE, 8);
            mount.client.read_past_cache(&mount.file, 0, &mut [0; 100]).unwrap();
            assert!(begun.elapsed() < PATIENCE, "a session was about to be ended");
            if self.is_over.load(SeqCst) {
                return;
            }
        }
    }

    fn cut(&self, at: usize) {
        while !self.is_over.load(SeqCst) {
            let begun = Instant::now();
            self.mounts[at].cut(self.size.next_multiple_of(PAGE) + 8 * PAGE);
            assert!(begun.elapsed() < PATIENCE, "a session was about to be ended");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Counts at `places` in a file that is `size` bytes long at first; whether a read may be from before the last write is for `is_strict` to say.
fn count(size: usize, places: &[u64], turns: u64, beside: Beside, is_strict: bool) {
    let (world, counting) = Counting::begin(size, places);
    let (counting, clock) = (&counting, &world.clock);
    let (is_over, begun) = (&AtomicBool::new(false), Instant::now());
    std::thread::scope(|threads| {
        // Bounded waits end.
        threads.spawn(move || {
            let mut told = Duration::ZERO;
            while !is_over.load(SeqCst) {
                std::thread::sleep(Duration::from_millis(1));
                let now = begun.elapsed();
                clock.advance(now - told);
                told = now;
            }
        });
        let others: Vec<_> = (0..2)
            .flat_map(|at| {
                [
                    (at < beside.storers).then(|| threads.spawn(move || counting.store(at))),
                    beside.readers.then(|| threads.spawn(move || counting.read(at))),
                    beside.cuts.then(|| threads.spawn(move || counting.cut(at))),
                ]
            })
            .flatten()
            .collect();
        let counters: Vec<_> =
            (0..4).map(|thread| threads.spawn(move || counting.count(thread, turns, is_strict))).collect();
        let ended: Vec<_> = counters.into_iter().map(|counter| counter.join()).collect();
        counting.is_over.store(true, SeqCst);
        let others: Vec<_> = others.into_iter().map(|other| other.join()).collect();
        is_over.store(true, SeqCst);
        assert!(others.iter().all(Result::is_ok));
        assert!(ended.iter().all(Result::is_ok));
    });
    let waited: u64 = counting.mounts.iter().map(|mount| mount.pages.waited.load(SeqCst)).sum();
    assert!(waited > 0, "no page was ever locked when it was to be dropped");
}

const IN_CHUNKS: [u64; 7] = [0, 8, PAGE - 4, 5_000, 3 * PAGE - 4, 40_000, KIB64 as u64 + 100];

#[test]
fn in_a_file_that_lives_with_its_inode() {
    count(6_000, &[0, 8, 4_092, 5_000], 1_500, Beside::default(), true);
}

#[test]
fn in_a_file_of_chunks() {
    count(3 * KIB64, &IN_CHUNKS, 1_500, Beside::default(), true);
}

#[test]
fn beside_programs_that_read_all_the_time() {
    count(3 * KIB64, &IN_CHUNKS, 200, Beside { readers: true, ..Beside::default() }, true);
    count(6_000, &[0, 8, 4_092, 5_000], 200, Beside { readers: true, ..Beside::default() }, true);
}

#[test]
fn beside_a_program_of_one_mount_that_stores_into_a_mapping() {
    count(3 * KIB64, &IN_CHUNKS, 400, Beside { storers: 1, ..Beside::default() }, true);
}

#[test]
fn beside_programs_that_read_and_cut() {
    count(3 * KIB64, &IN_CHUNKS, 100, Beside { readers: true, storers: 0, cuts: true }, true);
    count(6_000, &[0, 8, 4_092, 5_000], 100, Beside { readers: true, storers: 0, cuts: true }, true);
}

/// Where both store, one goes ahead of the other's answer: what is read may be old then. But nobody waits for ever.
#[test]
fn beside_programs_that_store_on_both_mounts() {
    count(3 * KIB64, &IN_CHUNKS, 300, Beside { storers: 2, ..Beside::default() }, false);
}

#[test]
fn beside_programs_that_store_and_read_on_both_mounts() {
    count(3 * KIB64, &IN_CHUNKS, 100, Beside { readers: true, storers: 2, cuts: false }, false);
}

#[test]
fn beside_programs_that_store_and_cut_on_both_mounts() {
    count(3 * KIB64, &IN_CHUNKS, 100, Beside { readers: false, storers: 2, cuts: true }, false);
}

#[test]
fn beside_programs_that_store_read_and_cut_on_both_mounts() {
    count(3 * KIB64, &IN_CHUNKS, 100, Beside { readers: true, storers: 2, cuts: true }, false);
}
