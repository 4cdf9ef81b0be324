//! Goal: what a mount was writing when its session was ended does not arrive once somebody else has the file, however long the mount hangs; and what mounts
//! need to get at chunks is got anew, unseen by programs, when a storage server is started again or has new keys. Open, read and write cost what they did.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};
use support::cluster::Lab;
use support::{PATIENCE, can_mount};

/// Bytes of one write, and of each file; a file for each writer.
const RECORD: usize = 1 << 20;
const FILE: usize = 4 << 20;
const WRITERS: usize = 4;

fn open(path: &Path) -> File {
    File::options().read(true).write(true).create(true).truncate(false).open(path).unwrap()
}

/// Writes on and on, until told to stop or refused. Tells where the last write was, and whether it was acknowledged.
fn write_on(path: &Path, is_over: &AtomicBool, count: &AtomicU64) -> (usize, bool) {
    let file = open(path);
    let mut at = 0;
    loop {
        let outcome = file.write_all_at(&[b'a'; RECORD], at as u64);
        count.fetch_add(1, SeqCst);
        if outcome.is_err() || is_over.load(SeqCst) {
            return (at, outcome.is_ok());
        }
        at = (at + RECORD) % FILE;
    }
}

/// Writes a whole file, as soon as it can be had.
fn take(path: &Path) {
    let (file, begun) = (open(path), Instant::now());
    for at in (0..FILE).step_by(RECORD) {
        // The first attempts may meet the bound of a call while the session that has the file is being ended.
        while let Err(error) = file.write_all_at(&[b'b'; RECORD], at as u64) {
            assert!(begun.elapsed() < Duration::from_secs(90), "{error}");
        }
    }
}

#[test]
fn of_a_mount_that_hung_until_it_was_ended_nothing_arrives_when_it_goes_on() {
    if !can_mount("fencing") {
        return;
    }
    let mut lab = Lab::start(2, 2);
    let dir = lab.path("");
    let name = |mount: &str, writer: usize| dir.join(format!("{mount}/file{writer}"));
    // A write may have been done, or not have been begun, at the moment at which the mount hangs; not all of them, again and again.
    for round in 0..5 {
        let (is_over, count) = (AtomicBool::new(false), AtomicU64::new(0));
        let ends: Vec<(usize, bool)> = std::thread::scope(|scope| {
            let writers: Vec<_> = (0..WRITERS)
                .map(|writer| {
                    let (path, is_over, count) = (name("m0", writer), &is_over, &count);
                    scope.spawn(move || write_on(&path, is_over, count))
                })
                .collect();
            let deadline = Instant::now() + PATIENCE;
            while count.load(SeqCst) < 5 * WRITERS as u64 + round {
                assert!(Instant::now() < deadline, "nothing is written");
                std::thread::sleep(Duration::from_millis(1));
            }
            lab.mounts[0].pause();
            is_over.store(true, SeqCst);
            // Another one takes the files: it waits until the session of the first is ended.
            let begun = Instant::now();
            (0..WRITERS).for_each(|writer| take(&name("m1", writer)));
            eprintln!("round {round}: the other mount has written after {:?}", begun.elapsed());
            lab.mounts[0].resume();
            writers.into_iter().map(|writer| writer.join().unwrap()).collect()
        });
        // Long enough for whatever may be on its way.
        std::thread::sleep(Duration::from_secs(1));
        for (writer, (last, is_acknowledged)) in ends.iter().enumerate() {
            for mount in ["m1", "m0"] {
                let content = fs::read(name(mount, writer)).unwrap();
                for (at, record) in content.chunks(RECORD).enumerate() {
                    // One that had not been begun may have been made after the other mount's, and says so. One that was refused has done nothing.
                    let may_be_later = at * RECORD == *last && *is_acknowledged;
                    let is_taken = record.iter().all(|byte| *byte == b'b');
                    assert!(
                        is_taken || may_be_later,
                        "round {round}: something of an ended session is in file{writer}, record {at}"
                    );
                }
            }
        }
        // The mount goes on.
        assert!(!lab.mounts[0].has_ended());
        fs::write(lab.path("m0/new"), vec![7; 300_000]).unwrap();
        assert_eq!(fs::read(lab.path("m1/new")).unwrap(), vec![7; 300_000]);
        let refused = ends.iter().filter(|(_, is_acknowledged)| !is_acknowledged).count();
        eprintln!("round {round}: {refused} writes were under way and refused");
        if refused > 0 {
            lab.stop();
            return;
        }
    }
    panic!("no write was ever under way");
}

