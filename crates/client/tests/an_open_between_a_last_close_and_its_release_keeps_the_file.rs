//! A program opened a file that another renamed a new one over, while a third closed it: the file went away under the descriptor, and
//! the write got ENOENT. The close had found itself the last, and what it had asked for came after the open. Method: many rounds of all three.
#![allow(clippy::unwrap_used)] // the helpers of a test panic as the test does

mod support;

use ashlar_client::{Client, OpenFlags, Who};
use ashlar_types::message::RenameFlags;
use ashlar_types::{Errno, InodeId, Name};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use support::{World, make, write};

/// Replacements. Before the fix a write failed in every third run of 1,000.
const ROUNDS: u32 = 3000;
/// Most opens that one thread does, should replacing be slow.
const OPENS_MAX: u32 = 100_000;

fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).unwrap()
}

fn replace(client: &Client) {
    let file = make(client, "new").unwrap();
    write(client, &file, 0, b"old").unwrap();
    client.release(&file);
    let place = |text| (InodeId::ROOT, name(text));
    client.rename(&Who::system(), place("new"), place("f"), RenameFlags::Replace).unwrap();
}

/// Opens, writes and closes what is called `f` now; tells whether it was there still when it was opened.
fn use_once(client: &Client) -> bool {
    let found = client.lookup(&Who::system(), InodeId::ROOT, name("f")).unwrap().unwrap();
    let flags = OpenFlags { read: true, write: true, ..OpenFlags::default() };
    match client.open(&Who::system(), found.attr.inode, flags) {
        Ok(opened) => {
            write(client, &opened.handle, 0, b"new").unwrap();
            client.release(&opened.handle);
            true
        }
        Err(errno) => {
            assert_eq!(errno, Errno::ESTALE);
            false
        }
    }
}

#[test]
fn an_open_file_lost_its_inode_to_a_close_under_way() {
    let world = World::new(48 << 20);
    let client = world.client();
    replace(&client);
    let (stop, opened) = (AtomicBool::new(false), AtomicU32::new(0));
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..OPENS_MAX {
                    opened.fetch_add(u32::from(use_once(&client)), Ordering::Relaxed);
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                }
            });
        }
        (0..ROUNDS).for_each(|_| replace(&client));
        stop.store(true, Ordering::Relaxed);
    });
    assert!(opened.into_inner() > 100, "nobody got at the file");
}
