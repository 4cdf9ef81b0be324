//! Goal: when everything on a full disk was deleted, about as much as before can be stored again, without opening the lane anew. Method: the real engine on a small
//! file system in memory, filled with records inline and out of line until there is no space, emptied, and filled again.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod ledger;

use ashlar_env::Env;
use ashlar_env::os::OsDisk;
use ashlar_kv::{FjallEngine, FjallOptions, KvError, Lane, LaneConfig, Urgency};
use bytes::Bytes;
use ledger::{CLUSTER, commit, frame, key, scan_all};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

const DISK: usize = 256 << 20;
/// In what time there has to be room again.
const ROOM_MAX: Duration = Duration::from_secs(60);
/// Records of a group.
const GROUP: usize = 16;

/// A small file system, mounted until dropped.
struct Small(PathBuf);

impl Small {
    /// `None` where nothing can be mounted.
    fn mount(path: &Path) -> Option<Small> {
        std::fs::create_dir(path).unwrap();
        let size = format!("size={DISK}");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", &size, "none"]).arg(path).status();
        mounted.is_ok_and(|status| status.success()).then(|| Small(path.to_owned()))
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        // What is in the way of that has failed the test already.
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

fn open_lane(dir: &Path) -> Lane {
    std::fs::create_dir_all(dir.join("lane")).unwrap();
    let engine = FjallEngine::open(dir.join("lane/engine"), FjallOptions::default()).unwrap();
    let config = LaneConfig {
        segment_bytes: 2 << 20,
        overlay_bytes_max: 8 << 20,
        log_bytes_max: 16 << 20,
        reserve_bytes: 16 << 20,
        ..LaneConfig::default()
    };
    Lane::open(Arc::new(OsDisk::new(dir)), "lane", Box::new(engine), &Env::os(), CLUSTER, config).unwrap()
}

/// A value that does not compress, short or long by its number.
fn value(round: usize, number: usize) -> Bytes {
    let len = if number.is_multiple_of(8) { 6000 } else { 300 };
    let mut state = (round * 1_000_003 + number) as u64 * 2 + 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..len).map(|_| next()).collect::<Vec<u8>>().into()
}

fn name(round: usize, number: usize) -> String {
    // In no order, as inodes and names have none among themselves.
    format!("{:016x}-{round}", (number as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15))
}

fn group(round: usize, numbers: std::ops::Range<usize>, is_put: bool) -> ashlar_kv::Frame {
    let mut writes: Vec<_> =
        numbers.map(|number| (key(0, &name(round, number)), is_put.then(|| value(round, number)))).collect();
    writes.sort();
    frame(0, 1, writes)
}

/// Stores records until there is no space; tells how many.
fn fill(lane: &Lane, round: usize) -> usize {
    let mut stored = 0;
    loop {
        match commit(lane, vec![group(round, stored..stored + GROUP, true)]) {
            Ok(_) => stored += GROUP,
            Err(KvError::NoSpace { .. }) => return stored,
            Err(error) => panic!("{error}"),
        }
    }
}

fn remove(lane: &Lane, round: usize, numbers: std::ops::Range<usize>) {
    for first in numbers.step_by(GROUP) {
        let frames = vec![group(round, first..first + GROUP, false)];
        lane.write().commit(frames, Urgency::FreesSpace).unwrap();
    }
}

/// Fills again until nothing has come free for a while.
fn fill_again(lane: &Lane, round: usize, enough: usize) -> (usize, Duration) {
    let begin = Instant::now();
    let mut stored = 0;
    while stored < enough && begin.elapsed() < ROOM_MAX {
        match commit(lane, vec![group(round, stored..stored + GROUP, true)]) {
            Ok(_) => stored += GROUP,
            Err(KvError::NoSpace { .. }) => std::thread::sleep(Duration::from_millis(20)),
            Err(error) => panic!("{error}"),
        }
    }
    (stored, begin.elapsed())
}

#[test]
fn a_disk_that_was_filled_and_emptied_takes_about_as_much_again() {
    let dir = tempfile::tempdir().unwrap();
    let Some(small) = Small::mount(&dir.path().join("small")) else {
        eprintln!("skipped: nothing can be mounted here");
        return;
    };
    let lane = open_lane(&small.0);
    let first = fill(&lane, 0);
    let bytes = |lane: &Lane| (lane.stats().engine_bytes >> 20, lane.stats().log_bytes >> 20);
    eprintln!("{first} records, engine and log {:?} MiB", bytes(&lane));
    for round in 1..4 {
        remove(&lane, round - 1, 0..first);
        eprintln!("removed: engine and log {:?} MiB", bytes(&lane));
        let (again, took) = fill_again(&lane, round, first);
        eprintln!("round {round}: {again} of {first} in {took:?}, engine and log {:?} MiB", bytes(&lane));
        assert!(again >= first, "round {round}: {again} of {first} after {took:?}");
    }
    let there = scan_all(&lane).unwrap();
    assert_eq!(there.len(), first);
    lane.close().unwrap();
    drop(lane);
    let lane = open_lane(&small.0);
    assert!(scan_all(&lane).unwrap() == there);
    lane.close().unwrap();
}
