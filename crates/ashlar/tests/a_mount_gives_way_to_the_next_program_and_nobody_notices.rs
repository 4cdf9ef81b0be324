//! Goal: the process of a mount that is kept gives way to the program that is installed by now (SIGUSR2), and no program that uses the mount sees an error, loses a lock, or waits for more than
//! moments: writers, readers, who makes and removes names, appends, holds locks and waits for them, has a file without a name, or stores into a mapping. Method: turns of it, one right after the other, under
//! such programs on two mounts, also while metadata servers are started anew.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};
use support::cluster::{Lab, Role};
use support::{PATIENCE, can_mount};

/// No call may take longer. A turn takes tenths of a second on an idle machine.
const STALL_MAX: Duration = Duration::from_secs(15);

fn start_keeping(lab: &Lab, at: usize, name: &str) -> Role {
    lab.run(name, &format!("mount @m{at} --identity @c{at} --keep 60 --error-after 60"), "mounted")
}

/// How often the process has said that it has mounted.
fn mounted_count(role: &Role) -> usize {
    role.text().matches("mounted ").count()
}

#[track_caller]
fn give_way(role: &Role) {
    let before = mounted_count(role);
    let process = Pid::from_raw(i32::try_from(role.id()).unwrap()).unwrap();
    kill_process(process, Signal::USR2).unwrap();
    let begun = Instant::now();
    while mounted_count(role) == before {
        assert!(!role.text().contains("this process goes on"), "{}", role.text());
        assert!(begun.elapsed() < PATIENCE, "it does not give way: {}", role.text());
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(!role.text().contains("another one takes its place"), "{}", role.text());
    assert!(!role.text().contains("another session takes"), "{}", role.text());
}

/// Calls that are made until `is_over`, and how long the longest took.
struct Busy<'a> {
    is_over: &'a AtomicBool,
    longest_ms: &'a AtomicU64,
    calls: &'a AtomicU64,
}

impl Busy<'_> {
    fn run(&self, mut call: impl FnMut(u64)) {
        let mut turn = 0;
        while !self.is_over.load(SeqCst) {
            let begun = Instant::now();
            call(turn);
            self.longest_ms.fetch_max(begun.elapsed().as_millis() as u64, SeqCst);
            self.calls.fetch_add(1, SeqCst);
            turn += 1;
        }
    }
}

fn writer(busy: &Busy<'_>, path: &Path) {
    let file = OpenOptions::new().create(true).truncate(true).read(true).write(true).open(path).unwrap();
    let content = |turn: u64| vec![turn as u8; 70_000];
    busy.run(|turn| {
        let offset = turn % 40 * 65_536;
        file.write_all_at(&content(turn), offset).unwrap();
        let mut found = vec![0; 70_000];
        file.read_exact_at(&mut found, offset).unwrap();
        assert!(found == content(turn), "what was written in turn {turn} is not there");
        if turn % 16 == 0 {
            file.sync_data().unwrap();
        }
    });
}

fn appender(busy: &Busy<'_>, path: &Path) {
    let mut file = OpenOptions::new().create(true).append(true).open(path).unwrap();
    let mut lines = 0;
    busy.run(|turn| {
        writeln!(file, "line {turn:08}").unwrap();
        lines = turn + 1;
        std::thread::sleep(Duration::from_millis(2));
    });
    let expected: String = (0..lines).map(|turn| format!("line {turn:08}\n")).collect();
    let found = fs::read_to_string(path).unwrap();
    let differs = found.bytes().zip(expected.bytes()).position(|(found, expected)| found != expected);
    let at = differs.unwrap_or(found.len().min(expected.len()));
    let around = |text: &str| text.get(at.saturating_sub(40)..(at + 40).min(text.len())).map(str::to_owned);
    assert!(
        found == expected,
        "of {lines} lines not each is there once: {} bytes of {}, at {at} {:?}, not {:?}",
        found.len(),
        expected.len(),
        around(&found),
        around(&expected)
    );
}

