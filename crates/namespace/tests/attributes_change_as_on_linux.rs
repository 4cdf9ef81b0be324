//! setattr: who may change mode, owner, times and length, what else changes with them, and every errno.

#![allow(clippy::unwrap_used)] // The helpers of a test panic as the test does.

use ashlar_namespace::acl::{Acl, Entry, Tag};
use ashlar_namespace::testing::World;
use ashlar_namespace::verb::{self, SetxattrArgs, SetxattrMode};
use ashlar_types::message::{SetAttr, TimeSet};
use ashlar_types::{Attr, Capabilities, Credentials, Errno, InodeId, Timespec};

const ROOT: InodeId = InodeId::ROOT;
const OWNER: u32 = 1000;
const GROUP: u32 = 100;

fn user(uid: u32, gid: u32) -> Credentials {
    Credentials { complete: true, ..Credentials::user(uid, gid) }
}

fn with_caps(uid: u32, caps: Capabilities) -> Credentials {
    Credentials { caps, ..user(uid, uid) }
}

fn set(world: &mut World, creds: &Credentials, id: InodeId, changes: SetAttr) -> Result<Attr, Errno> {
    world.run(creds, |txn, context| verb::setattr(txn, context, id, &changes)).map(|reply| reply.attr)
}

fn mode(mode: u32) -> SetAttr {
    SetAttr { mode: Some(mode), ..SetAttr::default() }
}

fn owner(uid: Option<u32>, gid: Option<u32>) -> SetAttr {
    SetAttr { uid, gid, ..SetAttr::default() }
}

fn size(size: u64) -> SetAttr {
    SetAttr { size: Some(size), ..SetAttr::default() }
}

fn times(atime: Option<TimeSet>, mtime: Option<TimeSet>) -> SetAttr {
    SetAttr { atime, mtime, ..SetAttr::default() }
}

/// A file of OWNER and GROUP with this mode, set without any rule.
fn file(world: &mut World, text: &str, mode: u32) -> InodeId {
    let id = world.make_file(ROOT, text);
    world.edit(id, |inode| {
        (inode.uid, inode.gid, inode.mode) = (OWNER, GROUP, inode.mode & !0o7777 | mode);
    });
    id
}

fn permissions(attr: &Attr) -> u32 {
    attr.mode & 0o7777
}

#[test]
fn only_owners_and_the_privileged_change_the_mode() {
    let mut world = World::new();
    let id = file(&mut world, "f", 0o644);
    let before = world.inode(id);
    assert_eq!(set(&mut world, &user(2, 2), id, mode(0o600)), Err(Errno::EPERM));
    let all_but = with_caps(2, Capabilities(Capabilities::ALL.0 & !Capabilities::FOWNER.0));
    assert_eq!(set(&mut world, &all_but, id, mode(0o600)), Err(Errno::EPERM));
    assert_eq!(world.inode(id), before);
    let attr = set(&mut world, &user(OWNER, 5), id, mode(0o600)).unwrap();
    assert_eq!((permissions(&attr), attr.ctime, attr.mtime), (0o600, world.now, before.mtime));
    let fowner = with_caps(2, Capabilities::FOWNER);
    assert_eq!(permissions(&set(&mut world, &fowner, id, mode(0o1751)).unwrap()), 0o1751);
    let again = set(&mut world, &Credentials::root(), id, mode(0o1751)).unwrap();
    assert_eq!(again.ctime, world.now, "the same mode again changes ctime");
    let gone = InodeId(77);
    assert_eq!(set(&mut world, &Credentials::root(), gone, mode(0o600)), Err(Errno::ESTALE));
}

