//! Goal: `df` and `ashlar status` show what the disks have, also where two targets are on one of them. Method: two targets on one
//! file system and a third on another, in a mount name space of the test's own; the sums are compared with those of the disks.

#![allow(clippy::unwrap_used)] // The helpers of a test panic as the test does.

mod support;

use std::ffi::CString;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Command;
use support::user_world::UserWorld;

/// Total and free bytes.
fn space(path: &Path) -> (u64, u64) {
    let path = CString::new(path.as_os_str().as_bytes()).unwrap();
    let mut answer = MaybeUninit::<libc::statvfs>::uninit();
    // SAFETY: the path ends with a NUL; the answer has room for what is written.
    assert_eq!(unsafe { libc::statvfs(path.as_ptr(), answer.as_mut_ptr()) }, 0);
    // SAFETY: statvfs returned 0, so it filled the structure.
    let answer = unsafe { answer.assume_init() };
    (answer.f_blocks * answer.f_frsize, answer.f_bfree * answer.f_frsize)
}

#[test]
fn the_sums_are_those_of_the_disks() {
    UserWorld::enter("shared disks", "", |world| {
        let disk = |name: &str, mib: u64| {
            let path = world.site.path(name);
            std::fs::create_dir(&path).unwrap();
            let size = format!("size={mib}m");
            let mounted =
                Command::new("mount").args(["-t", "tmpfs", "-o", &size, "none"]).arg(&path).status();
            assert!(mounted.unwrap().success());
            path
        };
        let (large, small) = (disk("large", 1024), disk("small", 256));
        for name in ["large/a", "large/b", "small/c"] {
            std::fs::create_dir(world.site.path(name)).unwrap();
        }
        let server = world.site.up("up @mnt --data @large/a --data @large/b --data @small/c");
        let disks = [space(&large), space(&small)];
        let (total, free) = (disks[0].0 + disks[1].0, disks[0].1 + disks[1].1);
        // Reserves are kept back once per disk; rounding to blocks of 4 KiB.
        let (seen_total, seen_free) = space(&world.site.mnt());
        assert!(seen_total <= total && seen_total > total - (64 << 10), "{seen_total} of {total}");
        assert!(seen_free <= free && seen_free > free / 2, "{seen_free} of {free}");

        let status = world.site.run("status @mnt --json").expect(0);
        let status: serde_json::Value = serde_json::from_str(&status.stdout).unwrap();
        let bytes = |value: &serde_json::Value| value["bytes_total"].as_u64().unwrap();
        assert_eq!(bytes(&status[0]), total);
        let targets: Vec<u64> = status[0]["targets"].as_array().unwrap().iter().map(bytes).collect();
        assert_eq!(targets, [disks[0].0 / 2, disks[0].0 / 2, disks[1].0]);
        server.stop();
    });
}
