//! A directory that is split is to its users what it was: the same names at the same places of a listing, one set of rules for who may do what, one time of
//! the last change, one parent for what is in it. And what is wrong with a split one is found.

#![allow(clippy::unwrap_used)] // The helpers of a test panic as the test does.

use ashlar_namespace::check::Finding;
use ashlar_namespace::key::{self, Cookie, NameHash};
use ashlar_namespace::testing::{HASH_KEY, World, name};
use ashlar_namespace::verb::{
    self, CreateArgs, SPLIT_ENTRIES_MAX, SetxattrArgs, SetxattrMode, SplitProgress,
};
use ashlar_namespace::{Inode, Kind, Txn};
use ashlar_types::message::{RenameFlags, SetAttr, TimeSet};
use ashlar_types::{Attr, Credentials, Errno, InodeId, SessionId, Timespec};
use std::collections::BTreeSet;
use std::ops::ControlFlow;

const ROOT: InodeId = InodeId::ROOT;
const SHARDS: u16 = 6;

fn world() -> World {
    let mut world = World::new();
    world.placement.shard_count = SHARDS;
    world
}

fn split(world: &mut World, directory: InodeId, count: u16) -> Result<(), Errno> {
    world.as_root(|txn, context| verb::split(txn, context, directory, count))
}

/// Where `text` is to be asked for.
fn holder(world: &World, directory: InodeId, text: &str) -> InodeId {
    let inode = world.inode(directory);
    let hash = NameHash::of(name(text), &HASH_KEY);
    let slice = inode.slices().get(hash.slice(inode.slices().len()));
    slice.filter(|_| hash < inode.border()).copied().unwrap_or(directory)
}

fn make_file(world: &mut World, directory: InodeId, text: &str) -> InodeId {
    let holder = holder(world, directory, text);
    world.make_file(holder, text)
}

fn find(world: &mut World, directory: InodeId, text: &str) -> Option<InodeId> {
    let holder = holder(world, directory, text);
    world.find(holder, text)
}

fn whole(world: &World, directory: InodeId) -> Attr {
    let inode = world.inode(directory);
    let slices: Vec<Attr> = inode.slices().iter().map(|slice| world.inode(*slice).attr(*slice)).collect();
    inode.attr(directory).of_whole(&slices)
}

/// Names and cookies, without `.` and `..`.
fn list(world: &mut World, directory: InodeId) -> Vec<(Cookie, String)> {
    let inode = world.inode(directory);
    let mut parts: Vec<_> = inode.slices().iter().map(|slice| (*slice, verb::COOKIE_DOT_DOT)).collect();
    if inode.border() < NameHash::END {
        parts.push((directory, Cookie::before(inode.border()).max(verb::COOKIE_DOT_DOT)));
    }
    let mut listed = Vec::new();
    for (part, after) in parts {
        world
            .as_root(|txn, context| {
                verb::readdir(txn, context, part, after, false, &mut |entry| {
                    listed.push((entry.cookie, String::from_utf8(entry.name.to_vec()).unwrap()));
                    ControlFlow::Continue(())
                })
            })
            .unwrap();
    }
    listed
}

#[test]
fn what_is_in_it_stays_where_it_was_in_a_listing_and_is_found() {
    let mut world = world();
    let directory = world.make_directory(ROOT, "d");
    let made: Vec<(String, InodeId)> = (0..100)
        .map(|number| {
            let text = format!("entry {number}");
            let inode = match number % 10 {
                0 => world.make_directory(directory, &text),
                _ => world.make_file(directory, &text),
            };
            (text, inode)
        })
        .collect();
    let (before, seen) = (list(&mut world, directory), whole(&world, directory));
    let accounted = world.accounted();
    split(&mut world, directory, 4).unwrap();
    let ctime = world.now;
    assert_eq!(list(&mut world, directory), before);
    assert_eq!(whole(&world, directory), Attr { ctime, ..seen });
    for (text, inode) in made {
        assert_eq!(find(&mut world, directory, &text), Some(inode));
        if let Ok((parent, _)) = world.inode(inode).as_directory() {
            assert_eq!(parent, directory, "as a program is told it");
        }
    }
    let slices = world.inode(directory).slices().to_vec();
    assert_eq!(world.accounted().inodes, accounted.inodes + 4);
    let shards: std::collections::BTreeSet<_> = slices.iter().map(|slice| slice.home()).collect();
    assert!(shards.len() == 4 && !shards.contains(&directory.home()));
    // Files from now on are with the slice of their name.
    let new = make_file(&mut world, directory, "new");
    assert_eq!(new.home(), holder(&world, directory, "new").home());
    assert_eq!(world.findings(), []);
}

