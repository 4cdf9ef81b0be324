//! Goal: of several targets a full one gets no new files while another has room, so that none of them finds no space. Method: all roles
//! in this process, a small target and a large one, filled by files of one chunk each.
#![allow(clippy::unwrap_used)] // the helpers of a test panic as the test does

mod support;

use ashlar_client::{Client, Who};
use ashlar_types::Errno;
use ashlar_types::message::MetaRequest;
use std::time::Duration;
use support::{KIB64, World, call, content, deaf_session, make, read, remove, write};

/// What each file takes.
const FILE: usize = 16 * KIB64;

/// Makes a file of [`FILE`] bytes and tells its chain, which has the number of its target less one.
fn add(client: &Client, number: usize) -> Result<u32, Errno> {
    let file = make(client, &format!("f{number}"))?;
    let written = write(client, &file, 0, &content(number, FILE));
    if written.is_ok() {
        assert!(read(client, &file, FILE) == content(number, FILE), "f{number}");
    }
    client.release(&file);
    written?;
    let layout = client.layout_show(&Who::system(), file.file.inode)?.1.unwrap();
    Ok(layout.chains[0].0)
}

#[test]
fn files_go_where_there_is_room_until_all_are_full() {
    let world = World::with_more_targets(48 << 20, &[120 << 20]);
    let client = world.client();
    let mut on: [Vec<usize>; 2] = Default::default();
    let refused = loop {
        let number = on[0].len() + on[1].len();
        match add(&client, number) {
            Ok(chain) => on[chain as usize].push(number),
            Err(errno) => break errno,
        }
        world.clock.advance(Duration::from_millis(100));
        assert!(number < 1000);
    };
    assert_eq!(refused, Errno::ENOSPC, "as a full file system is told");
    // The small one: some room is left until the large one has no more, then that is used too.
    assert!(on[0].len() > 30 && on[1].len() > 100, "{} and {} files", on[0].len(), on[1].len());
    let alternating = on[0].iter().take_while(|number| **number < 80).count();
    assert!((25..40).contains(&alternating), "{alternating} files on the small one at first");
    let later = on[0].iter().filter(|number| (80..130).contains(*number)).count();
    assert_eq!(later, 0, "files on a full target while another had room");
}

#[test]
fn a_target_that_was_full_gets_files_again_once_it_has_room() {
    let world = World::with_more_targets(48 << 20, &[120 << 20]);
    let client = world.client();
    let mut on_small = Vec::new();
    for number in 0..100 {
        if add(&client, number).unwrap() == 0 {
            on_small.push(number);
        }
        world.clock.advance(Duration::from_millis(100));
    }
    assert!(on_small.iter().all(|number| *number < 90), "{on_small:?}");
    on_small.iter().for_each(|number| remove(&client, &format!("f{number}")).unwrap());
    // In place of the collector.
    call(&world, deaf_session(&world), MetaRequest::MakeRoom).unwrap();
    let again = (200..220).filter(|number| add(&client, *number).unwrap() == 0).count();
    assert_eq!(again, 10, "one in two");
}
