//! Goal: the last close of a file, which the kernel reports after `close(2)` has returned, gives WRITE back; whoever has opened the file
//! meanwhile and writes it must not lose WRITE, and with it the record by which his size is found after a crash. Method: the report of
//! a close is held up on its way to metadata while the file is opened and written again.
#![allow(clippy::unwrap_used)] // the helpers of a test panic as the test does

mod support;

use ashlar_client::{Client, Handle, OpenFlags, Who};
use ashlar_rpc::MetaCalls;
use ashlar_types::message::MetaRequest;
use std::sync::{Arc, mpsc};
use std::time::Duration;
use support::{Gate, World, content, make, write};

fn reopen(client: &Client, file: &Handle) -> Arc<Handle> {
    let flags = OpenFlags { read: true, write: true, ..OpenFlags::default() };
    client.open(&Who::system(), file.file.inode, flags).unwrap().handle
}

#[test]
fn what_is_written_between_a_close_and_its_report_is_seen_by_others_and_survives() {
    let world = World::new(48 << 20);
    let gate = Gate::new(&world, |request| matches!(request, MetaRequest::CommitWrite { done: true, .. }));
    let (client, other) = (world.client_over(gate.clone()), world.client());
    let file = make(&client, "f").unwrap();
    write(&client, &file, 0, &content(1, 300_000)).unwrap();
    client.flush(&file).unwrap();
    gate.shut();
    let inode = file.file.inode;
    let again = std::thread::scope(|threads| {
        let closing = threads.spawn(|| client.release(&file));
        gate.await_waiter();
        let again = reopen(&client, &file);
        let (sender, is_written) = mpsc::channel();
        let writing = threads.spawn({
            let (client, again) = (&client, again.clone());
            move || {
                write(client, &again, 300_000, &content(2, 100_000)).unwrap();
                sender.send(()).unwrap();
            }
        });
        // It may be done at once, or when the close is.
        let _ = is_written.recv_timeout(Duration::from_millis(300));
        gate.open();
        closing.join().unwrap();
        writing.join().unwrap();
        again
    });
    assert_eq!(other.getattr(&Who::system(), inode).unwrap().attr.size, 400_000, "the writer is asked");
    write(&client, &again, 400_000, &content(3, 100_000)).unwrap();
    // The session ends without a word, as when its process is killed.
    world.meta.close_session(client.session());
    assert_eq!(
        other.getattr(&Who::system(), inode).unwrap().attr.size,
        500_000,
        "the size is asked of the chunks"
    );
}

#[test]
fn a_file_opened_and_closed_by_many_is_forgotten_in_the_end() {
    let world = World::new(48 << 20);
    let client = world.client();
    let file = make(&client, "f").unwrap();
    write(&client, &file, 0, &content(1, 300_000)).unwrap();
    std::thread::scope(|threads| {
        for thread in 0..4 {
            let (client, file) = (&client, &file);
            threads.spawn(move || {
                for round in 0..100 {
                    let again = reopen(client, file);
                    write(client, &again, 1000 * thread, &content(round, 5000)).unwrap();
                    client.flush(&again).unwrap();
                    client.release(&again);
                }
            });
        }
    });
    let inode = file.file.inode;
    client.release(&file);
    drop(file);
    let other = world.client();
    world.meta.close_session(client.session());
    assert_eq!(other.getattr(&Who::system(), inode).unwrap().attr.size, 300_000);
}