#[test]
fn what_cannot_be_split_is_refused_and_stays_as_it_is() {
    let mut world = world();
    let directory = world.make_directory(ROOT, "d");
    let stranger = Credentials { complete: true, ..Credentials::user(500, 500) };
    let by_stranger = world.run(&stranger, |txn, context| verb::split(txn, context, directory, 2));
    assert_eq!(by_stranger, Err(Errno::EPERM));
    let by_stranger = world.run(&stranger, |txn, context| verb::split_new(txn, context, directory, 2));
    assert_eq!(by_stranger, Err(Errno::EPERM));
    for count in [0, 1, 65] {
        assert_eq!(split(&mut world, directory, count), Err(Errno::EINVAL), "{count}");
    }
    assert_eq!(split(&mut world, directory, SHARDS), Err(Errno::EINVAL), "one shard has the directory");
    let file = world.make_file(ROOT, "f");
    assert_eq!(split(&mut world, file, 2), Err(Errno::ENOTDIR));
    split(&mut world, directory, 2).unwrap();
    let slices = world.inode(directory).slices().to_vec();
    assert_eq!(split(&mut world, directory, 2), Ok(()), "it is so already");
    assert_eq!(split(&mut world, directory, 3), Err(Errno::EEXIST));
    assert_eq!(split(&mut world, slices[0], 2), Err(Errno::ESTALE), "a slice is nothing by itself");
    assert_eq!(world.inode(directory).slices(), slices);
    assert_eq!(world.findings(), []);
}

fn step(world: &mut World, directory: InodeId, entries_max: usize) -> SplitProgress {
    world.as_root(|txn, context| verb::split_step(txn, context, directory, entries_max)).unwrap()
}

/// Nothing is said of the world but by [`whole`], [`find`] and [`list`], which is what clients see.
#[test]
fn a_large_one_is_split_step_by_step_and_is_one_directory_all_the_time() {
    let mut world = world();
    let directory = world.make_directory(ROOT, "d");
    let mut made: Vec<(String, InodeId)> = (0..=SPLIT_ENTRIES_MAX)
        .map(|number| {
            let text = format!("entry {number}");
            let inode = match number % 100 {
                0 => world.make_directory(directory, &text),
                _ => world.make_file(directory, &text),
            };
            (text, inode)
        })
        .collect();
    let (before, seen) = (list(&mut world, directory), whole(&world, directory));
    split(&mut world, directory, 4).unwrap();
    let begun = world.now;
    assert_eq!(split(&mut world, directory, 4), Ok(()), "it goes on");
    assert_eq!(split(&mut world, directory, 3), Err(Errno::EEXIST));
    let slices = world.inode(directory).slices().to_vec();
    assert_eq!(list(&mut world, directory), before);
    assert!(world.outcome.in_split.is_empty() || world.outcome.in_split[..] == [directory]);
    let (mut steps, mut moved) = (0, 0);
    loop {
        assert_eq!(world.findings(), [], "after {steps} steps");
        match step(&mut world, directory, 100) {
            SplitProgress::Moved(entries) => moved += entries,
            SplitProgress::Ended(entries) => break moved += entries,
            SplitProgress::Nothing => panic!("it is being split"),
        }
        steps += 1;
        assert_eq!(list(&mut world, directory), before, "after {steps} steps");
        assert_eq!(whole(&world, directory), Attr { ctime: begun, ..seen.clone() });
        let (text, inode) = &made[steps * 31 % made.len()];
        assert_eq!(find(&mut world, directory, text), Some(*inode));
    }
    assert_eq!((moved, world.inode(directory).size), (SPLIT_ENTRIES_MAX + 1, 0));
    assert!((11..=16).contains(&steps), "{steps} steps");
    assert!(matches!(world.inode(directory).kind, Kind::WideDirectory { .. }));
    assert_eq!((list(&mut world, directory), world.inode(directory).slices()), (before, &slices[..]));
    assert_eq!(whole(&world, directory), Attr { ctime: begun, ..seen });
    made.retain(|(text, inode)| find(&mut world, directory, text) != Some(*inode));
    assert!(made.is_empty(), "{made:?}");
    assert_eq!(world.store.table(b'H').count(), 0);
    assert_eq!(step(&mut world, directory, 100), SplitProgress::Nothing);
    assert_eq!(world.findings(), []);
}

