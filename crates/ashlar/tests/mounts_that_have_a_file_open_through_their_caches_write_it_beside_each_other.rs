//! Goal: mounts that write one file do not take turns, also where the first of them has opened it for reading and writing before anybody else had it open, and so
//! through its page cache; and what either has written is seen through that cache at once, also while metadata servers are killed and the file moves from one to another.
//! Method: two mounts of a cluster of real processes that write in turn, the calls counted that they make for leases; then both at once.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};
use support::can_mount;
use support::cluster::Lab;
use support::counts::Counts;

/// Records that each mount writes.
const RECORDS: u64 = 150;
/// Whole pages in the middle, and parts of pages at both ends.
const RECORD_BYTES: u64 = 20_000;

struct Mounts {
    lab: Lab,
    shown: [String; 2],
}

impl Mounts {
    fn start() -> Mounts {
        let mut lab = Lab::start(2, 2);
        let shown = [0, 1].map(|at| {
            lab.mounts[at].stop();
            let shown = Lab::free_address();
            let line = format!("mount @m{at} --identity @c{at} --metrics {shown}");
            lab.mounts[at] = lab.run(&format!("c{at}"), &line, "mounted");
            shown
        });
        Mounts { lab, shown }
    }

    /// Calls for leases, and reports, that both have made.
    fn calls(&self) -> u64 {
        let of_leases = |shown: &String| {
            let counts = Counts::of(shown);
            let kinds = ["acquire_data", "acquire_shared", "commit_write"];
            kinds.iter().map(|kind| counts.kind("meta", kind)).sum::<u64>()
        };
        self.shown.iter().map(of_leases).sum()
    }

    /// `name`, opened for reading and writing through both: by the first before there was anybody else, by `first` flags besides, and written by it.
    fn open(&self, name: &str, first: i32) -> [File; 2] {
        let path = |at: usize| self.lab.path(&format!("m{at}")).join(name);
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        let own = options.clone().create_new(true).custom_flags(first).open(path(0)).unwrap();
        own.write_all_at(&vec![1; 1 << 20], 0).unwrap();
        [own, options.open(path(1)).unwrap()]
    }
}

fn record(who: usize, number: u64) -> Vec<u8> {
    (0..RECORD_BYTES).map(|at| (at / 7 + number * 2 + who as u64 * 131) as u8).collect()
}

/// Where a mount has a record of its own.
fn place(who: usize, number: u64) -> u64 {
    (number * 2 + who as u64) * RECORD_BYTES
}

/// Both write their records in turn.
fn write_in_turn(files: &[File; 2]) {
    for number in 0..RECORDS {
        for (who, file) in files.iter().enumerate() {
            file.write_all_at(&record(who, number), place(who, number)).unwrap();
        }
    }
}

#[test]
fn who_came_first_does_not_make_the_others_wait() {
    if !can_mount("writers of one file") {
        return;
    }
    let mut mounts = Mounts::start();
    for (name, first) in [("cached", 0), ("direct", libc::O_DIRECT)] {
        let files = mounts.open(name, first);
        // Until both know of each other.
        for _ in 0..3 {
            files.iter().for_each(|file| file.write_all_at(&[2; 5000], 0).unwrap());
        }
        let before = mounts.calls();
        write_in_turn(&files);
        let made = mounts.calls() - before;
        assert!(made < RECORDS / 10, "{name}: {made} calls for {} writes", 2 * RECORDS);
        let all: Vec<u8> =
            (0..RECORDS).flat_map(|number| [record(0, number), record(1, number)].concat()).collect();
        for at in [0, 1] {
            let path = mounts.lab.path(&format!("m{at}")).join(name);
            assert_eq!(fs::metadata(&path).unwrap().len(), all.len() as u64);
            assert!(fs::read(&path).unwrap() == all, "{name} through mount {at}");
        }
    }
    mounts.lab.stop();
}

