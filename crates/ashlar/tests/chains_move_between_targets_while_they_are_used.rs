//! Goal: targets are drained, filled and removed while programs read and write, and no program notices: no error, no wrong byte, no long wait.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};
use support::PATIENCE;
use support::cluster::{Lab, Role};
use support::small::add_small;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// Content that says where it belongs: file, version of the write, offset.
fn content(file: u64, version: u64, offset: u64, len: usize) -> Vec<u8> {
    let word = |at: u64| (file << 48) ^ (version << 32) ^ (at / 8).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (0..len as u64 / 8).flat_map(|at| word(offset + at * 8).to_le_bytes()).collect()
}

fn targets(lab: &Lab) -> Vec<serde_json::Value> {
    let listed = lab.ashlar("target list --json --identity @first").expect(0).stdout;
    serde_json::from_str::<serde_json::Value>(&listed).unwrap().as_array().unwrap().clone()
}

fn chains(lab: &Lab, id: u64) -> u64 {
    let target = targets(lab).into_iter().find(|target| target["id"] == id).expect("it is there");
    target["chains"].as_u64().unwrap()
}

/// Waits until `is_done`, and says what moves say if that takes too long.
#[track_caller]
fn wait_until(lab: &Lab, what: &str, mut is_done: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE * 3;
    while !is_done() {
        if Instant::now() > deadline {
            let moves = lab.ashlar("target moves --json --identity @first").expect(0).stdout;
            let logs: Vec<String> = lab.storage.iter().map(|role| role.text()).collect();
            panic!("{what} takes too long: {moves}\n{}\n{}", logs.join("\n"), lab.manager.text());
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Where the local files of a target are, by the server that has it.
fn bytes_below(path: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(path) else { return 0 };
    entries
        .flatten()
        .map(|entry| match entry.metadata() {
            Ok(found) if found.is_dir() => bytes_below(&entry.path()),
            Ok(found) => found.blocks() * 512,
            Err(_) => 0,
        })
        .sum()
}

/// One program that overwrites and reads back its own file again and again; tells how long its calls took.
fn work(path: PathBuf, number: u64, is_over: &AtomicBool, rounds: &AtomicU64) -> Vec<Duration> {
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path).unwrap();
    let (mut calls, mut version) = (Vec::new(), 0);
    let timed = |calls: &mut Vec<Duration>, call: &mut dyn FnMut()| {
        let begun = Instant::now();
        call();
        calls.push(begun.elapsed());
    };
    let pieces = 24;
    let mut versions = vec![None; pieces];
    while !is_over.load(SeqCst) {
        version += 1;
        let piece = (version as usize * 7) % pieces;
        // Not aligned to anything, and across chunks of 64 KiB.
        let offset = (piece * 40 * KIB) as u64;
        let data = content(number, version, offset, 40 * KIB);
        timed(&mut calls, &mut || file.write_all_at(&data, offset).unwrap());
        versions[piece] = Some(version);
        if version % 5 == 0 {
            timed(&mut calls, &mut || file.sync_data().unwrap());
        }
        if version % 11 == 0 {
            // The end is cut off and comes back as zeros.
            let len = (pieces * 40 * KIB / 2) as u64;
            timed(&mut calls, &mut || file.set_len(len).unwrap());
            timed(&mut calls, &mut || file.set_len((pieces * 40 * KIB) as u64).unwrap());
            versions[pieces / 2..].fill(None);
        }
        let look = (version as usize * 5) % pieces;
        let offset = (look * 40 * KIB) as u64;
        let mut found = vec![0; 40 * KIB];
        let len = file.metadata().unwrap().len();
        if offset + found.len() as u64 <= len {
            timed(&mut calls, &mut || file.read_exact_at(&mut found, offset).unwrap());
            let expected = versions[look]
                .map_or(vec![0; 40 * KIB], |version| content(number, version, offset, 40 * KIB));
            assert!(found == expected, "file {number}, piece {look} in round {version}");
        }
        rounds.fetch_add(1, SeqCst);
    }
    calls
}

/// Nobody notices: hardly a call takes long, and none very long.
#[track_caller]
fn require_no_stall(mut calls: Vec<Duration>) {
    calls.sort();
    let (p99, longest) = (calls[calls.len() * 99 / 100], calls[calls.len() - 1]);
    eprintln!("{} calls, 99 % of them took at most {p99:?}, the longest {longest:?}", calls.len());
    assert!(p99 < Duration::from_secs(1), "of {} calls, 99 % took less than {p99:?}", calls.len());
    assert!(longest < Duration::from_secs(10), "a call took {longest:?}");
}

/// Lets four programs work on two mounts while `change` is made; tells how long their calls took.
fn under_load(mounts: [&Path; 2], lab: &Lab, change: impl FnOnce()) -> Vec<Duration> {
    let (is_over, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..4u64)
            .map(|number| {
                let path = mounts[number as usize % 2].join(format!("busy{number}"));
                let (is_over, rounds) = (&is_over, &rounds);
                scope.spawn(move || work(path, number, is_over, rounds))
            })
            .collect();
        let end = scopeguard(&is_over);
        wait_until(lab, "the first work", || rounds.load(SeqCst) > 20);
        change();
        let before = rounds.load(SeqCst);
        wait_until(lab, "work after it", || rounds.load(SeqCst) > before + 20);
        drop(end);
        workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
    })
}