fn in_split(world: &mut World, entries: u32, count: u16) -> InodeId {
    let directory = world.make_directory(ROOT, "d");
    for number in 0..entries {
        world.make_file(directory, &format!("n{number}"));
    }
    world.as_root(|txn, context| verb::split_above(txn, context, directory, count, 0)).unwrap();
    directory
}

#[test]
fn each_step_the_last_one_included_needs_the_directory_and_one_slice() {
    let mut world = world();
    let directory = in_split(&mut world, 60, 4);
    for turn in 0.. {
        let before = world.inode(directory);
        // In itself, and in the others, which are in use.
        make_file(&mut world, directory, &format!("late {turn}"));
        let (seen, at) = (whole(&world, directory), before.border().slice(4));
        let progress = step(&mut world, directory, 7);
        let inodes: BTreeSet<_> = world.outcome.reads.iter().filter_map(|key| key::inode_of(key)).collect();
        assert!(inodes.is_subset(&[directory, before.slices()[at]].into()), "turn {turn}: {inodes:?}");
        let changed: BTreeSet<_> = world.outcome.changed.iter().copied().collect();
        assert_eq!(changed, [directory, before.slices()[at]].into(), "turn {turn}");
        assert_eq!(whole(&world, directory), seen, "turn {turn}");
        assert_eq!(world.findings(), []);
        if let SplitProgress::Ended(_) = progress {
            break;
        }
    }
    assert!(matches!(world.inode(directory).kind, Kind::WideDirectory { .. }));
    assert_eq!(world.store.table(b'H').count(), 0);
}

#[test]
fn a_time_in_the_future_is_over_with_the_first_change_whichever_part_has_the_name() {
    let mut world = world();
    let directory = in_split(&mut world, 10, 2);
    let set = Timespec::new(world.now.secs + 1_000_000, 0);
    let changes = SetAttr { mtime: Some(TimeSet::At(set)), ..SetAttr::default() };
    world.as_root(|txn, context| verb::setattr(txn, context, directory, &changes)).unwrap();
    // All of them are in the directory itself.
    make_file(&mut world, directory, "late");
    let changed = world.now;
    while let SplitProgress::Moved(_) = step(&mut world, directory, 3) {}
    assert_eq!(whole(&world, directory).mtime, changed);
}

#[test]
fn while_it_is_split_its_times_rules_and_parent_are_those_of_one_directory() {
    let mut world = world();
    let directory = in_split(&mut world, 40, 3);
    for turn in 0..60 {
        let text = format!("late {turn}");
        make_file(&mut world, directory, &text);
        assert_eq!(whole(&world, directory).mtime, world.now);
        let set = Timespec::new(1000 + i64::from(turn), 5);
        let changes = SetAttr { mtime: Some(TimeSet::At(set)), ..SetAttr::default() };
        world.as_root(|txn, context| verb::setattr(txn, context, directory, &changes)).unwrap();
        assert_eq!(whole(&world, directory).mtime, set);
        let changes = SetAttr { mode: Some(0o700 + turn), ..SetAttr::default() };
        world.as_root(|txn, context| verb::setattr(txn, context, directory, &changes)).unwrap();
        let inode = world.inode(directory);
        assert!(inode.slices().iter().all(|slice| world.inode(*slice).mode == inode.mode));
        step(&mut world, directory, 2);
        assert_eq!(whole(&world, directory).mtime, set, "turn {turn}");
        assert_eq!(world.findings(), []);
    }
    assert!(matches!(world.inode(directory).kind, Kind::WideDirectory { .. }));
    assert_eq!(whole(&world, directory).size, 100);
}

#[test]
fn one_that_is_being_split_is_removed_with_its_slices_and_the_note_of_it() {
    let mut world = world();
    let directory = in_split(&mut world, 2, 3);
    step(&mut world, directory, 1);
    let rmdir = |world: &mut World| {
        world.as_root(|txn, context| verb::rmdir(txn, context, ROOT, name("d"))).map(|reply| reply.before)
    };
    for text in ["n0", "n1"] {
        assert_eq!(rmdir(&mut world).unwrap_err(), Errno::ENOTEMPTY);
        let parent = holder(&world, directory, text);
        world.as_root(|txn, context| verb::unlink(txn, context, parent, name(text))).unwrap();
    }
    world.hold_open(directory, SessionId(1));
    rmdir(&mut world).unwrap();
    assert_eq!((world.store.table(b'H').count(), world.store.table(b'I').count()), (0, 2));
    assert_eq!(step(&mut world, directory, 1), SplitProgress::Nothing);
    assert_eq!(world.findings(), []);
}

