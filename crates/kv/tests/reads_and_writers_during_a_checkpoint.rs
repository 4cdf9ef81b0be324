//! A checkpoint that hangs in the engine: reads see what is being applied, later changes win over it, and writers wait for a
//! bounded time.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod ledger;

use ashlar_env::sim::SimDisk;
use ashlar_env::{Disk, Env};
use ashlar_kv::{
    Background, Engine, EngineChanges, EngineReport, KvError, Lane, LaneConfig, LastingSnapshot,
    MemoryEngine, Urgency,
};
use bytes::Bytes;
use ledger::{CLUSTER, commit, frame, get, key, put, scan_all, small_config};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// Longest time for something that another thread does at once.
const PATIENCE: Duration = Duration::from_secs(60);

/// Lets checkpoints pass while open.
#[derive(Default)]
struct Gate {
    is_closed: Mutex<bool>,
    opened: Condvar,
    /// Checkpoints that have come to it.
    reached: AtomicU64,
}

impl Gate {
    fn set_closed(&self, is_closed: bool) {
        *self.is_closed.lock().unwrap() = is_closed;
        self.opened.notify_all();
    }
}

/// Opens the gate at the end of a test, failed or not: else the lane would wait for its checkpoint forever.
struct OpenAtEnd<'a>(&'a Gate);

impl Drop for OpenAtEnd<'_> {
    fn drop(&mut self) {
        self.0.set_closed(false);
    }
}

struct GatedEngine {
    inner: MemoryEngine,
    gate: Arc<Gate>,
}

impl Engine for GatedEngine {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, KvError> {
        self.inner.get(key)
    }

    fn scan(&self, from: &[u8], to: &[u8], visit: &mut ashlar_kv::Visit<'_>) -> Result<(), KvError> {
        self.inner.scan(from, to, visit)
    }

    fn snapshot(&self) -> Result<LastingSnapshot, KvError> {
        self.inner.snapshot()
    }

    fn apply(&self, changes: &mut EngineChanges<'_>, note: &[u8]) -> Result<(), KvError> {
        self.gate.reached.fetch_add(1, SeqCst);
        drop(self.gate.opened.wait_while(self.gate.is_closed.lock().unwrap(), |closed| *closed).unwrap());
        self.inner.apply(changes, note)
    }

    fn note(&self) -> Result<Option<Bytes>, KvError> {
        self.inner.note()
    }

    fn verify(&self) -> Result<EngineReport, KvError> {
        self.inner.verify()
    }

    fn bytes_used(&self) -> u64 {
        self.inner.bytes_used()
    }

    fn close(&self) -> Result<(), KvError> {
        self.inner.close()
    }
}

fn gated_lane(config: LaneConfig) -> (Lane, Arc<Gate>) {
    gated_lane_on(&SimDisk::new(), config)
}

fn gated_lane_on(disk: &SimDisk, config: LaneConfig) -> (Lane, Arc<Gate>) {
    let gate = Arc::new(Gate::default());
    let engine = Box::new(GatedEngine { inner: MemoryEngine::new(), gate: Arc::clone(&gate) });
    (Lane::open(Arc::new(disk.clone()), "lane", engine, &Env::os(), CLUSTER, config).unwrap(), gate)
}

fn delete(name: &str) -> ashlar_kv::Frame {
    frame(0, 1, vec![(key(0, name), None)])
}

