//! rename: every errno in Linux' order, times, link counts, parents of directories, exchange.

use ashlar_namespace::testing::{World, name};
use ashlar_namespace::verb::{self, RenameReply};
use ashlar_types::message::RenameFlags::{self, Exchange, NoReplace, Replace, Whiteout, WhiteoutNoReplace};
use ashlar_types::{Capabilities, Credentials, Errno, FilesetId, InodeId, SessionId};

const ROOT: InodeId = InodeId::ROOT;

fn user(uid: u32, gid: u32) -> Credentials {
    Credentials { complete: true, ..Credentials::user(uid, gid) }
}

type Place<'a> = (InodeId, &'a str);

fn rename_as(
    world: &mut World,
    creds: &Credentials,
    from: Place<'_>,
    to: Place<'_>,
    flags: RenameFlags,
) -> Result<RenameReply, Errno> {
    world.run(creds, |txn, context| verb::rename(txn, context, from.0, name(from.1), to.0, name(to.1), flags))
}

fn rename(
    world: &mut World,
    from: Place<'_>,
    to: Place<'_>,
    flags: RenameFlags,
) -> Result<RenameReply, Errno> {
    rename_as(world, &Credentials::root(), from, to, flags)
}

/// A directory with all permissions for everybody.
fn directory(world: &mut World, parent: InodeId, text: &str) -> InodeId {
    world.make_directory(parent, text)
}

#[test]
fn a_file_moves_to_another_directory_and_both_are_stamped() {
    let mut world = World::new();
    let (a, b) = (directory(&mut world, ROOT, "a"), directory(&mut world, ROOT, "b"));
    let file = world.make_file(a, "f");
    let before = world.inode(file);
    let reply = rename(&mut world, (a, "f"), (b, "g"), Replace).unwrap();
    assert_eq!(reply, RenameReply { moved: file, replaced: None });
    let now = world.now;
    assert_eq!((world.find(a, "f"), world.find(b, "g")), (None, Some(file)));
    for (inode, size) in [(a, 0), (b, 1)] {
        let record = world.inode(inode);
        assert_eq!((record.mtime, record.ctime, record.size, record.nlink), (now, now, size, 2));
    }
    let after = world.inode(file);
    assert_eq!((after.ctime, after.mtime, after.nlink), (now, before.mtime, 1));
}

#[test]
fn a_name_changes_within_a_directory() {
    let mut world = World::new();
    let (file, below) = (world.make_file(ROOT, "f"), directory(&mut world, ROOT, "d"));
    rename(&mut world, (ROOT, "f"), (ROOT, "g"), Replace).unwrap();
    rename(&mut world, (ROOT, "d"), (ROOT, "e"), Replace).unwrap();
    assert!(!world.outcome.frees_space);
    assert_eq!((world.find(ROOT, "g"), world.find(ROOT, "e")), (Some(file), Some(below)));
    let root = world.inode(ROOT);
    assert_eq!((root.size, root.nlink), (2, 3));
}

#[test]
fn a_replaced_file_goes_or_becomes_an_orphan() {
    let mut world = World::new();
    let (a, b) = (world.make_file(ROOT, "a"), world.make_file(ROOT, "b"));
    let reply = rename(&mut world, (ROOT, "a"), (ROOT, "b"), Replace).unwrap();
    assert_eq!(reply, RenameReply { moved: a, replaced: Some(b) });
    assert!(world.outcome.frees_space);
    assert_eq!((world.find_inode(b), world.inode(ROOT).size), (None, 1));
    let c = world.make_file(ROOT, "c");
    world.hold_open(a, SessionId(3));
    rename(&mut world, (ROOT, "c"), (ROOT, "b"), Replace).unwrap();
    assert_eq!((world.find(ROOT, "b"), world.inode(a).nlink), (Some(c), 0));
    assert_eq!(world.store.table(b'O').count(), 1);
    let d = world.make_file(ROOT, "d");
    world.as_root(|txn, context| verb::link(txn, context, d, ROOT, name("d2"))).unwrap();
    rename(&mut world, (ROOT, "b"), (ROOT, "d"), Replace).unwrap();
    let record = world.inode(d);
    assert_eq!(record.nlink, 1);
    assert_eq!(record.ctime, world.now, "losing a name changes the inode");
}

