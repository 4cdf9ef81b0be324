//! Goal: bytes written after a truncation that failed halfway stay, although the truncation is carried out in the end. Method: the disk
//! refuses one write in the middle of the cut; then reads and writes of the same client, and of another.
#![allow(clippy::unwrap_used)] // the helpers of a test panic as the test does

mod support;

use ashlar_client::{OpenFlags, Who};
use ashlar_env::sim::FaultOp;
use ashlar_types::InodeId;
use ashlar_types::message::SetAttr;
use support::{KIB64, World, content, make, read, write};

/// Whether the cut failed when the `nth` write did.
fn cut_fails(nth: u64) -> bool {
    let world = World::new(48 << 20);
    let client = world.client();
    let file = make(&client, "f").unwrap();
    write(&client, &file, 0, &content(1, 2 * KIB64)).unwrap();
    world.disk.fail_nth(FaultOp::Write, nth, libc::ENOSPC);
    let changes = SetAttr { size: Some(1), ..SetAttr::default() };
    let cut = client.setattr(&Who::system(), file.file.inode, Some(&file), changes);
    let is_noted = client.getattr(&Who::system(), file.file.inode).unwrap().attr.size == 1;
    if cut.is_ok() || !is_noted {
        return false;
    }
    // Where the fault has stopped the log or the target for good, nothing is written later.
    if client.read(&file, 0, &mut [0; KIB64]) != Ok(1) {
        return false;
    }
    write(&client, &file, 0, &content(2, 2 * KIB64)).unwrap();
    // Whoever writes next has a cut that is left over carried out first.
    let other = world.client();
    let flags = OpenFlags { read: true, write: true, ..OpenFlags::default() };
    let theirs = other.open(&Who::system(), InodeId(file.file.inode.0), flags).unwrap().handle;
    write(&other, &theirs, 2 * KIB64 as u64, b"more").unwrap();
    assert!(
        read(&other, &theirs, 2 * KIB64) == content(2, 2 * KIB64),
        "bytes of an acknowledged write are lost"
    );
    true
}

#[test]
fn what_was_written_after_a_read_that_followed_a_failed_cut_stays() {
    let failed = (1..12).filter(|&nth| cut_fails(nth)).count();
    assert!(failed > 0, "no fault met the cut");
}
