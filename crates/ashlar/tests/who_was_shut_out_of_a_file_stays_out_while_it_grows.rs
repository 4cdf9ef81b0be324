//! The kernel was kept from taking up attributes of a file that grows while programs store into its pages (`Client::is_growing`), and with the length from
//! taking up a new mode: `access(2)` let in whom an access list had just shut out.

#![allow(clippy::unwrap_used)] // The helpers of a test panic as the test does.

mod support;

use std::ffi::CString;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::Error;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use support::{Site, can_mount};

/// Owner `r-x`, nobody else anything: version 2, then tag, permissions and id of each entry (linux/posix_acl_xattr.h).
fn owner_only() -> Vec<u8> {
    let mut list = 2u32.to_le_bytes().to_vec();
    for (tag, may) in [(1u16, 5u16), (4, 0), (32, 0)] {
        list.extend([tag.to_le_bytes(), may.to_le_bytes()].concat());
        list.extend(u32::MAX.to_le_bytes());
    }
    list
}

fn set_list(path: &Path, list: &[u8]) {
    let path = CString::new(path.as_os_str().as_bytes()).unwrap();
    let name = c"system.posix_acl_access";
    // SAFETY: both texts end with a NUL, and the list is readable for its length.
    let set = unsafe { libc::setxattr(path.as_ptr(), name.as_ptr(), list.as_ptr().cast(), list.len(), 0) };
    assert_eq!(set, 0, "{}", Error::last_os_error());
}

/// Stores into a page that it maps, and has it written back.
fn store(file: &File) {
    // SAFETY: a mapping of its own, of bytes that the file has, and gone when this returns.
    unsafe {
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let page = libc::mmap(std::ptr::null_mut(), 4096, prot, libc::MAP_SHARED, file.as_raw_fd(), 196_608);
        assert_ne!(page, libc::MAP_FAILED, "{}", Error::last_os_error());
        page.cast::<u8>().write(7);
        assert_eq!(libc::msync(page, 4096, libc::MS_SYNC), 0);
        libc::munmap(page, 4096);
    }
}

/// What `access(2)` says to another user. (To open it anyway the server would not let him.)
fn may_read(path: &Path) -> bool {
    Command::new("test").arg("-r").arg(path).uid(1002).gid(1002).status().unwrap().success()
}

#[test]
fn an_access_list_and_a_mode_count_at_once() {
    if !can_mount("permissions of a file that grows") {
        return;
    }
    let site = Site::new();
    let server = site.up("up @mnt --data @d1");
    for name in ["list", "mode"] {
        let path = site.mnt().join(name);
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        file.write_all_at(&[1; 200_000], 0).unwrap();
        store(&file);
        file.write_all_at(b"longer", 200_000).unwrap();
        assert!(may_read(&path));
        match name {
            "list" => set_list(&path, &owner_only()),
            _ => fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap(),
        }
        assert!(!may_read(&path), "{name}");
    }
    server.stop();
}
