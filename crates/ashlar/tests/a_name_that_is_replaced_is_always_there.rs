//! A program that opened a file by its name got ENOENT when another renamed a new file over it at that moment, although the name is there
//! at every instant: the kernel had found the old inode, and was told that the name is gone.

#![allow(clippy::unwrap_used)] // The helpers of a test panic as the test does.

mod support;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use support::{Site, can_mount};

/// Calls that must find the name. Before the fix every tenth failed.
const CALLS: usize = 2000;

/// Replaces `content` and `link` in `dir` until told to stop.
fn replace(dir: &Path, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        fs::write(dir.join("new"), "whole").unwrap();
        fs::rename(dir.join("new"), dir.join("content")).unwrap();
        symlink("content", dir.join("new")).unwrap();
        fs::rename(dir.join("new"), dir.join("link")).unwrap();
    }
}

#[test]
fn a_file_was_not_found_while_another_was_renamed_over_it() {
    if !can_mount("replacing files by rename") {
        return;
    }
    let site = Site::new();
    let server = site.up("up @mnt --data @d1");
    let dir = site.mnt();
    fs::write(dir.join("content"), "whole").unwrap();
    symlink("content", dir.join("link")).unwrap();
    let stop = AtomicBool::new(false);
    let (mut stale, mut surprises) = (0, Vec::new());
    std::thread::scope(|scope| {
        scope.spawn(|| replace(&dir, &stop));
        for at in 0..CALLS {
            let name = if at % 2 == 0 { "content" } else { "link" };
            match fs::read_to_string(dir.join(name)) {
                Ok(text) => assert_eq!(text, "whole"),
                // The kernel asks for a name twice at most, so one that is replaced twice meanwhile is lost to the call.
                Err(error) if error.raw_os_error() == Some(libc::ESTALE) => stale += 1,
                Err(error) => surprises.push(format!("{name}: {error}")),
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(surprises.is_empty(), "{} calls failed, as {}", surprises.len(), surprises[0]);
    assert!(stale <= CALLS / 10, "{stale} of {CALLS} calls met two replacements");
    server.stop();
}
