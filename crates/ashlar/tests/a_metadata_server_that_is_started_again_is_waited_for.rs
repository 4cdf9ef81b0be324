//! Goal: a metadata server that is killed and started again costs a wait and nothing else: every call under way has its effect once, and what mounts have
//! open, locked and cached stays theirs, or stays coherent.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};
use support::can_mount;
use support::cluster::Lab;
use support::names::{change_names, check_names};

/// Tries (or waits for, with `wait`) an exclusive `fcntl(2)` lock of `range`, by the description, so that threads of this process are different owners.
fn lock(file: &File, kind: i32, (start, len): (i64, i64), wait: bool) -> std::io::Result<()> {
    let request = libc::flock {
        l_type: kind as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: start,
        l_len: len,
        l_pid: 0,
    };
    let command = if wait { libc::F_OFD_SETLKW } else { libc::F_OFD_SETLK };
    // SAFETY: the descriptor is open and the request lives until the call returns.
    match unsafe { libc::fcntl(file.as_raw_fd(), command, &request) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

fn open(path: &Path) -> File {
    File::options().read(true).write(true).create(true).truncate(false).open(path).unwrap()
}

#[test]
fn every_call_under_way_has_its_effect_once() {
    if !can_mount("a metadata server that is killed") {
        return;
    }
    let mut lab = Lab::start(1, 2);
    lab.keep_meta();
    let dirs: Vec<_> = (0..4).map(|at| lab.path(&format!("m{}/own{at}", at % 2))).collect();
    dirs.iter().for_each(|dir| fs::create_dir(dir).unwrap());
    let (is_done, total) = (AtomicBool::new(false), AtomicU64::new(0));
    let turns: Vec<u64> = std::thread::scope(|scope| {
        let work = |dir: &std::path::PathBuf| {
            let (is_done, total, dir) = (&is_done, &total, dir.clone());
            scope.spawn(move || {
                let mut turn = 0;
                while !is_done.load(SeqCst) {
                    change_names(&dir, turn);
                    turn += 1;
                    total.fetch_add(1, SeqCst);
                }
                turn
            })
        };
        let workers: Vec<_> = dirs.iter().map(work).collect();
        for kill in 0..6 {
            std::thread::sleep(Duration::from_millis(250 + 97 * kill));
            lab.restart_kept_meta();
            // It goes on, each time.
            let (before, since) = (total.load(SeqCst), Instant::now());
            while total.load(SeqCst) < before + 8 {
                assert!(since.elapsed() < Duration::from_secs(30), "nothing goes on after kill {kill}");
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        is_done.store(true, SeqCst);
        workers.into_iter().map(|worker| worker.join().unwrap()).collect()
    });
    for (at, turns) in turns.iter().enumerate() {
        // The other mount tells.
        let dir = lab.path(&format!("m{}/own{at}", (at + 1) % 2));
        check_names(&dir, *turns);
    }
    lab.stop_kept();
}

#[test]
fn what_a_mount_has_open_locked_and_cached_stays_its_own() {
    if !can_mount("a metadata server that is killed") {
        return;
    }
    let mut lab = Lab::start(1, 2);
    lab.keep_meta();
    let (one, two) = (lab.path("m0"), lab.path("m1"));
    // Content in chunks, written and not reported; an unlinked file; one read into the cache; attributes in the kernel.
    let large = vec![7; 3 << 20];
    let mut written = open(&one.join("written"));
    written.write_all(&large).unwrap();
    let mut unlinked = open(&one.join("unlinked"));
    unlinked.write_all(b"still here").unwrap();
    fs::remove_file(one.join("unlinked")).unwrap();
    fs::write(two.join("cached"), vec![1; 300_000]).unwrap();
    let mut cached = open(&one.join("cached"));
    let mut content = Vec::new();
    cached.read_to_end(&mut content).unwrap();
    fs::write(two.join("attributes"), b"x").unwrap();
    assert_eq!(fs::metadata(one.join("attributes")).unwrap().len(), 1);
    // Locks: one held, one waited for, a flock.
    let locked = open(&one.join("locked"));
    lock(&locked, libc::F_WRLCK, (0, 100), false).unwrap();
    lock(&locked, libc::F_UNLCK, (40, 20), false).unwrap();
    // SAFETY: the descriptor is open.
    assert_eq!(unsafe { libc::flock(locked.as_raw_fd(), libc::LOCK_EX) }, 0);
    let waiting = open(&two.join("locked"));
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| lock(&waiting, libc::F_WRLCK, (0, 10), true));
        std::thread::sleep(Duration::from_millis(300));
        for _ in 0..2 {
            lab.restart_kept_meta();
        }
        assert_eq!(fs::metadata(two.join("written")).unwrap().len(), large.len() as u64);
        written.write_all(b"more").unwrap();
        unlinked.seek(SeekFrom::Start(0)).unwrap();
        let mut text = String::new();
        unlinked.read_to_string(&mut text).unwrap();
        assert_eq!(text, "still here");
        unlinked.write_all(b" and larger").unwrap();
        // What others change is seen at once.
        File::options().write(true).open(two.join("cached")).unwrap().write_all_at(&[2; 9], 100_000).unwrap();
        let mut back = [0; 9];
        cached.read_exact_at(&mut back, 100_000).unwrap();
        assert_eq!(back, [2; 9]);
        fs::set_permissions(two.join("attributes"), fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(fs::metadata(one.join("attributes")).unwrap().mode() & 0o777, 0o600);
        fs::rename(two.join("attributes"), two.join("renamed")).unwrap();
        assert!(fs::metadata(one.join("attributes")).is_err());
        // The locks are still held, but for the part that was given up.
        let other = open(&two.join("locked"));
        assert!(lock(&other, libc::F_WRLCK, (60, 1), false).is_err());
        assert!(lock(&other, libc::F_WRLCK, (99, 1), false).is_err());
        lock(&other, libc::F_WRLCK, (45, 5), false).unwrap();
        // SAFETY: the descriptor is open.
        assert_ne!(unsafe { libc::flock(other.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) }, 0);
        assert!(!waiter.is_finished(), "the lock is held");
        lock(&locked, libc::F_UNLCK, (0, 40), false).unwrap();
        waiter.join().unwrap().unwrap();
        assert!(lock(&locked, libc::F_WRLCK, (5, 1), false).is_err(), "the other mount has it");
    });
    drop((written, unlinked));
    assert_eq!(fs::metadata(two.join("written")).unwrap().len(), large.len() as u64 + 4);
    drop((cached, locked, waiting));
    lab.stop_kept();
}

#[test]
fn a_mount_that_died_with_it_is_waited_for_and_then_forgotten() {
    if !can_mount("a metadata server that is killed with a mount") {
        return;
    }
    let mut lab = Lab::start(1, 2);
    lab.keep_meta();
    let (one, two) = (lab.path("m0"), lab.path("m1"));
    let lost = open(&one.join("file"));
    lost.write_all_at(&[3; 200_000], 0).unwrap();
    lock(&lost, libc::F_WRLCK, (0, 10), false).unwrap();
    fs::write(two.join("other"), b"x").unwrap();
    lab.mounts[0].kill();
    lab.restart_kept_meta();
    let since = Instant::now();
    // Everybody waits for what it may have, and for no longer than a silent mount is waited for.
    fs::write(two.join("other"), b"y").unwrap();
    let waited = since.elapsed();
    assert!(waited > Duration::from_secs(5) && waited < Duration::from_secs(40), "waited {waited:?}");
    let file = open(&two.join("file"));
    lock(&file, libc::F_WRLCK, (0, 10), false).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 200_000);
    // The next start waits for nobody.
    lab.restart_kept_meta();
    let since = Instant::now();
    fs::write(two.join("other"), b"z").unwrap();
    assert!(since.elapsed() < Duration::from_secs(10), "{:?}", since.elapsed());
    drop((file, lost));
    lab.stop_kept();
}
