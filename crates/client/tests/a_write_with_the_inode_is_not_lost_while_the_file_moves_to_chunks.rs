//! Goal: of two writes at once to a file that lives with its inode, of which one makes it outgrow the inode, neither is lost. Method: metadata that
//! carries the small one out only once the other has been granted WRITE, and told the content without it.
#![allow(clippy::unwrap_used)] // the helpers of a test panic as the test does

mod support;

use ashlar_types::message::MetaRequest;
use std::time::Duration;
use support::{Gate, KIB64, World, content, eventually, make, read, write};

/// What the write that waits brings.
const SMALL: &[u8] = b"small";

#[test]
fn a_small_write_that_a_big_one_overtakes_is_there() {
    let world = World::new(64 << 20);
    let gate = Gate::new(&world, |request| matches!(request, MetaRequest::WriteInline { data: SMALL, .. }));
    let client = world.client_over(gate.clone());
    let file = make(&client, "f").unwrap();
    write(&client, &file, 0, b"before").unwrap();
    let big = content(1, KIB64);
    gate.shut();
    std::thread::scope(|threads| {
        let small = threads.spawn(|| write(&client, &file, 0, SMALL).unwrap());
        gate.await_waiter();
        let answered = gate.answered();
        let outgrowing = threads.spawn(|| write(&client, &file, 4096, &big).unwrap());
        // Its first call is for WRITE. It has the grant in a moment, and waits for the small one.
        eventually(|| gate.answered() > answered);
        std::thread::sleep(Duration::from_millis(100));
        assert!(!outgrowing.is_finished(), "it waits for what is under way");
        gate.open();
        small.join().unwrap();
        outgrowing.join().unwrap();
    });
    let seen = read(&client, &file, 4096 + KIB64);
    assert_eq!(&seen[..6], b"smalle", "the small write is lost");
    assert!(seen[4096..] == big, "the big write is lost");
}
