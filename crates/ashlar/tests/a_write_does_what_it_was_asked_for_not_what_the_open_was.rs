//! The flags of an open file can change (`fcntl`), and those of one write can differ from it (`pwritev2`). Data was still appended after
//! `O_APPEND` had been taken back, and a write with `RWF_DSYNC` was acknowledged before it was durable.

#![allow(clippy::unwrap_used)] // The helpers of a test panic as the test does.

mod support;

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use support::{Site, can_mount};

fn set_status_flags(file: &File, flags: i32) {
    // SAFETY: the descriptor is open, and the call has no other argument.
    let outcome = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFL, flags) };
    assert_eq!(outcome, 0, "{}", std::io::Error::last_os_error());
}

#[test]
fn data_was_appended_after_o_append_had_been_taken_back() {
    if !can_mount("changing O_APPEND of an open file") {
        return;
    }
    let site = Site::new();
    let server = site.up("up @mnt --data @d1");
    for len in [100, 100_000] {
        let path = site.mnt().join(format!("log-{len}"));
        let mut expected = vec![b'0'; len];
        fs::write(&path, &expected).unwrap();
        let file = OpenOptions::new().read(true).append(true).open(&path).unwrap();
        set_status_flags(&file, 0);
        file.write_all_at(b"first", 0).unwrap();
        expected[..5].copy_from_slice(b"first");
        assert!(fs::read(&path).unwrap() == expected, "a write at 0 of a file of {len} bytes goes there");
        let mut file = OpenOptions::new().write(true).open(&path).unwrap();
        set_status_flags(&file, libc::O_APPEND);
        file.write_all(b"last").unwrap();
        expected.extend_from_slice(b"last");
        assert!(fs::read(&path).unwrap() == expected, "an append to a file of {len} bytes goes to its end");
    }
    server.stop();
}