#[test]
fn a_moved_directory_changes_its_parent_and_the_link_counts() {
    let mut world = World::new();
    let (a, b) = (directory(&mut world, ROOT, "a"), directory(&mut world, ROOT, "b"));
    let moved = directory(&mut world, a, "d");
    rename(&mut world, (a, "d"), (b, "d"), Replace).unwrap();
    assert_eq!(world.inode(moved).as_directory().unwrap().0, b);
    assert_eq!((world.inode(a).nlink, world.inode(b).nlink), (2, 3));
    let empty = directory(&mut world, a, "empty");
    rename(&mut world, (b, "d"), (a, "empty"), Replace).unwrap();
    assert_eq!((world.inode(a).nlink, world.inode(b).nlink, world.find_inode(empty)), (3, 2, None));
    directory(&mut world, a, "e2");
    rename(&mut world, (a, "e2"), (a, "empty"), Replace).unwrap();
    assert_eq!((world.inode(a).nlink, world.inode(a).size), (3, 1));
}

#[test]
fn two_names_of_one_inode_stay_as_they_are() {
    let mut world = World::new();
    let file = world.make_file(ROOT, "a");
    world.as_root(|txn, context| verb::link(txn, context, file, ROOT, name("b"))).unwrap();
    let before = world.store.clone();
    rename(&mut world, (ROOT, "a"), (ROOT, "b"), Replace).unwrap();
    rename(&mut world, (ROOT, "a"), (ROOT, "a"), Replace).unwrap();
    rename(&mut world, (ROOT, "a"), (ROOT, "b"), Exchange).unwrap();
    rename_as(&mut world, &user(5, 5), (ROOT, "a"), (ROOT, "b"), Replace).unwrap();
    assert_eq!(world.store, before);
    assert_eq!(rename(&mut world, (ROOT, "a"), (ROOT, "b"), NoReplace), Err(Errno::EEXIST));
    assert_eq!(rename(&mut world, (ROOT, "a"), (ROOT, "a"), NoReplace), Err(Errno::EEXIST));
}

#[test]
fn types_that_do_not_fit_are_refused() {
    let mut world = World::new();
    let (d, e) = (directory(&mut world, ROOT, "d"), directory(&mut world, ROOT, "e"));
    let file = world.make_file(ROOT, "f");
    world.make_file(e, "x");
    assert_eq!(rename(&mut world, (ROOT, "none"), (ROOT, "f"), Replace), Err(Errno::ENOENT));
    assert_eq!(rename(&mut world, (ROOT, "none"), (ROOT, "f"), NoReplace), Err(Errno::ENOENT));
    assert_eq!(rename(&mut world, (ROOT, "f"), (ROOT, "d"), Replace), Err(Errno::EISDIR));
    assert_eq!(rename(&mut world, (ROOT, "f"), (ROOT, "e"), Replace), Err(Errno::EISDIR));
    assert_eq!(rename(&mut world, (ROOT, "d"), (ROOT, "f"), Replace), Err(Errno::ENOTDIR));
    assert_eq!(rename(&mut world, (ROOT, "d"), (ROOT, "e"), Replace), Err(Errno::ENOTEMPTY));
    assert_eq!(rename(&mut world, (ROOT, "d"), (ROOT, "f"), NoReplace), Err(Errno::EEXIST));
    assert_eq!(rename(&mut world, (ROOT, "d"), (ROOT, "none"), Exchange), Err(Errno::ENOENT));
    assert_eq!(rename(&mut world, (file, "x"), (ROOT, "n"), Replace), Err(Errno::ENOTDIR));
    assert_eq!(rename(&mut world, (ROOT, "f"), (file, "n"), Replace), Err(Errno::ENOTDIR));
    rename(&mut world, (ROOT, "f"), (d, "n"), NoReplace).unwrap();
    assert_eq!(world.find(d, "n"), Some(file));
}