#[test]
fn a_storage_server_that_hung_while_a_session_was_ended_does_nothing_for_it_when_it_goes_on() {
    if !can_mount("fencing of a session at a storage server that cannot be told") {
        return;
    }
    let mut lab = Lab::start(1, 2);
    let dir = lab.path("");
    let name = |mount: &str, writer: usize| dir.join(format!("{mount}/file{writer}"));
    let locked = open(&lab.path("m0/locked"));
    assert_eq!(flock(&locked), 0);
    let (is_over, count) = (AtomicBool::new(false), AtomicU64::new(0));
    let ends: Vec<(usize, bool)> = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let (path, is_over, count) = (name("m0", writer), &is_over, &count);
                scope.spawn(move || write_on(&path, is_over, count))
            })
            .collect();
        let deadline = Instant::now() + PATIENCE;
        while count.load(SeqCst) < 5 * WRITERS as u64 {
            assert!(Instant::now() < deadline, "nothing is written");
            std::thread::sleep(Duration::from_millis(1));
        }
        lab.storage[0].pause();
        // What the writers ask for lies before the storage server when their mount has nothing more to do but to say that it is there.
        let mut ticks = u64::MAX;
        while lab.mounts[0].ticks() > ticks.saturating_add(3) || ticks == u64::MAX {
            ticks = lab.mounts[0].ticks();
            std::thread::sleep(Duration::from_secs(1));
        }
        is_over.store(true, SeqCst);
        lab.mounts[0].pause();
        let begun = Instant::now();
        // Others have what the session had, although the storage server cannot be told: it heeds nothing any more that it was given.
        let other = open(&lab.path("m1/locked"));
        while flock(&other) != 0 {
            assert!(begun.elapsed() < Duration::from_secs(60), "the session is not ended");
            std::thread::sleep(Duration::from_millis(100));
        }
        eprintln!("the session is over after {:?}", begun.elapsed());
        lab.storage[0].resume();
        (0..WRITERS).for_each(|writer| take(&name("m1", writer)));
        lab.mounts[0].resume();
        writers.into_iter().map(|writer| writer.join().unwrap()).collect()
    });
    // One that had been made when the server hung, and whose answer was still to come, is acknowledged. It came before the other mount's: see below.
    assert!(ends.iter().any(|(_, is_acknowledged)| !is_acknowledged), "{ends:?}");
    for (writer, mount) in (0..WRITERS).flat_map(|writer| [(writer, "m0"), (writer, "m1")]) {
        assert!(fs::read(name(mount, writer)).unwrap() == vec![b'b'; FILE], "file{writer}");
    }
    drop(locked);
    lab.stop();
}

#[test]
fn a_storage_server_that_is_started_without_a_manager_goes_by_the_keys_it_has() {
    if !can_mount("keys that are kept") {
        return;
    }
    let mut lab = Lab::start(1, 1);
    let file = open(&lab.path("m0/file"));
    file.write_all_at(&[1; RECORD], 0).unwrap();
    // The newest that it has got, and not those it was started with.
    lab.ashlar("key rotate --identity @first").expect(0);
    lab.ashlar("key rotate --identity @first").expect(0);
    std::thread::sleep(Duration::from_secs(11));
    lab.manager.kill();
    lab.storage[0].kill();
    lab.start_storage(0);
    file.write_all_at(&[2; RECORD], 0).unwrap();
    lab.start_manager();
    let mut back = vec![0; RECORD];
    file.read_exact_at(&mut back, 0).unwrap();
    assert!(back.iter().all(|byte| *byte == 2));
    drop(file);
    lab.stop();
}

/// An exclusive lock, without waiting.
fn flock(file: &File) -> i32 {
    // SAFETY: the descriptor is open.
    unsafe { libc::flock(std::os::fd::AsRawFd::as_raw_fd(file), libc::LOCK_EX | libc::LOCK_NB) }
}

/// The sum of what a process shows of a metric.
fn metric(address: &str, name: &str, label: &str) -> u64 {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: ashlar\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let is_wanted = |line: &&str| line.split(['{', ' ']).next() == Some(name) && line.contains(label);
    let value = |line: &str| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap() as u64;
    text.lines().filter(is_wanted).map(value).sum()
}

/// Writes and reads again what was written, until told to stop; tells how often.
fn write_and_read(path: &Path, thread: u8, is_over: &AtomicBool) -> u64 {
    let file = open(path);
    let mut turns = 0u64;
    while !is_over.load(SeqCst) {
        turns += 1;
        let byte = thread.wrapping_mul(50).wrapping_add(turns.to_le_bytes()[0]);
        file.write_all_at(&vec![byte; 600_000], 0).unwrap();
        let mut back = vec![0; 600_000];
        // Past the kernel's cache every other time.
        if turns.is_multiple_of(2) {
            // SAFETY: the descriptor is open.
            unsafe {
                libc::posix_fadvise(std::os::fd::AsRawFd::as_raw_fd(&file), 0, 0, libc::POSIX_FADV_DONTNEED)
            };
        }
        file.read_exact_at(&mut back, 0).unwrap();
        assert!(back.iter().all(|read| *read == byte));
    }
    turns
}

