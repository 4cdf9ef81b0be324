//! Goal: the kernel tells of the end of an open file description after `close(2)` has returned, and names the owner of its locks by its address, where another
//! description may be by then. What that one has locked must not fall with the first: two programs held a `flock` at once. Method: the calls in that order.
#![allow(clippy::unwrap_used)] // the helpers of a test panic as the test does

mod support;

use ashlar_client::{Client, Handle, OpenFlags, Who};
use ashlar_types::{Errno, LockOwner};
use std::sync::Arc;
use support::{World, lock, make};

const ADDRESS: u64 = 0xffff_8881;

fn close(client: &Client, handle: &Handle, is_flock: bool) {
    client.flush(handle).unwrap();
    client.release(handle);
    if is_flock {
        client.lock_release(handle, LockOwner(ADDRESS), true).unwrap();
    }
}

#[test]
fn of_whole_files_and_of_descriptions() {
    for is_flock in [true, false] {
        let world = World::new(48 << 20);
        let client = world.client();
        let first = make(&client, "f").unwrap();
        let flags = OpenFlags { read: true, write: true, ..OpenFlags::default() };
        let open = || -> Arc<Handle> { client.open(&Who::system(), first.file.inode, flags).unwrap().handle };
        let (second, third) = (open(), open());
        lock(&client, &first, ADDRESS, is_flock).unwrap();
        assert_eq!(lock(&client, &third, 7, is_flock), Err(Errno::EAGAIN));
        // It has the address of the first, so that one is closed, and its lock is not in the way.
        lock(&client, &second, ADDRESS, is_flock).unwrap();
        close(&client, &first, is_flock);
        assert_eq!(lock(&client, &third, 7, is_flock), Err(Errno::EAGAIN), "the second has it");
        close(&client, &second, is_flock);
        lock(&client, &third, 7, is_flock).unwrap();
        assert_eq!(third.file.lock_owners_known(), usize::from(!is_flock));
    }
}
