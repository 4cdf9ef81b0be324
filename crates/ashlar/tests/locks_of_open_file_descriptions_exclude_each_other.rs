//! Goal: whoever has locked a file by `F_OFD_SETLKW` has it alone, on one mount and on two, and is never told of a deadlock that there is not; a
//! process that would wait for itself is told so. Method: threads that open, lock, look around and close, as fast as they can, so that the kernel
//! has new descriptions at addresses of closed ones; and two that wait for each other.
#![allow(clippy::unwrap_used)] // a test panics where it fails

mod support;

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering::SeqCst};
use std::time::{Duration, Instant};
use support::{Site, can_mount};

const THREADS: usize = 8;
const SECONDS: u64 = 4;

fn lock(file: &File, command: i32, kind: i32) -> io::Result<()> {
    // SAFETY: a plain structure of integers.
    let mut wanted: libc::flock = unsafe { std::mem::zeroed() };
    wanted.l_type = kind as i16;
    wanted.l_len = 100;
    // SAFETY: the descriptor is open, and the structure outlives the call.
    let done = unsafe { libc::fcntl(file.as_raw_fd(), command, &raw const wanted) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn open(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).open(path).unwrap()
}

fn two_mounts(site: &Site) -> (support::Server, [PathBuf; 2]) {
    let other = site.path("other");
    fs::create_dir(&other).unwrap();
    // Both mounts are there when the second is announced; the first is looked for by the helper.
    let server = site.up("up @other @mnt --data @d1");
    File::create(other.join("f")).unwrap();
    File::create(other.join("g")).unwrap();
    (server, [site.mnt(), other])
}

/// Who is in.
#[derive(Default)]
struct Room {
    writers: AtomicI32,
    readers: AtomicI32,
    turns: AtomicU32,
    violations: AtomicU32,
    refused: AtomicU32,
}

impl Room {
    fn take_turn(&self, path: &Path, is_exclusive: bool) {
        let file = open(path);
        let kind = if is_exclusive { libc::F_WRLCK } else { libc::F_RDLCK };
        if lock(&file, libc::F_OFD_SETLKW, kind).is_err() {
            self.refused.fetch_add(1, SeqCst);
            return;
        }
        let mine = if is_exclusive { &self.writers } else { &self.readers };
        let before = mine.fetch_add(1, SeqCst);
        if self.turns.fetch_add(1, SeqCst).is_multiple_of(4) {
            std::thread::sleep(Duration::from_micros(100));
        }
        let is_alone = before == 0 && self.writers.load(SeqCst) == 1 && self.readers.load(SeqCst) == 0;
        let is_well = if is_exclusive { is_alone } else { self.writers.load(SeqCst) == 0 };
        self.violations.fetch_add(u32::from(!is_well), SeqCst);
        mine.fetch_sub(1, SeqCst);
    }
}

#[test]
fn descriptions_that_come_and_go() {
    if !can_mount("locks of open file descriptions") {
        return;
    }
    let site = Site::new();
    let (server, mounts) = two_mounts(&site);
    for paths in [[&mounts[0], &mounts[0]], [&mounts[0], &mounts[1]]] {
        let (room, end) = (Room::default(), Instant::now() + Duration::from_secs(SECONDS));
        std::thread::scope(|threads| {
            for thread in 0..THREADS {
                let (path, room) = (paths[thread % 2].join("f"), &room);
                threads.spawn(move || {
                    for turn in thread.. {
                        if Instant::now() >= end {
                            return;
                        }
                        room.take_turn(&path, turn % 4 != 0);
                    }
                });
            }
        });
        let told = (room.violations.load(SeqCst), room.refused.load(SeqCst));
        assert_eq!(
            told,
            (0, 0),
            "of {} turns, together with somebody else, and refused",
            room.turns.load(SeqCst)
        );
        assert!(room.turns.load(SeqCst) > 100);
    }
    // Nothing is left of those who are gone.
    let file = open(&mounts[0].join("f"));
    lock(&file, libc::F_OFD_SETLKW, libc::F_WRLCK).unwrap();
    drop(file);
    server.stop();
}

#[test]
fn processes_that_wait_for_each_other_are_told() {
    if !can_mount("a deadlock of two processes") {
        return;
    }
    let site = Site::new();
    let (server, mounts) = two_mounts(&site);
    // Each has one file through one descriptor and waits for the other through another.
    let has_first = Barrier::new(2);
    let wait = |[first, second]: [PathBuf; 2]| {
        // A table of descriptors of its own makes the thread an owner of its own.
        // SAFETY: nobody else in this thread has a descriptor, and those of the others stay open in theirs.
        assert_eq!(unsafe { libc::unshare(libc::CLONE_FILES) }, 0);
        let (first, second) = (open(&first), open(&second));
        lock(&first, libc::F_SETLK, libc::F_WRLCK).unwrap();
        has_first.wait();
        let told = lock(&second, libc::F_SETLKW, libc::F_WRLCK);
        told.err().and_then(|error| error.raw_os_error())
    };
    let told = std::thread::scope(|threads| {
        let one = threads.spawn(|| wait([mounts[0].join("f"), mounts[0].join("g")]));
        let other = threads.spawn(|| wait([mounts[1].join("g"), mounts[1].join("f")]));
        [one.join().unwrap(), other.join().unwrap()]
    });
    // Whoever is told gives up what he has.
    assert!([[None, Some(libc::EDEADLK)], [Some(libc::EDEADLK), None]].contains(&told), "{told:?}");
    server.stop();
}
