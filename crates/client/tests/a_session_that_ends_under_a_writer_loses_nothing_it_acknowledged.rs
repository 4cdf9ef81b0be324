//! Goal: a mount that is ended while a program goes on writing loses nothing that a write has returned for. Method: threads that append to
//! files in chunks until they are refused, while their session ends; then the lengths another session sees. Before, writes were taken after
//! their file's last report, and cut off by the next start.
#![allow(clippy::unwrap_used)] // the helpers of a test panic as the test does

mod support;

use ashlar_client::{Client, Handle, Who, WriteFlags};
use ashlar_types::Errno;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use support::{KIB64, World, content, eventually, make, write};

const CAPACITY: u64 = 256 << 20;

/// Rewrites and appends until refused, at most to an eighth of the disk; counts in `end` how long the file is by what was acknowledged.
fn write_until_refused(client: &Client, file: &Handle, end: &AtomicU64) -> Errno {
    let piece = content(1, 4096);
    loop {
        let at = end.load(SeqCst);
        let is_long = at >= CAPACITY / 8;
        match client.write(file, if is_long { 0 } else { at }, &piece, WriteFlags::default()) {
            Ok(taken) if !is_long => drop(end.fetch_add(taken as u64, SeqCst)),
            Ok(_) => {}
            Err(errno) => return errno,
        }
    }
}

#[test]
fn writes_acknowledged_while_a_session_ended_were_lost() {
    let world = World::new(CAPACITY);
    let client = world.client();
    let files: Vec<_> = (0..3).map(|at| make(&client, &format!("log-{at}")).unwrap()).collect();
    let ends: Vec<_> = files.iter().map(|_| AtomicU64::new(KIB64 as u64)).collect();
    for file in &files {
        write(&client, file, 0, &content(1, KIB64)).unwrap();
    }
    std::thread::scope(|threads| {
        let writers: Vec<_> = files
            .iter()
            .zip(&ends)
            .map(|(file, end)| threads.spawn(|| write_until_refused(&client, file, end)))
            .collect();
        eventually(|| ends.iter().all(|end| end.load(SeqCst) > 2 * KIB64 as u64));
        client.disconnect().unwrap();
        for writer in writers {
            assert_eq!(writer.join().unwrap(), Errno::ENOTCONN);
        }
    });
    let other = world.client();
    for (file, end) in files.iter().zip(&ends) {
        let size = other.getattr(&Who::system(), file.file.inode).unwrap().attr.size;
        assert!(size >= end.load(SeqCst), "{} bytes acknowledged, {size} there", end.load(SeqCst));
    }
}
