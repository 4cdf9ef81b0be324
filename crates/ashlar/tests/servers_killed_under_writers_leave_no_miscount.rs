//! Goal: what a file counts for is what its chunks have, also after storage servers were killed while it grew: answers to writes are lost then, and the writes made again find their blocks
//! there. Method: writers that let files grow while chains move and servers are killed again and again, and fsck.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};
use support::PATIENCE;
use support::cluster::Lab;

fn chains(lab: &Lab, target: u64) -> u64 {
    let listed = lab.ashlar("target list --json --identity @first").expect(0).stdout;
    let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
    let found = listed.as_array().unwrap().iter().find(|found| found["id"] == target).expect("it is there");
    found["chains"].as_u64().unwrap()
}

/// Ends the writers also when a check fails.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

#[test]
fn under_writers_whose_files_grow() {
    let mut lab = Lab::start(2, 1);
    let mount = lab.path("m0");
    lab.ashlar("layout set @m0 --chunk-size 64K --stripe-count 2 --inline-size 0").expect(0);
    // Changes of chunks that move are answered when both servers have made them: that takes long enough to be caught.
    lab.ashlar("target moves --rate 1 --identity @first").expect(0);
    lab.ashlar("target drain 1 --identity @first").expect(0);
    let (is_over, written) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for number in 0..6 {
            let (mount, is_over, written) = (&mount, &is_over, &written);
            scope.spawn(move || {
                // LIMIT: 600 MiB between all, should servers be killed late.
                for round in 0..10 {
                    let file = File::create(mount.join(format!("file{number}-{round}"))).unwrap();
                    for at in (0..256).take_while(|_| !is_over.load(SeqCst)) {
                        file.write_all_at(&[number; 40 << 10], at * (40 << 10)).unwrap();
                        written.fetch_add(1, SeqCst);
                    }
                }
            });
        }
        let end = End(&is_over);
        for at in [1, 0, 1, 0, 1, 0, 1, 0] {
            let (before, deadline) = (written.load(SeqCst), Instant::now() + PATIENCE);
            while written.load(SeqCst) < before + 200 && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(1));
            }
            lab.storage[at].kill();
            lab.start_storage(at);
        }
        drop(end);
    });
    assert!(written.load(SeqCst) > 100);
    lab.ashlar("target moves --rate 0 --identity @first").expect(0);
    let deadline = Instant::now() + PATIENCE * 3;
    while chains(&lab, 1) > 0 {
        assert!(Instant::now() < deadline, "the drain takes too long");
        std::thread::sleep(Duration::from_millis(100));
    }
    lab.stop_without_leftovers();
}
