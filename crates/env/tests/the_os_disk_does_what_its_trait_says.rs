//! The disk of the operating system, in a temporary directory.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use ashlar_env::os::OsDisk;
use ashlar_env::{Disk, OpenMode};
use std::io::ErrorKind;

#[test]
fn files_are_made_written_in_parts_and_read_back() {
    let dir = tempfile::tempdir().unwrap();
    let disk = OsDisk::new(dir.path());
    disk.create_dir("a/b").unwrap();
    let file = disk.open("a/b/f", OpenMode::CreateNew).unwrap();
    assert_eq!(disk.open("a/b/f", OpenMode::CreateNew).err().unwrap().kind(), ErrorKind::AlreadyExists);
    assert_eq!(disk.open("a/b/g", OpenMode::ReadWrite).err().unwrap().kind(), ErrorKind::NotFound);

    // More parts than one pwritev takes, some empty.
    let parts: Vec<Vec<u8>> = (0..3000).map(|i| vec![i as u8; i % 5]).collect();
    let slices: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
    file.write_vectored_at(10, &slices).unwrap();
    let expected = parts.concat();
    let mut out = vec![0; expected.len() + 50];
    assert_eq!(file.read_at(10, &mut out).unwrap(), expected.len());
    assert_eq!(out[..expected.len()], expected);
    assert_eq!(file.len().unwrap(), 10 + expected.len() as u64);
    file.sync_data().unwrap();
    disk.sync_dir("a/b").unwrap();

    disk.rename("a/b/f", "a/g").unwrap();
    assert_eq!(disk.list("a/b").unwrap(), Vec::<String>::new());
    disk.remove("a/g").unwrap();
    assert_eq!(disk.list("a").unwrap(), ["b"]);
}

#[test]
fn ranges_are_reserved_and_punched() {
    let dir = tempfile::tempdir().unwrap();
    let disk = OsDisk::new(dir.path());
    let file = disk.open("f", OpenMode::CreateOrOpen).unwrap();
    file.allocate(0, 1 << 20).unwrap();
    assert_eq!(file.len().unwrap(), 1 << 20);
    file.write_at(0, &[7; 16384]).unwrap();
    file.punch_hole(4096, 4096).unwrap();
    let mut out = [1; 16384];
    file.read_at(0, &mut out).unwrap();
    assert!(out[..4096].iter().all(|byte| *byte == 7) && out[4096..8192].iter().all(|byte| *byte == 0));
    assert_eq!(out[8192], 7);
    assert_eq!(file.len().unwrap(), 1 << 20);
    file.set_len(5).unwrap();
    assert_eq!(file.len().unwrap(), 5);
}

#[test]
fn what_was_reserved_and_not_written_is_no_data() {
    let dir = tempfile::tempdir().unwrap();
    let disk = OsDisk::new(dir.path());
    let file = disk.open("f", OpenMode::CreateOrOpen).unwrap();
    file.allocate(0, 1 << 20).unwrap();
    file.write_at(8192, &[7; 4096]).unwrap();
    file.write_at(1 << 19, &[7; 100]).unwrap();
    // Local file systems differ in how much they take for data; none leaves out what was written, and none comes to no end.
    let (mut found, mut at) = (Vec::new(), 0);
    while let Some(next) = file.next_data(at).unwrap() {
        assert!(next.start >= at && next.end > next.start, "{next:?} from {at} on");
        at = next.end;
        found.push(next);
    }
    for written in [8192, 8192 + 4095, 1 << 19, (1 << 19) + 99] {
        assert!(found.iter().any(|range| range.contains(&written)), "{written} is not in {found:?}");
    }
    assert!(found.iter().all(|range| range.end <= 1 << 20), "{found:?}");
    assert_eq!(file.next_data(2 << 20).unwrap(), None);
}

#[test]
fn a_lock_keeps_other_handles_out_until_it_is_dropped() {
    let dir = tempfile::tempdir().unwrap();
    let disk = OsDisk::new(dir.path());
    let first = disk.open("lock", OpenMode::CreateOrOpen).unwrap();
    let second = disk.open("lock", OpenMode::CreateOrOpen).unwrap();
    first.try_lock().unwrap();
    assert_eq!(second.try_lock().unwrap_err().kind(), ErrorKind::WouldBlock);
    drop(first);
    second.try_lock().unwrap();
}

#[test]
fn paths_do_not_leave_the_root_and_space_is_known() {
    let dir = tempfile::tempdir().unwrap();
    let disk = OsDisk::new(dir.path());
    for path in ["../x", "/etc/passwd", "a/../../x"] {
        assert_eq!(disk.open(path, OpenMode::Read).err().unwrap().kind(), ErrorKind::InvalidInput, "{path}");
    }
    let space = disk.space().unwrap();
    assert!(space.bytes_free > 0 && space.bytes_free <= space.bytes_total);
    assert_eq!(disk.describe("a/b"), dir.path().join("a/b").display().to_string());
}