#[test]
fn setgid_is_kept_only_by_members_and_fsetid() {
    let mut world = World::new();
    let id = file(&mut world, "f", 0o644);
    assert_eq!(permissions(&set(&mut world, &user(OWNER, GROUP), id, mode(0o6755)).unwrap()), 0o6755);
    assert_eq!(permissions(&set(&mut world, &user(OWNER, 5), id, mode(0o6755)).unwrap()), 0o4755);
    let mut member = user(OWNER, 5);
    member.groups.push(GROUP);
    assert_eq!(permissions(&set(&mut world, &member, id, mode(0o2755)).unwrap()), 0o2755);
    let fsetid = with_caps(OWNER, Capabilities::FSETID);
    assert_eq!(permissions(&set(&mut world, &fsetid, id, mode(0o2755)).unwrap()), 0o2755);
    let untold = Credentials::user(OWNER, 5);
    assert_eq!(set(&mut world, &untold, id, mode(0o2755)), Err(Errno::EPERM), "asks for all groups first");
    assert_eq!(permissions(&set(&mut world, &untold, id, mode(0o755)).unwrap()), 0o755);
    let directory = world.make_directory(ROOT, "d");
    world.edit(directory, |inode| (inode.uid, inode.gid) = (OWNER, GROUP));
    let attr = set(&mut world, &user(OWNER, 5), directory, mode(0o2777)).unwrap();
    assert_eq!(permissions(&attr), 0o777, "directories follow the same rule");
}

#[test]
fn a_symbolic_link_has_no_mode_to_change() {
    let mut world = World::new();
    world
        .as_root(|txn, context| {
            verb::symlink(txn, context, ROOT, ashlar_namespace::testing::name("l"), b"target")
        })
        .unwrap();
    let id = world.find(ROOT, "l").unwrap();
    assert_eq!(set(&mut world, &Credentials::root(), id, mode(0o600)), Err(Errno::EOPNOTSUPP));
    assert_eq!(set(&mut world, &Credentials::root(), id, size(0)), Err(Errno::EINVAL));
    let attr = set(&mut world, &Credentials::root(), id, owner(Some(3), Some(4))).unwrap();
    assert_eq!((attr.uid, attr.gid), (3, 4));
}

#[test]
fn owners_give_files_only_to_their_groups() {
    let mut world = World::new();
    let id = file(&mut world, "f", 0o644);
    let mut creds = user(OWNER, GROUP);
    creds.groups.push(200);
    assert_eq!(set(&mut world, &creds, id, owner(Some(2), None)), Err(Errno::EPERM));
    assert_eq!(set(&mut world, &creds, id, owner(None, Some(300))), Err(Errno::EPERM));
    let attr = set(&mut world, &creds, id, owner(Some(OWNER), Some(200))).unwrap();
    assert_eq!((attr.uid, attr.gid, attr.ctime), (OWNER, 200, world.now));
    assert_eq!(set(&mut world, &creds, id, owner(None, Some(200))).unwrap().gid, 200);
    let other = user(2, 200);
    assert_eq!(set(&mut world, &other, id, owner(None, Some(200))), Err(Errno::EPERM));
    assert_eq!(set(&mut world, &other, id, owner(Some(OWNER), None)), Err(Errno::EPERM));
    let chown = with_caps(2, Capabilities::CHOWN);
    let attr = set(&mut world, &chown, id, owner(Some(7), Some(8))).unwrap();
    assert_eq!((attr.uid, attr.gid), (7, 8));
    let usage = world.as_root(|txn, context| verb::statfs(txn, context, &[ashlar_types::ShardId(0)]));
    assert_eq!(usage.unwrap().inodes, 2, "accounts follow the owner");
}

#[test]
fn chown_takes_set_id_bits_off_files_but_not_off_directories() {
    let mut world = World::new();
    let root = Credentials::root();
    for (before, after) in [(0o6755, 0o755), (0o4644, 0o644), (0o2744, 0o2744), (0o2654, 0o654)] {
        let id = file(&mut world, &format!("f{before:o}"), before);
        let attr = set(&mut world, &root, id, owner(Some(2), None)).unwrap();
        assert_eq!(permissions(&attr), after, "root, {before:o}");
    }
    let id = file(&mut world, "outsider", 0o2744);
    let outsider = user(OWNER, 5);
    let attr = set(&mut world, &outsider, id, owner(None, Some(5))).unwrap();
    assert_eq!(permissions(&attr), 0o744, "not in the group, so the bit goes even without group execute");
    let directory = world.make_directory(ROOT, "d");
    world.edit(directory, |inode| inode.mode |= 0o6000);
    let attr = set(&mut world, &root, directory, owner(Some(2), Some(2))).unwrap();
    assert_eq!(permissions(&attr), 0o6777);
}