fn names(busy: &Busy<'_>, dir: &Path) {
    fs::create_dir(dir).unwrap();
    busy.run(|turn| {
        let (one, other) = (dir.join(format!("a{turn}")), dir.join(format!("b{turn}")));
        fs::create_dir(&one).unwrap();
        fs::write(one.join("file"), b"x").unwrap();
        fs::rename(&one, &other).unwrap();
        assert_eq!(fs::read_dir(&other).unwrap().count(), 1);
        fs::remove_file(other.join("file")).unwrap();
        fs::remove_dir(&other).unwrap();
    });
}

/// Locks a part of a file for this description, and waits for it (`F_OFD_SETLKW`, fcntl(2)).
fn lock_part(file: &File, is_locked: bool) {
    // SAFETY: a lock is numbers, and the call keeps no pointer.
    let outcome = unsafe {
        let mut part: libc::flock = std::mem::zeroed();
        part.l_type = if is_locked { libc::F_WRLCK } else { libc::F_UNLCK } as libc::c_short;
        part.l_whence = libc::SEEK_SET as libc::c_short;
        (part.l_start, part.l_len) = (100, 50);
        libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLKW, &raw const part)
    };
    assert_eq!(outcome, 0, "{}", std::io::Error::last_os_error());
}

/// Two that take turns by a lock, each at a mount of its own: what one has counted the other one finds.
fn counter(busy: &Busy<'_>, path: &Path, counted: &AtomicU64, is_of_part: bool) {
    let file = OpenOptions::new().create(true).truncate(false).read(true).write(true).open(path).unwrap();
    busy.run(|_| {
        if is_of_part {
            lock_part(&file, true)
        } else {
            file.lock().unwrap()
        }
        let mut text = [b'0'; 8];
        let got = file.read_at(&mut text, 0).unwrap();
        let number: u64 = if got == 0 { 0 } else { std::str::from_utf8(&text).unwrap().parse().unwrap() };
        file.write_all_at(format!("{:08}", number + 1).as_bytes(), 0).unwrap();
        counted.fetch_add(1, SeqCst);
        if is_of_part {
            lock_part(&file, false)
        } else {
            file.unlock().unwrap()
        }
        std::thread::sleep(Duration::from_millis(1));
    });
}

fn nameless(busy: &Busy<'_>, path: &Path) {
    let mut file = OpenOptions::new().create_new(true).read(true).write(true).open(path).unwrap();
    fs::remove_file(path).unwrap();
    busy.run(|turn| {
        file.write_all(&[turn as u8]).unwrap();
        let mut all = vec![0; turn as usize + 1];
        file.read_exact_at(&mut all, 0).unwrap();
        assert!(all.iter().zip(0u64..).all(|(byte, at)| *byte == at as u8));
        std::thread::sleep(Duration::from_millis(5));
    });
}

/// What is done with two mounts while `change` goes on; the longest call.
fn used(mounts: [&PathBuf; 2], change: impl FnOnce()) -> Duration {
    let (is_over, longest_ms, calls) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let counted = [AtomicU64::new(0), AtomicU64::new(0)];
    let busy = Busy { is_over: &is_over, longest_ms: &longest_ms, calls: &calls };
    let (busy, counted) = (&busy, &counted);
    let dirs = mounts.map(|mount| mount.join("used"));
    fs::create_dir(&dirs[0]).unwrap();
    // Held over everything that happens.
    let held = OpenOptions::new().create_new(true).write(true).open(dirs[0].join("held")).unwrap();
    held.lock().unwrap();
    let tries = File::open(dirs[1].join("held")).unwrap();
    std::thread::scope(|scope| {
        for (at, dir) in dirs.iter().enumerate() {
            scope.spawn(move || writer(busy, &dir.join(format!("writer{at}"))));
            scope.spawn(move || appender(busy, &dir.join(format!("appender{at}"))));
            scope.spawn(move || names(busy, &dir.join(format!("names{at}"))));
            scope.spawn(move || counter(busy, &dir.join("counter0"), &counted[0], false));
            scope.spawn(move || counter(busy, &dir.join("counter1"), &counted[1], true));
            scope.spawn(move || nameless(busy, &dir.join(format!("nameless{at}"))));
        }
        change();
        is_over.store(true, SeqCst);
    });
    assert!(
        matches!(tries.try_lock(), Err(TryLockError::WouldBlock)),
        "a lock that is held was given to another one"
    );
    held.unlock().unwrap();
    tries.try_lock().unwrap();
    tries.unlock().unwrap();
    for (number, counted) in counted.iter().enumerate() {
        let text = fs::read_to_string(dirs[1].join(format!("counter{number}"))).unwrap();
        let found: u64 = text.parse().unwrap();
        assert_eq!(found, counted.load(SeqCst), "somebody else was let in beside who had lock {number}");
    }
    drop((held, tries));
    fs::remove_dir_all(&dirs[0]).unwrap();
    assert!(calls.load(SeqCst) > 100, "nothing was done");
    Duration::from_millis(longest_ms.load(SeqCst))
}

