//! Goal: what a write past the page cache has changed is seen by every read of the same mount that begins after it, also when another program reads the
//! place all the time, through read(2) or through a mapping. Kernels before 2026 drop the pages of such a write before it only, and what was
//! read beside it stayed.
#![allow(clippy::unwrap_used)] // a test panics where it fails

mod support;

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use support::{Site, can_mount};

/// Enough for hundreds of stale reads where pages stay.
const WRITES: u64 = 1000;

/// Overwrites eight bytes at `place` of `path` again and again while another thread looks at them all the time, and tells how many writes a
/// look after them did not see. `opened` makes the look of a file open for reading.
fn unseen_writes<L: Fn() -> u64 + Sync>(path: &Path, place: u64, opened: impl FnOnce(File) -> L) -> u64 {
    // Opened before anybody reads, or it would be written through the cache.
    let writer = File::create(path).unwrap();
    writer.write_all_at(&[0; 8], place).unwrap();
    let look = opened(File::open(path).unwrap());
    let stop = AtomicBool::new(false);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            while !stop.load(Relaxed) {
                look();
            }
        });
        let mut unseen = 0;
        for count in 1..=WRITES {
            writer.write_all_at(&count.to_ne_bytes(), place).unwrap();
            unseen += u64::from(look() != count);
        }
        stop.store(true, Relaxed);
        unseen
    })
}

#[test]
fn a_write_is_seen_by_a_later_read_though_others_read_beside_it() {
    if !can_mount("reads beside a write") {
        return;
    }
    let site = Site::new();
    let server = site.up("up @mnt --data @d1");
    // With the inode, and in chunks.
    for place in [0, 1 << 20] {
        let unseen = unseen_writes(&site.mnt().join(format!("read{place}")), place, |file| {
            move || {
                let mut seen = [0; 8];
                file.read_exact_at(&mut seen, place).unwrap();
                u64::from_ne_bytes(seen)
            }
        });
        assert_eq!(unseen, 0, "of {WRITES} writes at {place}");
    }
    server.stop();
}

#[test]
fn a_write_is_seen_in_a_mapping_though_others_look_there_beside_it() {
    if !can_mount("mappings beside a write") {
        return;
    }
    let site = Site::new();
    let server = site.up("up @mnt --data @d1");
    for place in [0, 1 << 20] {
        let unseen = unseen_writes(&site.mnt().join(format!("mapped{place}")), place, |file| {
            // SAFETY: a new mapping of one page of a file that is never cut. It stays until the process ends.
            let page = unsafe {
                let (access, offset) = (libc::PROT_READ, place as libc::off_t);
                libc::mmap(std::ptr::null_mut(), 4096, access, libc::MAP_SHARED, file.as_raw_fd(), offset)
            };
            assert_ne!(page, libc::MAP_FAILED);
            let page = page as usize;
            // SAFETY: eight aligned bytes of the mapping; any value is one.
            move || unsafe { (page as *const u64).read_volatile() }
        });
        assert_eq!(unseen, 0, "of {WRITES} writes at {place}");
    }
    server.stop();
}