#[test]
fn what_is_wrong_with_one_that_is_being_split_is_found_and_repaired() {
    let mut world = world();
    let directory = in_split(&mut world, 30, 3);
    for _ in 0..4 {
        step(&mut world, directory, 4);
    }
    let before = list(&mut world, directory);

    // Without the note nobody would go on.
    damage(&mut world, |txn| txn.delete(key::halfway(directory)));
    repair(&mut world, |finding| *finding == Finding::SplitForgotten { inode: directory });
    assert_eq!(world.store.table(b'H').count(), 1);

    // The border has gone on, and the entries have not.
    let inode = world.inode(directory);
    let end = NameHash::begin_of_slice(2, 3);
    assert!(inode.border() < end);
    world.edit(directory, |inode| {
        if let Kind::DirectoryInSplit { border, .. } = &mut inode.kind {
            *border = end;
        }
    });
    repair(&mut world, |finding| matches!(finding, Finding::EntryOutside { .. }));
    assert_eq!(list(&mut world, directory), before);

    // A slice says that it has more.
    world.edit(inode.slices()[2], |inode| {
        if let Kind::SliceInSplit { until, .. } = &mut inode.kind {
            *until = NameHash(until.0 + 1);
        }
    });
    repair(&mut world, |finding| matches!(finding, Finding::SliceRules { .. }));
    damage(&mut world, |txn| txn.put(key::halfway(ROOT), Default::default()));
    repair(&mut world, |finding| matches!(finding, Finding::RecordStray { .. }));
    while let SplitProgress::Moved(_) = step(&mut world, directory, 4) {}
    assert_eq!(list(&mut world, directory), before);
    assert_eq!(world.findings(), []);
}

#[test]
fn a_name_is_asked_for_where_it_is_and_nowhere_else() {
    let mut world = world();
    let directory = world.make_directory(ROOT, "d");
    let told = world.as_root(|txn, context| verb::slices(txn, context, directory)).unwrap();
    assert_eq!((told.slices.len(), told.of_new), (0, 0));
    split(&mut world, directory, 3).unwrap();
    let told = world.as_root(|txn, context| verb::slices(txn, context, directory)).unwrap();
    assert_eq!((&told.slices[..], told.hash_key), (world.inode(directory).slices(), HASH_KEY));
    let right = holder(&world, directory, "x");
    let wrong = *told.slices.iter().find(|slice| **slice != right).unwrap();
    for elsewhere in [directory, wrong] {
        let args = CreateArgs { mode: 0o644, umask: 0, exclusive: true };
        let made = world.as_root(|txn, context| verb::create(txn, context, elsewhere, name("x"), args));
        assert_eq!(made.unwrap_err(), Errno::EREMOTE);
        let found = world.as_root(|txn, context| verb::lookup(txn, context, elsewhere, name("x")));
        assert_eq!(found.unwrap_err(), Errno::EREMOTE);
        let renamed = world.as_root(|txn, context| {
            verb::rename(txn, context, right, name("x"), elsewhere, name("x"), RenameFlags::Replace)
        });
        assert_eq!(renamed.unwrap_err(), Errno::EREMOTE);
    }
    let mut nothing = |_: verb::DirEntry<'_>| ControlFlow::Continue(());
    let after = verb::COOKIE_DOT_DOT;
    let listed =
        world.as_root(|txn, context| verb::readdir(txn, context, directory, after, false, &mut nothing));
    assert_eq!(listed, Err(Errno::EREMOTE));
}

