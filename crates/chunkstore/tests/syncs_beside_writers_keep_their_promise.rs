//! Goal: what a writer was told before a sync began is there after a power cut, however writers, syncs and background work
//! overlapped. Method: every write fills a block with a number that grows; a sync that returns fixes a lower bound for each
//! block, and after the cut every sector of it must lie between that bound and the last number written. The disk takes its time
//! before it writes, so that syncs overtake writes that have begun.
#![allow(clippy::unwrap_used)] // test code outside of test functions

mod support;

use ashlar_chunkstore::{ChunkError, ChunkStore};
use ashlar_env::sim::SimDisk;
use ashlar_env::{Disk, DiskFile, DiskSpace, OpenMode};
use parking_lot::Mutex;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use support::{IDENTITY, World, chunk, scrub_all};

const KIB64: u32 = 64 << 10;
const THREADS: usize = 3;
const CHUNKS: usize = 60;
const BLOCKS: usize = THREADS * CHUNKS * 16;

/// A disk whose writes are slow to begin.
struct SlowDisk(SimDisk);

struct SlowFile(Arc<dyn DiskFile>, AtomicU32);

impl SlowFile {
    fn dawdle(&self) {
        let step = self.1.fetch_add(1, Ordering::Relaxed).wrapping_mul(2_654_435_761) >> 24;
        if step < 64 {
            std::thread::sleep(Duration::from_micros(u64::from(step) * 4));
        }
    }
}

impl DiskFile for SlowFile {
    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<usize> {
        self.0.read_at(offset, out)
    }
    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.dawdle();
        self.0.write_at(offset, data)
    }
    fn write_vectored_at(&self, offset: u64, parts: &[&[u8]]) -> io::Result<()> {
        self.dawdle();
        self.0.write_vectored_at(offset, parts)
    }
    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }
    fn punch_hole(&self, offset: u64, len: u64) -> io::Result<()> {
        self.dawdle();
        self.0.punch_hole(offset, len)
    }
    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        self.0.allocate(offset, len)
    }
    fn try_lock(&self) -> io::Result<()> {
        self.0.try_lock()
    }
}

impl Disk for SlowDisk {
    fn open(&self, path: &str, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        let file = self.0.open(path, mode)?;
        Ok(if path.ends_with(".slab") { Arc::new(SlowFile(file, AtomicU32::new(0))) } else { file })
    }
    fn list(&self, path: &str) -> io::Result<Vec<String>> {
        self.0.list(path)
    }
    fn create_dir(&self, path: &str) -> io::Result<()> {
        self.0.create_dir(path)
    }
    fn remove(&self, path: &str) -> io::Result<()> {
        self.0.remove(path)
    }
    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.0.rename(from, to)
    }
    fn sync_dir(&self, path: &str) -> io::Result<()> {
        self.0.sync_dir(path)
    }
    fn space(&self) -> io::Result<DiskSpace> {
        self.0.space()
    }
    fn describe(&self, path: &str) -> String {
        self.0.describe(path)
    }
}

struct Board {
    /// The last number written to each block, before the write is begun.
    begun: Vec<AtomicU32>,
    /// The last one that was acknowledged.
    acknowledged: Vec<AtomicU32>,
    /// What a sync that returned has made durable.
    durable: Mutex<Vec<u32>>,
}

fn block_bytes(number: u32) -> Vec<u8> {
    number.to_le_bytes().repeat(1024)
}

/// Writes the chunks of one thread, one after the other and then again, until the power goes: many writes go to slots that
/// were taken a moment ago, which is where syncs and writers meet.
fn write_on(store: &ChunkStore, board: &Board, thread: usize) -> Result<(), ChunkError> {
    for number in 1.. {
        let (index, block) = (number as usize / 25 % CHUNKS, number as usize * 7 % 16);
        let at = index * 16 + block;
        let id = chunk(thread as u64 + 1, index as u64);
        let base = thread * CHUNKS * 16;
        if number % 25 == 0 && index % 3 == 0 {
            // A whole chunk at once: the kind that takes stale slots and is not changed before it is synced.
            let range = base + index * 16..base + index * 16 + 16;
            board.begun[range.clone()].iter().for_each(|begun| begun.store(number, Ordering::SeqCst));
            store.write(id, KIB64, 0, &block_bytes(number).repeat(16), None)?;
            board.acknowledged[range].iter().for_each(|told| told.store(number, Ordering::SeqCst));
            continue;
        }
        board.begun[base + at].store(number, Ordering::SeqCst);
        store.write(id, KIB64, block as u32 * 4096, &block_bytes(number), None)?;
        board.acknowledged[base + at].store(number, Ordering::SeqCst);
    }
    Ok(())
}

fn sync_on(world: &World, store: &ChunkStore, board: &Board) -> Result<(), ChunkError> {
    loop {
        let told: Vec<u32> = board.acknowledged.iter().map(|told| told.load(Ordering::SeqCst)).collect();
        store.sync()?;
        let mut durable = board.durable.lock();
        durable.iter_mut().zip(told).for_each(|(durable, told)| *durable = told.max(*durable));
        drop(durable);
        world.clock.advance(Duration::from_secs(3));
        store.background_tick(10)?;
    }
}

#[test]
fn a_sync_covers_every_write_that_was_told_before_it() {
    for seed in 0..40_u64 {
        let world = World::new();
        let (engine, disk) = (world.engine.clone(), Arc::new(SlowDisk(world.disk.clone())));
        let make = move || Ok(Box::new(engine) as Box<_>);
        let (store, _) = ChunkStore::open(disk, make, &world.env, &IDENTITY, world.config.clone()).unwrap();
        let zeros = || (0..BLOCKS).map(|_| AtomicU32::new(0)).collect();
        let board = Board { begun: zeros(), acknowledged: zeros(), durable: Mutex::new(vec![0; BLOCKS]) };
        world.disk.cut_power_after(200 + seed * 131 % 1500);
        std::thread::scope(|scope| {
            let (world, store, board) = (&world, &store, &board);
            for thread in 0..THREADS {
                scope.spawn(move || assert!(write_on(store, board, thread).is_err()));
            }
            scope.spawn(move || assert!(sync_on(world, store, board).is_err()));
        });
        world.crash(store, seed);
        let store = world.open();
        assert!(scrub_all(&store).is_empty(), "seed {seed}");
        let durable = board.durable.lock();
        for at in 0..BLOCKS {
            let (thread, index, block) = (at / (CHUNKS * 16), at / 16 % CHUNKS, at % 16);
            let mut bytes = vec![0; 4096];
            store
                .read(chunk(thread as u64 + 1, index as u64), KIB64, block as u32 * 4096, &mut bytes)
                .unwrap();
            let (lowest, highest) = (durable[at], board.begun[at].load(Ordering::SeqCst));
            for word in bytes.chunks(4) {
                let number = u32::from_le_bytes(word.try_into().unwrap());
                assert!(
                    (lowest..=highest).contains(&number),
                    "seed {seed} block {at}: {number}, {lowest}..={highest}"
                );
            }
        }
    }
}
