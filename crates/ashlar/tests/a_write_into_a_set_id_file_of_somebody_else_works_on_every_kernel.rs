//! Without help from the kernel of Linux 5.11 on, such a write failed with EPERM. It must succeed and clear the bits, as on ext4; one of
//! root keeps them.

#![allow(clippy::unwrap_used)] // The helpers of a test panic as the test does.

mod support;

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use support::{Site, can_mount, finish};

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn small_and_large_files_and_truncation() {
    if !can_mount("writes into set-id files") {
        return;
    }
    let site = Site::new();
    fs::set_permissions(site.path(""), fs::Permissions::from_mode(0o755)).unwrap();
    for kernel in ["", "--mask-features 5.4", "--mask-features 5.15"] {
        let server = site.up(&format!("up @mnt --data @d1 {kernel}"));
        for bytes in [10, 300_000] {
            for change in ["echo more >> \"$0\"", "echo new > \"$0\"", "truncate -s 5 \"$0\""] {
                let file = site.mnt().join("file");
                fs::write(&file, vec![b'x'; bytes]).unwrap();
                fs::set_permissions(&file, fs::Permissions::from_mode(0o6777)).unwrap();
                let sh = |change: &str| {
                    let mut command = Command::new("sh");
                    command.args(["-ec", change]).arg(&file);
                    command
                };
                finish(&mut sh(change)).expect(0);
                assert_eq!(mode(&file), 0o6777, "`{change}` of root, {bytes} bytes, {kernel}");
                finish(sh(change).uid(65534).gid(65534)).expect(0);
                assert_eq!(mode(&file), 0o777, "`{change}`, {bytes} bytes, {kernel}");
                // The bit that is no group to run as stays with members only, whichever way the kernel writes.
                fs::set_permissions(&file, fs::Permissions::from_mode(0o2666)).unwrap();
                finish(sh(change).uid(65534).gid(0)).expect(0);
                assert_eq!(mode(&file), 0o2666, "`{change}` of a member, {bytes} bytes, {kernel}");
                finish(sh(change).uid(65534).gid(65534)).expect(0);
                assert_eq!(mode(&file), 0o666, "`{change}` of an outsider, {bytes} bytes, {kernel}");
                fs::remove_file(&file).unwrap();
            }
        }
        server.stop();
    }
}

/// `chown(path, -1, -1)` as user and group 65534.
fn chown_by_nobody(path: &Path) -> std::io::Result<()> {
    let path = path.to_owned();
    let caller = std::thread::spawn(move || {
        // SAFETY: both take no pointer and concern this thread alone, which ends after the call.
        unsafe { (libc::setfsgid(65534), libc::setfsuid(65534)) };
        chown(path, None, None)
    });
    caller.join().unwrap()
}

/// The kernel sends the same for a chown that changes nothing as before such a write; so everybody could take set-id bits away.
#[test]
fn but_a_chown_of_somebody_else_does_not_clear_the_bits() {
    if !can_mount("chown of set-id files") {
        return;
    }
    let site = Site::new();
    fs::set_permissions(site.path(""), fs::Permissions::from_mode(0o755)).unwrap();
    for kernel in ["", "--mask-features 5.4", "--mask-features 5.15"] {
        let server = site.up(&format!("up @mnt --data @d1 {kernel}"));
        let file = site.mnt().join("program");
        fs::write(&file, "#!").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o6755)).unwrap();
        let refused = chown_by_nobody(&file).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EPERM), "{kernel}");
        assert_eq!(mode(&file), 0o6755, "{kernel}");
        chown(&file, Some(65534), Some(65534)).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o6755)).unwrap();
        chown_by_nobody(&file).unwrap();
        assert_eq!(mode(&file), 0o755, "the owner's clears them, {kernel}");
        fs::remove_file(&file).unwrap();
        server.stop();
    }
}
