//! Goal: what programs append to one file (`O_APPEND`) through whichever mount is all there in the end: each record whole, once, and in the order in which its program has
//! written it, while the file grows from its inode to chunks, and while the metadata server is killed. Method: eight processes on two mounts write records of odd sizes,
//! each with one write(2), as fast as they can.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use support::cluster::Lab;
use support::{PATIENCE, can_mount};

const WRITERS: u8 = 8;
/// What tells a process that it is an appender: the file, its number and how many records.
const ORDER: &str = "ASHLAR_TEST_APPENDER";
/// Mark, writer, number and length.
const HEAD_BYTES: usize = 10;
const MARK: u8 = 0xA7;
/// Records of a writer before the longer ones: all writers together stay in the inode for some of them.
const SHORT: u32 = 20;
/// Records of a writer while servers are killed.
const KILLED_RECORDS: u32 = 150;

/// Length of a record: short at first, then of all sizes, also beyond a page and beyond a block of a target.
fn length_of(writer: u8, number: u32) -> usize {
    let drawn = (u64::from(number) * 8 + u64::from(writer)).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 33;
    let drawn = drawn as usize;
    match number {
        ..SHORT => HEAD_BYTES + drawn % 71,
        _ if number.is_multiple_of(16) => HEAD_BYTES + 60_001 + drawn % 40_001,
        _ => HEAD_BYTES + drawn % 9_001,
    }
}

fn record(writer: u8, number: u32) -> Vec<u8> {
    let bytes = length_of(writer, number);
    let mut record = Vec::with_capacity(bytes);
    record.extend([MARK, writer]);
    record.extend(number.to_le_bytes());
    record.extend((bytes as u32).to_le_bytes());
    record.extend((HEAD_BYTES..bytes).map(|at| (at as u32 * 31 + number * 7 + u32::from(writer)) as u8));
    record
}

/// The work of one process; in a run of the tests as such there is none.
#[test]
fn an_appender() {
    let Ok(order) = std::env::var(ORDER) else { return };
    let words: Vec<&str> = order.split(' ').collect();
    let (path, writer, count) = (words[0], words[1].parse().unwrap(), words[2].parse::<u32>().unwrap());
    let mut file = File::options().append(true).open(path).unwrap();
    // All begin when the last one is there.
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
    for number in 0..count {
        let record = record(writer, number);
        assert_eq!(file.write(&record).unwrap(), record.len(), "a record was written in part");
    }
}

fn start_appender(path: &Path, writer: u8, count: u32) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "an_appender", "--nocapture"])
        .env(ORDER, format!("{} {writer} {count}", path.display()))
        .stdin(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Has all writers append so many records to `name`, in turn on both mounts; `disturb` is done meanwhile.
#[track_caller]
fn append_all(roots: &[PathBuf; 2], name: &str, count: u32, disturb: impl FnOnce(&Path)) {
    let path = |at: usize| roots[at].join(name);
    drop(File::create(path(0)).unwrap());
    let mut writers: Vec<Child> =
        (0..WRITERS).map(|writer| start_appender(&path(usize::from(writer) % 2), writer, count)).collect();
    // The processes that wait for this end have it from nobody else.
    writers.iter_mut().for_each(|writer| drop(writer.stdin.take()));
    disturb(&path(1));
    for mut writer in writers {
        let deadline = Instant::now() + PATIENCE;
        let status = loop {
            match writer.try_wait().unwrap() {
                Some(status) => break status,
                None if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(10)),
                None => {
                    let _ = writer.kill();
                    panic!("an appender does not end");
                }
            }
        };
        assert!(status.success(), "an appender has failed");
    }
    for at in 0..2 {
        require_all(&path(at), count);
    }
}

/// Bytes of so many records of each writer.
fn sum_of(count: u32) -> usize {
    (0..WRITERS).flat_map(|writer| (0..count).map(move |at| length_of(writer, at))).sum()
}

/// Every record of every writer is there, whole, once, in its order, and nothing else is.
#[track_caller]
fn require_all(path: &Path, count: u32) {
    let found = fs::read(path).unwrap();
    assert_eq!(fs::metadata(path).unwrap().len(), found.len() as u64, "{}", path.display());
    let (mut at, mut next) = (0, [0u32; WRITERS as usize]);
    while at < found.len() {
        let head = found.get(at..at + HEAD_BYTES).unwrap_or_else(|| panic!("no record at {at}"));
        assert!(head[0] == MARK && head[1] < WRITERS, "at {at} of {}: {head:?}", path.display());
        let (writer, number) = (head[1], u32::from_le_bytes(head[2..6].try_into().unwrap()));
        let wanted = next[usize::from(writer)];
        assert_eq!(number, wanted, "at {at}, of writer {writer}");
        let record = record(writer, number);
        assert!(found.get(at..at + record.len()) == Some(&record[..]), "record {number} of {writer} at {at}");
        next[usize::from(writer)] += 1;
        at += record.len();
    }
    assert_eq!(next, [count; WRITERS as usize], "records are missing");
    assert_eq!(found.len(), sum_of(count));
}

#[test]
fn eight_processes_on_two_mounts_append_to_a_file_that_grows_out_of_its_inode() {
    if !can_mount("appenders on two mounts") {
        return;
    }
    let mut lab = Lab::start(3, 2);
    let roots = [0, 1].map(|at| lab.path(&format!("m{at}")));
    append_all(&roots, "log", 120, |_| {});
    // All of it stays in the inode: every append is one call to the metadata server.
    append_all(&roots, "small", 15, |_| {});
    lab.stop();
}

#[test]
fn eight_processes_append_while_the_metadata_server_is_killed() {
    if !can_mount("appenders while a server is killed") {
        return;
    }
    let mut lab = Lab::start(2, 2);
    lab.keep_meta();
    let roots = [0, 1].map(|at| lab.path(&format!("m{at}")));
    append_all(&roots, "log", KILLED_RECORDS, |path| {
        let length = || fs::metadata(path).unwrap().len();
        for kill in 0..3 {
            // It goes on each time before the next one.
            let before = length();
            if before == sum_of(KILLED_RECORDS) as u64 {
                assert!(kill > 0, "all was over before the first kill");
                break;
            }
            lab.restart_kept_meta();
            let deadline = Instant::now() + PATIENCE;
            while length() == before {
                assert!(Instant::now() < deadline, "nothing is appended");
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    });
    lab.stop_kept();
}
