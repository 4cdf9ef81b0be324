//! The kernel opens pipes, sockets and devices itself, and `O_PATH` opens nothing, so the server removes such an inode with its last name.
//! Through the descriptor its attributes were then ENOENT, or could be read and not be changed; and a directory that was removed while
//! somebody worked in it could not be opened any more.

#![allow(clippy::unwrap_used)] // The helpers of a test panic as the test does.

mod support;

use std::fs::{self, File, FileTimes, OpenOptions, Permissions};
use std::io::Error;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant, UNIX_EPOCH};
use support::{Site, can_mount};

fn fifo(path: &Path) -> File {
    let text = std::ffi::CString::new(path.as_os_str().as_bytes()).unwrap();
    // SAFETY: the path ends with a NUL and outlives the call.
    assert_eq!(unsafe { libc::mkfifo(text.as_ptr(), 0o644) }, 0);
    OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open(path).unwrap()
}

#[test]
fn mode_owner_and_times_of_a_removed_pipe_can_be_changed() {
    if !can_mount("attributes of a removed pipe") {
        return;
    }
    let site = Site::new();
    let server = site.up("up @mnt --data @d1");
    let path = site.mnt().join("pipe");
    for replaced in [false, true] {
        let pipe = fifo(&path);
        if replaced {
            fs::write(site.mnt().join("other"), "x").unwrap();
            fs::rename(site.mnt().join("other"), &path).unwrap();
        }
        fs::remove_file(&path).unwrap();
        pipe.set_permissions(Permissions::from_mode(0o6711)).unwrap();
        fchown(&pipe, Some(7), Some(8)).unwrap();
        let time = UNIX_EPOCH + Duration::new(1_000_000, 5);
        pipe.set_times(FileTimes::new().set_accessed(time).set_modified(time)).unwrap();
        let found = pipe.metadata().unwrap();
        assert_eq!((found.uid(), found.gid(), found.nlink()), (7, 8, 0));
        assert_eq!(found.mode() & 0o7777, 0o711, "a change of owner takes set-id bits away");
        assert_eq!((found.atime(), found.mtime_nsec()), (1_000_000, 5));
    }
    server.stop();
}

/// Its access list is not known any more: nobody but the owner is let in, and nobody is told that it is stale.
#[test]
fn a_removed_pipe_is_its_owners_only() {
    if !can_mount("permissions of a removed pipe") {
        return;
    }
    let site = Site::new();
    let server = site.up("up @mnt --data @d1");
    let path = site.mnt().join("pipe");
    for (owner, expected) in [(1002, ""), (1003, "Permission denied")] {
        let pipe = fifo(&path);
        pipe.set_permissions(Permissions::from_mode(0o666)).unwrap();
        fchown(&pipe, Some(owner), Some(owner)).unwrap();
        fs::remove_file(&path).unwrap();
        let mut touch = Command::new("touch");
        let touched = touch.arg("-").stdout(pipe).env("LC_ALL", "C").uid(1002).gid(1002).output().unwrap();
        let told = String::from_utf8_lossy(&touched.stderr);
        assert!(told.contains(expected) && told.is_empty() == expected.is_empty(), "owner {owner}: {told}");
    }
    server.stop();
}

#[test]
fn a_path_descriptor_has_attributes_after_the_last_close_of_an_unlinked_file() {
    if !can_mount("attributes of a file that went with its last descriptor") {
        return;
    }
    let site = Site::new();
    let server = site.up("up @mnt --data @d1");
    let path = site.mnt().join("file");
    fs::write(&path, "seven b").unwrap();
    let open = File::open(&path).unwrap();
    let by_path = OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(&path).unwrap();
    fs::remove_file(&path).unwrap();
    drop(open);
    // The kernel reports the close some time after it: asked too early, the server still has the file.
    let end = Instant::now() + Duration::from_millis(300);
    while Instant::now() < end {
        let found = by_path.metadata().unwrap();
        assert_eq!((found.len(), found.nlink()), (7, 0));
    }
    drop(by_path);
    server.stop();
}

#[test]
fn a_removed_working_directory_can_still_be_opened_and_has_nothing_in_it() {
    if !can_mount("a removed working directory") {
        return;
    }
    let site = Site::new();
    let server = site.up("up @mnt --data @d1");
    let path = site.mnt().join("gone");
    for replaced in [false, true] {
        fs::create_dir(&path).unwrap();
        // As a working directory, which a thread of this process cannot have for itself, it keeps the inode and opens nothing.
        let here = OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(&path).unwrap();
        if replaced {
            fs::create_dir(site.mnt().join("other")).unwrap();
            fs::rename(site.mnt().join("other"), &path).unwrap();
        }
        fs::remove_dir(&path).unwrap();
        // SAFETY: the path is a literal that ends with a NUL.
        let open =
            |name: &std::ffi::CStr, flags| unsafe { libc::openat(here.as_raw_fd(), name.as_ptr(), flags) };
        for _ in 0..3 {
            let fd = open(c".", libc::O_RDONLY | libc::O_DIRECTORY);
            assert!(fd >= 0, "{}", Error::last_os_error());
            // SAFETY: a descriptor that was just opened, and that nobody else has.
            let opened = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
            let found = opened.metadata().unwrap();
            assert!(found.is_dir() && found.nlink() == 0);
            opened.sync_all().unwrap();
            let mut entries = [0u8; 1024];
            // SAFETY: the buffer is writable for its length.
            let got = unsafe { libc::syscall(libc::SYS_getdents64, fd, entries.as_mut_ptr(), entries.len()) };
            assert_eq!((got, Error::last_os_error().raw_os_error()), (-1, Some(libc::ENOENT)));
        }
        assert_eq!(open(c"new", libc::O_CREAT | libc::O_RDWR), -1);
        assert_eq!(Error::last_os_error().raw_os_error(), Some(libc::ENOENT));
    }
    server.stop();
}
