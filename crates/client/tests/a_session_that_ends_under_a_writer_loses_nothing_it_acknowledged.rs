//! Goal: a mount that is ended while a program goes on writing loses nothing that a write has returned for. Method: threads that append to
//! files in chunks until they are refused, while their session ends; then the lengths another session sees. Before, writes were taken after
//! their file's last report, and cut off by the next start. And a session that ends while a target is missing.
#![allow(clippy::unwrap_used)] // the helpers of a test panic as the test does

mod support;

use ashlar_client::{Client, Handle, OpenFlags, Who, WriteFlags};
use ashlar_rpc::MetaCalls as _;
use ashlar_types::{Errno, TargetId};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;
use support::missing::Missing;
use support::{KIB64, World, content, eventually, make, read, write};

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

#[test]
fn a_file_whose_target_was_missing_when_its_writer_ended_stayed_out_of_use_until_the_next_start() {
    let is_missing = Arc::new(AtomicBool::new(false));
    let world = Missing::world(48 << 20, TargetId(2), &is_missing);
    world.meta.start_trimmer().unwrap();
    let client = world.client();
    // On both targets; nobody but the client knows how long it is.
    let file = make(&client, "f").unwrap();
    write(&client, &file, 0, &content(1, 4 * KIB64)).unwrap();
    is_missing.store(true, SeqCst);
    world.meta.close_session(client.session());
    let other = world.client();
    let inode = file.file.inode;
    let open = || {
        let flags = OpenFlags { read: true, ..OpenFlags::default() };
        let opened = other.open(&Who::system(), inode, flags)?.handle;
        let found = other.read(&opened, 0, &mut [0; 1]).map(|_| read(&other, &opened, 8 * KIB64));
        other.release(&opened);
        found
    };
    assert_eq!(open(), Err(Errno::ENODEV), "its length is not known");
    world.clock.advance(Duration::from_secs(5));
    assert_eq!(open(), Err(Errno::ENODEV), "still");
    is_missing.store(false, SeqCst);
    eventually(|| {
        world.clock.advance(Duration::from_secs(1));
        open().is_ok()
    });
    assert!(open().unwrap() == content(1, 4 * KIB64));
}
