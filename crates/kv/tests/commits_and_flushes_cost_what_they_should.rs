//! Counted system calls: a commit is one write and no sync; flushes at the same time share their syncs.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod ledger;

use ashlar_env::sim::{FaultOp, SimDisk};
use ashlar_env::{Continuity, Disk, DiskFile, DiskSpace, OpenMode};
use ashlar_kv::{Background, Lane, LaneConfig, MemoryEngine};
use bytes::Bytes;
use ledger::{CLUSTER, commit, frame, get, key, open_sim, put, sim_env, small_config};
use std::io;
use std::sync::{Arc, Barrier, Condvar, Mutex};
use std::time::{Duration, Instant};

#[test]
fn a_commit_is_one_write_and_no_sync() {
    let (disk, engine) = (SimDisk::new(), MemoryEngine::new());
    let config = LaneConfig { segment_bytes: 1 << 20, overlay_bytes_max: 1 << 20, ..small_config() };
    let lane = open_sim(&disk, &engine, config, 1).unwrap();
    let before = disk.counts();
    for number in 0..100 {
        let two_shards = [0, 1].map(|shard| {
            let name = format!("name {number}");
            let small = (key(shard, &name), Some(Bytes::from("value")));
            let large = (
                key(shard, &format!("{name} body")),
                Some(Bytes::from(vec![9; 5000 * usize::from(number == 50)])),
            );
            frame(shard, number, vec![small, large])
        });
        commit(&lane, two_shards.into()).unwrap();
    }
    let after = disk.counts();
    assert_eq!(after.writes - before.writes, 100);
    assert_eq!((after.syncs, after.dir_syncs, after.names), (before.syncs, before.dir_syncs, before.names));
    assert_eq!((after.reads, after.allocations), (before.reads, before.allocations));
}

#[test]
fn reads_of_fresh_changes_touch_no_disk() {
    let (disk, engine) = (SimDisk::new(), MemoryEngine::new());
    let lane = open_sim(&disk, &engine, small_config(), 1).unwrap();
    commit(&lane, vec![put("a", "1")]).unwrap();
    let before = disk.counts();
    assert_eq!(get(&lane, "a").unwrap(), "1");
    assert_eq!(disk.counts(), before);
}

#[test]
fn a_flush_of_what_is_durable_costs_nothing() {
    let (disk, engine) = (SimDisk::new(), MemoryEngine::new());
    let lane = open_sim(&disk, &engine, small_config(), 1).unwrap();
    let position = commit(&lane, vec![put("a", "1")]).unwrap();
    lane.flush(position).unwrap();
    assert_eq!(lane.durable(), position);
    let before = disk.counts();
    lane.flush(position).unwrap();
    lane.flush_all().unwrap();
    assert_eq!(disk.counts(), before);
}

/// Longest time for something that another thread does at once.
const PATIENCE: Duration = Duration::from_secs(60);

/// Holds up syncs while it is shut, as a slow disk does.
#[derive(Default)]
struct Gate {
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Default)]
struct GateState {
    is_shut: bool,
    /// Syncs that were begun.
    begun: u64,
}

impl Gate {
    fn set_shut(&self, is_shut: bool) {
        self.state.lock().unwrap().is_shut = is_shut;
        self.changed.notify_all();
    }

    fn pass(&self) {
        let mut state = self.state.lock().unwrap();
        state.begun += 1;
        self.changed.notify_all();
        drop(self.changed.wait_timeout_while(state, PATIENCE, |state| state.is_shut).unwrap());
    }

    fn begun(&self) -> u64 {
        self.state.lock().unwrap().begun
    }

    fn wait_for_a_sync(&self) {
        let state = self.state.lock().unwrap();
        let (state, _) = self.changed.wait_timeout_while(state, PATIENCE, |state| state.begun == 0).unwrap();
        assert!(state.begun > 0, "no sync was begun");
    }
}

fn gated_lane() -> (Lane, Arc<Gate>) {
    let gate = Arc::new(Gate::default());
    let disk = SlowSync { inner: SimDisk::new(), gate: Arc::clone(&gate) };
    let config = LaneConfig { segment_bytes: 1 << 20, ..small_config() };
    let engine = Box::new(MemoryEngine::new());
    let lane = Lane::open(Arc::new(disk), "lane", engine, &sim_env(1), CLUSTER, config).unwrap();
    *gate.state.lock().unwrap() = GateState { is_shut: true, begun: 0 };
    (lane, gate)
}

struct SlowSync {
    inner: SimDisk,
    gate: Arc<Gate>,
}

struct SlowFile {
    inner: Arc<dyn DiskFile>,
    gate: Arc<Gate>,
}

