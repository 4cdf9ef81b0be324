//! Goal: when everything on a full disk was deleted, about as much as before can be stored again, without opening the lane anew. Method: the real engine on a small
//! file system in memory, filled with records inline and out of line until there is no space, emptied, and filled again.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod ledger;

use ashlar_env::Env;
use ashlar_env::os::OsDisk;
use ashlar_kv::{FjallEngine, FjallOptions, KvError, Lane, LaneConfig, Urgency};
use bytes::Bytes;
use ledger::{CLUSTER, commit, frame, get, key, scan_all};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
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
    let mut stored = fill(&lane, 0);
    // How much fits differs a little with what is being merged.
    let enough = (stored / 10 * 9).next_multiple_of(GROUP);
    let bytes = |lane: &Lane| (lane.stats().engine_bytes >> 20, lane.stats().log_bytes >> 20);
    eprintln!("{stored} records, engine and log {:?} MiB", bytes(&lane));
    for round in 1..4 {
        remove(&lane, round - 1, 0..stored);
        eprintln!("removed: engine and log {:?} MiB", bytes(&lane));
        let (again, took) = fill_again(&lane, round, enough);
        eprintln!("round {round}: {again} of {enough} in {took:?}, engine and log {:?} MiB", bytes(&lane));
        assert!(again >= enough, "round {round}: {again} of {enough} after {took:?}");
        stored = again;
    }
    let there = scan_all(&lane).unwrap();
    assert_eq!(there.len(), stored);
    lane.close().unwrap();
    drop(lane);
    let lane = open_lane(&small.0);
    assert!(scan_all(&lane).unwrap() == there);
    lane.close().unwrap();
}

/// Others take all that is left.
fn fill_by_others(dir: &Path, name: &str) -> PathBuf {
    let path = dir.join(name);
    let mut file = std::fs::File::create(&path).unwrap();
    loop {
        match std::io::Write::write_all(&mut file, &[7; 4096]) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::StorageFull => return path,
            Err(error) => panic!("{error}"),
        }
    }
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < ROOM_MAX, "waited too long: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_disk_that_others_fill_altogether_does_not_stop_the_lane() {
    let dir = tempfile::tempdir().unwrap();
    let Some(small) = Small::mount(&dir.path().join("small")) else {
        eprintln!("skipped: nothing can be mounted here");
        return;
    };
    let lane = open_lane(&small.0);
    for first in (0..4096).step_by(GROUP) {
        commit(&lane, vec![group(0, first..first + GROUP, true)]).unwrap();
    }
    let others = fill_by_others(&small.0, "others");
    wait_until("space to be low", || lane.stats().is_space_low);
    // The reserve is given up for a checkpoint, and others take that too.
    remove(&lane, 0, 0..1024);
    wait_until("a checkpoint", || lane.stats().overlay_entries == 0);
    std::thread::sleep(Duration::from_secs(1));
    let more = fill_by_others(&small.0, "more");
    remove(&lane, 0, 1024..2048);
    assert!(matches!(lane.checkpoint_now(), Err(KvError::NoSpace { .. })));
    std::thread::sleep(Duration::from_secs(4));
    assert_eq!(lane.stopped(), None);
    assert!(matches!(commit(&lane, vec![group(1, 0..GROUP, true)]), Err(KvError::NoSpace { .. })));
    assert_eq!(scan_all(&lane).unwrap().len(), 2048, "reads go on");
    [others, more].into_iter().for_each(|path| std::fs::remove_file(path).unwrap());
    wait_until("space", || !lane.stats().is_space_low);
    commit(&lane, vec![group(1, 0..GROUP, true)]).unwrap();
    lane.checkpoint_now().unwrap();
    lane.close().unwrap();
    drop(lane);
    let lane = open_lane(&small.0);
    assert_eq!(scan_all(&lane).unwrap().len(), 2048 + GROUP);
    lane.verify().unwrap();
    lane.close().unwrap();
}

const CHILD_DIR: &str = "ASHLAR_KV_FULL_DISK_CHILD_DIR";

