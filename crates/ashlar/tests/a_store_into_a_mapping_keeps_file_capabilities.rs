//! Stores into a shared mapping took `security.capability` away when they were written back; on local file systems only calls do. So did the
//! close of a file that was written before it got them.

#![allow(clippy::unwrap_used)] // The helpers of a test panic as the test does.

mod support;

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;
use support::{Site, can_mount};

const NAME: &std::ffi::CStr = c"security.capability";
/// `CAP_NET_RAW`, permitted (`vfs_cap_data` of revision 2).
const VALUE: [u8; 20] = [0, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

fn arm(path: &Path) {
    let path = CString::new(path.as_os_str().as_bytes()).unwrap();
    // SAFETY: path and name end with a NUL, the value has the length that is told.
    let set = unsafe { libc::setxattr(path.as_ptr(), NAME.as_ptr(), VALUE.as_ptr().cast(), VALUE.len(), 0) };
    assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
}

fn has_capability(path: &Path) -> bool {
    let path = CString::new(path.as_os_str().as_bytes()).unwrap();
    let mut value = [0u8; 64];
    // SAFETY: path and name end with a NUL, the buffer has the length that is told.
    let got = unsafe { libc::getxattr(path.as_ptr(), NAME.as_ptr(), value.as_mut_ptr().cast(), value.len()) };
    got == VALUE.len() as isize
}

/// Stores a byte at `at` through a mapping of `file`, and has it written back.
fn store(file: &File, len: usize, at: usize) {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping at an address that the kernel chooses, of a file that nobody cuts.
    let mapping =
        unsafe { libc::mmap(std::ptr::null_mut(), len, access, libc::MAP_SHARED, file.as_raw_fd(), 0) };
    assert_ne!(mapping, libc::MAP_FAILED);
    // SAFETY: within the mapping, which is not used after its end.
    unsafe {
        mapping.cast::<u8>().add(at).write(b's');
        assert_eq!(libc::msync(mapping, len, libc::MS_SYNC), 0);
        assert_eq!(libc::munmap(mapping, len), 0);
    }
}

#[test]
fn stores_keep_them_and_writes_take_them_away() {
    if !can_mount("capabilities of mapped files") {
        return;
    }
    let site = Site::new();
    let server = site.up("up @mnt --data @d1");
    for len in [3_000, 300_000] {
        let path = site.mnt().join(format!("program{len}"));
        std::fs::write(&path, vec![b'x'; len]).unwrap();
        arm(&path);
        let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        store(&file, len, 1);
        assert!(has_capability(&path), "{len} bytes, after msync");
        file.sync_all().unwrap();
        drop(file);
        assert!(has_capability(&path), "{len} bytes, after close");

        // Past the page cache, where the kernel takes nothing away by itself: at once, although the stores got the file for this mount.
        let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        let direct = OpenOptions::new().write(true).open(&path).unwrap();
        store(&file, len, 2);
        direct.write_all_at(b"w", 0).unwrap();
        assert!(!has_capability(&path), "{len} bytes, after a write");
        arm(&path);
        store(&file, len, 2999);
        drop((file, direct));
        assert!(has_capability(&path), "{len} bytes, after the write was reported");
        direct_is_reported_at_close(&path);
        let content = std::fs::read(&path).unwrap();
        assert_eq!((content[0], content[1], content[2], content[2999]), (b'w', b's', b's', b's'));
    }
    server.stop();
}

/// A write that comes after the capability, under a lease from before, takes it away at the latest with the close.
fn direct_is_reported_at_close(path: &Path) {
    let file = OpenOptions::new().write(true).open(path).unwrap();
    file.write_all_at(b"w", 0).unwrap();
    arm(path);
    file.write_all_at(b"w", 0).unwrap();
    drop(file);
    assert!(!has_capability(path));
}
