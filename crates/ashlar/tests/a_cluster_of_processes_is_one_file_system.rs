//! Goal: manager, metadata, targets and mounts in processes of their own, over the network, are one file system: what one mount writes another
//! reads, a server that is killed and started again is waited for, and who does not belong to it is told so and gets nothing.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::fs;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;
use support::can_mount;
use support::cluster::Lab;

fn pattern(seed: u64, bytes: usize) -> Vec<u8> {
    (0..bytes as u64).map(|at| ((at * 31 + seed * 7) % 251) as u8).collect()
}

#[test]
fn what_one_mount_writes_another_reads_and_it_is_there_after_a_restart_of_everything() {
    if !can_mount("a cluster") {
        return;
    }
    let mut lab = Lab::start(2, 2);
    let (one, two) = (lab.path("m0"), lab.path("m1"));
    let large = pattern(1, 9 << 20);
    fs::create_dir(one.join("dir")).unwrap();
    fs::write(one.join("dir/large"), &large).unwrap();
    fs::write(one.join("dir/small"), b"small").unwrap();
    assert!(fs::read(two.join("dir/large")).unwrap() == large);
    assert_eq!(fs::read(two.join("dir/small")).unwrap(), b"small");
    // Turns: each sees what the other has just done.
    for turn in 0..50u8 {
        let (writer, reader) = if turn % 2 == 0 { (&one, &two) } else { (&two, &one) };
        fs::write(writer.join("turns"), [turn; 100]).unwrap();
        assert_eq!(fs::read(reader.join("turns")).unwrap(), [turn; 100]);
        fs::rename(writer.join("turns"), writer.join("renamed")).unwrap();
        assert!(fs::metadata(reader.join("turns")).is_err());
        fs::rename(reader.join("renamed"), reader.join("turns")).unwrap();
    }
    // Both targets have a part.
    for data in ["d0", "d1"] {
        let slabs = walk_bytes(&lab.path(data));
        assert!(slabs > 2 << 20, "{data} holds {slabs} bytes");
    }
    lab.stop();
    lab.start_manager();
    for at in 0..2 {
        lab.start_storage(at);
    }
    lab.start_meta();
    for at in 0..2 {
        lab.start_mount(at);
    }
    assert!(fs::read(two.join("dir/large")).unwrap() == large);
    assert_eq!(fs::read(one.join("turns")).unwrap(), [49; 100]);
    lab.stop();
}

/// Bytes allocated below a directory.
fn walk_bytes(dir: &std::path::Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
    entries
        .map(|entry| match entry.metadata().unwrap() {
            metadata if metadata.is_dir() => walk_bytes(&entry.path()),
            metadata => metadata.blocks() * 512,
        })
        .sum()
}

#[test]
fn a_storage_server_that_is_killed_and_started_again_is_waited_for() {
    if !can_mount("a storage server that is killed") {
        return;
    }
    let mut lab = Lab::start(2, 1);
    let file = fs::File::options().read(true).write(true).create_new(true).open(lab.path("m0/file")).unwrap();
    let (is_done, turns) = (AtomicBool::new(false), AtomicU64::new(0));
    // Some turns before each kill, however slow the machine is.
    let wait_for_turns = |more: u64| {
        let (from, begun) = (turns.load(SeqCst), std::time::Instant::now());
        while turns.load(SeqCst) < from + more {
            if begun.elapsed() > Duration::from_secs(60) {
                is_done.store(true, SeqCst);
                panic!("{} turns in a minute", turns.load(SeqCst) - from);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            while !is_done.load(SeqCst) {
                let turn = turns.load(SeqCst);
                let offset = turn % 16 * (1 << 20) + turn % 7 * 1000;
                let data = pattern(turn, 200_000);
                file.write_all_at(&data, offset).unwrap();
                let mut back = vec![0; data.len()];
                file.read_exact_at(&mut back, offset).unwrap();
                assert!(back == data, "turn {turn}");
                turns.store(turn + 1, SeqCst);
            }
            file.sync_all().unwrap();
        });
        for turn in 0..3 {
            wait_for_turns(5);
            lab.storage[turn % 2].kill();
            std::thread::sleep(Duration::from_millis(300));
            lab.start_storage(turn % 2);
        }
        wait_for_turns(5);
        is_done.store(true, SeqCst);
        writer.join().unwrap();
    });
    lab.stop();
}