/// What a [`child_that_fills_and_empties_until_it_is_killed`] has done: in which round, and which numbers are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Progress {
    round: usize,
    removed: usize,
    stored: usize,
}

impl Progress {
    fn parse(text: &str) -> Progress {
        let numbers: Vec<usize> = text.split('.').map(|number| number.parse().unwrap()).collect();
        Progress { round: numbers[0], removed: numbers[1], stored: numbers[2] }
    }

    fn of(lane: &Lane) -> Progress {
        get(lane, "!progress")
            .map_or(Progress::default(), |text| Progress::parse(std::str::from_utf8(&text).unwrap()))
    }

    /// Makes a step and notes it in the same group.
    fn step(self, lane: &Lane, numbers: std::ops::Range<usize>, is_put: bool) -> Result<Progress, KvError> {
        let next = match is_put {
            true => Progress { stored: numbers.end, ..self },
            false => Progress { removed: numbers.end, ..self },
        };
        let mut frame = group(self.round, numbers, is_put);
        let text = format!("{}.{}.{}", next.round, next.removed, next.stored);
        frame.writes.0.push((key(0, "!progress"), Some(Bytes::from(text.clone()))));
        frame.writes.0.sort();
        let urgency = if is_put { Urgency::Normal } else { Urgency::FreesSpace };
        lane.write().commit(vec![frame], urgency)?;
        println!("committed {text}");
        Ok(next)
    }
}

/// Not a test of its own: the process that is killed.
#[test]
fn child_that_fills_and_empties_until_it_is_killed() {
    let Some(dir) = std::env::var_os(CHILD_DIR) else { return };
    let lane = open_lane(Path::new(&dir));
    let mut at = Progress::of(&lane);
    loop {
        let is_full = loop {
            if at.removed > 0 {
                break false;
            }
            match at.step(&lane, at.stored..at.stored + GROUP, true) {
                Ok(next) => at = next,
                Err(KvError::NoSpace { .. }) if at.stored > 0 => break true,
                Err(KvError::NoSpace { .. }) => std::thread::sleep(Duration::from_millis(20)),
                Err(error) => panic!("{error}"),
            }
        };
        if is_full {
            println!("full");
        }
        while at.removed < at.stored {
            at = at.step(&lane, at.removed..at.removed + GROUP, false).unwrap();
        }
        at = Progress { round: at.round + 1, removed: 0, stored: 0 };
    }
}

#[test]
fn a_process_that_is_killed_while_deleted_records_are_merged_away_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let Some(small) = Small::mount(&dir.path().join("small")) else {
        eprintln!("skipped: nothing can be mounted here");
        return;
    };
    let (mut fulls, mut committed) = (0, Progress::default());
    for life in 0..6 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child_that_fills_and_empties_until_it_is_killed", "--nocapture"])
            .env(CHILD_DIR, &small.0)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        // Some time after the disk was full: records are being deleted then, or merged away.
        let mut until = None;
        let mut is_killed = false;
        for line in BufReader::new(child.stdout.take().unwrap()).lines() {
            let line = line.unwrap();
            if line == "full" {
                fulls += 1;
                until.get_or_insert(Instant::now() + Duration::from_millis(200 + 700 * life));
            } else if let Some((_, text)) = line.split_once("committed ") {
                committed = Progress::parse(text);
            }
            if !is_killed && until.is_some_and(|until| Instant::now() > until) {
                child.kill().unwrap();
                is_killed = true;
            }
        }
        child.wait().unwrap();
        assert!(is_killed, "the child has ended by itself");
        let lane = open_lane(&small.0);
        let found = Progress::of(&lane);
        assert!(found >= committed, "{found:?}, {committed:?} was committed");
        let pairs = scan_all(&lane).unwrap();
        assert_eq!(pairs.len(), 1 + found.stored - found.removed, "{found:?}");
        for number in found.removed..found.stored {
            let stored = pairs.get(key(0, &name(found.round, number)).as_slice());
            assert!(stored == Some(&value(found.round, number)), "{number} of {found:?}");
        }
        lane.verify().unwrap();
        if life % 2 == 0 {
            lane.close().unwrap();
        }
    }
    assert!(fulls >= 6, "{fulls}");
}