#[test]
fn programs_see_nothing_of_restarts_and_new_keys_and_nothing_costs_more() {
    if !can_mount("capabilities that are got anew") {
        return;
    }
    let mut lab = Lab::start(2, 1);
    let token = lab.ashlar("token --role client --squash none --identity @first").expect(0).stdout;
    lab.ashlar(&format!("join {} --name c9 --identity @c9", token.trim())).expect(0);
    fs::create_dir(lab.path("m9")).unwrap();
    let metrics = Lab::free_address();
    let mut mount = lab.run("c9", &format!("mount @m9 --identity @c9 --metrics {metrics}"), "mounted");
    let at = lab.path("m9");
    let count = |name: &str| metric(&metrics, name, "");
    let calls = |service: &str, kind: &str| {
        let label = format!("service=\"{service}\",kind=\"{kind}\"");
        metric(&metrics, "ashlar_call_duration_seconds_count", &label)
    };
    let extra = || (count("ashlar_capabilities_asked_total"), count("ashlar_capabilities_again_total"));

    // What it costs. The content is another mount's, so nothing is known here before the file is opened.
    fs::write(lab.path("m0/read"), vec![3; 4 << 20]).unwrap();
    assert_eq!(extra(), (0, 0));
    let (opens, acquisitions) = (calls("meta", "open"), calls("meta", "acquire_data"));
    assert_eq!(fs::read(at.join("read")).unwrap(), vec![3; 4 << 20]);
    assert_eq!((calls("meta", "open") - opens, calls("meta", "acquire_data") - acquisitions), (1, 0));
    let mut file = File::create(at.join("written")).unwrap();
    for _ in 0..64 {
        file.write_all(&[4; 128 << 10]).unwrap();
    }
    drop(file);
    assert_eq!(
        extra(),
        (0, 0),
        "opening, reading and writing files needs nothing that does not come with them"
    );

    // Storage servers that are started again, and new keys, while files are read and written; one of them has no name any more.
    let unlinked = open(&at.join("unlinked"));
    unlinked.write_all_at(&[5; 1 << 20], 0).unwrap();
    fs::remove_file(at.join("unlinked")).unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4u8)
            .map(|thread| {
                let (path, is_over) = (at.join(format!("load{thread}")), &is_over);
                scope.spawn(move || write_and_read(&path, thread, is_over))
            })
            .collect();
        for turn in 0..2 {
            std::thread::sleep(Duration::from_millis(500));
            lab.storage[turn].kill();
            lab.start_storage(turn);
            let mut back = [0; 10];
            unlinked.read_exact_at(&mut back, 500_000).unwrap();
            unlinked.write_all_at(&[5; 1 << 20], 0).unwrap();
        }
        let (asked, _) = extra();
        assert!(asked > 0, "servers that were started again have accepted what they were shown before");
        for _ in 0..4 {
            std::thread::sleep(Duration::from_secs(3));
            lab.ashlar("key rotate --identity @first").expect(0);
        }
        // Until all of them have them.
        std::thread::sleep(Duration::from_secs(14));
        let deadline = Instant::now() + PATIENCE;
        while extra().0 == asked {
            assert!(Instant::now() < deadline, "keys that are four epochs old are still good");
            std::thread::sleep(Duration::from_millis(100));
        }
        unlinked.write_all_at(&[6; 1 << 20], 0).unwrap();
        is_over.store(true, SeqCst);
        for thread in threads {
            assert!(thread.join().unwrap() > 0);
        }
    });
    let mut back = vec![0; 1 << 20];
    unlinked.read_exact_at(&mut back, 0).unwrap();
    assert!(back.iter().all(|byte| *byte == 6));
    // A metadata server that hangs for longer than it is heeded: what it gave is void, and given anew when it goes on, by itself or with the lease, which
    // has run out, too.
    lab.meta.pause();
    std::thread::sleep(Duration::from_secs(17));
    lab.meta.resume();
    unlinked.write_all_at(&[7; 1 << 20], 0).unwrap();
    unlinked.read_exact_at(&mut back, 0).unwrap();
    assert!(back.iter().all(|byte| *byte == 7));
    drop(unlinked);
    mount.stop();
    lab.stop();
}
