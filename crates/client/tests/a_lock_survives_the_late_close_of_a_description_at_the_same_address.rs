//! Goal: the kernel tells of the end of an open file description after `close(2)` has returned, and names the owner of its locks by its address, where another
//! description may be by then. What that one has locked must not fall with the first: two programs held a `flock` at once, and two that locked by
//! `F_OFD_SETLK`. Method: the calls in that order, and one between the end of the first at the client and at metadata.
#![allow(clippy::unwrap_used)] // the helpers of a test panic as the test does

mod support;

use ashlar_client::{Client, Handle, OpenFlags, Who};
use ashlar_rpc::{Caller, MetaCalls, SessionEvents, SessionGrant};
use ashlar_types::message::{LockKind, LockRange, LockRequest, MetaReply, MetaRequest};
use ashlar_types::{Errno, LockOwner, SessionId};
use parking_lot::Mutex;
use std::sync::Arc;
use support::{World, lock, lock_request, make};

const ADDRESS: u64 = 0xffff_8881;

/// Another description of the file that `handle` is of.
fn open(client: &Client, handle: &Handle) -> Arc<Handle> {
    let flags = OpenFlags { read: true, write: true, ..OpenFlags::default() };
    client.open(&Who::system(), handle.file.inode, flags).unwrap().handle
}

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
        let (second, third) = (open(&client, &first), open(&client, &first));
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

/// Metadata that something happens at just before it drops locks.
struct Interrupted {
    meta: Arc<dyn MetaCalls>,
    between: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl MetaCalls for Interrupted {
    fn open_session(&self, events: Arc<dyn SessionEvents>) -> Result<SessionGrant, Errno> {
        self.meta.open_session(events)
    }

    fn close_session(&self, session: SessionId) {
        self.meta.close_session(session);
    }

    fn call(&self, caller: Caller<'_>, request: MetaRequest<'_>) -> Result<MetaReply, Errno> {
        let is_release = matches!(request, MetaRequest::LockRelease { .. });
        let between = self.between.lock().take_if(|_| is_release);
        between.into_iter().for_each(|happens| happens());
        self.meta.call(caller, request)
    }
}

#[test]
fn a_lock_taken_while_the_locks_of_a_description_at_the_same_address_are_dropped_stays() {
    let world = World::new(48 << 20);
    let meta = Arc::new(Interrupted { meta: world.meta.clone(), between: Mutex::default() });
    let client = world.client_over(meta.clone());
    let first = make(&client, "f").unwrap();
    let (second, third) = (open(&client, &first), open(&client, &first));
    lock(&client, &first, ADDRESS, false).unwrap();
    let (locker, locked) = (client.clone(), second.clone());
    let between = Box::new(move || lock(&locker, &locked, ADDRESS, false).unwrap());
    *meta.between.lock() = Some(between);
    client.release(&first);
    assert!(meta.between.lock().is_none(), "the second has locked meanwhile");
    assert_eq!(lock(&client, &third, 7, false), Err(Errno::EAGAIN), "and has it");
    client.release(&second);
    lock(&client, &third, 7, false).unwrap();
}

#[test]
fn what_a_description_has_locked_ends_with_it_also_when_another_is_at_its_address() {
    let world = World::new(48 << 20);
    let client = world.client();
    let first = make(&client, "f").unwrap();
    let (second, third) = (open(&client, &first), open(&client, &first));
    let lock_part = |handle: &Arc<Handle>, owner, part: u64| {
        let range = LockRange { start: part * 10, end: part * 10 + 9 };
        let (inode, owner) = (first.file.inode, LockOwner(owner));
        let kind = LockKind::Write;
        client.lock(handle, LockRequest { inode, owner, pid: 1, kind, range, is_flock: false })
    };
    lock_part(&first, ADDRESS, 0).unwrap();
    lock_part(&second, ADDRESS, 1).unwrap();
    client.release(&first);
    lock_part(&third, 7, 0).unwrap();
    assert_eq!(lock_part(&third, 7, 1), Err(Errno::EAGAIN));
}

/// A close of any descriptor drops all locks of a process, also one that it was granted since an earlier close.
#[test]
fn a_lock_that_was_waited_for_during_a_close_falls_with_the_next_close() {
    const PROCESS: u64 = 0xffff_7770;
    let world = World::new(48 << 20);
    let (client, other) = (world.client(), world.client());
    let first = make(&client, "f").unwrap();
    let (second, third, theirs) = (open(&client, &first), open(&client, &first), open(&other, &first));
    lock(&other, &theirs, 7, false).unwrap();
    let (answer, answered) = std::sync::mpsc::channel();
    let request = lock_request(&first, PROCESS, false);
    client.lock_wait_deferred(&first, request, 1, Box::new(move |outcome| answer.send(outcome).unwrap()));
    client.lock_release(&second, LockOwner(PROCESS), false).unwrap();
    other.lock_release(&theirs, LockOwner(7), false).unwrap();
    assert_eq!(answered.recv_timeout(std::time::Duration::from_secs(10)), Ok(Ok(())));
    assert_eq!(lock(&other, &theirs, 7, false), Err(Errno::EAGAIN));
    client.lock_release(&third, LockOwner(PROCESS), false).unwrap();
    lock(&other, &theirs, 7, false).unwrap();
}
