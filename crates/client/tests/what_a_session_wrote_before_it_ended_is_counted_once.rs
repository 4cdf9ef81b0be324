//! Goal: what was written and not reported when a session ended counts once, and holds nothing up that others have done since: metadata has asked the targets for it. Blocks were
//! counted twice, and a file that somebody had cut was long again, with zeros at its end. Method: a session ends under a file that is open, and what others see is compared with what the
//! target has.
#![allow(clippy::unwrap_used)] // the helpers of a test panic as the test does

mod support;

use ashlar_client::{Client, Handle, OpenFlags, Who};
use ashlar_types::Attr;
use std::sync::Arc;
use std::time::Duration;
use support::heard::Heard;
use support::{KIB64, World, content, make, write};

const WRITTEN: usize = 4 * KIB64;

/// A client that has written a file, and has told nobody how long that is.
fn writer(world: &Arc<World>) -> (Arc<Heard>, Arc<Client>, Arc<Handle>) {
    let heard = Heard::new(world);
    let client = world.client_that_comes_back(heard.clone(), world.storage.clone());
    let file = make(&client, "f").unwrap();
    write(&client, &file, 0, &content(1, WRITTEN)).unwrap();
    (heard, client, file)
}

/// The attributes as others see them.
fn seen(world: &World, file: &Handle) -> Attr {
    world.client().getattr(&Who::system(), file.file.inode).unwrap().attr
}

#[test]
fn blocks_of_a_file_that_stays_open_are_counted_once() {
    let world = Arc::new(World::new(64 << 20));
    let (heard, client, file) = writer(&world);
    let blocks = world.blocks(file.file.inode, 1);
    assert_ne!(blocks, 0);
    heard.end_session(&client);
    let own = client.getattr(&Who::system(), file.file.inode).unwrap().attr;
    assert_eq!((own.size, own.blocks), (WRITTEN as u64, blocks));
    client.fsync(&file).unwrap();
    let attr = seen(&world, &file);
    assert_eq!((attr.size, attr.blocks), (WRITTEN as u64, blocks));
    // It goes on, and what it writes now counts, too.
    write(&client, &file, WRITTEN as u64, &content(2, WRITTEN)).unwrap();
    client.release(&file);
    let attr = seen(&world, &file);
    assert_eq!((attr.size, attr.blocks), (2 * WRITTEN as u64, world.blocks(file.file.inode, 1)));
}

#[test]
fn a_file_that_was_cut_since_is_as_short_as_it_was_cut() {
    let world = Arc::new(World::new(64 << 20));
    let (heard, client, file) = writer(&world);
    heard.end_session(&client);
    heard.cut(file.file.inode, 100);
    assert_eq!(client.getattr(&Who::system(), file.file.inode).unwrap().attr.size, 100);
    client.fsync(&file).unwrap();
    client.release(&file);
    let attr = seen(&world, &file);
    assert_eq!((attr.size, attr.blocks), (100, world.blocks(file.file.inode, 1)));
}

#[test]
fn when_it_was_changed_is_still_told() {
    let world = Arc::new(World::new(64 << 20));
    let (heard, client, file) = writer(&world);
    client.fsync(&file).unwrap();
    world.clock.advance(Duration::from_secs(5));
    // No block more: nobody but the client knows.
    write(&client, &file, 0, &content(2, KIB64)).unwrap();
    let mtime = client.getattr(&Who::system(), file.file.inode).unwrap().attr.mtime;
    heard.end_session(&client);
    client.release(&file);
    assert_eq!(seen(&world, &file).mtime, mtime);
}

#[test]
fn when_somebody_else_has_written_since_is_what_counts() {
    let world = Arc::new(World::new(64 << 20));
    let (heard, client, file) = writer(&world);
    heard.end_session(&client);
    world.clock.advance(Duration::from_secs(5));
    let other = world.client();
    let flags = OpenFlags { write: true, ..OpenFlags::default() };
    let opened = other.open(&Who::system(), file.file.inode, flags).unwrap().handle;
    write(&other, &opened, 0, b"later").unwrap();
    other.release(&opened);
    let mtime = seen(&world, &file).mtime;
    client.fsync(&file).unwrap();
    client.release(&file);
    assert_eq!(seen(&world, &file).mtime, mtime);
}

#[test]
fn its_own_stat_tells_the_later_time_and_a_capability_that_somebody_has_set_stays() {
    let world = Arc::new(World::new(64 << 20));
    let (heard, client, file) = writer(&world);
    heard.end_session(&client);
    world.clock.advance(Duration::from_secs(5));
    let (who, inode, other) = (Who::system(), file.file.inode, world.client());
    let opened = other.open(&who, inode, OpenFlags { write: true, ..OpenFlags::default() }).unwrap().handle;
    write(&other, &opened, 0, b"later").unwrap();
    other.release(&opened);
    // As `setcap` makes it (capability.h, VFS_CAP_REVISION_2).
    let capability = [&2_u32.to_le_bytes()[..], &[0; 16]].concat();
    other.setxattr(&who, inode, (b"security.capability", &capability), (false, false), false).unwrap();
    let own = client.getattr(&who, inode).unwrap().attr.mtime;
    assert_eq!(own, seen(&world, &file).mtime, "its own write is not the last one");
    client.release(&file);
    assert_eq!(seen(&world, &file).mtime, own);
    assert_eq!(other.getxattr(&who, inode, b"security.capability").unwrap(), capability);
}