#[test]
fn times_are_set_by_owners_and_touched_by_writers() {
    let mut world = World::new();
    let id = file(&mut world, "f", 0o622);
    let at = TimeSet::At(Timespec::new(-5, 3));
    let stranger = user(2, 2);
    let both_now = times(Some(TimeSet::Now), Some(TimeSet::Now));
    assert_eq!(set(&mut world, &stranger, id, times(Some(at), Some(at))), Err(Errno::EPERM));
    assert_eq!(set(&mut world, &stranger, id, times(Some(TimeSet::Now), None)), Err(Errno::EPERM));
    assert_eq!(set(&mut world, &stranger, id, times(Some(TimeSet::Now), Some(at))), Err(Errno::EPERM));
    let attr = set(&mut world, &stranger, id, both_now).unwrap();
    assert_eq!((attr.atime, attr.mtime, attr.ctime), (world.now, world.now, world.now));
    set(&mut world, &Credentials::root(), id, mode(0o644)).unwrap();
    assert_eq!(set(&mut world, &stranger, id, both_now), Err(Errno::EACCES));
    let attr = set(&mut world, &user(OWNER, 5), id, times(None, Some(at))).unwrap();
    assert_eq!((attr.mtime, attr.ctime), (Timespec::new(-5, 3), world.now));
    let attr = set(&mut world, &user(OWNER, 5), id, times(Some(at), None)).unwrap();
    assert_eq!((attr.atime, attr.mtime), (Timespec::new(-5, 3), Timespec::new(-5, 3)));
    let wrong = TimeSet::At(Timespec { secs: 0, nanos: 1_000_000_000 });
    assert_eq!(set(&mut world, &Credentials::root(), id, times(Some(wrong), None)), Err(Errno::EINVAL));
    let before = world.inode(id);
    set(&mut world, &stranger, id, SetAttr::default()).unwrap();
    assert_eq!(world.inode(id), before, "a call without changes changes nothing");
}

#[test]
fn truncation_asks_for_write_permission_unless_the_file_is_open() {
    let mut world = World::new();
    let id = file(&mut world, "f", 0o444);
    let stranger = user(2, 2);
    assert_eq!(set(&mut world, &stranger, id, size(5)), Err(Errno::EACCES));
    assert_eq!(set(&mut world, &user(OWNER, GROUP), id, size(5)), Err(Errno::EACCES));
    let through_handle = SetAttr { has_handle: true, ..size(5) };
    let attr = set(&mut world, &stranger, id, through_handle).unwrap();
    assert_eq!((attr.size, attr.mtime, attr.ctime, attr.blocks), (5, world.now, world.now, 0));
    let directory = world.make_directory(ROOT, "d");
    assert_eq!(set(&mut world, &Credentials::root(), directory, size(0)), Err(Errno::EISDIR));
    assert_eq!(set(&mut world, &Credentials::root(), id, size(1 << 63)), Err(Errno::EFBIG));
    let attr = set(&mut world, &Credentials::root(), id, size((1 << 63) - 1)).unwrap();
    assert_eq!((attr.size, attr.blocks), ((1 << 63) - 1, 0));
}

#[test]
fn truncation_to_the_same_length_stamps_too() {
    let mut world = World::new();
    let id = file(&mut world, "f", 0o666);
    for has_handle in [false, false, true] {
        let changes = SetAttr { has_handle, ..size(9) };
        let attr = set(&mut world, &Credentials::root(), id, changes).unwrap();
        assert_eq!((attr.size, attr.mtime, attr.ctime), (9, world.now, world.now));
    }
}

