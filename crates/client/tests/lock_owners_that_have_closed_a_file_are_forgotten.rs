//! Goal: a file that stays open knows only those lock owners who may have a lock, however many came and went; what an owner locked
//! through one descriptor still falls with its close of another.
#![allow(clippy::unwrap_used)] // the helpers of a test panic as the test does

mod support;

use ashlar_client::{OpenFlags, Who};
use ashlar_types::{Errno, LockOwner};
use support::{World, lock, make};

#[test]
fn a_file_that_stays_open_does_not_remember_a_hundred_thousand_owners() {
    let world = World::new(48 << 20);
    let client = world.client();
    let held = make(&client, "f").unwrap();
    for owner in 1..=100_000 {
        lock(&client, &held, owner, false).unwrap();
        client.lock_release(&held, LockOwner(owner), false).unwrap();
    }
    assert_eq!(held.file.lock_owners_known(), 0);

    let flags = OpenFlags { read: true, write: true, ..OpenFlags::default() };
    let other = client.open(&Who::system(), held.file.inode, flags).unwrap().handle;
    lock(&client, &held, 7, false).unwrap();
    assert_eq!(lock(&client, &held, 8, false), Err(Errno::EAGAIN));
    client.lock_release(&other, LockOwner(7), false).unwrap();
    lock(&client, &held, 8, false).unwrap();
}
