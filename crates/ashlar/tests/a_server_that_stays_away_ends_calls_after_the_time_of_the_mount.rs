//! Goal: a call that needs a server which stays away ends after the time that the mount was given (`--error-after`), with an error and neither much sooner nor later;
//! what does not need it goes on meanwhile, and when the server is back everything does, on the same mount.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};
use support::can_mount;
use support::cluster::Lab;

const ERROR_AFTER: Duration = Duration::from_secs(4);
/// A call of a program is a few calls to servers, each of which may wait.
const CALLS: u32 = 3;
const SLACK: Duration = Duration::from_secs(8);

/// Checks that `call` fails as it should, and when.
#[track_caller]
fn fails_in_time<T: std::fmt::Debug>(what: &str, call: impl FnOnce() -> std::io::Result<T>) {
    let begun = Instant::now();
    let error = call().unwrap_err();
    let took = begun.elapsed();
    assert_eq!(error.raw_os_error(), Some(libc::ETIMEDOUT), "{what}: {error}");
    assert!(took >= ERROR_AFTER - Duration::from_millis(200), "{what} gave up after {took:?}");
    assert!(took < ERROR_AFTER * CALLS + SLACK, "{what} took {took:?}");
}

#[test]
fn calls_end_after_that_time_and_go_on_when_the_server_is_back() {
    if !can_mount("servers that stay away") {
        return;
    }
    let mut lab = Lab::start(1, 1);
    let content = vec![3u8; 2 << 20];
    fs::write(lab.path("m0/large"), &content).unwrap();
    fs::write(lab.path("m0/small"), b"small").unwrap();
    lab.mounts[0].stop();
    let line = format!("mount @m0 --identity @c0 --error-after {}", ERROR_AFTER.as_secs());
    lab.mounts[0] = lab.run("c0", &line, "mounted");
    let path = |name: &str| lab.path("m0").join(name);
    let (large, written) = (path("large"), path("written"));
    lab.storage[0].kill();
    let file = File::open(&large).unwrap();
    let mut piece = vec![0; 4096];
    fails_in_time("a read", || file.read_exact_at(&mut piece, 0));
    fails_in_time("a write", || File::create(&written)?.write_all(&content));
    // Names, attributes and small files are of the metadata server.
    assert_eq!(fs::read(lab.path("m0/small")).unwrap(), b"small");
    fs::create_dir(lab.path("m0/dir")).unwrap();
    assert_eq!(fs::metadata(&large).unwrap().len(), content.len() as u64);
    lab.start_storage(0);
    file.read_exact_at(&mut piece, 0).unwrap();
    assert!(piece == content[..4096]);
    fs::write(&written, &content).unwrap();
    assert!(fs::read(&written).unwrap() == content);
    drop(file);
    lab.meta.kill();
    fails_in_time("a stat of a name that is not known here", || fs::metadata(lab.path("m0/unknown")));
    fails_in_time("a new directory", || fs::create_dir(lab.path("m0/dir/new")));
    lab.start_meta();
    fs::create_dir_all(lab.path("m0/dir/newer")).unwrap();
    assert!(fs::read(&large).unwrap() == content);
    // What was given up has perhaps been done, or not; both is an answer to a call that ended with ETIMEDOUT.
    assert!(fs::read_dir(lab.path("m0/dir")).unwrap().count() <= 2);
    // Without the manager nothing waits at all.
    lab.manager.kill();
    assert!(fs::read(&written).unwrap() == content);
    fs::write(lab.path("m0/last"), b"x").unwrap();
    lab.start_manager();
    lab.stop();
}
