//! EIO stops a lane until it is opened again. ENOSPC does not: changes that free space still work.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod ledger;

use ashlar_env::Disk;
use ashlar_env::sim::{FaultOp, SimDisk};
use ashlar_kv::{
    Engine, EngineChanges, EngineReport, KvError, Lane, LaneConfig, LastingSnapshot, MemoryEngine, Urgency,
    Visit,
};
use bytes::Bytes;
use ledger::{CLUSTER, commit, frame, get, key, open_sim, put, scan_all, sim_env, small_config};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

fn delete(name: &str) -> ashlar_kv::Frame {
    frame(0, 1, vec![(key(0, name), None)])
}

#[test]
fn a_failed_sync_stops_the_lane_and_is_never_retried() {
    let (disk, engine) = (SimDisk::new(), MemoryEngine::new());
    let lane = open_sim(&disk, &engine, small_config(), 1).unwrap();
    commit(&lane, vec![put("a", "1")]).unwrap();
    let durable = lane.durable();
    disk.fail_nth(FaultOp::Sync, 1, libc::EIO);
    assert!(matches!(lane.flush_all(), Err(KvError::Io { what, .. }) if what.contains("lane/log")));
    let syncs = disk.counts().syncs;
    for _ in 0..3 {
        assert!(matches!(lane.flush_all(), Err(KvError::Stopped { .. })));
        assert!(matches!(lane.tick(), Err(KvError::Stopped { .. })));
        assert!(matches!(lane.checkpoint_now(), Err(KvError::Stopped { .. })));
        assert!(matches!(commit(&lane, vec![put("b", "1")]), Err(KvError::Stopped { .. })));
    }
    assert!(scan_all(&lane).is_err(), "a stopped lane answers no reads");
    assert_eq!((disk.counts().syncs, lane.durable()), (syncs, durable));
}

#[test]
fn a_failed_write_stops_the_lane_and_leaves_a_torn_tail() {
    let (disk, engine) = (SimDisk::new(), MemoryEngine::new());
    let lane = open_sim(&disk, &engine, small_config(), 1).unwrap();
    commit(&lane, vec![put("a", "1")]).unwrap();
    disk.fail_nth(FaultOp::Write, 1, libc::EIO);
    assert!(matches!(commit(&lane, vec![put("b", "1".repeat(3000))]), Err(KvError::Io { .. })));
    assert!(matches!(commit(&lane, vec![put("c", "1")]), Err(KvError::Stopped { .. })));
    drop(lane);
    let lane = open_sim(&disk, &engine, small_config(), 2).unwrap();
    assert_eq!((get(&lane, "a").is_some(), get(&lane, "b")), (true, None));
}

#[test]
fn a_failed_checkpoint_stops_the_lane_and_loses_nothing() {
    for was_applied in [false, true] {
        let (disk, engine) = (SimDisk::new(), MemoryEngine::new());
        let lane = open_sim(&disk, &engine, small_config(), 1).unwrap();
        commit(&lane, vec![put("a", "1")]).unwrap();
        engine.fail_next_apply(libc::EIO, was_applied);
        assert!(matches!(lane.checkpoint_now(), Err(KvError::Io { .. })));
        assert!(matches!(commit(&lane, vec![put("b", "1")]), Err(KvError::Stopped { .. })));
        drop(lane);
        disk.crash(3);
        assert_eq!(get(&open_sim(&disk, &engine, small_config(), 2).unwrap(), "a").unwrap(), "1");
    }
}

/// A small full disk: 1 MiB, of which 128 KiB are kept back.
fn full_disk_config() -> LaneConfig {
    LaneConfig {
        segment_bytes: 64 << 10,
        overlay_bytes_max: 64 << 10,
        reserve_bytes: 128 << 10,
        ..small_config()
    }
}

/// Fills the disk with files of others, up to `left` bytes.
fn fill(disk: &SimDisk, left: u64) {
    let file = disk.open("other", ashlar_env::OpenMode::CreateOrOpen).unwrap();
    let free = disk.space().unwrap().bytes_free;
    file.allocate(0, file.len().unwrap() + free.saturating_sub(left)).unwrap();
}