#[test]
fn truncation_by_the_unprivileged_takes_set_id_bits_off() {
    let mut world = World::new();
    let id = file(&mut world, "f", 0o6777);
    let attr = set(&mut world, &Credentials::root(), id, size(3)).unwrap();
    assert_eq!(permissions(&attr), 0o6777);
    let attr = set(&mut world, &user(2, 2), id, size(4)).unwrap();
    assert_eq!(permissions(&attr), 0o777);
    world.edit(id, |inode| inode.mode = inode.mode & !0o777 | 0o2666);
    let attr = set(&mut world, &user(2, GROUP), id, size(4)).unwrap();
    assert_eq!(permissions(&attr), 0o2666, "a member may keep the bit that means no group to run as");
    assert_eq!(permissions(&set(&mut world, &user(2, 2), id, size(4)).unwrap()), 0o666);
    world.edit(id, |inode| inode.mode |= 0o6777);
    let told = SetAttr { kill_set_id: true, ..size(5) };
    assert_eq!(permissions(&set(&mut world, &Credentials::root(), id, told).unwrap()), 0o777);
}

/// `chown(path, -1, -1)`.
fn no_owner() -> SetAttr {
    SetAttr { kill_set_id: true, ..SetAttr::default() }
}

#[test]
fn a_stranger_takes_no_set_id_bits_away_by_a_chown_that_changes_nothing() {
    let mut world = World::new();
    let stranger = user(2, 2);
    for bits in [0o4755, 0o2755, 0o6711, 0o2644] {
        let id = file(&mut world, &format!("f{bits:o}"), bits);
        let before = world.inode(id);
        assert_eq!(set(&mut world, &stranger, id, no_owner()), Err(Errno::EPERM), "{bits:o}");
        assert_eq!(world.inode(id), before);
        let write = SetAttr { has_handle: true, ..no_owner() };
        assert_eq!(permissions(&set(&mut world, &stranger, id, write).unwrap()), bits & 0o777);
        world.edit(id, |inode| inode.mode |= bits);
        assert_eq!(permissions(&set(&mut world, &user(OWNER, 5), id, no_owner()).unwrap()), bits & 0o777);
    }
    let member = file(&mut world, "member", 0o2644);
    let attr = set(&mut world, &user(2, GROUP), member, no_owner()).unwrap();
    assert_eq!(
        permissions(&attr),
        0o2644,
        "nothing to take away from a member: everybody may change nothing"
    );
    let plain = file(&mut world, "plain", 0o755);
    assert_eq!(set(&mut world, &stranger, plain, no_owner()).unwrap().ctime, world.now);
    let before = world.inode(plain);
    let write = SetAttr { has_handle: true, ..no_owner() };
    set(&mut world, &stranger, plain, write).unwrap();
    assert_eq!(world.inode(plain), before, "ahead of a write nothing is stored unless a bit goes");
}

#[test]
fn a_truncation_asks_for_the_groups_that_decide_about_setgid() {
    let mut world = World::new();
    let id = file(&mut world, "f", 0o2666);
    let unsure = Credentials { complete: false, ..user(OWNER, 5) };
    let truncate = verb::OpenArgs { write: true, truncate: true, ..verb::OpenArgs::default() };
    let mut open = |creds: &Credentials| {
        world
            .run(creds, |txn, context| verb::open(txn, context, id, &truncate))
            .map(|reply| permissions(&reply.attr))
    };
    assert_eq!(open(&unsure), Err(Errno::EPERM));
    let member = Credentials { complete: true, groups: [GROUP].into_iter().collect(), ..unsure.clone() };
    assert_eq!(open(&member), Ok(0o2666));
    assert_eq!(open(&Credentials { complete: true, ..unsure.clone() }), Ok(0o666));
    assert_eq!(open(&unsure), Ok(0o666), "without the bit nothing depends on groups");
}

