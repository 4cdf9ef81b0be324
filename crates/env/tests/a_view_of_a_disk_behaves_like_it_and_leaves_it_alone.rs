//! The view of a directory answers as a copy of the directory does, and the directory stays as it was.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use ashlar_env::os::{OsDisk, ViewDisk};
use ashlar_env::sim::SimEntropy;
use ashlar_env::{Disk, Entropy, OpenMode};
use std::io::ErrorKind;

const NAMES: [&str; 5] = ["a", "b", "d/c", "d/e", "n/new"];

fn require_same(view: &dyn Disk, copy: &dyn Disk, context: &str) {
    for directory in ["", "d", "n"] {
        let sorted = |disk: &dyn Disk| {
            let mut names = disk.list(directory).unwrap();
            names.sort();
            names
        };
        assert_eq!(sorted(view), sorted(copy), "{context}: names in {directory:?}");
    }
    for name in NAMES {
        let content = |disk: &dyn Disk| {
            let file = disk.open(name, OpenMode::Read).ok()?;
            let mut bytes = vec![7; file.len().unwrap() as usize + 10];
            let got = file.read_at(0, &mut bytes).unwrap();
            bytes.truncate(got);
            Some(bytes)
        };
        assert!(content(view) == content(copy), "{context}: content of {name}");
    }
}

#[test]
fn random_changes_show_in_the_view_as_in_a_copy_and_the_directory_stays() {
    for seed in 0..40 {
        let random = SimEntropy::new(seed);
        let (below, beside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for dir in [&below, &beside] {
            std::fs::create_dir(dir.path().join("d")).unwrap();
            for (number, name) in ["a", "b", "d/c"].into_iter().enumerate() {
                let bytes: Vec<u8> = (0..10_000 * number + 5).map(|at| (at % 251) as u8).collect();
                std::fs::write(dir.path().join(name), bytes).unwrap();
            }
        }
        let pristine = OsDisk::new(below.path());
        let (view, copy) = (ViewDisk::new(below.path()), OsDisk::new(beside.path()));
        for disk in [&view as &dyn Disk, &copy] {
            disk.create_dir("n").unwrap();
        }
        for step in 0..200 {
            let name = NAMES[random.below(5) as usize];
            let (offset, len) = (random.below(20_000), random.below(9_000));
            let (verb, other) = (random.below(8), NAMES[random.below(5) as usize]);
            let byte = random.next_u64() as u8;
            let answers = [&view as &dyn Disk, &copy].map(|disk| {
                let open = |mode| disk.open(name, mode);
                match verb {
                    0 => disk.remove(name),
                    1 if name != other => disk.rename(name, other),
                    2 => open(OpenMode::CreateNew).map(drop),
                    3 => open(OpenMode::ReadWrite).and_then(|file| file.set_len(offset)),
                    4 => open(OpenMode::ReadWrite).and_then(|file| file.punch_hole(offset, len)),
                    5 => open(OpenMode::ReadWrite).and_then(|file| file.allocate(offset, len)),
                    6 => open(OpenMode::CreateOrOpen).and_then(|file| {
                        file.write_vectored_at(offset, &[&vec![byte; len as usize], b"end"])
                    }),
                    _ => open(OpenMode::ReadWrite)
                        .and_then(|file| file.write_at(offset, &vec![byte; len as usize])),
                }
                .map_err(|error| error.kind())
            });
            assert_eq!(answers[0], answers[1], "seed {seed} step {step}: verb {verb} on {name}");
            require_same(&view, &copy, &format!("seed {seed} step {step}: verb {verb} on {name}"));
        }
        assert_eq!(pristine.list("n").err().unwrap().kind(), ErrorKind::NotFound);
        for (number, name) in ["a", "b", "d/c"].into_iter().enumerate() {
            let bytes = std::fs::read(below.path().join(name)).unwrap();
            assert!(bytes.len() == 10_000 * number + 5, "{name} changed");
            assert!(bytes.iter().enumerate().all(|(at, byte)| *byte == (at % 251) as u8), "{name} changed");
        }
    }
}

#[test]
fn who_holds_a_file_keeps_a_view_out() {
    let dir = tempfile::tempdir().unwrap();
    let (disk, view) = (OsDisk::new(dir.path()), ViewDisk::new(dir.path()));
    let held = disk.open("lock", OpenMode::CreateOrOpen).unwrap();
    held.try_lock().unwrap();
    let lock = view.open("lock", OpenMode::CreateOrOpen).unwrap();
    assert_eq!(lock.try_lock().unwrap_err().kind(), ErrorKind::WouldBlock);
}