fn lane_on_a_full_disk() -> (SimDisk, MemoryEngine, Lane) {
    let (disk, engine) = (SimDisk::new(), MemoryEngine::new());
    disk.set_capacity(1 << 20);
    let lane = open_sim(&disk, &engine, full_disk_config(), 1).unwrap();
    for number in 0..20 {
        commit(&lane, vec![put(&format!("k{number}"), vec![1; 500])]).unwrap();
    }
    fill(&disk, 0);
    lane.tick().unwrap();
    (disk, engine, lane)
}

#[test]
fn below_the_reserve_only_what_frees_space_is_taken() {
    let (disk, engine, lane) = lane_on_a_full_disk();
    assert!(lane.stats().is_space_low);
    let error = commit(&lane, vec![put("new", "x")]).err();
    assert!(matches!(&error, Some(KvError::NoSpace { what }) if what.contains("bytes free")), "{error:?}");
    // More deletes and checkpoints than the active segment has room for.
    for round in 0..400 {
        let name = format!("k{}", round % 20);
        let padded = frame(0, 1, vec![(key(0, &name), None), (key(0, "z"), Some(Bytes::from(vec![2; 400])))]);
        lane.write().commit(vec![padded], Urgency::FreesSpace).unwrap();
        lane.tick().unwrap();
    }
    assert!(lane.stats().refused_for_space > 0 && get(&lane, "k3").is_none());
    // Space is back: so is everything.
    disk.remove("other").unwrap();
    lane.tick().unwrap();
    lane.tick().unwrap();
    commit(&lane, vec![put("new", "x")]).unwrap();
    assert!(!lane.stats().is_space_low);
    let expected = scan_all(&lane).unwrap();
    drop(lane);
    disk.kill_process();
    assert_eq!(scan_all(&open_sim(&disk, &engine, full_disk_config(), 2).unwrap()).unwrap(), expected);
}

#[test]
fn the_same_few_records_can_be_changed_for_ever_on_a_full_disk() {
    let (disk, engine) = (SimDisk::new(), MemoryEngine::new());
    disk.set_capacity(1 << 20);
    // Neither the overlay nor the length of the log asks for a checkpoint.
    let config = LaneConfig { overlay_bytes_max: 16 << 20, log_bytes_max: 16 << 20, ..full_disk_config() };
    let lane = open_sim(&disk, &engine, config.clone(), 1).unwrap();
    commit(&lane, vec![put("k", "old")]).unwrap();
    fill(&disk, 0);
    lane.tick().unwrap();
    // 2 MiB of log on a disk of 1 MiB that others have filled.
    for round in 0..2000 {
        let note = put("k", vec![round as u8; 1000]);
        lane.write()
            .commit(vec![note], Urgency::FreesSpace)
            .unwrap_or_else(|error| panic!("{round}: {error}"));
        lane.tick().unwrap();
    }
    assert!(matches!(commit(&lane, vec![put("new", "x")]), Err(KvError::NoSpace { .. })));
    disk.remove("other").unwrap();
    assert!(!lane.is_space_low_now().unwrap(), "at once, without a turn of the background");
    commit(&lane, vec![put("new", "x")]).unwrap();
    drop(lane);
    disk.kill_process();
    assert_eq!(
        get(&open_sim(&disk, &engine, config, 2).unwrap(), "k").unwrap(),
        vec![(1999 % 256) as u8; 1000]
    );
}

#[test]
fn a_lane_on_a_full_disk_opens_again_after_a_crash() {
    for seed in 0..20 {
        let (disk, engine, lane) = lane_on_a_full_disk();
        lane.write().commit(vec![delete("k1")], Urgency::FreesSpace).unwrap();
        lane.flush_all().unwrap();
        drop(lane);
        disk.crash(seed);
        fill(&disk, 0);
        let lane = open_sim(&disk, &engine, full_disk_config(), 2).unwrap();
        assert_eq!((get(&lane, "k1"), get(&lane, "k2").is_some()), (None, true));
        lane.write().commit(vec![delete("k2")], Urgency::FreesSpace).unwrap();
    }
}