#[test]
fn what_is_written_is_seen_at_once_through_the_cache_of_whoever_came_first() {
    if !can_mount("reads beside writers of one file") {
        return;
    }
    let mut mounts = Mounts::start();
    let files = mounts.open("f", 0);
    let mut seen = vec![0; RECORD_BYTES as usize];
    for number in 0..RECORDS {
        // Over each other, in both orders, with a page of its own and one that they share.
        let first = (number % 2) as usize;
        for who in [first, 1 - first] {
            files[who].write_all_at(&record(who, number), 1000).unwrap();
        }
        if number % 3 == 0 {
            for file in &files {
                file.read_exact_at(&mut seen, 1000).unwrap();
                assert!(seen == record(1 - first, number), "record {number}");
            }
        }
    }
    // And while another program reads the place all the time.
    let stop = AtomicBool::new(false);
    let path = mounts.lab.path("m0").join("f");
    std::thread::scope(|threads| {
        threads.spawn(|| {
            let reader = File::open(&path).unwrap();
            let mut any = vec![0; 100_000];
            while !stop.load(SeqCst) {
                reader.read_at(&mut any, 0).unwrap();
            }
        });
        for number in 0..RECORDS {
            let who = (number % 2) as usize;
            files[who].write_all_at(&record(who, number), 5000).unwrap();
            files[1 - who].read_exact_at(&mut seen, 5000).unwrap();
            assert!(seen == record(who, number), "record {number} of {who}");
        }
        stop.store(true, SeqCst);
    });
    drop(files);
    mounts.lab.stop();
}

/// Writes records of its own until `is_over`, and looks now and then at what the other mount has written; counts them in `written`.
fn write_on(files: &[File; 2], who: usize, is_over: &AtomicBool, written: &[AtomicU64; 2]) {
    let (own, mut seen) = (&files[who], vec![0; RECORD_BYTES as usize]);
    for number in 0.. {
        if is_over.load(SeqCst) {
            return;
        }
        own.write_all_at(&record(who, number), place(who, number)).unwrap();
        written[who].store(number + 1, SeqCst);
        let end = place(who, number) + RECORD_BYTES;
        assert!(files[1 - who].metadata().unwrap().len() >= end, "the other mount does not know of it");
        if let Some(last) = written[1 - who].load(SeqCst).checked_sub(1).filter(|_| number % 16 == 5) {
            own.read_exact_at(&mut seen, place(1 - who, last)).unwrap();
            assert!(seen == record(1 - who, last), "record {last} of the other one");
        }
    }
}

#[test]
fn writers_go_on_with_what_they_share_when_a_server_is_killed_and_when_their_file_moves() {
    if !can_mount("writers of one file beside servers that are killed") {
        return;
    }
    let mut lab = Lab::start(2, 2);
    lab.keep_meta();
    lab.join_meta("mds2");
    let line = format!("meta --meta @meta2 --listen {} --identity @mds2", Lab::free_address());
    let mut second = lab.run("mds2", &line, "serves");
    let files = [0, 1].map(|at| {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true);
        options.open(lab.path(&format!("m{at}")).join("f")).unwrap()
    });
    let shard = files[0].metadata().unwrap().ino() >> 48;
    let (is_over, written) = (AtomicBool::new(false), [AtomicU64::new(0), AtomicU64::new(0)]);
    std::thread::scope(|threads| {
        for who in [0, 1] {
            let (files, is_over, written) = (&files, &is_over, &written);
            threads.spawn(move || write_on(files, who, is_over, written));
        }
        for turn in 0..4 {
            match turn {
                0 | 3 => lab.restart_kept_meta(),
                _ => {
                    let to = ["mds2", "mds"][turn - 1];
                    lab.ashlar(&format!("shard move {shard} --to {to} --identity @first")).expect(0);
                }
            }
            let (before, begun) = ([0, 1].map(|who: usize| written[who].load(SeqCst)), Instant::now());
            while [0, 1].iter().any(|who| written[*who].load(SeqCst) < before[*who] + 20) {
                assert!(begun.elapsed() < Duration::from_secs(60), "nothing goes on after turn {turn}");
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        is_over.store(true, SeqCst);
    });
    let all = fs::read(lab.path("m1/f")).unwrap();
    for (who, written) in written.iter().enumerate() {
        for number in 0..written.load(SeqCst) {
            let at = place(who, number) as usize;
            assert!(all[at..at + RECORD_BYTES as usize] == record(who, number), "record {number} of {who}");
        }
    }
    drop(files);
    lab.mounts.iter_mut().for_each(support::cluster::Role::stop);
    second.stop();
    lab.stop_kept();
}
