//! A checkpoint that hangs in the engine: reads see what is being applied, later changes win over it, and writers wait for a
//! bounded time.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod ledger;

use ashlar_env::Env;
use ashlar_env::sim::SimDisk;
use ashlar_kv::{
    Background, Engine, EngineChanges, EngineReport, KvError, Lane, LaneConfig, LastingSnapshot, MemoryEngine,
};
use bytes::Bytes;
use ledger::{CLUSTER, commit, frame, get, key, put, scan_all, small_config};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// Longest time for something that another thread does at once.
const PATIENCE: Duration = Duration::from_secs(60);

/// Lets checkpoints pass while open.
#[derive(Default)]
struct Gate {
    is_closed: Mutex<bool>,
    opened: Condvar,
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
    let gate = Arc::new(Gate::default());
    let engine = Box::new(GatedEngine { inner: MemoryEngine::new(), gate: Arc::clone(&gate) });
    let disk = Arc::new(SimDisk::new());
    (Lane::open(disk, "lane", engine, &Env::os(), CLUSTER, config).unwrap(), gate)
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