#[test]
fn a_checkpoint_without_room_is_made_later_and_loses_nothing_meanwhile() {
    for crash in [None, Some(1), Some(2), Some(3)] {
        let (disk, engine, lane) = lane_on_a_full_disk();
        // Others take the reserve as well when it is given up.
        lane.write().commit(vec![delete("k1")], Urgency::FreesSpace).unwrap();
        assert_eq!(lane.checkpoint_now().ok(), Some(()), "the reserve is there for that");
        fill(&disk, 0);
        lane.write().commit(vec![delete("k2")], Urgency::FreesSpace).unwrap();
        for _ in 0..3 {
            let refused = lane.checkpoint_now();
            assert!(matches!(refused, Err(KvError::NoSpace { .. })), "{refused:?}");
            lane.tick().unwrap();
        }
        assert_eq!((lane.stopped(), get(&lane, "k2"), get(&lane, "k3").is_some()), (None, None, true));
        // As much as the log has room for.
        let mut taken = 0;
        let refused = loop {
            let padded = frame(0, 1, vec![(key(0, "k3"), None), (key(0, "z"), Some(vec![2; 400].into()))]);
            match lane.write().commit(vec![padded], Urgency::FreesSpace) {
                Ok(_) => taken += 1,
                Err(error) => break error,
            }
            lane.tick().unwrap();
        };
        assert!(matches!(refused, KvError::NoSpace { .. }) && taken > 0, "{refused} after {taken}");
        lane.flush_all().unwrap();
        let expected = scan_all(&lane).unwrap();
        let lane = match crash {
            None => {
                disk.remove("other").unwrap();
                lane
            }
            Some(seed) => {
                drop(lane);
                disk.crash(seed);
                // Unless the crash has taken it: nobody has synced it.
                let _ = disk.remove("other");
                open_sim(&disk, &engine, full_disk_config(), 2).unwrap()
            }
        };
        assert_eq!(scan_all(&lane).unwrap(), expected);
        lane.tick().unwrap();
        lane.tick().unwrap();
        commit(&lane, vec![put("new", "x")]).unwrap();
        lane.checkpoint_now().unwrap();
        lane.close().unwrap();
        drop(lane);
        assert_eq!(get(&open_sim(&disk, &engine, full_disk_config(), 3).unwrap(), "new").unwrap(), "x");
    }
}

#[test]
fn a_lane_without_room_for_a_checkpoint_closes_without_and_loses_nothing() {
    let (disk, engine, lane) = lane_on_a_full_disk();
    lane.checkpoint_now().unwrap();
    fill(&disk, 0);
    lane.write().commit(vec![delete("k2")], Urgency::FreesSpace).unwrap();
    lane.close().unwrap();
    drop(lane);
    disk.crash(1);
    let _ = disk.remove("other");
    let lane = open_sim(&disk, &engine, full_disk_config(), 2).unwrap();
    assert_eq!((get(&lane, "k2"), get(&lane, "k3").is_some()), (None, true));
}

#[test]
fn without_a_reserve_a_full_disk_refuses_and_goes_on_when_there_is_space() {
    let (disk, engine) = (SimDisk::new(), MemoryEngine::new());
    disk.set_capacity(256 << 10);
    let config = LaneConfig { log_bytes_max: 1 << 30, overlay_bytes_max: 1 << 30, ..small_config() };
    let lane = open_sim(&disk, &engine, config.clone(), 1).unwrap();
    fill(&disk, 40 << 10);
    let mut taken = 0;
    let error = loop {
        match commit(&lane, vec![put(&format!("k{taken:04}"), vec![3; 1000])]) {
            Ok(_) => taken += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, KvError::NoSpace { .. }) && taken > 20, "{error} after {taken}");
    let sequence = lane.shard_sequence(ashlar_types::ShardId(0));
    assert_eq!(sequence, taken);
    disk.remove("other").unwrap();
    commit(&lane, vec![put("last", "x")]).unwrap();
    drop(lane);
    disk.kill_process();
    let lane = open_sim(&disk, &engine, config, 2).unwrap();
    assert_eq!(scan_all(&lane).unwrap().len() as u64, taken + 1);
}

