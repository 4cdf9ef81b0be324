//! The simulated disk's promise: synced is safe, unsynced is kept, lost or torn by the seed.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use ashlar_env::sim::{BLOCK_BYTES, SECTOR_BYTES, SimDisk};
use ashlar_env::{Disk, DiskFile, OpenMode};
use std::collections::BTreeSet;
use std::sync::Arc;

fn read_all(file: &Arc<dyn DiskFile>) -> Vec<u8> {
    let mut out = vec![0; file.len().unwrap() as usize];
    let got = file.read_at(0, &mut out).unwrap();
    out.truncate(got);
    out
}

fn disk_with_synced_file(content: &[u8]) -> SimDisk {
    let disk = SimDisk::new();
    let file = disk.open("f", OpenMode::CreateNew).unwrap();
    file.write_at(0, content).unwrap();
    file.sync_data().unwrap();
    disk.sync_dir("").unwrap();
    disk
}

#[test]
fn synced_content_survives_every_crash() {
    let content: Vec<u8> = (0..3 * BLOCK_BYTES).map(|i| (i / 7) as u8).collect();
    for seed in 0..50 {
        let disk = disk_with_synced_file(&content);
        disk.crash(seed);
        assert_eq!(read_all(&disk.open("f", OpenMode::Read).unwrap()), content, "seed {seed}");
    }
}

#[test]
fn unsynced_blocks_are_kept_lost_or_torn_at_sectors() {
    let mut outcomes = BTreeSet::new();
    for seed in 0..200 {
        let disk = disk_with_synced_file(&vec![1; 2 * BLOCK_BYTES]);
        let file = disk.open("f", OpenMode::ReadWrite).unwrap();
        file.write_at(0, &vec![2; BLOCK_BYTES]).unwrap();
        disk.crash(seed);
        let content = read_all(&disk.open("f", OpenMode::Read).unwrap());
        assert_eq!(content[BLOCK_BYTES..], vec![1; BLOCK_BYTES], "another block changed, seed {seed}");
        let sectors: Vec<u8> = content[..BLOCK_BYTES].chunks(SECTOR_BYTES).map(|sector| sector[0]).collect();
        for sector in content[..BLOCK_BYTES].chunks(SECTOR_BYTES) {
            assert!(sector.iter().all(|byte| *byte == sector[0]), "torn inside a sector, seed {seed}");
        }
        outcomes.insert(match sectors.iter().filter(|byte| **byte == 2).count() {
            0 => "lost",
            8 => "kept",
            _ => "torn",
        });
    }
    assert_eq!(outcomes, BTreeSet::from(["kept", "lost", "torn"]));
}

#[test]
fn an_unsynced_length_is_kept_or_lost() {
    let lengths: BTreeSet<u64> = (0..50)
        .map(|seed| {
            let disk = disk_with_synced_file(b"abc");
            disk.open("f", OpenMode::ReadWrite).unwrap().set_len(9000).unwrap();
            disk.crash(seed);
            disk.open("f", OpenMode::Read).unwrap().len().unwrap()
        })
        .collect();
    assert_eq!(lengths, BTreeSet::from([3, 9000]));
}

#[test]
fn the_same_seed_gives_the_same_disk() {
    let run = |seed| {
        let disk = disk_with_synced_file(&vec![1; 20 * BLOCK_BYTES]);
        let file = disk.open("f", OpenMode::ReadWrite).unwrap();
        file.write_at(100, &vec![3; 15 * BLOCK_BYTES]).unwrap();
        disk.open("g", OpenMode::CreateNew).unwrap();
        disk.crash(seed);
        (read_all(&disk.open("f", OpenMode::Read).unwrap()), disk.list("").unwrap())
    };
    for seed in 0..20 {
        assert_eq!(run(seed), run(seed));
    }
}

#[test]
fn names_are_durable_only_after_their_directory_was_synced() {
    let mut seen = BTreeSet::new();
    for seed in 0..60 {
        let disk = SimDisk::new();
        disk.create_dir("d").unwrap();
        disk.sync_dir("").unwrap();
        disk.open("d/old", OpenMode::CreateNew).unwrap();
        disk.sync_dir("d").unwrap();
        disk.open("d/new", OpenMode::CreateNew).unwrap();
        disk.rename("d/old", "d/moved").unwrap();
        disk.crash(seed);
        let mut names = disk.list("d").unwrap();
        names.sort();
        seen.insert(names.join(","));
    }
    // A rename happens whole or not at all.
    let expected = ["moved", "moved,new", "new,old", "old"].map(String::from);
    assert_eq!(seen, BTreeSet::from(expected));
}

#[test]
fn handles_and_locks_do_not_survive_a_crash() {
    let disk = disk_with_synced_file(b"x");
    let (first, second) =
        (disk.open("f", OpenMode::ReadWrite).unwrap(), disk.open("f", OpenMode::ReadWrite).unwrap());
    first.try_lock().unwrap();
    assert_eq!(second.try_lock().unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    disk.crash(1);
    assert_eq!(first.write_at(0, b"y").unwrap_err().raw_os_error(), Some(libc::EIO));
    disk.open("f", OpenMode::ReadWrite).unwrap().try_lock().unwrap();
}

#[test]
fn a_dropped_handle_gives_its_lock_back() {
    let disk = disk_with_synced_file(b"x");
    let first = disk.open("f", OpenMode::ReadWrite).unwrap();
    first.try_lock().unwrap();
    drop(first);
    disk.open("f", OpenMode::ReadWrite).unwrap().try_lock().unwrap();
}
