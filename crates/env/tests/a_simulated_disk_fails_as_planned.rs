//! Planned faults: errors on the n-th operation, a full disk, bit rot, a hang, a power cut in the middle.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use ashlar_env::sim::{BLOCK_BYTES, FaultOp, SimDisk};
use ashlar_env::{Disk, OpenMode};
use std::time::Duration;

const BLOCK: u64 = BLOCK_BYTES as u64;

#[test]
fn the_nth_write_fails_half_done_and_only_that_one() {
    let disk = SimDisk::new();
    let file = disk.open("f", OpenMode::CreateNew).unwrap();
    disk.fail_nth(FaultOp::Write, 2, libc::EIO);
    file.write_at(0, &[b'a'; 2000]).unwrap();
    assert_eq!(file.write_at(100, &[b'b'; 1900]).unwrap_err().raw_os_error(), Some(libc::EIO));
    let mut out = [0; 2000];
    file.read_at(0, &mut out).unwrap();
    let (new, old) = (&out[100..1024], [&out[..100], &out[1024..]].concat());
    assert!(
        new.iter().all(|byte| *byte == b'b') && old.iter().all(|byte| *byte == b'a'),
        "whole sectors of it"
    );
    file.write_at(0, b"cccc").unwrap();
}

#[test]
fn after_a_failed_sync_the_next_one_succeeds_and_the_data_is_gone() {
    for seed in 0..20 {
        let disk = SimDisk::new();
        let file = disk.open("f", OpenMode::CreateNew).unwrap();
        disk.sync_dir("").unwrap();
        file.write_at(0, b"data").unwrap();
        disk.fail_nth(FaultOp::Sync, 1, libc::EIO);
        assert!(file.sync_data().is_err());
        file.sync_data().unwrap();
        disk.crash(seed);
        let file = disk.open("f", OpenMode::Read).unwrap();
        let mut out = [9; 4];
        let got = file.read_at(0, &mut out).unwrap();
        assert_ne!(&out[..got], b"data", "a lost page came back, seed {seed}");
    }
}

#[test]
fn a_full_disk_takes_writes_into_reserved_space_only() {
    let disk = SimDisk::new();
    disk.set_capacity(4 * BLOCK);
    let file = disk.open("f", OpenMode::CreateNew).unwrap();
    file.allocate(0, 3 * BLOCK).unwrap();
    let other = disk.open("g", OpenMode::CreateNew).unwrap();
    other.write_at(0, &[1; BLOCK_BYTES]).unwrap();
    assert_eq!(disk.space().unwrap().bytes_free, 0);
    assert_eq!(other.write_at(BLOCK, &[1]).unwrap_err().raw_os_error(), Some(libc::ENOSPC));
    file.write_at(0, &[2; 3 * BLOCK_BYTES]).unwrap();
    file.punch_hole(0, BLOCK).unwrap();
    other.write_at(BLOCK, &[1]).unwrap();
    drop(other);
    disk.remove("g").unwrap();
    assert_eq!(disk.space().unwrap().bytes_free, 2 * BLOCK);
}

#[test]
fn a_flipped_bit_shows_in_reads_and_survives_a_crash() {
    let disk = SimDisk::new();
    let file = disk.open("f", OpenMode::CreateNew).unwrap();
    file.write_at(0, &[0; 10]).unwrap();
    file.sync_data().unwrap();
    disk.sync_dir("").unwrap();
    disk.flip_bit("f", 8 * 3 + 1).unwrap();
    disk.crash(5);
    let mut out = [0; 10];
    disk.open("f", OpenMode::Read).unwrap().read_at(0, &mut out).unwrap();
    assert_eq!(out, [0, 0, 0, 2, 0, 0, 0, 0, 0, 0]);
}

#[test]
fn a_power_cut_comes_in_the_middle_of_the_planned_operation_and_stays() {
    let disk = SimDisk::new();
    let file = disk.open("f", OpenMode::CreateNew).unwrap();
    disk.cut_power_after(1);
    file.write_at(0, b"one").unwrap();
    assert!(file.sync_data().is_err() && disk.is_power_off());
    assert!(file.read_at(0, &mut [0]).is_err() && disk.list("").is_err());
    disk.crash(3);
    assert!(!disk.is_power_off());
    disk.list("").unwrap();
}

#[test]
fn a_frozen_disk_answers_when_it_is_thawed() {
    let disk = SimDisk::new();
    let file = disk.open("f", OpenMode::CreateNew).unwrap();
    disk.freeze();
    let writer = std::thread::spawn(move || file.write_at(0, b"late"));
    std::thread::sleep(Duration::from_millis(30));
    assert!(!writer.is_finished());
    disk.thaw();
    writer.join().unwrap().unwrap();
}

#[test]
fn operations_are_counted() {
    let disk = SimDisk::new();
    let file = disk.open("f", OpenMode::CreateNew).unwrap();
    file.write_vectored_at(0, &[b"a", b"b"]).unwrap();
    file.sync_data().unwrap();
    disk.sync_dir("").unwrap();
    let counts = disk.counts();
    assert_eq!((counts.names, counts.writes, counts.syncs, counts.dir_syncs), (1, 1, 1, 1));
}