#[test]
fn serving_goes_on_without_the_manager() {
    if !can_mount("a cluster without its manager") {
        return;
    }
    let mut lab = Lab::start(1, 2);
    lab.manager.kill();
    fs::write(lab.path("m0/file"), pattern(1, 3 << 20)).unwrap();
    assert!(fs::read(lab.path("m1/file")).unwrap() == pattern(1, 3 << 20));
    // A mount knows the last map.
    lab.mounts[1].stop();
    lab.start_mount(1);
    assert!(fs::read(lab.path("m1/file")).unwrap() == pattern(1, 3 << 20));
    lab.start_manager();
    assert!(lab.ashlar("node list --identity @first").expect(0).stdout.contains("oss0"));
    lab.stop();
}

#[test]
fn who_does_not_belong_to_it_is_told_so_and_gets_nothing() {
    if !can_mount("strangers of a cluster") {
        return;
    }
    let mut lab = Lab::start(1, 1);
    let free = Lab::free_address();
    // A token is good once, and a text that is none is told.
    let token = lab.ashlar("token --role client --identity @first").expect(0).stdout.trim().to_owned();
    lab.ashlar(&format!("join {token} --name c7 --identity @c7")).expect(0);
    lab.ashlar(&format!("join {token} --name c8 --identity @c8")).refused(&["token", "used"]);
    lab.ashlar("join nonsense --name c8 --identity @c8").refused(&["not a token", "ashlar token"]);
    let mut wrong = token.clone();
    wrong.replace_range(10..14, if &token[10..14] == "0000" { "1111" } else { "0000" });
    lab.ashlar(&format!("join {wrong} --name c8 --identity @c8")).refused(&["cannot join"]);
    assert!(!lab.path("c8").exists(), "nothing is left of those");
    // Names.
    let token = lab.ashlar("token --role client --identity @first").expect(0).stdout.trim().to_owned();
    lab.ashlar(&format!("join {token} --name oss0 --identity @c8")).refused(&["oss0", "already"]);
    lab.ashlar(&format!("join {token} --name a/b --identity @c8")).refused(&["name of a node"]);
    lab.ashlar(&format!("join {token} --name c8 --identity @c7")).refused(&["belongs to", "--identity"]);
    lab.ashlar(&format!("join {token} --name c8 --identity @c8")).expect(0);
    // What a certificate does not allow.
    lab.ashlar(&format!("storage --data @d9 --listen {free} --identity @c7"))
        .refused(&["c7", "client", "storage"]);
    lab.ashlar("token --role client --identity @c7").refused(&["admin"]);
    // Directories in the wrong place.
    let meta = lab.ashlar("token --role meta,storage --identity @first").expect(0).stdout.trim().to_owned();
    lab.ashlar(&format!("join {meta} --name mds2 --identity @mds2")).expect(0);
    lab.ashlar(&format!("meta --meta @empty --listen {free} --identity @mds"))
        .refused(&["empty", "is its disk mounted"]);
    lab.ashlar(&format!("storage --data @d0 --listen {free} --identity @mds2")).refused(&["d0"]);
    // Another file system.
    let other = Lab::start(1, 0);
    let foreign = format!("storage --data {} --listen {free} --identity @mds2", other.path("d0").display());
    lab.ashlar(&foreign).refused(&["d0"]);
    drop(other);
    // A node that was removed has lost its mount.
    lab.ashlar("node remove nobody --identity @first").refused(&["nobody", "ashlar node list"]);
    lab.ashlar("node remove oss0 --identity @first")
        .refused(&["oss0 has 1 target, 1:", "ashlar target remove"]);
    fs::write(lab.path("m0/file"), b"x").unwrap();
    lab.ashlar("node remove c8 --identity @first").expect(0);
    lab.ashlar(&format!("mount {} --identity @c8 --error-after 2", lab.path("m0").display()))
        .refused(&["node-"]);
    assert_eq!(fs::read(lab.path("m0/file")).unwrap(), b"x");
    lab.stop();
}