#[test]
fn groups_that_break_a_limit_change_nothing() {
    let (disk, engine) = (SimDisk::new(), MemoryEngine::new());
    let lane = open_sim(&disk, &engine, small_config(), 1).unwrap();
    let writes = disk.counts().writes;
    let value = || Some(Bytes::from_static(b"x"));
    let bad = [
        vec![(key(0, "b"), value()), (key(0, "a"), value())],
        vec![(key(0, "a"), value()), (key(0, "a"), value())],
        vec![(key(1, "a"), value())],
        vec![(key(0, &"k".repeat(600)), value())],
        vec![(key(0, "a"), Some(Bytes::from(vec![0; (1 << 20) + 1])))],
    ];
    for writes in bad {
        let error = commit(&lane, vec![frame(0, 1, writes)]);
        assert!(matches!(error, Err(KvError::Invalid { .. })), "{error:?}");
    }
    let many = (0..20).map(|n| put(&format!("k{n}"), vec![0; 1 << 20])).collect();
    assert!(matches!(commit(&lane, many), Err(KvError::Invalid { .. })));
    assert_eq!((disk.counts().writes, scan_all(&lane).unwrap().len()), (writes, 0));
    assert_eq!(lane.shard_sequence(ashlar_types::ShardId(0)), 0);
    // A group longer than a segment is fine.
    let position = commit(&lane, vec![put("long", vec![5; 1 << 20])]).unwrap();
    lane.flush(position).unwrap();
    disk.crash(1);
    drop(lane);
    assert_eq!(get(&open_sim(&disk, &engine, small_config(), 2).unwrap(), "long").unwrap().len(), 1 << 20);
}

#[test]
fn a_read_error_at_open_is_reported_as_such() {
    let (disk, engine) = (SimDisk::new(), MemoryEngine::new());
    let lane = open_sim(&disk, &engine, small_config(), 1).unwrap();
    commit(&lane, vec![put("a", "1")]).unwrap();
    drop(lane);
    disk.fail_nth(FaultOp::Read, 1, libc::EIO);
    let error = open_sim(&disk, &engine, small_config(), 2).err();
    assert!(matches!(error, Some(KvError::Io { source, .. }) if source.raw_os_error() == Some(libc::EIO)));
    assert_eq!(get(&open_sim(&disk, &engine, small_config(), 3).unwrap(), "a").unwrap(), "1");
}

/// An engine that wants room to merge, and tells what it was offered for that.
#[derive(Clone, Default)]
struct Merging {
    engine: MemoryEngine,
    wants: u64,
    offered: Arc<Mutex<Vec<u64>>>,
    /// Others were faster.
    has_no_space: Arc<AtomicBool>,
}

impl Engine for Merging {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, KvError> {
        self.engine.get(key)
    }

    fn scan(&self, from: &[u8], to: &[u8], visit: &mut Visit<'_>) -> Result<(), KvError> {
        self.engine.scan(from, to, visit)
    }

    fn snapshot(&self) -> Result<LastingSnapshot, KvError> {
        self.engine.snapshot()
    }

    fn apply(&self, changes: &mut EngineChanges<'_>, note: &[u8]) -> Result<(), KvError> {
        self.engine.apply(changes, note)
    }

    fn note(&self) -> Result<Option<Bytes>, KvError> {
        self.engine.note()
    }

    fn verify(&self) -> Result<EngineReport, KvError> {
        self.engine.verify()
    }

    fn bytes_used(&self) -> u64 {
        self.engine.bytes_used()
    }

    fn merge_bytes(&self) -> u64 {
        self.wants
    }

    fn give_back(&self, bytes_free: u64) -> Result<bool, KvError> {
        self.offered.lock().unwrap().push(bytes_free);
        let is_full = self.has_no_space.load(Ordering::Relaxed);
        if is_full { Err(KvError::NoSpace { what: "merge".into() }) } else { Ok(true) }
    }

    fn close(&self) -> Result<(), KvError> {
        self.engine.close()
    }
}