/// Files that nobody changes, with holes, reserved space and odd lengths.
fn make_still_files(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut files = Vec::new();
    for at in 0..30u64 {
        let path = dir.join(format!("still{at}"));
        let mut data = content(100 + at, 1, 0, 200 * KIB + (at as usize * 1000 / 8) * 8);
        let file = File::create(&path).unwrap();
        file.write_all_at(&data, 0).unwrap();
        if at % 3 == 0 {
            // A hole of several chunks, and something behind it.
            file.write_all_at(b"behind", 3 * MIB as u64 + 17).unwrap();
            data.resize(3 * MIB + 17, 0);
            data.extend_from_slice(b"behind");
        }
        if at % 5 == 0 {
            file.set_len(data.len() as u64 + 5000).unwrap();
            data.resize(data.len() + 5000, 0);
        }
        file.sync_all().unwrap();
        files.push((path, data));
    }
    files
}

#[track_caller]
fn check_still_files(files: &[(PathBuf, Vec<u8>)]) {
    for (path, expected) in files {
        let mut found = Vec::new();
        File::open(path).unwrap().read_to_end(&mut found).unwrap();
        assert_eq!(found.len(), expected.len(), "{}", path.display());
        assert!(found == *expected, "{} has other content", path.display());
    }
}

fn drop_caches() {
    fs::write("/proc/sys/vm/drop_caches", "3").unwrap();
}

#[test]
fn a_target_is_drained_and_removed_under_load_and_nobody_notices() {
    let mut lab = Lab::start(3, 2);
    let (first, second) = (lab.path("m0"), lab.path("m1"));
    lab.ashlar("layout set @m0 --chunk-size 64K --stripe-count 3 --inline-size 0").expect(0);
    let still = make_still_files(&first);
    let calls = under_load([&first, &second], &lab, || {
        lab.ashlar("target drain 2 --identity @first").expect(0);
        // While it goes on, files are made and removed as well.
        let mut count = 0;
        wait_until(&lab, "the drain", || {
            count += 1;
            let path = second.join(format!("short{count}"));
            fs::write(&path, content(200, count, 0, 300 * KIB)).unwrap();
            if count % 2 == 0 {
                fs::remove_file(path).unwrap();
            }
            chains(&lab, 2) == 0
        });
        lab.ashlar("target remove 2 --identity @first").expect(0);
    });
    require_no_stall(calls);
    assert_eq!(targets(&lab).len(), 2);
    lab.storage[1].stop();
    drop_caches();
    check_still_files(&still);
    // Its directory is refused from now on, and says why.
    let ended = lab.ashlar(&format!("storage --data @d1 --listen {} --identity @oss1", Lab::free_address()));
    assert!(ended.stderr.contains("was removed from the file system"), "{}", ended.stderr);
    lab.stop();
}

/// Ends the load also when a check fails.
fn scopeguard(is_over: &AtomicBool) -> impl Drop + '_ {
    struct End<'a>(&'a AtomicBool);
    impl Drop for End<'_> {
        fn drop(&mut self) {
            self.0.store(true, SeqCst);
        }
    }
    End(is_over)
}

