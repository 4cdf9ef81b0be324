//! A new segment of the log is made while nobody holds the lane: readers and a flush go on while the disk takes its time.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod ledger;

use ashlar_env::sim::{FaultOp, SimDisk};
use ashlar_env::{Continuity, Disk, DiskFile, DiskSpace, NoWaiting, OpenMode};
use ashlar_kv::{KvError, Lane, MemoryEngine, Snapshot};
use ledger::{CLUSTER, commit, get, key, open_sim, put, scan_all, sim_env, small_config};
use parking_lot::Mutex;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::channel;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// What happens when a new segment is synced.
#[derive(Default)]
struct Watch {
    lane: Mutex<Weak<Lane>>,
    segments: AtomicU64,
    /// How often somebody could read meanwhile.
    reads: AtomicU64,
}

impl Watch {
    fn segment_is_synced(&self) {
        let Some(lane) = self.lane.lock().upgrade() else { return };
        assert_eq!(NoWaiting::because_of(), None);
        self.segments.fetch_add(1, Relaxed);
        let (done, answer) = channel();
        std::thread::spawn(move || {
            let found = lane.read().get(&key(0, "there")).unwrap();
            // Nobody listens if it took too long.
            let _ = done.send(found);
        });
        if answer.recv_timeout(Duration::from_millis(300)).is_ok_and(|found| found.is_some()) {
            self.reads.fetch_add(1, Relaxed);
        }
    }
}

struct WatchedDisk(SimDisk, Arc<Watch>);

struct WatchedFile {
    inner: Arc<dyn DiskFile>,
    is_spare: bool,
    watch: Arc<Watch>,
}

impl Disk for WatchedDisk {
    fn open(&self, path: &str, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        let inner = self.0.open(path, mode)?;
        let is_spare = path.contains("/spare-");
        Ok(Arc::new(WatchedFile { inner, is_spare, watch: Arc::clone(&self.1) }))
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

impl DiskFile for WatchedFile {
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
        // A file that was renamed is a segment in use, but only new ones are synced before they have records.
        if self.is_spare && NoWaiting::because_of().is_some() {
            return Err(io::Error::other("a sync under the lock"));
        }
        if self.is_spare && self.is_empty() {
            self.watch.segment_is_synced();
        }
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

impl WatchedFile {
    /// Whether nothing was written to it yet.
    fn is_empty(&self) -> bool {
        let mut head = [0; 8];
        self.inner.read_at(0, &mut head).is_ok() && head == [0; 8]
    }
}

fn watched() -> (SimDisk, MemoryEngine, Arc<Watch>, Arc<Lane>) {
    let (disk, engine, watch) = (SimDisk::new(), MemoryEngine::new(), Arc::<Watch>::default());
    let watched = Arc::new(WatchedDisk(disk.clone(), Arc::clone(&watch)));
    let opened = Lane::open(watched, "lane", Box::new(engine.clone()), &sim_env(1), CLUSTER, small_config());
    let lane = Arc::new(opened.unwrap());
    *watch.lane.lock() = Arc::downgrade(&lane);
    commit(&lane, vec![put("there", "x")]).unwrap();
    (disk, engine, watch, lane)
}

#[test]
fn readers_go_on_while_a_full_log_gets_its_next_segment() {
    let (disk, engine, watch, lane) = watched();
    for number in 0..40 {
        commit(&lane, vec![put(&format!("k{number}"), vec![1; 3000])]).unwrap();
    }
    let (segments, reads) = (watch.segments.load(Relaxed), watch.reads.load(Relaxed));
    assert!(segments > 0, "no segment was made");
    assert_eq!(reads, segments, "a reader waited for the disk");
    let expected = scan_all(&lane).unwrap();
    drop(lane);
    disk.kill_process();
    assert_eq!(scan_all(&open_sim(&disk, &engine, small_config(), 2).unwrap()).unwrap(), expected);
}

#[test]
fn a_group_longer_than_a_segment_is_not_seen_before_it_is_committed() {
    let (_disk, _engine, watch, lane) = watched();
    let before = watch.segments.load(Relaxed);
    let sequence = lane.shard_sequence(ashlar_types::ShardId(0));
    commit(&lane, vec![put("long", vec![7; 100_000])]).unwrap();
    assert_eq!(watch.segments.load(Relaxed), before + 1);
    // It was decided on the state as it was: whoever reads meanwhile waits.
    assert_eq!(watch.reads.load(Relaxed), 0);
    assert_eq!(lane.shard_sequence(ashlar_types::ShardId(0)), sequence + 1);
    assert_eq!(get(&lane, "long").unwrap().len(), 100_000);
}

#[test]
fn a_segment_that_cannot_be_made_leaves_the_log_as_it_was() {
    for (errno, is_final) in [(libc::ENOSPC, false), (libc::EIO, true)] {
        let (disk, _engine, _watch, lane) = watched();
        disk.fail_nth(FaultOp::Allocate, 1, errno);
        let (position, sequence) = (lane.appended(), lane.shard_sequence(ashlar_types::ShardId(0)));
        let refused = commit(&lane, vec![put("long", vec![7; 100_000])]);
        assert!(matches!(refused, Err(KvError::NoSpace { .. } | KvError::Io { .. })), "{refused:?}");
        assert_eq!((lane.appended(), lane.shard_sequence(ashlar_types::ShardId(0))), (position, sequence));
        let next = commit(&lane, vec![put("next", "x")]);
        assert_eq!(matches!(next, Err(KvError::Stopped { .. })), is_final, "{next:?}");
        assert_eq!(next.is_ok(), !is_final);
    }
}

#[test]
fn many_writers_at_once_fill_many_segments_in_order() {
    let (disk, engine, _watch, lane) = watched();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let lane = &lane;
            scope.spawn(move || {
                for number in 0..30 {
                    let change = || vec![put(&format!("{thread} {number}"), vec![1; 700 * (1 + number % 5)])];
                    // Without a thread for checkpoints a writer may meet one that another writer is making.
                    let mut done = commit(lane, change());
                    while matches!(done, Err(KvError::Stalled { .. })) {
                        std::thread::yield_now();
                        done = commit(lane, change());
                    }
                    done.unwrap();
                }
            });
        }
    });
    assert_eq!(lane.shard_sequence(ashlar_types::ShardId(0)), 121);
    let expected = scan_all(&lane).unwrap();
    drop(lane);
    disk.kill_process();
    // Replay refuses a log whose frames are not in the order of their numbers.
    assert_eq!(scan_all(&open_sim(&disk, &engine, small_config(), 2).unwrap()).unwrap(), expected);
}
