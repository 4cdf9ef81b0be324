//! Goal: a mount cannot have metadata servers remember more open files than they allow a session; it is told EMFILE, and nothing that is open
//! suffers. Method: all roles in this process, with a low bound.
#![allow(clippy::unwrap_used)] // the helpers of a test panic as the test does

mod support;

use ashlar_types::Errno;
use support::{World, content, make, read, remove, write};

#[test]
fn more_files_than_a_session_may_have_open_are_refused_until_one_is_closed() {
    let world = World::new(256 << 20);
    world.meta.limit_opens(5);
    let (client, other) = (world.client(), world.client());
    let mut open: Vec<_> = (0..5).map(|number| make(&client, &format!("f{number}")).unwrap()).collect();
    for round in 0..3 {
        assert_eq!(make(&client, "more").err(), Some(Errno::EMFILE), "round {round}");
        assert_eq!(remove(&client, "more"), Err(Errno::ENOENT), "nothing was made");
        // What is open works, and so do other sessions.
        for (number, file) in open.iter().enumerate() {
            write(&client, file, 0, &content(number + round, 100)).unwrap();
            assert!(read(&client, file, 100) == content(number + round, 100));
        }
        let theirs = make(&other, "theirs").unwrap();
        other.release(&theirs);
        remove(&other, "theirs").unwrap();
        client.release(&open.remove(0));
        open.push(make(&client, &format!("again{round}")).unwrap());
    }
    for file in open {
        client.release(&file);
    }
    for number in 0..6 {
        client.release(&make(&client, &format!("end{number}")).unwrap());
    }
}
