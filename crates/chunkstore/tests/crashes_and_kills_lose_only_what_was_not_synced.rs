//! Goal: whatever is done and whenever the process dies or the power goes, every byte is one that may be there: after a
//! kill the last one written, after a power cut one written since the last sync (or the synced one), and never a checksum
//! error. Method: a model keeps all versions of each chunk since the last sync and compares byte by byte; the place of
//! the stop is chosen by counting disk operations.
#![allow(clippy::unwrap_used)] // test code outside of test functions

mod support;

use ashlar_chunkstore::{ChunkError, ChunkStore};
use ashlar_env::Entropy;
use ashlar_env::sim::SimEntropy;
use ashlar_types::ChunkId;
use std::collections::BTreeMap;
use std::time::Duration;
use support::{World, chunk, content, pattern, scrub_all};

#[derive(Clone, PartialEq, Eq)]
struct Version {
    exists: bool,
    len: usize,
    bytes: Vec<u8>,
}

/// One chunk as it may be.
struct Modelled {
    chunk_bytes: u32,
    /// The synced version, then each one since.
    versions: Vec<Version>,
}

impl Version {
    fn absent(chunk_bytes: u32) -> Version {
        Version { exists: false, len: 0, bytes: vec![0; chunk_bytes as usize] }
    }
}

impl Modelled {
    fn new(chunk_bytes: u32) -> Modelled {
        Modelled { chunk_bytes, versions: vec![Version::absent(chunk_bytes)] }
    }

    fn now(&self) -> &Version {
        self.versions.last().unwrap()
    }

    fn add(&mut self, change: impl FnOnce(&mut Version)) {
        let mut next = self.now().clone();
        change(&mut next);
        self.versions.push(next);
    }

    /// Whether `seen` can be what is left of `versions`.
    fn check(&self, seen: &Version, versions: &[Version], what: &str) {
        assert!(versions.iter().any(|version| version.len == seen.len), "{what}: length {}", seen.len);
        for (at, byte) in seen.bytes.iter().enumerate() {
            assert!(
                versions.iter().any(|version| version.bytes[at] == *byte),
                "{what}: byte {at} is {byte}, not one of {:?}",
                versions.iter().map(|version| version.bytes[at]).collect::<Vec<_>>()
            );
        }
    }
}

struct Run {
    world: World,
    random: SimEntropy,
    model: BTreeMap<ChunkId, Modelled>,
    writes: u64,
    /// Chunks the operation that was interrupted worked on.
    in_flight: Vec<ChunkId>,
    log: Vec<String>,
}

const SIZES: [u32; 3] = [64 << 10, 128 << 10, 2 << 20];

impl Run {
    fn new(seed: u64) -> Run {
        let random = SimEntropy::new(seed);
        let mut model = BTreeMap::new();
        for (inode, size) in (1..).zip(SIZES) {
            let count = if size > 1 << 20 { 2 } else { 5 };
            model.extend((0..count).map(|index| (chunk(inode, index), Modelled::new(size))));
        }
        let mut world = World::new();
        world.config.freed_bytes_max = random.below(2) * (1 << 20);
        world.config.dirty_regions_max = 4 + random.below(20) as usize;
        Run { world, random, model, writes: 0, in_flight: Vec::new(), log: Vec::new() }
    }

    fn pick(&self) -> ChunkId {
        *self.model.keys().nth(self.random.below(self.model.len() as u64) as usize).unwrap()
    }

    /// A range: often whole, often small, sometimes any.
    fn range(&self, chunk_bytes: u32) -> (u32, u32) {
        let size = u64::from(chunk_bytes);
        let (offset, len) = match self.random.below(6) {
            0 | 1 => (0, size),
            2 => (self.random.below(size / 4096) * 4096, 4096),
            3 => (self.random.below(size), 1 + self.random.below(3000)),
            4 => (self.random.below(size / 4096) * 4096, 4096 * (1 + self.random.below(8))),
            _ => (self.random.below(size), 1 + self.random.below(size)),
        };
        (offset as u32, len.min(size - offset) as u32)
    }

    /// One operation; the model has its outcome before it begins.
    fn step(&mut self, store: &ChunkStore) -> Result<(), ChunkError> {
        let id = self.pick();
        let size = self.model[&id].chunk_bytes;
        let (offset, len) = self.range(size);
        let range = offset as usize..(offset + len) as usize;
        self.in_flight = vec![id];
        let verb = self.random.below(100);
        self.log.push(format!("{verb} {id} {offset}+{len}"));
        let model = self.model.get_mut(&id).unwrap();
        match verb {
            0..50 => {
                self.writes += 1;
                let data = pattern(self.writes, len as usize);
                model.add(|version| {
                    version.bytes[range.clone()].copy_from_slice(&data);
                    version.len = version.len.max(range.end);
                    version.exists = true;
                });
                store.write(id, size, offset, &data, None).map(|_| ())
            }
            50..58 => {
                model.add(|version| {
                    if version.exists {
                        version.bytes[offset as usize..].fill(0);
                        version.len = offset as usize;
                        version.exists = offset > 0;
                    }
                });
                store.truncate(id, size, offset).map(|_| ())
            }
            58..62 => {
                model.add(|version| version.bytes[range.clone()].fill(0));
                store.punch(id, size, offset, len).map(|_| ())
            }
            62..65 => {
                model.add(|version| {
                    version.bytes[range.clone()].fill(0);
                    version.exists = true;
                });
                store.zero(id, size, offset, len).map(|_| ())
            }
            65..68 => {
                model.add(|version| version.exists = true);
                store.allocate(id, size, offset, len).map(|_| ())
            }
            68..76 => {
                model.add(|version| *version = Version::absent(size));
                store.delete(id).map(|_| ())
            }
            76..78 => {
                self.in_flight = self.model.keys().copied().filter(|other| other.inode == id.inode).collect();
                for other in &self.in_flight {
                    let model = self.model.get_mut(other).unwrap();
                    model.add(|version| *version = Version::absent(size));
                }
                store.delete_generation(id.inode, 1, 0).map(|_| ())
            }
            78..85 => {
                self.in_flight.clear();
                store.sync()?;
                self.synced();
                Ok(())
            }
            85..92 => {
                self.in_flight.clear();
                self.world.clock.advance(Duration::from_millis(self.random.below(6000)));
                if store.background_tick(self.random.below(40) as usize)?.is_synced {
                    self.synced();
                }
                Ok(())
            }
            _ => {
                self.in_flight.clear();
                self.compare_exactly(store);
                Ok(())
            }
        }
    }