#[test]
fn attributes_of_what_is_gone_change_by_the_same_rules() {
    let world = World::new();
    let fifo = Attr {
        inode: InodeId(77),
        mode: 0o010_000 | 0o2644,
        nlink: 0,
        uid: OWNER,
        gid: GROUP,
        ..world.inode(ROOT).attr(InodeId(77))
    };
    let change = |creds: &Credentials, changes: SetAttr| {
        let mut world = World::new();
        world.run(creds, |_, context| verb::setattr_removed(context, &fifo, &changes))
    };
    let attr = change(&user(OWNER, GROUP), mode(0o600)).unwrap();
    assert_eq!((attr.mode, attr.nlink, attr.inode), (0o010_600, 0, fifo.inode));
    assert!(attr.ctime > fifo.ctime);
    assert_eq!(change(&user(2, 2), mode(0o600)), Err(Errno::EPERM));
    assert_eq!(change(&user(2, 2), owner(Some(2), None)), Err(Errno::EPERM));
    let given = change(&Credentials::root(), owner(Some(2), Some(3))).unwrap();
    assert_eq!((given.uid, given.gid, permissions(&given)), (2, 3, 0o2644));
    assert_eq!(permissions(&change(&user(OWNER, 5), owner(None, Some(5))).unwrap()), 0o644);
    let at = Timespec::new(-5, 3);
    let timed = change(&user(OWNER, 5), times(Some(TimeSet::At(at)), None)).unwrap();
    assert_eq!((timed.atime, timed.mtime), (at, fifo.mtime));
    assert_eq!(change(&user(2, 2), times(Some(TimeSet::At(at)), None)), Err(Errno::EPERM));
    assert_eq!(change(&Credentials::root(), size(0)), Err(Errno::ESTALE));
    assert_eq!(change(&user(2, 2), SetAttr::default()), Ok(fifo.clone()));
}

#[test]
fn chmod_changes_the_mask_of_an_acl() {
    let mut world = World::new();
    let id = file(&mut world, "f", 0o644);
    let entry = |tag, perm, id| Entry { tag, perm, id };
    let acl = Acl::from_entries(&[
        entry(Tag::UserObj, 6, u32::MAX),
        entry(Tag::User, 6, 42),
        entry(Tag::GroupObj, 4, u32::MAX),
        entry(Tag::Mask, 6, u32::MAX),
        entry(Tag::Other, 0, u32::MAX),
    ])
    .unwrap();
    let args = SetxattrArgs {
        name: b"system.posix_acl_access",
        value: &acl.encode(),
        mode: SetxattrMode::Any,
        kill_setgid: false,
    };
    world.as_root(|txn, context| verb::setxattr(txn, context, id, &args)).unwrap();
    assert_eq!(world.inode(id).mode & 0o7777, 0o660);
    set(&mut world, &user(OWNER, GROUP), id, mode(0o740)).unwrap();
    let stored = world.inode(id).acl_access.unwrap();
    let perms: Vec<u16> =
        Acl::parse(&stored).unwrap().unwrap().entries().iter().map(|entry| entry.perm).collect();
    assert_eq!(perms, [7, 6, 4, 4, 0], "the group bits went to the mask");
    let write = SetAttr { size: Some(1), ..SetAttr::default() };
    assert_eq!(set(&mut world, &user(42, 42), id, write), Err(Errno::EACCES));
}

#[test]
fn sparse_files_may_be_longer_together_than_a_counter_tells() {
    let mut world = World::new();
    let root = Credentials::root();
    let before = world.accounted();
    let ids: Vec<InodeId> = (0..5).map(|number| world.make_file(ROOT, &format!("f{number}"))).collect();
    for id in &ids {
        assert_eq!(set(&mut world, &root, *id, size(1 << 62)).unwrap().size, 1 << 62);
    }
    for id in &ids {
        assert_eq!(set(&mut world, &root, *id, size(0)).unwrap().size, 0);
    }
    assert_eq!(world.accounted().bytes, before.bytes);
}
