//! Several threads write into one file that has just outgrown its inode. One that came late for the move to chunks once waited for the
//! others' writes to end and was never told; its write failed after 30 s. Linkers met it, whose output the kernel writes back in parallel.

#![allow(clippy::unwrap_used)] // A test fails by panicking.

mod support;

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use support::{Site, can_mount};

const FILES: usize = 60;
const THREADS: usize = 4;
const PIECE_BYTES: usize = 64 << 10;
const PIECES: usize = 16;

#[test]
fn threads_that_grow_one_file_do_not_wait_for_each_other() {
    if !can_mount("threads_that_grow_one_file_do_not_wait_for_each_other") {
        return;
    }
    let site = Site::new();
    let server = site.up("up @mnt --data @d1");
    for number in 0..FILES {
        let path = site.mnt().join(format!("f{number}"));
        // For writing only, and already as long as it will be: such writes go on beside each other.
        let file = OpenOptions::new().write(true).create_new(true).open(&path).unwrap();
        file.set_len((PIECES * PIECE_BYTES) as u64).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let file = &file;
                scope.spawn(move || {
                    for piece in (thread..PIECES).step_by(THREADS) {
                        let bytes = vec![b'a' + piece as u8; PIECE_BYTES];
                        file.write_all_at(&bytes, (piece * PIECE_BYTES) as u64).unwrap();
                    }
                });
            }
        });
        let content = fs::read(&path).unwrap();
        for (piece, bytes) in content.chunks(PIECE_BYTES).enumerate() {
            assert!(bytes.iter().all(|&byte| byte == b'a' + piece as u8), "file {number}, piece {piece}");
        }
        fs::remove_file(&path).unwrap();
    }
    server.stop();
}