#[test]
fn room_to_merge_is_kept_free_and_used_when_space_is_low() {
    let (disk, engine) = (SimDisk::new(), Merging { wants: 200 << 10, ..Merging::default() });
    disk.set_capacity(1 << 20);
    let (shared, boxed) = (Arc::new(disk.clone()), Box::new(engine.clone()));
    let lane = Lane::open(shared, "lane", boxed, &sim_env(1), CLUSTER, full_disk_config()).unwrap();
    let offered = || std::mem::take(&mut *engine.offered.lock().unwrap());
    commit(&lane, vec![put("a", "1")]).unwrap();
    // More than the reserve, 128 KiB, and less than that with what merging takes.
    fill(&disk, 340 << 10);
    lane.tick().unwrap();
    assert_eq!((lane.stats().is_space_low, offered()), (false, vec![]));
    fill(&disk, 300 << 10);
    lane.tick().unwrap();
    assert!(lane.stats().is_space_low, "no room to merge");
    let error = commit(&lane, vec![put("b", "1")]).unwrap_err();
    assert!(error.to_string().contains("204800 to merge tables"), "{error}");
    let at_work = offered();
    assert!(
        !at_work.is_empty() && at_work.iter().all(|bytes| (200 << 10..=300 << 10).contains(bytes)),
        "{at_work:?}"
    );
    // Others take it meanwhile: that is no error of the disk.
    engine.has_no_space.store(true, Ordering::Relaxed);
    lane.tick().unwrap();
    lane.tick().unwrap();
    // And not tried again and again: what it had written may take space.
    assert_eq!((lane.stopped(), offered().len()), (None, 1));
    lane.write().commit(vec![delete("a")], Urgency::FreesSpace).unwrap();
    disk.remove("other").unwrap();
    lane.tick().unwrap();
    commit(&lane, vec![put("b", "1")]).unwrap();
    assert_eq!((offered().len(), lane.stats().is_space_low), (0, false));
}

#[test]
fn where_others_fill_the_disk_merging_keeps_no_more_free_than_they_leave() {
    let is_low = |merge_part| {
        let (disk, engine) = (SimDisk::new(), Merging { wants: 200 << 10, ..Merging::default() });
        disk.set_capacity(1 << 20);
        let config = LaneConfig { merge_part, ..full_disk_config() };
        let lane = Lane::open(Arc::new(disk.clone()), "lane", Box::new(engine), &sim_env(1), CLUSTER, config);
        let lane = lane.unwrap();
        commit(&lane, vec![put("a", "1")]).unwrap();
        fill(&disk, 160 << 10);
        lane.tick().unwrap();
        lane.stats().is_space_low
    };
    assert!(is_low(1), "128 KiB and 200 KiB");
    assert!(!is_low(100), "128 KiB and 10 KiB");
}

/// Opens a lane that was killed and whose disk others have filled since; what is on the disk besides is given, and whether it opens.
fn require_open_when_full(has_reserve: bool, has_spare: bool, left: u64) -> Result<(), KvError> {
    let context = format!("reserve {has_reserve}, spare {has_spare}, {left} bytes left");
    let (disk, engine) = (SimDisk::new(), MemoryEngine::new());
    disk.set_capacity(64 << 20);
    let config = LaneConfig {
        segment_bytes: 8 << 20,
        overlay_bytes_max: 1 << 20,
        reserve_bytes: 8 << 20,
        ..small_config()
    };
    let lane = open_sim(&disk, &engine, config.clone(), 1).unwrap();
    for number in 0..20 {
        commit(&lane, vec![put(&format!("k{number}"), vec![1; 500])]).unwrap();
    }
    let expected = scan_all(&lane).unwrap();
    drop(lane);
    disk.kill_process();
    if !has_reserve {
        disk.remove("lane/reserve").unwrap();
    }
    if has_spare {
        let spare = disk.open("lane/log/spare-7", ashlar_env::OpenMode::CreateNew).unwrap();
        spare.allocate(0, 8 << 20).unwrap();
    }
    fill(&disk, left);
    let lane = open_sim(&disk, &engine, config.clone(), 2)?;
    assert_eq!(scan_all(&lane).unwrap(), expected, "{context}");
    for number in 0..20 {
        lane.write().commit(vec![delete(&format!("k{number}"))], Urgency::FreesSpace).unwrap();
    }
    disk.remove("other").unwrap();
    lane.tick().unwrap();
    commit(&lane, vec![put("new", "x")]).unwrap();
    drop(lane);
    disk.kill_process();
    assert_eq!(scan_all(&open_sim(&disk, &engine, config, 3).unwrap()).unwrap().len(), 1, "{context}");
    Ok(())
}

#[test]
fn a_lane_that_was_killed_on_a_full_disk_did_not_open_again() {
    require_open_when_full(true, true, 0).unwrap();
    require_open_when_full(true, false, 0).unwrap();
    // An earlier attempt has used the reserve up.
    require_open_when_full(false, true, 0).unwrap();
    require_open_when_full(false, false, 3 << 20).unwrap();
    let refused = require_open_when_full(false, false, 0);
    assert!(matches!(refused, Err(KvError::NoSpace { .. })), "{refused:?}");
}