#[test]
fn moves_go_on_after_either_server_was_killed_and_nothing_is_lost() {
    let mut lab = Lab::start(2, 1);
    let mount = lab.path("m0");
    lab.ashlar("layout set @m0 --chunk-size 64K --stripe-count 2 --inline-size 0").expect(0);
    let still = make_still_files(&mount);
    // Slow enough to be caught in the middle.
    lab.ashlar("target moves --rate 1 --identity @first").expect(0);
    lab.ashlar("target drain 1 --identity @first").expect(0);
    let (is_over, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let (path, is_over, rounds) = (mount.join("busy"), &is_over, &rounds);
        let worker = scope.spawn(move || work(path, 1, is_over, rounds));
        let end = scopeguard(is_over);
        for at in [1, 0, 1, 0] {
            let before = chains(&lab, 1);
            wait_until(&lab, "a move", || chains(&lab, 1) < before);
            lab.storage[at].kill();
            lab.start_storage(at);
        }
        lab.ashlar("target moves --rate 0 --identity @first").expect(0);
        wait_until(&lab, "the drain", || chains(&lab, 1) == 0);
        drop(end);
        worker.join().unwrap();
    });
    drop_caches();
    check_still_files(&still);
    // What has gone is deleted where it was.
    lab.stop_without_leftovers();
    lab.start_manager();
    lab.ashlar("target remove 1 --identity @first").expect(0);
    lab.stop();
}

#[test]
fn moves_are_paused_given_up_and_a_new_target_takes_its_share() {
    let mut lab = Lab::start(1, 1);
    lab.ashlar("pool add small --identity @first").expect(0);
    let (_one, mut first, _) = add_small(&lab, "small1", 512);
    fs::create_dir(lab.path("m0").join("d")).unwrap();
    let set = "layout set @m0/d --pool small --chunk-size 64K --stripe-count 1 --inline-size 0";
    wait_until(&lab, "the mount to learn of the pool", || lab.ashlar(set).code == Some(0));
    let files: Vec<(PathBuf, Vec<u8>)> = (0..200u64)
        .map(|at| {
            let (path, data) = (lab.path("m0").join(format!("d/file{at}")), content(at, 1, 0, 128 * KIB));
            fs::write(&path, &data).unwrap();
            (path, data)
        })
        .collect();
    // There is nowhere to go.
    let refused = lab.ashlar("target drain 2 --identity @first");
    assert!(refused.stderr.contains("add one first"), "{}", refused.stderr);
    let (_two, mut second, line) = add_small(&lab, "small2", 512);
    lab.ashlar("target moves --pause --identity @first").expect(0);
    lab.ashlar("target drain 2 --identity @first").expect(0);
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(chains(&lab, 2), 100, "nothing moves while moves are paused");
    lab.ashlar("target undrain 2 --identity @first").expect(0);
    lab.ashlar("target moves --resume --identity @first").expect(0);
    let moving = || {
        let shown = lab.ashlar("target moves --json --identity @first").expect(0).stdout;
        serde_json::from_str::<serde_json::Value>(&shown).unwrap()
    };
    let rebalancing = || {
        let shown = moving();
        !shown["rebalancing"].as_array().unwrap().is_empty() || !shown["moves"].as_array().unwrap().is_empty()
    };
    let d = lab.path("m0/d");
    let calls = under_load([&d, &d], &lab, || {
        // Slow enough to be caught in the middle.
        lab.ashlar("target moves --rate 1 --identity @first").expect(0);
        lab.ashlar("target rebalance --pool small --identity @first").expect(0);
        wait_until(&lab, "some chains to have moved", || chains(&lab, 3) > 101);
        // In the middle of it: what has begun stays as far as it is.
        lab.ashlar("target moves --pause --identity @first").expect(0);
        std::thread::sleep(Duration::from_secs(2));
        let paused = chains(&lab, 3);
        std::thread::sleep(Duration::from_secs(3));
        assert_eq!(chains(&lab, 3), paused, "chains move while moves are paused");
        assert!(rebalancing(), "{}", moving());
        lab.ashlar("target moves --resume --rate 0 --identity @first").expect(0);
        wait_until(&lab, "to rebalance", || !rebalancing());
    });
    require_no_stall(calls);
    let counts = [chains(&lab, 2), chains(&lab, 3)];
    assert!(counts[0] < 96 && counts[1] > 104, "the new target took chains: {counts:?}");
    drop_caches();
    check_still_files(&files);
    second.stop();
    second = lab.run("small2", &line, "serves");
    check_still_files(&files);
    lab.mounts.iter_mut().for_each(Role::stop);
    [&mut first, &mut second].into_iter().for_each(Role::stop);
    lab.stop();
}