#[test]
fn a_directory_cannot_go_below_itself() {
    let mut world = World::new();
    let a = directory(&mut world, ROOT, "a");
    let b = directory(&mut world, a, "b");
    let c = directory(&mut world, b, "c");
    let file = world.make_file(c, "f");
    for below in [a, b, c] {
        assert_eq!(rename(&mut world, (ROOT, "a"), (below, "x"), Replace), Err(Errno::EINVAL));
    }
    assert_eq!(rename(&mut world, (ROOT, "a"), (a, "b"), Replace), Err(Errno::EINVAL));
    assert_eq!(rename(&mut world, (ROOT, "a"), (b, "c"), Exchange), Err(Errno::EINVAL));
    assert_eq!(rename(&mut world, (b, "c"), (ROOT, "a"), Exchange), Err(Errno::EINVAL));
    assert_eq!(rename(&mut world, (b, "c"), (ROOT, "a"), Replace), Err(Errno::ENOTEMPTY));
    assert_eq!(rename(&mut world, (c, "f"), (ROOT, "a"), Replace), Err(Errno::ENOTEMPTY), "before EISDIR");
    assert_eq!(rename(&mut world, (ROOT, "a"), (b, "c"), NoReplace), Err(Errno::EEXIST), "before EINVAL");
    rename(&mut world, (b, "c"), (ROOT, "c"), Replace).unwrap();
    rename(&mut world, (ROOT, "a"), (c, "a"), Replace).unwrap();
    assert_eq!((world.find(c, "a"), world.find(c, "f")), (Some(a), Some(file)));
}

#[test]
fn permissions_are_asked_of_both_directories_and_of_a_moved_one() {
    let mut world = World::new();
    let (a, b) = (directory(&mut world, ROOT, "a"), directory(&mut world, ROOT, "b"));
    let (file, moved) = (world.make_file(a, "f"), directory(&mut world, a, "d"));
    let caller = user(500, 600);
    let close = |world: &mut World, inode: InodeId, mode: u32| {
        world.edit(inode, |inode| inode.mode = 0o040_000 | mode)
    };

    close(&mut world, a, 0o755);
    assert_eq!(rename_as(&mut world, &caller, (a, "f"), (b, "f"), Replace), Err(Errno::EACCES));
    close(&mut world, a, 0o777);
    close(&mut world, b, 0o755);
    assert_eq!(rename_as(&mut world, &caller, (a, "f"), (b, "f"), Replace), Err(Errno::EACCES));
    close(&mut world, b, 0o766);
    assert_eq!(
        rename_as(&mut world, &caller, (a, "none"), (b, "f"), Replace),
        Err(Errno::EACCES),
        "no search"
    );
    close(&mut world, b, 0o777);
    close(&mut world, moved, 0o755);
    assert_eq!(rename_as(&mut world, &caller, (a, "d"), (b, "d"), Replace), Err(Errno::EACCES));
    rename_as(&mut world, &caller, (a, "d"), (a, "e"), Replace).unwrap();
    rename_as(&mut world, &caller, (a, "f"), (b, "f"), Replace).unwrap();
    assert_eq!(world.find(b, "f"), Some(file));
    assert_eq!(rename_as(&mut world, &caller, (b, "f"), (a, "e"), Exchange), Err(Errno::EACCES), "`..` of e");
    close(&mut world, moved, 0o757);
    rename_as(&mut world, &caller, (b, "f"), (a, "e"), Exchange).unwrap();
}

