//! Goal: on a full pool of a cluster with several metadata servers, what was removed is room for the next write, whichever server had the names, and one that is away does not hold writes up for
//! long; and of two targets a full one gets no new files. Method: real processes, targets on small file systems in memory.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::fs;
use std::io::{ErrorKind, Result};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use support::cluster::{Lab, Role};
use support::small::add_small;
use support::{PATIENCE, can_mount};

/// What each file takes.
const FILE: usize = 4 << 20;
/// How long a write may wait for servers that are away, with what the machine may be slow.
const HELD_MAX: Duration = Duration::from_secs(15);

#[track_caller]
fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "waited too long: {what}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[track_caller]
fn use_small(lab: &Lab, dir: &str) {
    fs::create_dir(lab.path("m0").join(dir)).unwrap();
    let set = format!("layout set @m0/{dir} --pool small --chunk-size 256K --stripe-count 1 --inline-size 0");
    wait_until("the mount to learn of the pool", || lab.ashlar(&set).code == Some(0));
}

fn write(path: &Path, seed: usize) -> Result<()> {
    let data: Vec<u8> = (0..FILE).map(|at| (at / 11 + seed * 7) as u8).collect();
    let file = fs::File::create(path)?;
    std::os::unix::fs::FileExt::write_all_at(&file, &data, 0)?;
    file.sync_all()
}

/// Writes files into `dirs` in turn until there is no space; tells which are whole.
fn fill(dirs: &[PathBuf]) -> Vec<PathBuf> {
    let mut written = Vec::new();
    loop {
        let path = dirs[written.len() % dirs.len()].join(format!("f{}", written.len()));
        match write(&path, written.len()) {
            Ok(()) => written.push(path),
            Err(error) if error.kind() == ErrorKind::StorageFull => {
                fs::remove_file(path).unwrap();
                return written;
            }
            Err(error) => panic!("{}: {error}", path.display()),
        }
        assert!(written.len() < 1000);
    }
}

#[test]
fn what_was_removed_is_room_for_the_next_write_whichever_server_had_it() {
    if !can_mount("a full pool") {
        return;
    }
    let mut lab = Lab::start(1, 1);
    let mut more: Vec<Role> = (2..=3).map(|at| lab.add_meta(at)).collect();
    lab.ashlar("pool add small --identity @first").expect(0);
    let (_disk, mut small, _) = add_small(&lab, "small", 384);
    wait_until("shards to be spread", || {
        let nodes = lab.nodes_of_shards();
        nodes.iter().all(|node| nodes.iter().filter(|other| *other == node).count() <= 24)
    });
    use_small(&lab, "d");
    // Directories of all three servers.
    let nodes = lab.nodes_of_shards();
    let dirs: Vec<PathBuf> = (0..12).map(|at| lab.path(&format!("m0/d/{at}"))).collect();
    dirs.iter().for_each(|dir| fs::create_dir(dir).unwrap());
    let node_of = |dir: &PathBuf| nodes[(fs::metadata(dir).unwrap().ino() >> 48) as usize].clone();
    // The one that hangs later: not the one that is asked for the names of these directories.
    let hangs = if node_of(&lab.path("m0/d")).contains("mds3") { 2 } else { 3 };
    let is_of_it = |dir: &PathBuf| node_of(dir).contains(&format!("mds{hangs}"));
    let (of_it, others): (Vec<PathBuf>, Vec<PathBuf>) = dirs.iter().cloned().partition(is_of_it);
    assert!(!of_it.is_empty() && !others.is_empty(), "{of_it:?} {others:?}");
    let first = fill(&dirs);
    assert!(first.len() > 40, "{}", first.len());
    for round in 0..2 {
        first.iter().for_each(|path| fs::remove_file(path).unwrap());
        for (at, path) in first.iter().enumerate() {
            write(path, at + round).unwrap_or_else(|error| panic!("round {round}, {at}: {error}"));
        }
    }
    // One server hangs: whoever finds no space asks it in vain, and the next one does not ask it.
    more[hangs - 2].pause();
    for (held, name) in [(HELD_MAX, "one"), (HELD_MAX / 3, "two")] {
        let begin = Instant::now();
        let refused = write(&others[0].join(name), 1).unwrap_err();
        let took = begin.elapsed();
        assert!(refused.kind() == ErrorKind::StorageFull && took < held, "{name}: {refused} after {took:?}");
    }
    more[hangs - 2].resume();
    lab.mounts.iter_mut().for_each(Role::stop);
    small.stop();
    more.iter_mut().for_each(Role::stop);
    lab.stop();
}

#[test]
fn files_written_after_a_target_was_full_are_on_the_other_one() {
    if !can_mount("a full target") {
        return;
    }
    let mut lab = Lab::start(1, 1);
    lab.ashlar("pool add small --identity @first").expect(0);
    let (_one, mut first, _) = add_small(&lab, "small1", 256);
    use_small(&lab, "d");
    let (_two, mut second, _) = add_small(&lab, "small2", 768);
    let dir = lab.path("m0/d");
    // Three times what has room on the smaller one: laid in turn, every second file beyond that found none.
    for at in 0..120 {
        write(&dir.join(format!("f{at}")), at).unwrap_or_else(|error| panic!("file {at}: {error}"));
    }
    lab.mounts.iter_mut().for_each(Role::stop);
    [&mut first, &mut second].into_iter().for_each(Role::stop);
    lab.stop();
}