    fn synced(&mut self) {
        self.model.values_mut().for_each(|model| drop(model.versions.drain(..model.versions.len() - 1)));
    }

    fn compare_exactly(&self, store: &ChunkStore) {
        for (id, model) in &self.model {
            let (len, bytes) = self.seen(store, *id);
            assert_eq!(len, model.now().len, "{id} {}", self.tail());
            assert_eq!(store.chunk_blocks(*id).is_ok(), model.now().exists, "{id} {}", self.tail());
            assert!(bytes == model.now().bytes, "{id} {}", self.tail());
        }
    }

    fn tail(&self) -> String {
        self.log[self.log.len().saturating_sub(60)..].join("; ")
    }

    fn seen(&self, store: &ChunkStore, id: ChunkId) -> (usize, Vec<u8>) {
        let size = self.model[&id].chunk_bytes;
        content(store, id, size).unwrap_or_else(|error| panic!("{id}: {error}; {}", self.tail()))
    }

    /// Works until the disk stops, then kills or cuts the power, and looks at what is left.
    fn life(&mut self) {
        let is_kill = self.random.below(2) == 0;
        self.log.push(if is_kill { "--kill" } else { "--crash" }.into());
        let quick = self.random.below(4) == 0;
        self.world.disk.cut_power_after(self.random.below(if quick { 20 } else { 400 }));
        self.in_flight.clear();
        let opened = self.world.try_open();
        if let Ok((store, _)) = opened {
            for _ in 0..1000 {
                match self.step(&store) {
                    Ok(()) => {}
                    Err(_) if self.world.disk.is_power_off() => break,
                    Err(error) => panic!("{error}; {}", self.tail()),
                }
            }
            if is_kill {
                self.world.kill(store);
            } else {
                self.world.crash(store, self.random.next_u64());
            }
        } else if is_kill {
            self.world.disk.kill_process();
        } else {
            self.world.disk.crash(self.random.next_u64());
        }
        self.look(is_kill);
    }

    fn look(&mut self, is_kill: bool) {
        let (store, _) = self.world.try_open().unwrap_or_else(|error| panic!("{error}; {}", self.tail()));
        let findings = scrub_all(&store);
        assert!(findings.is_empty(), "{findings:?}; {}", self.tail());
        for id in self.model.keys().copied().collect::<Vec<_>>() {
            let (len, bytes) = self.seen(&store, id);
            let seen = Version { exists: store.chunk_blocks(id).is_ok(), len, bytes };
            let model = self.model.get_mut(&id).unwrap();
            let count = match (is_kill, self.in_flight.contains(&id)) {
                (true, true) => 2,
                (true, false) => 1,
                (false, _) => model.versions.len(),
            };
            let from = model.versions.len().saturating_sub(count);
            let what =
                format!("{id} kill {is_kill} {}", self.log[self.log.len().saturating_sub(60)..].join("; "));
            model.check(&seen, &model.versions[from..], &what);
            model.versions.push(seen);
        }
        // What recovery left is durable, whether it was changed or not.
        self.synced();
        if self.random.below(3) == 0 {
            store.close().unwrap();
            self.world.kill(store);
            let (store, report) = self.world.try_open().unwrap();
            assert!(report.is_clean(), "{report:?}");
            self.compare_exactly(&store);
            self.world.crash(store, self.random.next_u64());
        } else {
            self.world.crash(store, self.random.next_u64());
        }
    }
}

/// Seeds to run; more with `ASHLAR_SEEDS`.
fn seeds() -> std::ops::Range<u64> {
    let count = std::env::var("ASHLAR_SEEDS").ok().and_then(|count| count.parse().ok()).unwrap_or(12);
    let first = std::env::var("ASHLAR_SEED").ok().and_then(|first| first.parse().ok()).unwrap_or(0);
    first..first + count
}

#[test]
fn no_stop_at_any_disk_operation_loses_what_it_must_not() {
    for seed in seeds() {
        let mut run = Run::new(seed);
        for _ in 0..8 {
            run.life();
        }
        println!("seed {seed}: {} writes", run.writes);
    }
}