#[test]
fn sticky_bits_protect_source_and_target() {
    let mut world = World::new();
    let (a, b) = (directory(&mut world, ROOT, "a"), directory(&mut world, ROOT, "b"));
    let (mine, other) = (world.make_file(a, "mine"), world.make_file(b, "other"));
    let caller = user(500, 600);
    world.edit(mine, |inode| inode.uid = 500);
    world.edit(b, |inode| inode.mode = 0o041_777);
    assert_eq!(rename_as(&mut world, &caller, (a, "mine"), (b, "other"), Replace), Err(Errno::EPERM));
    assert_eq!(rename_as(&mut world, &caller, (b, "other"), (a, "new"), Replace), Err(Errno::EPERM));
    assert_eq!(rename_as(&mut world, &caller, (a, "mine"), (b, "other"), Exchange), Err(Errno::EPERM));
    rename_as(&mut world, &caller, (a, "mine"), (b, "new"), Replace).unwrap();
    rename_as(&mut world, &caller, (b, "new"), (b, "newer"), Replace).unwrap();
    let like_owner = Credentials { caps: Capabilities::FOWNER, ..caller };
    rename_as(&mut world, &like_owner, (b, "newer"), (b, "other"), Replace).unwrap();
    assert_eq!(world.find_inode(other), None);
}

#[test]
fn filesets_are_not_crossed() {
    let mut world = World::new();
    let (a, b) = (directory(&mut world, ROOT, "a"), directory(&mut world, ROOT, "b"));
    world.make_file(a, "f");
    world.make_file(b, "g");
    world.edit(b, |inode| inode.fileset = FilesetId(2));
    assert_eq!(rename(&mut world, (a, "f"), (b, "f"), Replace), Err(Errno::EXDEV));
    assert_eq!(rename(&mut world, (a, "f"), (b, "g"), Exchange), Err(Errno::EXDEV));
    rename(&mut world, (ROOT, "b"), (a, "b"), Replace).unwrap();
}

#[test]
fn exchange_swaps_whatever_the_types() {
    let mut world = World::new();
    let (a, b) = (directory(&mut world, ROOT, "a"), directory(&mut world, ROOT, "b"));
    let (moved, file) = (directory(&mut world, a, "d"), world.make_file(b, "f"));
    world.make_file(moved, "full");
    let reply = rename(&mut world, (a, "d"), (b, "f"), Exchange).unwrap();
    assert_eq!(reply, RenameReply { moved, replaced: Some(file) });
    let now = world.now;
    assert_eq!((world.find(a, "d"), world.find(b, "f")), (Some(file), Some(moved)));
    let (from, to) = (world.inode(a), world.inode(b));
    assert_eq!((from.nlink, from.size, to.nlink, to.size), (2, 1, 3, 1));
    assert_eq!(world.inode(moved).as_directory().unwrap().0, b);
    for inode in [a, b] {
        assert_eq!((world.inode(inode).mtime, world.inode(inode).ctime), (now, now));
    }
    assert_eq!((world.inode(moved).ctime, world.inode(file).ctime), (now, now));
    rename(&mut world, (ROOT, "a"), (ROOT, "b"), Exchange).unwrap();
    assert_eq!((world.find(ROOT, "a"), world.inode(ROOT).nlink), (Some(b), 4));
}

#[test]
fn the_way_to_the_root_is_walked_only_so_far() {
    let mut world = World::new();
    let top = directory(&mut world, ROOT, "top");
    let (mut levels, mut bottom) = (vec![top], top);
    for _ in 0..16_384 {
        bottom = directory(&mut world, bottom, "d");
        levels.push(bottom);
    }
    let (moved, file) = (directory(&mut world, ROOT, "m"), world.make_file(ROOT, "f"));
    let reachable = levels[16_382];
    rename(&mut world, (ROOT, "m"), (reachable, "m"), Replace).unwrap();
    rename(&mut world, (reachable, "m"), (ROOT, "m"), Replace).unwrap();
    assert_eq!(rename(&mut world, (ROOT, "top"), (reachable, "t"), Replace), Err(Errno::EINVAL));
    assert_eq!(rename(&mut world, (ROOT, "m"), (bottom, "m"), Replace), Err(Errno::ELOOP));
    assert_eq!(world.find(ROOT, "m"), Some(moved));
    rename(&mut world, (ROOT, "f"), (bottom, "f"), Replace).unwrap();
    assert_eq!(world.find(bottom, "f"), Some(file), "only directories need the walk");
}