#[test]
fn reads_merge_the_engine_what_is_being_applied_and_what_came_later() {
    let (lane, gate) = gated_lane(small_config());
    for name in ["a", "b", "c", "d"] {
        commit(&lane, vec![put(name, "engine")]).unwrap();
    }
    lane.checkpoint_now().unwrap();
    for group in [put("b", "frozen"), delete("c"), put("e", "frozen"), put("f", "frozen"), put("g", "frozen")]
    {
        commit(&lane, vec![group]).unwrap();
    }
    gate.set_closed(true);
    std::thread::scope(|scope| {
        let checkpoint = scope.spawn(|| lane.checkpoint_now());
        let _opener = OpenAtEnd(&gate);
        // The freeze is over when the overlays hold nothing of their own but the frozen one does.
        let start = Instant::now();
        while lane.durable() < lane.appended() {
            assert!(start.elapsed() < PATIENCE, "the checkpoint does not begin");
            std::thread::yield_now();
        }
        for group in [delete("f"), put("g", "active"), put("d", "active"), put("c", "active")] {
            commit(&lane, vec![group]).unwrap();
        }
        let expected = [
            ("a", "engine"),
            ("b", "frozen"),
            ("c", "active"),
            ("d", "active"),
            ("e", "frozen"),
            ("g", "active"),
        ];
        let check = || {
            for (name, value) in expected {
                assert_eq!(get(&lane, name).unwrap(), value, "{name}");
            }
            assert_eq!(get(&lane, "f"), None);
            let found: Vec<_> = scan_all(&lane).unwrap().into_iter().collect();
            let wanted = expected.map(|(name, value)| (key(0, name).to_vec(), Bytes::from(value)));
            assert_eq!(found, wanted);
        };
        check();
        assert!(!checkpoint.is_finished());
        gate.set_closed(false);
        checkpoint.join().unwrap().unwrap();
        check();
        lane.checkpoint_now().unwrap();
        check();
    });
}

#[test]
fn writers_wait_for_a_checkpoint_and_give_up_in_time() {
    let config = LaneConfig {
        background: Background::Threads,
        flush_interval: Duration::from_millis(10),
        stall_max: Duration::from_millis(150),
        ..small_config()
    };
    let (lane, gate) = gated_lane(config);
    let _opener = OpenAtEnd(&gate);
    gate.set_closed(true);
    let mut number = 0;
    let error = loop {
        if let Err(error) = commit(&lane, vec![put("k", vec![1; 1000]), put("m", vec![1; 1000])]) {
            break error;
        }
        commit(&lane, vec![put(&format!("{number}"), vec![1; 1000])]).unwrap_or_default();
        number += 1;
        // Many times what the overlays hold.
        assert!(number < 1000, "writers were never held back");
    };
    // The gate is still shut: nothing but the end of the time made the writer return.
    assert!(matches!(error, KvError::Stalled { .. }), "{error}");
    // Memory stayed within its bound (and the group that met it), and the lane goes on as soon as the engine does.
    let stats = lane.stats();
    assert!(stats.overlay_bytes <= 27 << 10, "{stats:?}");
    assert!(stats.write_waits > 0 && stats.write_wait_total > Duration::ZERO, "{stats:?}");
    gate.set_closed(false);
    let start = Instant::now();
    while commit(&lane, vec![put("last", "x")]).is_err() {
        assert!(start.elapsed() < PATIENCE, "the lane does not recover from a stall");
    }
    assert!(get(&lane, "last").is_some());
    lane.close().unwrap();
}

fn soon(what: &str, is_so: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "{what}");
        std::thread::yield_now();
    }
}

fn put_in_need(lane: &Lane, name: &str) -> Result<(), KvError> {
    lane.write().commit(vec![put(name, vec![1; 1000])], Urgency::FreesSpace).map(drop)
}

/// Commits until the overlays are full and the checkpoint waits at the gate; then one more, which is told when the gate is open.
fn write_beside_a_checkpoint(lane: &Lane, gate: &Gate) -> Result<(), KvError> {
    let waits = lane.stats().write_waits;
    std::thread::scope(|scope| {
        let _opener = OpenAtEnd(gate);
        let writer = scope.spawn(|| put_in_need(lane, "one more"));
        soon("the writer neither waits nor ends", || {
            writer.is_finished() || lane.stats().write_waits > waits
        });
        gate.set_closed(false);
        writer.join().unwrap()
    })
}