#[test]
fn who_may_do_what_is_the_same_in_every_slice_after_every_change() {
    let mut world = world();
    let directory = world.make_directory(ROOT, "d");
    split(&mut world, directory, 4).unwrap();
    let change = |world: &mut World, changes: SetAttr| {
        world.as_root(|txn, context| verb::setattr(txn, context, directory, &changes)).unwrap();
    };
    change(&mut world, SetAttr { uid: Some(500), gid: Some(600), ..SetAttr::default() });
    change(&mut world, SetAttr { mode: Some(0o3_775), ..SetAttr::default() });
    // user::rwx, group::r-x, group 700: rwx, mask::rwx, other::---
    let acl = [
        2, 0, 0, 0, 1, 0, 7, 0, 255, 255, 255, 255, 4, 0, 5, 0, 255, 255, 255, 255, 8, 0, 7, 0, 188, 2, 0, 0,
        16, 0, 7, 0, 255, 255, 255, 255, 32, 0, 0, 0, 255, 255, 255, 255,
    ];
    for list in [&b"system.posix_acl_access"[..], b"system.posix_acl_default"] {
        let args = SetxattrArgs { name: list, value: &acl, mode: SetxattrMode::Any, kill_setgid: false };
        world.as_root(|txn, context| verb::setxattr(txn, context, directory, &args)).unwrap();
    }
    world.as_root(|txn, context| verb::split_new(txn, context, directory, 2)).unwrap();
    let inode = world.inode(directory);
    assert!(inode.acl_access.is_some() && inode.acl_default.is_some());
    for slice in inode.slices() {
        let of_slice = world.inode(*slice);
        let rules = |inode: &Inode| (inode.mode, inode.uid, inode.gid, inode.acl_access.clone());
        assert_eq!(rules(&of_slice), rules(&inode));
        assert_eq!((of_slice.acl_default.clone(), of_slice.slices_of_new()), (inode.acl_default.clone(), 2));
    }
    let member = Credentials { complete: true, ..Credentials::user(501, 700) };
    let stranger = Credentials { complete: true, ..Credentials::user(502, 502) };
    for number in 0..12 {
        let text = format!("n{number}");
        let (parent, args) =
            (holder(&world, directory, &text), CreateArgs { mode: 0o666, ..CreateArgs::default() });
        let refused =
            world.run(&stranger, |txn, context| verb::create(txn, context, parent, name(&text), args));
        assert_eq!(refused.unwrap_err(), Errno::EACCES);
        let made = world.run(&member, |txn, context| verb::create(txn, context, parent, name(&text), args));
        let made = world.inode(made.unwrap().inode);
        assert_eq!(made.gid, 600, "set-group-id of the directory");
        assert!(made.acl_access.is_some(), "its default list");
        // Sticky: only the owner of the file, or of the directory, takes it away.
        let other = Credentials { complete: true, ..Credentials::user(503, 700) };
        let taken = world.run(&other, |txn, context| verb::unlink(txn, context, parent, name(&text)));
        assert_eq!(taken.unwrap_err(), Errno::EPERM);
    }
    // Through a slice nobody gets around it.
    let slice = inode.slices()[0];
    let changes = SetAttr { mode: Some(0o777), ..SetAttr::default() };
    let changed = world.as_root(|txn, context| verb::setattr(txn, context, slice, &changes));
    assert_eq!(changed.unwrap_err(), Errno::ESTALE);
    assert_eq!(world.findings(), []);
}

#[test]
fn a_time_that_is_set_holds_until_the_next_change_of_a_name_also_one_in_the_future() {
    let mut world = world();
    let directory = world.make_directory(ROOT, "d");
    split(&mut world, directory, 4).unwrap();
    for number in 0..8 {
        make_file(&mut world, directory, &format!("n{number}"));
    }
    assert_eq!(whole(&world, directory).mtime, world.now);
    for set in [Timespec::new(5, 5), Timespec::new(4_000_000_000, 0)] {
        let changes = SetAttr { mtime: Some(TimeSet::At(set)), ..SetAttr::default() };
        world.as_root(|txn, context| verb::setattr(txn, context, directory, &changes)).unwrap();
        assert_eq!(whole(&world, directory).mtime, set);
        make_file(&mut world, directory, &format!("after {}", set.secs));
        assert_eq!(whole(&world, directory).mtime, world.now);
    }
    assert_eq!(world.findings(), []);
}

