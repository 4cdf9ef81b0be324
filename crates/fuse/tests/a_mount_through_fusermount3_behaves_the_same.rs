//! Goal: a mount made by fusermount3 does everything that one made by mount(2) does. Method: the same suite. In a test binary of its own:
//! a process that is started has copies of all descriptors until it executes its program, and files of another test's mount that are
//! open there keep that mount busy.

mod memory;

use ashlar_fuse::{MountOptions, MountVia, TransportChoice};
use memory::{MemoryFs, mount_or_skip, suite};
use std::time::Duration;

#[test]
fn mounted_through_fusermount3() {
    let options =
        MountOptions { via: MountVia::Fusermount, transport: TransportChoice::Device, ..Default::default() };
    let has_fusermount = std::process::Command::new("fusermount3").arg("-V").output().is_ok();
    if !has_fusermount {
        // Set by `cargo xtask test`, which comes after `cargo xtask setup`.
        let must_run = std::env::var_os("ASHLAR_TEST_EVERYTHING").is_some();
        assert!(!must_run, "fusermount3 is missing (package fuse3), which `cargo xtask setup` installs");
        eprintln!("SKIPPED: fusermount3 is not installed");
        return;
    }
    let Some(mounted) = mount_or_skip(MemoryFs::new(Duration::ZERO), &options) else { return };
    suite::everything(&mounted);
    let table = std::fs::read_to_string("/proc/self/mounts").unwrap();
    let line = table.lines().find(|line| line.contains(mounted.path().to_str().unwrap())).unwrap();
    assert!(line.starts_with("ashlar ") && line.contains(" fuse.ashlar "), "{line}");
    mounted.end();
}
