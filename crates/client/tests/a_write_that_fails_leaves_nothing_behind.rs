//! Goal: a write that found no space for all of its bytes changes the file by what it says it has taken, and by nothing else. Method:
//! a full simulated disk; appends, and writes over several chunks of which the first have their space.
#![allow(clippy::unwrap_used)] // the helpers of a test panic as the test does

mod support;

use ashlar_client::{AllocateMode, Client, Handle, OpenFlags, Who, WriteFlags};
use ashlar_types::Errno;
use ashlar_types::message::SetAttr;
use std::sync::Arc;
use support::{KIB64, World, content, make, read, write};

const CAPACITY: u64 = 48 << 20;

fn opened_to_append(client: &Client, file: &Handle) -> Arc<Handle> {
    let flags = OpenFlags { write: true, append: true, ..OpenFlags::default() };
    client.open(&Who::system(), file.file.inode, flags).unwrap().handle
}

fn size(client: &Client, file: &Handle) -> u64 {
    client.getattr(&Who::system(), file.file.inode).unwrap().attr.size
}

#[test]
fn an_append_that_finds_no_space_does_not_lengthen_the_file() {
    let world = World::new(CAPACITY);
    let client = world.client();
    let file = make(&client, "log").unwrap();
    write(&client, &file, 0, &content(1, 4 * KIB64)).unwrap();
    world.fill(&client);
    world.crowd(0);
    let log = opened_to_append(&client, &file);
    for _ in 0..5 {
        assert_eq!(client.write(&log, 0, &content(2, KIB64), WriteFlags::default()), Err(Errno::ENOSPC));
    }
    assert_eq!(size(&client, &file), 4 * KIB64 as u64);
    world.disk_has_room();
    client.write(&log, 0, &content(3, KIB64), WriteFlags::default()).unwrap();
    assert_eq!(size(&client, &file), 5 * KIB64 as u64);
    assert!(read(&client, &file, 6 * KIB64) == [content(1, 4 * KIB64), content(3, KIB64)].concat());
}

#[test]
fn appends_beside_each_other_each_have_a_place_of_their_own() {
    let world = World::new(CAPACITY);
    let client = world.client();
    let file = make(&client, "log").unwrap();
    write(&client, &file, 0, &content(1, 4 * KIB64)).unwrap();
    std::thread::scope(|threads| {
        for thread in 0..4_u8 {
            let log = opened_to_append(&client, &file);
            let client = &client;
            threads.spawn(move || {
                for _ in 0..50 {
                    assert_eq!(client.write(&log, 0, &[thread + 1; 5000], WriteFlags::default()), Ok(5000));
                }
            });
        }
    });
    let all = read(&client, &file, 2_000_000);
    assert_eq!(all.len(), 4 * KIB64 + 200 * 5000);
    assert!(
        all[4 * KIB64..].chunks(5000).all(|part| part[0] != 0 && part.iter().all(|byte| *byte == part[0]))
    );
}

#[test]
fn bytes_of_a_write_that_failed_do_not_show_when_the_file_grows() {
    let world = World::new(CAPACITY);
    let client = world.client();
    let file = make(&client, "f").unwrap();
    write(&client, &file, 0, &content(1, 4 * KIB64)).unwrap();
    world.fill(&client);
    // What the first chunk still has space for, and the last has not.
    let (mut at, mut taken) = (size(&client, &file), 0);
    let outcome = loop {
        match client.write(&file, at, &vec![0xAB; 16 * KIB64], WriteFlags::default()) {
            Ok(bytes) => (at, taken) = (at + bytes as u64, taken + bytes),
            Err(errno) => break errno,
        }
    };
    assert_eq!(outcome, Errno::ENOSPC);
    let end = size(&client, &file);
    assert_eq!(end, (4 * KIB64 + taken) as u64, "what was taken is there");
    let longer = SetAttr { size: Some(end + 32 * KIB64 as u64), ..SetAttr::default() };
    client.setattr(&Who::system(), file.file.inode, Some(&file), longer).unwrap();
    let all = read(&client, &file, end as usize + 32 * KIB64);
    assert!(all[4 * KIB64..end as usize].iter().all(|byte| *byte == 0xAB));
    assert!(all[end as usize..].iter().all(|byte| *byte == 0), "bytes nobody has acknowledged show");
}

#[test]
fn a_hole_is_copied_over_what_another_client_has_written() {
    let world = World::new(CAPACITY);
    let (client, other) = (world.client(), world.client());
    let (from, to) = (make(&client, "from").unwrap(), make(&client, "to").unwrap());
    write(&client, &from, 8 * KIB64 as u64, &content(1, KIB64)).unwrap();
    let flags = OpenFlags { read: true, write: true, ..OpenFlags::default() };
    let theirs = other.open(&Who::system(), to.file.inode, flags).unwrap().handle;
    write(&other, &theirs, 0, &content(2, 8 * KIB64)).unwrap();
    let copied = client.copy_file_range(&Who::system(), (&from, 0), (&to, 0), 8 * KIB64 as u64);
    assert_eq!(copied, Ok(8 * KIB64 as u64));
    assert!(read(&client, &to, 8 * KIB64).iter().all(|byte| *byte == 0), "what was there before the copy");
}

/// The kernel refuses to copy into a file that is in append mode; it may have been opened in it (`F_SETFL`).
#[test]
fn a_copy_goes_where_it_was_asked_to_though_the_file_was_opened_to_append() {
    let world = World::new(CAPACITY);
    let client = world.client();
    let (from, file) = (make(&client, "from").unwrap(), make(&client, "to").unwrap());
    write(&client, &from, 0, b"COPY").unwrap();
    write(&client, &file, 0, b"0123456789").unwrap();
    let flags = OpenFlags { write: true, append: true, ..OpenFlags::default() };
    let to = client.open(&Who::system(), file.file.inode, flags).unwrap().handle;
    assert_eq!(client.copy_file_range(&Who::system(), (&from, 0), (&to, 2), 4), Ok(4));
    assert_eq!(read(&client, &file, 20), b"01COPY6789");
}

/// Who carries a call out has others waiting.
#[test]
fn a_copy_of_very_much_is_done_in_pieces() {
    let world = World::new(CAPACITY);
    let client = world.client();
    let (from, to) = (make(&client, "from").unwrap(), make(&client, "to").unwrap());
    let longer = SetAttr { size: Some(1 << 40), ..SetAttr::default() };
    client.setattr(&Who::system(), from.file.inode, Some(&from), longer).unwrap();
    let copied = client.copy_file_range(&Who::system(), (&from, 0), (&to, 0), 1 << 40).unwrap();
    assert!((1..=8 << 20).contains(&copied), "{copied}");
}

#[test]
fn space_that_an_allocation_has_taken_before_it_failed_is_counted() {
    let world = World::new(CAPACITY);
    let client = world.client();
    let file = make(&client, "f").unwrap();
    write(&client, &file, 0, &content(1, 4 * KIB64)).unwrap();
    let allocated = client.fallocate(&Who::system(), &file, AllocateMode::KeepSize, (0, 2 * CAPACITY));
    assert_eq!(allocated, Err(Errno::ENOSPC));
    let found = client.getattr(&Who::system(), file.file.inode).unwrap();
    assert_eq!(
        found.attr.blocks,
        world.blocks(file.file.inode, 1),
        "blocks counted, and those of the chunks"
    );
}