#[test]
fn it_is_removed_and_replaced_only_when_all_slices_are_empty_and_then_with_them() {
    let mut world = world();
    let directory = world.make_directory(ROOT, "d");
    split(&mut world, directory, 3).unwrap();
    let slices = world.inode(directory).slices().to_vec();
    make_file(&mut world, directory, "f");
    let rmdir = |world: &mut World| {
        world.as_root(|txn, context| verb::rmdir(txn, context, ROOT, name("d"))).map(|reply| reply.before)
    };
    assert_eq!(rmdir(&mut world).unwrap_err(), Errno::ENOTEMPTY);
    let other = world.make_directory(ROOT, "other");
    let replace = |world: &mut World| {
        world.as_root(|txn, context| {
            verb::rename(txn, context, ROOT, name("other"), ROOT, name("d"), RenameFlags::Replace)
        })
    };
    assert_eq!(replace(&mut world).unwrap_err(), Errno::ENOTEMPTY);
    let parent = holder(&world, directory, "f");
    world.as_root(|txn, context| verb::unlink(txn, context, parent, name("f"))).unwrap();
    let emptied = world.now;
    // Somebody has it open, and goes on with an empty directory in which nothing can be made.
    world.hold_open(directory, SessionId(1));
    let before = rmdir(&mut world).unwrap();
    assert_eq!((before.mtime, before.size, before.rdev), (emptied, 0, 0));
    assert!(slices.iter().all(|slice| world.find_inode(*slice).is_none()));
    let args = CreateArgs::default();
    let made = world.as_root(|txn, context| verb::create(txn, context, directory, name("x"), args));
    assert_eq!(made.unwrap_err(), Errno::ENOENT);
    assert_eq!(world.findings(), []);
    let again = world.make_directory(ROOT, "d");
    split(&mut world, again, 2).unwrap();
    replace(&mut world).unwrap();
    assert_eq!(world.find(ROOT, "d"), Some(other));
    assert!(world.find_inode(again).is_none());
    assert_eq!(world.findings(), []);
}

#[test]
fn a_move_between_slices_is_none_between_directories() {
    let mut world = world();
    let directory = world.make_directory(ROOT, "d");
    split(&mut world, directory, 4).unwrap();
    let owner = Credentials { complete: true, ..Credentials::user(500, 500) };
    let from = holder(&world, directory, "tree");
    let names: Vec<String> = (0..32).map(|number| format!("elsewhere {number}")).collect();
    let there = names.iter().find(|text| holder(&world, directory, text) != from).unwrap();
    let to = holder(&world, directory, there);
    let made = world.run(&owner, |txn, context| verb::mkdir(txn, context, from, name("tree"), 0o555, 0));
    let tree = made.unwrap().attr.inode;
    let links = whole(&world, directory).nlink;
    // A directory that gets another parent must be writable; this one does not.
    let moved = world.run(&owner, |txn, context| {
        verb::rename(txn, context, from, name("tree"), to, name(there), RenameFlags::Replace)
    });
    assert_eq!(moved.unwrap().moved, tree);
    assert_eq!(world.inode(tree).as_directory().unwrap().0, directory);
    assert_eq!((whole(&world, directory).nlink, whole(&world, directory).size), (links, 1));
    // Below itself it does not go, whichever slice that is in.
    split(&mut world, tree, 2).unwrap();
    let below = holder(&world, tree, "x");
    let looped = world.as_root(|txn, context| {
        verb::rename(txn, context, to, name(there), below, name("x"), RenameFlags::Replace)
    });
    assert_eq!(looped.unwrap_err(), Errno::EINVAL);
    assert_eq!(world.findings(), []);
}

#[test]
fn directories_are_made_split_where_the_directory_they_are_in_says_so() {
    let mut world = world();
    let directory = world.make_directory(ROOT, "d");
    world.as_root(|txn, context| verb::split_new(txn, context, directory, 3)).unwrap();
    let below = world.make_directory(directory, "below");
    assert_eq!((world.inode(below).slices().len(), world.inode(below).slices_of_new()), (3, 0));
    assert_eq!(whole(&world, below).nlink, 2);
    let parent = holder(&world, below, "plain");
    let plain = world.make_directory(parent, "plain");
    assert!(world.inode(plain).slices().is_empty(), "not further down");
    // Where there are not enough shards it is made as any other.
    world.as_root(|txn, context| verb::split_new(txn, context, directory, 60)).unwrap();
    let plain = world.make_directory(directory, "plain");
    assert!(world.inode(plain).slices().is_empty());
    world.as_root(|txn, context| verb::split_new(txn, context, directory, 0)).unwrap();
    assert!(matches!(world.inode(directory).kind, Kind::Directory { .. }), "as it was");
    assert_eq!(world.findings(), []);
}