#[test]
fn programs_on_both_mounts_see_nothing_of_processes_that_give_way() {
    if !can_mount("giving way") {
        return;
    }
    let mut lab = Lab::start(2, 2);
    let mut second = add_meta(&lab);
    keep_mounts(&mut lab);
    let (here, there) = (lab.path("m0"), lab.path("m1"));
    let process = lab.mounts[0].id();
    let longest = used([&here, &there], || {
        for turn in 0..8 {
            give_way(&lab.mounts[turn % 2]);
            std::thread::sleep(Duration::from_millis(300));
        }
    });
    assert!(longest < STALL_MAX, "a call took {longest:?}");
    eprintln!("the longest call took {longest:?}");
    assert_eq!(lab.mounts[0].id(), process, "it is another process for who has started it");
    // One session each; one that a mount had before, and that moved with a shard as the mount ended, ends by its silence.
    let begun = Instant::now();
    loop {
        let sessions = lab.ashlar("session list --json --identity @first").expect(0).stdout;
        let sessions: serde_json::Value = serde_json::from_str(&sessions).unwrap();
        if sessions["sessions"].as_array().unwrap().len() == 2 {
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "{sessions:#?}");
        std::thread::sleep(Duration::from_millis(200));
    }
    lab.mounts.iter_mut().for_each(Role::stop);
    second.stop();
    lab.stop();
}

#[test]
fn a_metadata_server_that_is_started_anew_meanwhile_is_told_of_everything() {
    if !can_mount("giving way beside starts of metadata") {
        return;
    }
    let mut lab = Lab::start(1, 2);
    keep_mounts(&mut lab);
    lab.keep_meta();
    let (here, there) = (lab.path("m0"), lab.path("m1"));
    let longest = used([&here, &there], || {
        for turn in 0..4 {
            give_way(&lab.mounts[turn % 2]);
            lab.restart_kept_meta();
            give_way(&lab.mounts[turn % 2]);
            std::thread::sleep(Duration::from_millis(300));
        }
    });
    eprintln!("the longest call took {longest:?}");
    lab.stop();
}

fn keep_mounts(lab: &mut Lab) {
    for at in 0..2 {
        lab.mounts[at].stop();
        lab.mounts[at] = start_keeping(lab, at, &format!("kept{at}"));
    }
}

/// One more metadata server, which has shards before this returns.
fn add_meta(lab: &Lab) -> Role {
    let role = lab.add_meta(2);
    let begun = Instant::now();
    while !lab.shards_by_node().contains_key("mds2") {
        assert!(begun.elapsed() < PATIENCE, "the second metadata server has no shard");
        std::thread::sleep(Duration::from_millis(100));
    }
    role
}

#[test]
fn a_process_that_cannot_give_way_goes_on() {
    if !can_mount("not giving way") {
        return;
    }
    let mut lab = Lab::start(1, 1);
    // Not kept.
    let process = |role: &Role| Pid::from_raw(i32::try_from(role.id()).unwrap()).unwrap();
    kill_process(process(&lab.mounts[0]), Signal::USR2).unwrap();
    let told = |role: &Role, what: &str| {
        let begun = Instant::now();
        while !role.text().contains(what) {
            assert!(begun.elapsed() < PATIENCE, "{}", role.text());
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    told(&lab.mounts[0], "this mount is not kept");
    fs::write(lab.path("m0/file"), b"served").unwrap();
    assert_eq!(fs::read(lab.path("m0/file")).unwrap(), b"served");
    lab.stop();
}