#[test]
fn a_server_is_drained_with_all_its_targets_and_taken_away_under_load() {
    let mut lab = Lab::start(2, 2);
    let (first, second) = (lab.path("m0"), lab.path("m1"));
    lab.ashlar("layout set @m0 --chunk-size 64K --stripe-count 2 --inline-size 0").expect(0);
    // A second target at the server that goes.
    fs::create_dir(lab.path("d1b")).unwrap();
    lab.storage[1].stop();
    let line = format!("storage --data @d1 --data @d1b --listen {} --identity @oss1", Lab::free_address());
    lab.storage[1] = lab.run("oss1", &line, "serves");
    let still = make_still_files(&first);
    let gone: Vec<u64> = targets(&lab)
        .iter()
        .filter(|target| target["node"]["name"] == "oss1")
        .map(|target| target["id"].as_u64().unwrap())
        .collect();
    assert_eq!(gone.len(), 2, "{:?}", targets(&lab));
    let refused = lab.ashlar("node drain mds --identity @first");
    assert!(refused.stderr.contains("shard drain mds"), "{}", refused.stderr);
    let calls = under_load([&first, &second], &lab, || {
        lab.ashlar("node drain oss1 --identity @first").expect(0);
        wait_until(&lab, "the drain", || gone.iter().all(|target| chains(&lab, *target) == 0));
        for target in &gone {
            lab.ashlar(&format!("target remove {target} --identity @first")).expect(0);
        }
    });
    require_no_stall(calls);
    lab.storage[1].stop();
    lab.ashlar("node remove oss1 --identity @first").expect(0);
    fs::create_dir(first.join("after")).unwrap();
    require_no_stall(under_load([&first.join("after"), &second.join("after")], &lab, || ()));
    drop_caches();
    check_still_files(&still);
    lab.mounts.iter_mut().for_each(Role::stop);
    lab.stop();
}

#[test]
fn a_pool_that_is_not_there_is_named_and_one_that_is_has_its_files() {
    let mut lab = Lab::start(1, 1);
    let token = lab.ashlar("token --role storage --identity @first").expect(0).stdout;
    lab.ashlar(&format!("join {} --name oss9 --identity @oss9", token.trim())).expect(0);
    let address = Lab::free_address();
    let line = format!("storage --data @d9 --pool flash --listen {address} --identity @oss9");
    let refused = lab.ashlar(&line);
    assert!(refused.stderr.contains("there is no pool `flash`"), "{}", refused.stderr);
    lab.ashlar("pool add flash --identity @first").expect(0);
    let mut more = lab.run("oss9", &line, "serves");
    let flash =
        targets(&lab).into_iter().find(|target| target["pool"] == "flash").expect("it is in the pool");
    fs::create_dir(lab.path("m0").join("fast")).unwrap();
    let deadline = Instant::now() + PATIENCE;
    while lab.ashlar("layout set @m0/fast --pool flash --inline-size 0").code != Some(0) {
        assert!(Instant::now() < deadline, "the mount does not learn of the pool");
        std::thread::sleep(Duration::from_millis(50));
    }
    let before = bytes_below(&lab.path("d9/target/slabs"));
    let mut file = File::create(lab.path("m0").join("fast/file")).unwrap();
    file.write_all(&content(1, 1, 0, 8 * MIB)).unwrap();
    file.sync_all().unwrap();
    drop(file);
    assert!(bytes_below(&lab.path("d9/target/slabs")) >= before + 8 * MIB as u64, "{flash}");
    let refused = lab.ashlar("pool remove flash --identity @first");
    assert!(refused.stderr.contains("is in flash"), "{}", refused.stderr);
    lab.mounts.iter_mut().for_each(Role::stop);
    more.stop();
    lab.stop();
}
