//! The kernel refuses to empty a program that runs (ETXTBSY), but asked about it only after the server had been told to open and empty the
//! file: the program lost its pages and died, and then nothing stood in the way of the open.

#![allow(clippy::unwrap_used)] // The helpers of a test panic as the test does.

mod support;

use std::fs::{self, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::process::Command;
use support::{Site, can_mount};

#[test]
fn a_program_that_runs_was_emptied_by_an_open_that_failed() {
    if !can_mount("emptying a program that runs") {
        return;
    }
    let site = Site::new();
    let server = site.up("up @mnt --data @d1");
    let program = site.mnt().join("program");
    fs::copy("/bin/sleep", &program).unwrap();
    let whole = fs::read("/bin/sleep").unwrap();
    let mut runs = Command::new(&program).arg("100").spawn().unwrap();
    // The standard library does not pass O_TRUNC without write access.
    let refused = OpenOptions::new().read(true).custom_flags(libc::O_TRUNC).open(&program).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::ETXTBSY));
    assert!(runs.try_wait().unwrap().is_none(), "it still runs");
    assert_eq!(fs::read(&program).unwrap(), whole);
    runs.kill().unwrap();
    runs.wait().unwrap();
    // A file that may be emptied is, with what was written through another descriptor before.
    let file = OpenOptions::new().write(true).open(&program).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, b"more", whole.len() as u64).unwrap();
    OpenOptions::new().read(true).custom_flags(libc::O_TRUNC).open(&program).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 0);
    drop(file);
    server.stop();
}
