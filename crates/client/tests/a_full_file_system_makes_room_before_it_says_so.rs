//! Goal: on a full disk ENOSPC means that there is no space, not that removed files have not been cleaned up yet; what needs no space
//! works; and what a failed write had put down goes. Method: all roles over one small simulated disk, without a collector of their
//! own, so that only the waiting writer can make room.
#![allow(clippy::unwrap_used)] // the helpers of a test panic as the test does

mod support;

use ashlar_client::{AllocateMode, Who};
use ashlar_rpc::{Caller, MetaCalls};
use ashlar_types::message::{MetaRequest, SetAttr};
use ashlar_types::{Credentials, Errno, InodeId, Name, OpId};
use std::time::{Duration, Instant};
use support::{KIB64, World, content, eventually, make, read, remove, write};

const CAPACITY: u64 = 48 << 20;
/// How long metadata would let each of many writers wait if it had to find out by waiting that there is nothing to clean up. So all of them
/// together tell waiting from working, also where work is slow.
const IN_VAIN_MAX: Duration = Duration::from_secs(5);

#[test]
fn a_write_on_a_full_target_waits_for_the_chunks_of_removed_files() {
    let world = World::new(CAPACITY);
    let client = world.client();
    let files = world.fill(&client);
    assert!(files.len() > 10, "{}", files.len());
    let available = client.statfs().unwrap().bytes_available;
    assert!(
        available < 2 * 16 * KIB64 as u64,
        "{available} bytes are said to be available on a full file system"
    );
    let begin = Instant::now();
    for (number, file) in files.iter().enumerate().skip(files.len() / 2) {
        remove(&client, &format!("f{number}")).unwrap();
        client.release(file);
    }
    // All of it, in files made at once: nobody but the writer has looked for garbage so far.
    for number in files.len() / 2..files.len() - 1 {
        let file = make(&client, &format!("g{number}")).unwrap();
        write(&client, &file, 0, &content(number, 16 * KIB64))
            .unwrap_or_else(|errno| panic!("g{number}: {errno}"));
        client.fsync(&file).unwrap();
        assert!(read(&client, &file, 16 * KIB64) == content(number, 16 * KIB64));
    }
    assert!(begin.elapsed() < IN_VAIN_MAX * 10, "{:?}", begin.elapsed());
    for (number, file) in files.iter().enumerate().take(files.len() / 2) {
        assert!(read(&client, file, 16 * KIB64) == content(number, 16 * KIB64), "f{number}");
    }
}

#[test]
fn nothing_to_clean_up_means_a_prompt_answer() {
    let world = World::new(CAPACITY);
    let client = world.client();
    world.fill(&client);
    let begin = Instant::now();
    let file = make(&client, "one-more").unwrap();
    for _ in 0..20 {
        assert_eq!(write(&client, &file, 0, &content(1, 16 * KIB64)), Err(Errno::ENOSPC));
    }
    assert!(begin.elapsed() < IN_VAIN_MAX * 10, "{:?}", begin.elapsed());
}

#[test]
fn what_has_its_space_can_be_overwritten_and_removed_when_not_even_a_name_can_be_made() {
    let world = World::new(CAPACITY);
    let client = world.client();
    let files = world.fill(&client);
    // Others take the rest: metadata is short too.
    world.crowd(0);
    let who = Who::system();
    let mkdir = |name: &str| {
        client.mkdir(&who, InodeId::ROOT, Name::new(name.as_bytes()).unwrap(), 0o755, 0).map(|_| ())
    };
    eventually(|| match mkdir("until-short") {
        Err(errno) => errno == Errno::ENOSPC,
        Ok(()) => client.rmdir(&who, InodeId::ROOT, Name::new(b"until-short").unwrap()).is_err(),
    });
    let space = client.statfs().unwrap();
    assert_eq!((space.bytes_available, space.inodes_free), (0, 0));
    let mode = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    for (number, file) in files.iter().enumerate() {
        for round in 0..3 {
            let new = content(number + round + 500, 16 * KIB64);
            write(&client, file, 0, &new).unwrap_or_else(|errno| panic!("f{number} round {round}: {errno}"));
            client.fsync(file).unwrap_or_else(|errno| panic!("f{number} round {round}: fsync: {errno}"));
            assert!(read(&client, file, 16 * KIB64) == new);
        }
        client.setattr(&who, file.file.inode, Some(file), mode).unwrap();
        remove(&client, &format!("f{number}")).unwrap();
        client.release(file);
    }
    // What was removed is room for metadata as well, without anybody having waited for it.
    mkdir("d").unwrap();
}

#[test]
fn a_file_that_found_no_space_to_leave_its_inode_keeps_its_bytes_and_nothing_else() {
    let world = World::new(CAPACITY);
    let client = world.client();
    let file = make(&client, "small").unwrap();
    write(&client, &file, 0, &content(9, 50_000)).unwrap();
    let files = world.fill(&client);
    world.crowd(0);
    assert_eq!(write(&client, &file, 50_000, &content(10, KIB64)), Err(Errno::ENOSPC));
    assert_eq!(read(&client, &file, 100_000), content(9, 50_000));
    for (number, filled) in files.iter().enumerate().take(3) {
        remove(&client, &format!("f{number}")).unwrap();
        client.release(filled);
    }
    world.disk_has_room();
    let other = make(&client, "other").unwrap();
    write(&client, &other, 0, &content(11, 16 * KIB64)).unwrap();
    write(&client, &file, 50_000, &content(10, KIB64)).unwrap();
    assert_eq!(read(&client, &file, 200_000)[..50_000], content(9, 50_000));
}

#[test]
fn one_very_large_removed_file_is_deleted_in_portions() {
    let world = World::new(400 << 20);
    let client = world.client();
    let file = make(&client, "large").unwrap();
    let inode = file.file.inode;
    client.fallocate(&Who::system(), &file, AllocateMode::Allocate, (0, 256 << 20)).unwrap();
    let generation = client.layout_show(&Who::system(), inode).unwrap().1.unwrap().generation;
    let all = world.blocks(inode, generation);
    assert!(all >= (256 << 20) / 512, "{all}");
    remove(&client, "large").unwrap();
    client.release(&file);
    let (creds, mut left) = (Credentials::root(), all);
    while world.has_chunks(inode, generation) {
        let op = OpId { session: client.session(), sequence: 1 << 40 };
        world.meta.call(Caller::new(op, &creds), MetaRequest::MakeRoom).unwrap();
        let now = world.blocks(inode, generation);
        // Enough is 64 MiB, and one portion is 256 chunks of 64 KiB.
        assert!(now < left && left - now <= (80 << 20) / 512, "{left} to {now} at once");
        left = now;
    }
}
