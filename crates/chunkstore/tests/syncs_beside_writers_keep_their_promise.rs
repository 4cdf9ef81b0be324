//! Goal: what a writer was told before a sync began is there after a power cut, however writers, syncs and background work
//! overlapped. Method: every write fills a block with a number that grows; a sync that returns fixes a lower bound for each
//! block (after a kill: the last write that was told), and after the stop every sector of it must lie between that bound and
//! the last number written. The disk takes its time
//! before it writes, so that syncs overtake writes that have begun.
#![allow(clippy::unwrap_used)] // test code outside of test functions

mod support;

use ashlar_chunkstore::{ChunkError, ChunkStore};
use ashlar_env::sim::SimDisk;
use ashlar_env::{Continuity, Disk, DiskFile, DiskSpace, OpenMode};
use parking_lot::Mutex;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;
use support::{IDENTITY, World, chunk, scrub_all};

/// A chunk is a region of its own: no neighbour's mark covers it.
const MIB: u32 = 1 << 20;
const THREADS: usize = 3;
/// Chunks of one thread; more than it gets done before the power goes.
const CHUNKS: usize = 200;
/// Chunks a thread keeps; older ones are deleted, and their slots used again.
const KEPT: usize = 4;
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
    fn sync_all(&self) -> io::Result<()> {
        self.0.sync_all()
    }
    fn space(&self) -> io::Result<DiskSpace> {
        self.0.space()
    }
    fn continuity(&self) -> Option<Continuity> {
        self.0.continuity()
    }

    fn note_loss(&self, what: &str) -> io::Result<()> {
        self.0.note_loss(what)
    }

    fn end_loss(&self) -> io::Result<bool> {
        self.0.end_loss()
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
    /// Chunks whose deletion was begun.
    is_deleted: Vec<AtomicBool>,
    /// What a sync that returned has made durable.
    durable: Mutex<Vec<u32>>,
}

fn block_bytes(number: u32) -> Vec<u8> {
    number.to_le_bytes().repeat(1024)
}

/// Makes one chunk after the other, whole, changes some of its first blocks, and deletes it a little later. So most changes
/// go to slots that were taken a moment ago, clean or stale, which is where syncs and writers meet.
fn write_on(store: &ChunkStore, board: &Board, thread: usize) -> Result<(), ChunkError> {
    for number in 1..25 * CHUNKS as u32 {
        let (index, block) = (number as usize / 25, number as usize * 7 % 16);
        let id = |index: usize| chunk(thread as u64 + 1, index as u64);
        let base = (thread * CHUNKS + index) * 16;
        if number % 25 != 0 {
            board.begun[base + block].store(number, Ordering::SeqCst);
            store.write(id(index), MIB, block as u32 * 4096, &block_bytes(number), None)?;
            board.acknowledged[base + block].store(number, Ordering::SeqCst);
            continue;
        }
        board.begun[base..base + 16].iter().for_each(|begun| begun.store(number, Ordering::SeqCst));
        store.write(id(index), MIB, 0, &block_bytes(number).repeat(256), None)?;
        board.acknowledged[base..base + 16].iter().for_each(|told| told.store(number, Ordering::SeqCst));
        if let Some(old) = index.checked_sub(KEPT) {
            board.is_deleted[thread * CHUNKS + old].store(true, Ordering::SeqCst);
            store.delete(id(old))?;
        }
    }
    panic!("the power should have gone by now")
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
    for seed in 0..45_u64 {
        let world = World::new();
        let (engine, disk) = (world.engine.clone(), Arc::new(SlowDisk(world.disk.clone())));
        let make = move || Ok(Box::new(engine) as Box<_>);
        let (store, _) = ChunkStore::open(disk, make, &world.env, &IDENTITY, world.config.clone()).unwrap();
        let zeros = || (0..BLOCKS).map(|_| AtomicU32::new(0)).collect();
        let board = Board {
            begun: zeros(),
            acknowledged: zeros(),
            is_deleted: (0..THREADS * CHUNKS).map(|_| AtomicBool::new(false)).collect(),
            durable: Mutex::new(vec![0; BLOCKS]),
        };
        world.disk.cut_power_after(200 + seed * 131 % 1500);
        std::thread::scope(|scope| {
            let (world, store, board) = (&world, &store, &board);
            for thread in 0..THREADS {
                scope.spawn(move || assert!(write_on(store, board, thread).is_err()));
            }
            scope.spawn(move || assert!(sync_on(world, store, board).is_err()));
        });
        let is_kill = seed.is_multiple_of(3);
        if is_kill {
            world.kill(store);
        } else {
            world.crash(store, seed);
        }
        let store = world.open();
        assert!(scrub_all(&store).is_empty(), "seed {seed}");
        let durable = board.durable.lock();
        for at in 0..BLOCKS {
            let (thread, index, block) = (at / (CHUNKS * 16), at / 16 % CHUNKS, at % 16);
            let is_gone = board.is_deleted[at / 16].load(Ordering::SeqCst);
            if is_gone || board.begun[at].load(Ordering::SeqCst) == 0 {
                continue;
            }
            let mut bytes = vec![0; 4096];
            store.read(chunk(thread as u64 + 1, index as u64), MIB, block as u32 * 4096, &mut bytes).unwrap();
            let lowest = if is_kill { board.acknowledged[at].load(Ordering::SeqCst) } else { durable[at] };
            let highest = board.begun[at].load(Ordering::SeqCst);
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