#[test]
fn nothing_moves_into_a_removed_directory() {
    let mut world = World::new();
    let gone = directory(&mut world, ROOT, "d");
    world.make_file(ROOT, "f");
    let below = directory(&mut world, ROOT, "e");
    world.hold_open(gone, SessionId(1));
    world.as_root(|txn, context| verb::rmdir(txn, context, ROOT, name("d"))).unwrap();
    assert_eq!(rename(&mut world, (ROOT, "f"), (gone, "f"), Replace), Err(Errno::ENOENT));
    assert_eq!(rename(&mut world, (ROOT, "e"), (gone, "e"), Replace), Err(Errno::ENOENT));
    assert_eq!(rename(&mut world, (gone, "x"), (below, "x"), Replace), Err(Errno::ENOENT));
}

#[test]
fn a_whiteout_takes_the_old_name_and_belongs_to_whoever_renames() {
    let mut world = World::new();
    let (a, b) = (directory(&mut world, ROOT, "a"), directory(&mut world, ROOT, "b"));
    let (file, below) = (world.make_file(a, "f"), directory(&mut world, a, "d"));
    let replaced = world.make_file(b, "g");
    rename_as(&mut world, &user(5, 6), (a, "f"), (b, "g"), Whiteout).unwrap();
    assert_eq!((world.find(b, "g"), world.find_inode(replaced)), (Some(file), None));
    let left = world.find(a, "f").unwrap();
    let whiteout = world.inode(left);
    assert_eq!((whiteout.mode, whiteout.rdev, whiteout.uid, whiteout.gid), (0o020_000, 0, 5, 6));
    assert_eq!((whiteout.nlink, whiteout.size), (1, 0));

    rename(&mut world, (a, "d"), (b, "d"), WhiteoutNoReplace).unwrap();
    let now = world.now;
    assert_eq!((world.find(b, "d"), world.inode(below).as_directory().unwrap().0), (Some(below), b));
    for (inode, size, nlink) in [(a, 2, 2), (b, 2, 3)] {
        let record = world.inode(inode);
        assert_eq!((record.mtime, record.size, record.nlink), (now, size, nlink));
    }
    assert_eq!(rename(&mut world, (b, "g"), (b, "d"), WhiteoutNoReplace), Err(Errno::EEXIST));
    // Within one directory, over a whiteout, and of a whiteout.
    rename(&mut world, (b, "g"), (b, "h"), Whiteout).unwrap();
    rename(&mut world, (b, "h"), (b, "g"), Whiteout).unwrap();
    assert_eq!((world.find(b, "g"), world.inode(b).size), (Some(file), 3));
    rename(&mut world, (b, "h"), (b, "i"), Whiteout).unwrap();
    assert_eq!(world.inode(b).size, 4);
    // Two names of one inode stay as they are.
    rename(&mut world, (b, "g"), (b, "g"), Whiteout).unwrap();
    assert_eq!(world.find(b, "g"), Some(file));
}

#[test]
fn who_may_not_take_a_name_away_leaves_no_whiteout() {
    let mut world = World::new();
    let a = directory(&mut world, ROOT, "a");
    world.make_file(ROOT, "f");
    let before = world.store.clone();
    assert_eq!(rename_as(&mut world, &user(5, 5), (ROOT, "f"), (a, "f"), Whiteout), Err(Errno::EACCES));
    assert_eq!(world.store, before);
}