impl Disk for SlowSync {
    fn open(&self, path: &str, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        let inner = self.inner.open(path, mode)?;
        Ok(Arc::new(SlowFile { inner, gate: Arc::clone(&self.gate) }))
    }
    fn list(&self, path: &str) -> io::Result<Vec<String>> {
        self.inner.list(path)
    }
    fn create_dir(&self, path: &str) -> io::Result<()> {
        self.inner.create_dir(path)
    }
    fn remove(&self, path: &str) -> io::Result<()> {
        self.inner.remove(path)
    }
    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.inner.rename(from, to)
    }
    fn sync_dir(&self, path: &str) -> io::Result<()> {
        self.inner.sync_dir(path)
    }
    fn sync_all(&self) -> io::Result<()> {
        self.inner.sync_all()
    }
    fn space(&self) -> io::Result<DiskSpace> {
        self.inner.space()
    }
    fn continuity(&self) -> Option<Continuity> {
        self.inner.continuity()
    }

    fn note_loss(&self, what: &str) -> io::Result<()> {
        self.inner.note_loss(what)
    }

    fn end_loss(&self) -> io::Result<bool> {
        self.inner.end_loss()
    }
    fn describe(&self, path: &str) -> String {
        self.inner.describe(path)
    }
}

impl DiskFile for SlowFile {
    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<usize> {
        self.inner.read_at(offset, out)
    }
    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.inner.write_at(offset, data)
    }
    fn write_vectored_at(&self, offset: u64, parts: &[&[u8]]) -> io::Result<()> {
        self.inner.write_vectored_at(offset, parts)
    }
    fn sync_data(&self) -> io::Result<()> {
        self.gate.pass();
        self.inner.sync_data()
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.inner.set_len(len)
    }
    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }
    fn punch_hole(&self, offset: u64, len: u64) -> io::Result<()> {
        self.inner.punch_hole(offset, len)
    }
    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        self.inner.allocate(offset, len)
    }
    fn try_lock(&self) -> io::Result<()> {
        self.inner.try_lock()
    }
}

#[test]
fn sixteen_flushes_at_once_share_two_syncs() {
    let (lane, gate) = gated_lane();
    let committed = Barrier::new(16);
    std::thread::scope(|scope| {
        for thread in 0..16 {
            let (lane, committed) = (&lane, &committed);
            scope.spawn(move || {
                let position = commit(lane, vec![put(&format!("thread {thread}"), "x")]).unwrap();
                if thread > 0 {
                    committed.wait();
                }
                lane.flush(position).unwrap();
                assert!(lane.durable() >= position);
            });
        }
        // The first one's sync is held up, and may have begun before any other commit: a second covers all of those.
        gate.wait_for_a_sync();
        committed.wait();
        gate.set_shut(false);
    });
    let count = gate.begun();
    assert!(count <= 2, "{count} syncs for 16 flushes");
    assert!(lane.stats().flush_count <= 2);
}

#[test]
fn commits_go_on_while_a_flush_waits_for_the_disk() {
    let (lane, gate) = gated_lane();
    let first = commit(&lane, vec![put("first", "x")]).unwrap();
    std::thread::scope(|scope| {
        let flushing = scope.spawn(|| lane.flush_all());
        gate.wait_for_a_sync();
        for _ in 0..20 {
            commit(&lane, vec![put("more", "x")]).unwrap();
        }
        assert!(!flushing.is_finished(), "the commits waited for the flush");
        gate.set_shut(false);
        flushing.join().unwrap().unwrap();
        // What came after the sync began is not promised.
        assert!(lane.durable() < lane.appended() && lane.durable() >= first);
    });
}

/// Waits until `what` holds.
#[track_caller]
fn eventually(what: impl Fn() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !what() {
        assert!(Instant::now() < end, "it did not happen");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn background_threads_make_commits_durable_and_an_error_there_stops_the_lane() {
    let (disk, engine) = (SimDisk::new(), MemoryEngine::new());
    let config = LaneConfig {
        background: Background::Threads,
        flush_interval: Duration::from_millis(40),
        ..small_config()
    };
    let engine = Box::new(engine);
    let env = ashlar_env::Env::os();
    let lane = Lane::open(Arc::new(disk.clone()), "lane", engine, &env, CLUSTER, config).unwrap();
    let position = commit(&lane, vec![put("a", "1")]).unwrap();
    eventually(|| lane.durable() >= position);
    // And an error in the background stops the lane: nothing is flushed by anybody else.
    disk.fail_nth(FaultOp::Sync, 1, libc::EIO);
    eventually(|| commit(&lane, vec![put("b", "1")]).is_err());
}
