//! Two names whose hashes are equal: they are made, listed, renamed over each other, exchanged and removed like any others.

use ashlar_namespace::key::{COLLISIONS_MAX, Cookie, NameHash};
use ashlar_namespace::testing::{COLLIDING_NAMES, HASH_KEY, World, name};
use ashlar_namespace::verb::{self, COOKIE_DOT_DOT, CreateArgs};
use ashlar_namespace::{Bucket, BucketEntry};
use ashlar_types::message::RenameFlags;
use ashlar_types::{Errno, FileType, InodeId};
use std::ops::ControlFlow;

const ROOT: InodeId = InodeId::ROOT;
const FIRST: &str = COLLIDING_NAMES[0];
const SECOND: &str = COLLIDING_NAMES[1];

fn world_with_both() -> (World, InodeId, InodeId) {
    let mut world = World::new();
    let (first, second) = (world.make_file(ROOT, FIRST), world.make_file(ROOT, SECOND));
    (world, first, second)
}

fn rename(world: &mut World, from: &str, to: &str, flags: RenameFlags) {
    world
        .as_root(|txn, context| verb::rename(txn, context, ROOT, name(from), ROOT, name(to), flags))
        .expect("root may rename");
}

/// The listing one entry at a time: names with their cookies.
fn list(world: &mut World) -> Vec<(String, Cookie)> {
    let (mut listed, mut after) = (Vec::new(), COOKIE_DOT_DOT);
    loop {
        let mut next = None;
        let is_end = world
            .as_root(|txn, context| {
                verb::readdir(txn, context, ROOT, after, false, &mut |entry| {
                    if next.is_some() {
                        return ControlFlow::Break(());
                    }
                    next = Some((String::from_utf8_lossy(entry.name).into_owned(), entry.cookie));
                    ControlFlow::Continue(())
                })
            })
            .expect("root may list");
        after = next.as_ref().map_or(after, |(_, cookie)| *cookie);
        listed.extend(next);
        if is_end {
            return listed;
        }
    }
}

#[test]
fn the_names_do_collide() {
    assert_eq!(NameHash::of(name(FIRST), &HASH_KEY), NameHash::of(name(SECOND), &HASH_KEY));
    let (world, ..) = world_with_both();
    assert_eq!(world.store.table(b'D').count(), 1);
}

#[test]
fn both_are_found_and_listed_in_any_order_of_making() {
    let (mut world, first, second) = world_with_both();
    assert_eq!((world.find(ROOT, FIRST), world.find(ROOT, SECOND)), (Some(first), Some(second)));
    let before = list(&mut world);
    assert_eq!(before.iter().map(|(text, _)| text.as_str()).collect::<Vec<_>>(), [FIRST, SECOND]);
    world.as_root(|txn, context| verb::unlink(txn, context, ROOT, name(FIRST))).unwrap();
    assert_eq!(list(&mut world), before[1..], "the other keeps its cookie");
    world.make_file(ROOT, FIRST);
    assert_eq!(list(&mut world), before, "the freed number is used again, in order");
}

#[test]
fn one_is_renamed_over_the_other() {
    let (mut world, first, second) = world_with_both();
    rename(&mut world, FIRST, SECOND, RenameFlags::Replace);
    assert_eq!((world.find(ROOT, FIRST), world.find(ROOT, SECOND)), (None, Some(first)));
    assert_eq!((world.find_inode(second), world.inode(ROOT).size), (None, 1));
    rename(&mut world, SECOND, FIRST, RenameFlags::Replace);
    assert_eq!((world.find(ROOT, FIRST), world.find(ROOT, SECOND)), (Some(first), None));
}

#[test]
fn they_are_exchanged() {
    let (mut world, first, second) = world_with_both();
    let before = list(&mut world);
    rename(&mut world, FIRST, SECOND, RenameFlags::Exchange);
    assert_eq!((world.find(ROOT, FIRST), world.find(ROOT, SECOND)), (Some(second), Some(first)));
    assert_eq!(list(&mut world), before);
}

#[test]
fn a_bucket_takes_only_so_many() {
    let mut world = World::new();
    let hash = NameHash::of(name("x"), &HASH_KEY);
    let mut bucket = Bucket::default();
    for collision in 0..=COLLISIONS_MAX {
        let text = format!("stand-in {collision}");
        let entry = BucketEntry {
            collision,
            file_type: FileType::Regular,
            inode: InodeId(77),
            name: text.bytes().collect(),
        };
        bucket.entries.push(entry);
    }
    world
        .as_root(|txn, _| {
            txn.put_bucket(ROOT, hash, &bucket, name("x"));
            Ok(())
        })
        .unwrap();
    let made =
        world.as_root(|txn, context| verb::create(txn, context, ROOT, name("x"), CreateArgs::default()));
    assert_eq!(made, Err(Errno::ENOSPC));
}
