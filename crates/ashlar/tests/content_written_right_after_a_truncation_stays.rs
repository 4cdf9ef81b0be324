//! Files that are emptied, written beyond the inline threshold and cut, over and over, while the collector deletes what they leave. It
//! once deleted the chunks of a layout that was bound after it had looked, because a later record stood under the same key.

#![allow(clippy::unwrap_used)] // A test fails by panicking.

mod support;

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;
use support::{Site, can_mount};

const ROUNDS: usize = 400;

#[test]
fn content_written_right_after_a_truncation_stays() {
    if !can_mount("content_written_right_after_a_truncation_stays") {
        return;
    }
    let site = Site::new();
    let server = site.up("up @mnt --data @d1");
    std::thread::scope(|scope| {
        for file in 0..4 {
            let path = site.mnt().join(format!("f{file}"));
            scope.spawn(move || rewrite(&path, file));
        }
    });
    server.stop();
}

fn rewrite(path: &Path, seed: usize) {
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path).unwrap();
    for round in 0..ROUNDS {
        // Lengths on both sides of a chunk's first blocks, all beyond the default inline threshold.
        let written = 70_000 + (round * 7919 + seed * 104_729) % 320_000;
        let kept = if round % 5 == 0 { 0 } else { 1 + (round * 15_485_863) % written };
        let byte = b'A' + (round % 26) as u8;
        file.write_all_at(&vec![byte; written], 0).unwrap();
        file.set_len(kept as u64).unwrap();
        let mut content = vec![0; kept];
        file.read_exact_at(&mut content, 0).unwrap();
        assert!(
            content.iter().all(|&found| found == byte),
            "round {round} of file {seed}, {written} written, {kept} kept"
        );
    }
}