/// A writer was told that there is no room while the checkpoint that had found room was under way, and it would only have had to wait.
#[test]
fn writers_wait_for_the_checkpoint_that_has_found_room_again_and_for_those_after_it() {
    let config = LaneConfig {
        background: Background::Threads,
        segment_bytes: 1 << 20,
        log_bytes_max: 4 << 20,
        reserve_bytes: 64 << 10,
        stall_max: PATIENCE,
        ..small_config()
    };
    let disk = SimDisk::new();
    let (lane, gate) = gated_lane_on(&disk, config);
    let _opener = OpenAtEnd(&gate);
    put_in_need(&lane, "before").unwrap();
    // Others take all there is, and what the reserve gives back, but for a little.
    let space = disk.space().unwrap();
    disk.set_capacity(space.bytes_total - space.bytes_free - (60 << 10));
    let mut number = 0;
    let error = loop {
        match put_in_need(&lane, &format!("{number}")) {
            Ok(()) => number += 1,
            Err(error) => break error,
        }
        assert!(number < 1000, "writers were never refused");
    };
    assert!(matches!(&error, KvError::NoSpace { what } if what.contains("no room")), "{error}");
    assert_eq!(gate.reached.load(SeqCst), 0, "no checkpoint begins without room");
    gate.set_closed(true);
    disk.set_capacity(u64::MAX);
    soon("the checkpoint does not begin", || gate.reached.load(SeqCst) == 1);
    write_beside_a_checkpoint(&lane, &gate).unwrap();
    // And as ever from then on.
    soon("the checkpoint does not end", || lane.stats().overlay_bytes < 4 << 10);
    gate.set_closed(true);
    let mut number = 0;
    while lane.stats().overlay_bytes < 24 << 10 {
        put_in_need(&lane, &format!("{number}")).unwrap();
        number += 1;
    }
    soon("no checkpoint is due", || gate.reached.load(SeqCst) == 2);
    write_beside_a_checkpoint(&lane, &gate).unwrap();
    lane.close().unwrap();
}

/// The log goes on in another segment just where a checkpoint ends, after the checkpoint has made it durable up to there. The one before goes with the checkpoint; without the other one a power cut
/// left no log at all.
#[test]
fn a_power_cut_after_a_checkpoint_that_ends_with_a_segment_leaves_a_log() {
    let config = LaneConfig {
        segment_bytes: 64 << 10,
        overlay_bytes_max: 1 << 20,
        log_bytes_max: 1 << 20,
        ..small_config()
    };
    let large = "x".repeat(40 << 10);
    for seed in 0..32 {
        let (disk, engine, gate) = (SimDisk::new(), MemoryEngine::new(), Arc::new(Gate::default()));
        let gated = GatedEngine { inner: engine.clone(), gate: Arc::clone(&gate) };
        let lane =
            Lane::open(Arc::new(disk.clone()), "lane", Box::new(gated), &Env::os(), CLUSTER, config.clone());
        let lane = lane.unwrap();
        commit(&lane, vec![put("a", large.clone())]).unwrap();
        gate.set_closed(true);
        std::thread::scope(|scope| {
            let checkpoint = scope.spawn(|| lane.checkpoint_now());
            let _opener = OpenAtEnd(&gate);
            let start = Instant::now();
            while gate.reached.load(SeqCst) == 0 {
                assert!(start.elapsed() < PATIENCE, "the checkpoint does not begin");
                std::thread::yield_now();
            }
            commit(&lane, vec![put("b", large.clone())]).unwrap();
            gate.set_closed(false);
            checkpoint.join().unwrap().unwrap();
        });
        assert_eq!(disk.list("lane/log").unwrap().iter().filter(|name| name.ends_with(".log")).count(), 1);
        disk.crash(seed);
        drop(lane);
        let lane =
            Lane::open(Arc::new(disk.clone()), "lane", Box::new(engine), &Env::os(), CLUSTER, config.clone());
        let lane = lane.unwrap_or_else(|error| panic!("power cut {seed}: {error}"));
        assert_eq!(get(&lane, "a").unwrap(), large, "power cut {seed}");
    }
}
