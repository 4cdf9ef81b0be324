//! Goal: a call that waits for another one of the same file, which waits for a server that is away, does not fail before it: a server that is back in time is noticed by nobody. Method: metadata
//! that does not answer for longer than clients once waited for each other's calls at most, and two reads of one file.
#![allow(clippy::unwrap_used)] // the helpers of a test panic as the test does

mod support;

use ashlar_client::{Client, Handle, OpenFlags, Who};
use ashlar_types::Errno;
use ashlar_types::message::MetaRequest;
use std::sync::Arc;
use std::time::{Duration, Instant};
use support::{Gate, KIB64, World, content, make, write};

/// Two reads of a file of which nothing is known, while metadata does not answer for `away`; what they answer.
fn reads(wait_max: Duration, away: Duration) -> Vec<Result<usize, Errno>> {
    let world = World::new(48 << 20);
    let writer = world.client();
    let file = make(&writer, "f").unwrap();
    write(&writer, &file, 0, &content(1, 2 * KIB64)).unwrap();
    writer.release(&file);
    let gate = Gate::new(&world, |request| matches!(request, MetaRequest::AcquireData { .. }));
    let client: Arc<Client> = world.client_that_waits(gate.clone(), wait_max);
    let flags = OpenFlags { read: true, ..OpenFlags::default() };
    let handle: Arc<Handle> = client.open(&Who::system(), file.file.inode, flags).unwrap().handle;
    // Whoever writes takes the lease that came with the open.
    let write_flags = OpenFlags { write: true, ..OpenFlags::default() };
    let again = writer.open(&Who::system(), file.file.inode, write_flags).unwrap().handle;
    write(&writer, &again, 0, &[7]).unwrap();
    gate.shut();
    std::thread::scope(|threads| {
        let read = || client.read(&handle, 0, &mut [0; 100]);
        let first = threads.spawn(read);
        gate.await_waiter();
        let begun = Instant::now();
        let second = threads.spawn(read);
        std::thread::sleep(away);
        let is_over = second.is_finished();
        assert_eq!(is_over, away > wait_max, "after {:?}", begun.elapsed());
        gate.open();
        [first, second].map(|read| read.join().unwrap()).to_vec()
    })
}

#[test]
fn who_waits_for_a_call_on_the_same_file_waits_as_long_as_that() {
    assert_eq!(reads(Duration::from_secs(10), Duration::from_secs(1)), [Ok(100), Ok(100)]);
}

#[test]
fn and_no_longer_than_it_may() {
    let answers = reads(Duration::from_millis(300), Duration::from_secs(2));
    assert_eq!(answers, [Ok(100), Err(Errno::ETIMEDOUT)]);
}
