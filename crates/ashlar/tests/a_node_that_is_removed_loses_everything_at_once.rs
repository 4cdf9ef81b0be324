//! Goal: a certificate is worth nothing once its node was removed, also in the middle of work: connections that are there are ended, calls fail, what the node had
//! goes to others, and others notice nothing. And a machine of another file system gets nothing, and is told why.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::fs;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};
use support::can_mount;
use support::cluster::Lab;

#[test]
fn a_client_that_is_removed_while_it_writes_is_out_within_seconds() {
    if !can_mount("a client that is removed") {
        return;
    }
    let mut lab = Lab::start(1, 2);
    let content = |turn: u64| turn.to_le_bytes().repeat(1 << 15);
    let (out, other) = (lab.path("m0/out"), lab.path("m1/other"));
    let (is_removed, is_out) = (AtomicBool::new(false), AtomicBool::new(false));
    let last = std::thread::scope(|scope| {
        // Writes to targets, with a sync each, so that it meets both kinds of servers.
        let writer = scope.spawn(|| {
            let file = fs::File::create(&out).unwrap();
            let mut turn = 0u64;
            loop {
                let written = file.write_all_at(&content(turn), 0).and_then(|()| file.sync_all());
                if let Err(error) = written {
                    assert!(is_removed.load(SeqCst), "before it was removed: {error}");
                    is_out.store(true, SeqCst);
                    break (turn, Instant::now());
                }
                turn += 1;
            }
        });
        let neighbour = scope.spawn(|| {
            let mut turn = 0u64;
            while !is_out.load(SeqCst) {
                fs::write(&other, content(turn)).unwrap();
                assert!(fs::read(&other).unwrap() == content(turn));
                turn += 1;
            }
            turn
        });
        std::thread::sleep(Duration::from_secs(1));
        is_removed.store(true, SeqCst);
        let since = Instant::now();
        lab.ashlar("node remove c0 --identity @first").expect(0);
        while !writer.is_finished() {
            assert!(since.elapsed() < Duration::from_secs(20), "it writes on");
            std::thread::sleep(Duration::from_millis(20));
        }
        assert!(neighbour.join().unwrap() > 3, "the other client does nothing");
        let (turn, ended) = writer.join().unwrap();
        assert!(ended.duration_since(since) < Duration::from_secs(10), "it wrote for {:?}", ended - since);
        turn
    });
    // Reading nothing new either.
    assert!(fs::read(lab.path("m0/other")).is_err());
    // What it was writing is whole, and can be used by others as soon as its session has ended.
    let deadline = Instant::now() + Duration::from_secs(60);
    let found = loop {
        match fs::read(lab.path("m1/out")) {
            Ok(found) => break found,
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
    };
    assert!(
        found == content(last) || found == content(last.saturating_sub(1)),
        "neither the last nor the one before"
    );
    lab.ashlar(&format!("mount {} --identity @c0 --error-after 2", lab.path("d0").display()))
        .refused(&["not in the file system", "ashlar join"]);
    lab.mounts[0].kill();
    lab.stop();
}

#[test]
fn a_machine_of_another_file_system_is_told_so() {
    if !can_mount("a machine of another file system") {
        return;
    }
    let mut lab = Lab::start(1, 1);
    let other = Lab::start(1, 1);
    // A client of the other one, which looks for managers here: as after addresses were given to other machines.
    let file = other.path("c0/node.json");
    let text = fs::read_to_string(&file).unwrap();
    let text = text.replace(&other.address(0).to_string(), &lab.address(0).to_string());
    let path = |name: &str| lab.path(name);
    fs::create_dir(path("foreign")).unwrap();
    for name in ["certificate.pem", "key.pem", "authority.pem"] {
        fs::copy(other.path("c0").join(name), path("foreign").join(name)).unwrap();
    }
    fs::write(path("foreign/node.json"), text).unwrap();
    fs::create_dir(path("mf")).unwrap();
    let since = Instant::now();
    lab.ashlar("mount @mf --identity @foreign --error-after 2").refused(&["file system"]);
    assert!(since.elapsed() < Duration::from_secs(100), "it was told after {:?}", since.elapsed());
    fs::write(path("m0/file"), "x").unwrap();
    lab.stop();
}