/// Changes the store behind the verbs' back.
fn damage(world: &mut World, change: impl FnOnce(&mut Txn<'_>)) {
    world
        .as_root(|txn, _| {
            change(txn);
            Ok(())
        })
        .unwrap();
}

/// Repairs all findings, of which one must be `is_it`, in as many rounds as that takes.
fn repair(world: &mut World, is_it: impl Fn(&Finding) -> bool) {
    let found = world.findings();
    assert!(found.iter().any(is_it), "{found:?}");
    for _ in 0..4 {
        for finding in world.findings() {
            assert!(finding.remedy().is_some(), "{finding}");
            world.as_root(|txn, context| verb::repair(txn, context, &finding)).unwrap();
        }
    }
    assert_eq!(world.findings(), []);
}

#[test]
fn slices_without_a_directory_and_directories_without_a_slice_are_found_and_repaired() {
    let mut world = world();
    let directory = world.make_directory(ROOT, "d");
    split(&mut world, directory, 3).unwrap();
    for number in 0..9 {
        make_file(&mut world, directory, &format!("n{number}"));
    }
    let slices = world.inode(directory).slices().to_vec();

    world.edit(slices[1], |inode| inode.mode = inode.mode & !0o777 | 0o700);
    repair(&mut world, |finding| matches!(finding, Finding::SliceRules { inode, .. } if *inode == slices[1]));
    assert_eq!(world.inode(slices[1]).mode, world.inode(directory).mode);

    // What was in a slice that is lost gets a name in lost+found.
    let lost = world.inode(slices[2]).size;
    assert!(lost > 0);
    damage(&mut world, |txn| txn.delete(key::inode(slices[2])));
    repair(&mut world, |finding| *finding == Finding::SliceMissing { directory, index: 2, inode: slices[2] });
    assert_eq!(whole(&world, directory).size, 9 - lost);
    let lost_and_found = world.find(ROOT, "lost+found").unwrap();
    assert_eq!(whole(&world, lost_and_found).size, lost);

    // A slice that nobody names is a directory of its own then, if there is anything in it.
    let kept = whole(&world, directory).size;
    let inode = world.inode(directory);
    let (parent, policy) = inode.as_directory().unwrap();
    world.edit(directory, |inode| inode.kind = Kind::Directory { parent, policy });
    repair(&mut world, |finding| *finding == Finding::SliceStray { inode: slices[0], of: directory });
    assert!(world.find_inode(slices[2]).is_none(), "it was empty");
    let named: Vec<InodeId> =
        slices[..2].iter().copied().filter(|id| world.find_inode(*id).is_some()).collect();
    assert_eq!(named.iter().map(|id| world.inode(*id).size).sum::<u64>(), kept);
    assert!(named.iter().all(|id| world.inode(*id).as_directory().unwrap().0 == lost_and_found));
}

#[test]
fn what_has_lost_its_name_is_found_again_where_the_root_is_split() {
    let mut world = world();
    split(&mut world, ROOT, 3).unwrap();
    let file = make_file(&mut world, ROOT, "f");
    let parent = holder(&world, ROOT, "f");
    damage(&mut world, |txn| txn.delete(key::bucket(parent, NameHash::of(name("f"), &HASH_KEY))));
    repair(&mut world, |finding| *finding == Finding::Unreachable { inode: file });
    let lost_and_found = find(&mut world, ROOT, "lost+found").unwrap();
    assert_eq!(world.inode(lost_and_found).as_directory().unwrap().0, ROOT);
    assert_eq!(list(&mut world, lost_and_found).len(), 1);
}

#[test]
fn an_entry_beside_those_of_the_slices_is_for_a_person_to_look_at() {
    let mut world = world();
    let directory = world.make_directory(ROOT, "d");
    let file = world.make_file(directory, "f");
    let place = key::bucket(directory, NameHash::of(name("f"), &HASH_KEY));
    let bucket = ashlar_kv::Snapshot::get(&world.store, &place).unwrap().unwrap();
    split(&mut world, directory, 2).unwrap();
    damage(&mut world, |txn| txn.put(place, bucket));
    let malformed =
        |finding: &Finding| matches!(finding, Finding::InodeMalformed { inode, .. } if *inode == directory);
    let found = world.findings();
    assert!(found.iter().any(malformed), "{found:?}");
    assert!(world.find_inode(file).is_some());
}
