//! Goal: after the death of a writer, a file of which a missing target has a part gives ENODEV, and is whole once the target is back; and
//! no call that fails because a target is missing has an effect. Method: starts with one data directory of two.

#![allow(clippy::unwrap_used)] // The helpers of a test panic as the test does.

mod support;

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use support::{Site, can_mount};

#[track_caller]
fn gives_enodev<T>(outcome: io::Result<T>) {
    assert_eq!(outcome.err().and_then(|error| error.raw_os_error()), Some(libc::ENODEV));
}

fn append(path: &Path, bytes: &[u8]) -> io::Result<()> {
    OpenOptions::new().append(true).open(path)?.write_all(bytes)
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    File::open(path)?.read_to_end(&mut content)?;
    Ok(content)
}

fn content(len: usize) -> Vec<u8> {
    support::big().into_iter().cycle().take(len).collect()
}

#[test]
fn an_append_does_not_land_at_the_beginning_of_a_file_whose_size_is_not_known() {
    if !can_mount("sizes that wait for a missing target") {
        return;
    }
    let site = Site::new();
    let mut server = site.up("up @mnt --data @d1 --data @d2");
    let written = content(3_000_000);
    let at = |name: &str| site.mnt().join(name);
    // Not closed: the writer dies.
    let open: Vec<File> = ["log", "emptied", "overwritten", "removed"]
        .iter()
        .map(|name| {
            let file = File::create(at(name)).unwrap();
            file.write_all_at(&written, 0).unwrap();
            file
        })
        .collect();
    // SAFETY: kill takes no pointer; the process is a child that was not waited for.
    unsafe { libc::kill(server.pid(), libc::SIGKILL) };
    server.wait();
    drop(open);
    site.run("umount @mnt").expect(0);
    drop(server);

    let server = site.up("up @mnt --data @d1");
    gives_enodev(read(&at("log")));
    gives_enodev(append(&at("log"), b"APPENDED"));
    gives_enodev(fs::copy(at("log"), at("copy")));
    gives_enodev(OpenOptions::new().write(true).open(at("log")).and_then(|file| file.set_len(5)));
    let path = std::ffi::CString::new(at("log").to_str().unwrap()).unwrap();
    // SAFETY: the path ends with a NUL.
    assert_eq!(unsafe { libc::truncate(path.as_ptr(), 5) }, -1);
    assert_eq!(io::Error::last_os_error().raw_os_error(), Some(libc::ENODEV));
    // Names and attributes do not depend on the size.
    assert!(fs::metadata(at("log")).unwrap().is_file());
    fs::hard_link(at("log"), at("link")).unwrap();
    fs::rename(at("log"), at("renamed")).unwrap();
    fs::remove_file(at("link")).unwrap();
    fs::remove_file(at("removed")).unwrap();
    // Nor does what is left when all of it goes.
    let path = std::ffi::CString::new(at("emptied").to_str().unwrap()).unwrap();
    // SAFETY: the path ends with a NUL.
    assert_eq!(unsafe { libc::truncate(path.as_ptr(), 0) }, 0);
    append(&at("emptied"), b"new").unwrap();
    fs::write(at("overwritten"), b"anew").unwrap();
    server.stop();

    // Once more without it: nothing is forgotten.
    let server = site.up("up @mnt --data @d1");
    gives_enodev(read(&at("renamed")));
    assert_eq!(read(&at("emptied")).unwrap(), b"new");
    server.stop();

    let server = site.up("up @mnt --data @d1 --data @d2");
    assert!(read(&at("renamed")).unwrap() == written, "what was written is there, and nothing else");
    assert_eq!(read(&at("emptied")).unwrap(), b"new");
    assert_eq!(read(&at("overwritten")).unwrap(), b"anew");
    assert!(!at("removed").exists());
    server.stop();
    site.run("fsck --data @d1 --data @d2").expect(0);
}

#[test]
fn a_truncation_and_a_punch_that_fail_because_a_target_is_missing_have_no_effect() {
    if !can_mount("calls that fail without a target") {
        return;
    }
    let site = Site::with_files();
    let big = site.mnt().join("dir/sub/big");
    let len = support::big().len() as u64;

    let server = site.up("up @mnt --data @d1");
    let file = OpenOptions::new().write(true).open(&big).unwrap();
    for wanted in [10 << 20, 1 << 20, 5] {
        gives_enodev(file.set_len(wanted));
    }
    use std::os::fd::AsRawFd;
    let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: fallocate takes no pointer, and the descriptor is open.
    let punched = unsafe { libc::fallocate(file.as_raw_fd(), punch, 0, 2 << 20) };
    assert_eq!((punched, io::Error::last_os_error().raw_os_error()), (-1, Some(libc::ENODEV)));
    drop(file);
    let path = std::ffi::CString::new(big.to_str().unwrap()).unwrap();
    // SAFETY: the path ends with a NUL.
    assert_eq!(unsafe { libc::truncate(path.as_ptr(), 7) }, -1);
    assert_eq!(fs::metadata(&big).unwrap().len(), len);
    server.stop();

    // The size is known: what is on the target that is there can be read, without the other one too.
    let server = site.up("up @mnt --data @d1");
    assert_eq!(fs::metadata(&big).unwrap().len(), len);
    File::open(&big).unwrap();
    server.stop();

    site.run("fsck --data @d1 --data @d2").expect(0);
    let server = site.up("up @mnt --data @d1 --data @d2");
    assert!(site.has_files());
    server.stop();
}
