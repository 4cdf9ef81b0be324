//! Goal: a metadata server of which other servers keep copies goes on when the machine that serves it dies, hangs or is stopped: programs wait for seconds, no call fails, nothing is lost or
//! done twice, and copies come back by themselves.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};
use support::cluster::{Lab, Role};
use support::names::{change_names, check_names};
use support::{PATIENCE, can_mount, load};

/// Work that goes on while `during` does something to servers; tells the longest time in which nothing was done.
fn under_load(lab: &Lab, name: &str, during: impl FnOnce(&dyn Fn())) -> Duration {
    let dirs: Vec<PathBuf> = (0..4).map(|at| lab.path(&format!("m{}/{name}{at}", at % 2))).collect();
    dirs.iter().for_each(|dir| fs::create_dir(dir).unwrap());
    let work = |worker: usize, turn| change_names(&dirs[worker], turn);
    let (turns, longest) = load::under_load(&[0; 4], 24, work, during);
    for (at, turns) in turns.iter().enumerate() {
        // The other mount tells.
        check_names(&lab.path(&format!("m{}/{name}{at}", (at + 1) % 2)), *turns);
    }
    longest
}

/// Who serves each metadata server, and how many copies there are.
fn copies(lab: &Lab) -> Vec<(String, String, usize)> {
    let listed = lab.ashlar("copies list --json --identity @first").expect(0).stdout;
    let groups: serde_json::Value = serde_json::from_str(&listed).unwrap();
    let of = |group: &serde_json::Value| {
        let name = |value: &serde_json::Value| value["name"].as_str().unwrap_or_default().to_owned();
        (name(&group["server"]), name(&group["serves"]), group["copies"].as_array().unwrap().len())
    };
    groups.as_array().unwrap().iter().map(of).collect()
}

#[track_caller]
fn wait_for_copies(lab: &Lab, what: &str, are_there: impl Fn(&[(String, String, usize)]) -> bool) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let seen = copies(lab);
        if are_there(&seen) {
            return;
        }
        assert!(Instant::now() < deadline, "{what}: {seen:?}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// A file system of three metadata servers, each with two copies.
fn start() -> (Lab, Vec<Role>) {
    let lab = Lab::start(2, 2);
    let others: Vec<Role> = (1..3).map(|at| lab.add_meta(at)).collect();
    for server in ["mds", "mds1", "mds2"] {
        lab.ashlar(&format!("copies set {server} 2 --identity @first")).expect(0);
    }
    wait_for_copies(&lab, "copies are not made", |seen| {
        seen.len() == 3 && seen.iter().all(|(.., count)| *count == 2)
    });
    (lab, others)
}

fn stop(mut lab: Lab, others: Vec<Role>) {
    lab.mounts.iter_mut().for_each(Role::stop);
    let metas = others.len();
    others.into_iter().for_each(|mut role| role.stop());
    lab.stop();
    // Of each metadata server, of the copy that has all of it.
    let metas = ["", " --meta @meta1", " --meta @meta1 --meta @meta2"][metas];
    let line = format!("fsck --state @state --meta @meta{metas} --data @d0 --data @d1");
    lab.ashlar(&line).expect(0);
    // Whoever is stopped last has the only copy, which may be repaired.
    lab.ashlar(&format!("{line} --repair")).expect(0);
}

#[test]
fn another_machine_serves_when_one_is_killed_and_copies_come_back() {
    if !can_mount("a metadata server that dies") {
        return;
    }
    let (mut lab, mut others) = start();
    let stall = under_load(&lab, "killed", |goes_on| {
        lab.meta.signal(libc::SIGKILL);
        goes_on();
        wait_for_copies(&lab, "nobody serves it", |seen| {
            seen.iter().all(|(server, serves, _)| server != "mds" || serves != "mds")
        });
    });
    eprintln!("killed: the longest wait was {stall:?}");
    lab.start_meta();
    wait_for_copies(&lab, "copies do not come back", |seen| seen.iter().all(|(.., count)| *count == 2));
    let stall = under_load(&lab, "stopped", |goes_on| {
        // In good order: others need not wait until it is silent.
        others[0].signal(libc::SIGTERM);
        goes_on();
        wait_for_copies(&lab, "it serves yet", |seen| seen.iter().all(|(_, serves, _)| serves != "mds1"));
    });
    eprintln!("stopped: the longest wait was {stall:?}");
    others[0].stop();
    others[0] = lab.start_more_meta(1);
    wait_for_copies(&lab, "copies do not come back", |seen| seen.iter().all(|(.., count)| *count == 2));
    stop(lab, others);
}

#[test]
fn a_machine_that_hangs_and_goes_on_changes_nothing() {
    if !can_mount("a metadata server that hangs") {
        return;
    }
    let (lab, others) = start();
    let stall = under_load(&lab, "paused", |goes_on| {
        lab.meta.pause();
        goes_on();
        // Longer than every lease.
        std::thread::sleep(Duration::from_secs(8));
        lab.meta.resume();
        goes_on();
        wait_for_copies(&lab, "copies do not come back", |seen| seen.iter().all(|(.., count)| *count == 2));
    });
    eprintln!("paused: the longest wait was {stall:?}");
    stop(lab, others);
}

/// Files that one mount has locked and written, some of them at each metadata server.
const LOCKED: usize = 12;

#[test]
fn a_mount_is_not_taken_for_dead_while_its_server_waits_for_a_copy() {
    if !can_mount("a copy that hangs") {
        return;
    }
    let lab = Lab::start(2, 2);
    let others = vec![lab.add_meta(1)];
    for server in ["mds", "mds1"] {
        lab.ashlar(&format!("copies set {server} 2 --identity @first")).expect(0);
    }
    wait_for_copies(&lab, "copies are not made", |seen| {
        seen.len() == 2 && seen.iter().all(|(.., count)| *count == 2)
    });
    let path = |mount: usize, at: usize| lab.path(&format!("m{mount}/locked{at}"));
    let mut locked: Vec<File> = (0..LOCKED).map(|at| File::create_new(path(0, at)).unwrap()).collect();
    locked.iter().for_each(|file| file.lock().unwrap());
    let is_over = AtomicBool::new(false);
    // At any moment somebody is to tell what he has written, and is not answered himself before others have it.
    let (path, is_over) = (&path, &is_over);
    let pass = move |file: &mut File, at: usize| {
        let mut expected = String::new();
        while !is_over.load(SeqCst) {
            file.write_all(b"x").unwrap();
            expected.push('x');
            assert_eq!(fs::read_to_string(path(1, at)).unwrap(), expected);
        }
    };
    std::thread::scope(|scope| {
        for (at, file) in locked.iter_mut().enumerate() {
            scope.spawn(move || pass(file, at));
        }
        std::thread::sleep(Duration::from_secs(2));
        others[0].pause();
        // It is no copy any more only once a manager says so: later than a mount is to give back what it has.
        lab.manager.pause();
        std::thread::sleep(Duration::from_secs(8));
        lab.manager.resume();
        std::thread::sleep(Duration::from_secs(3));
        others[0].resume();
        wait_for_copies(&lab, "copies do not come back", |seen| seen.iter().all(|(.., count)| *count == 2));
        is_over.store(true, SeqCst);
    });
    for (at, file) in locked.iter().enumerate() {
        assert!(File::open(path(1, at)).unwrap().try_lock().is_err(), "{at}: the lock is gone");
        file.unlock().unwrap();
    }
    let told = lab.mounts[0].text();
    assert!(!told.contains("has ended this session"), "{told}");
    drop(locked);
    stop(lab, others);
}
