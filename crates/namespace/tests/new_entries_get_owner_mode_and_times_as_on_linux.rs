//! create, mkdir, mknod, symlink, tmpfile: every errno, who owns the result, which mode it has, what the parent shows.

use ashlar_namespace::acl::{Acl, Entry, Tag};
use ashlar_namespace::testing::{World, name};
use ashlar_namespace::verb::{self, CreateArgs, CreateReply, MknodArgs};
use ashlar_namespace::{FileData, Kind};
use ashlar_types::{Attr, Capabilities, Credentials, Errno, FileType, InodeId, SessionId, ShardId};

const ROOT: InodeId = InodeId::ROOT;

fn user(uid: u32, gid: u32) -> Credentials {
    Credentials { complete: true, ..Credentials::user(uid, gid) }
}

fn create(
    world: &mut World,
    creds: &Credentials,
    parent: InodeId,
    text: &str,
    args: CreateArgs,
) -> Result<CreateReply, Errno> {
    world.run(creds, |txn, context| verb::create(txn, context, parent, name(text), args))
}

fn mkdir(
    world: &mut World,
    creds: &Credentials,
    parent: InodeId,
    text: &str,
    mode: u32,
    umask: u32,
) -> Result<Attr, Errno> {
    world
        .run(creds, |txn, context| verb::mkdir(txn, context, parent, name(text), mode, umask))
        .map(|reply| reply.attr)
}

fn mknod(world: &mut World, creds: &Credentials, text: &str, mode: u32, rdev: u32) -> Result<Attr, Errno> {
    let args = MknodArgs { mode, umask: 0o022, rdev };
    world.run(creds, |txn, context| verb::mknod(txn, context, ROOT, name(text), args)).map(|reply| reply.attr)
}

fn symlink(world: &mut World, creds: &Credentials, text: &str, target: &[u8]) -> Result<Attr, Errno> {
    world
        .run(creds, |txn, context| verb::symlink(txn, context, ROOT, name(text), target))
        .map(|reply| reply.attr)
}

fn open_root(world: &mut World, mode: u32) {
    world.edit(ROOT, |root| root.mode = 0o040_000 | mode);
}

#[test]
fn a_new_file_belongs_to_the_caller_and_stamps_its_directory() {
    let mut world = World::new();
    open_root(&mut world, 0o777);
    let before = world.inode(ROOT);
    let args = CreateArgs { mode: 0o107_666, umask: 0o027, exclusive: true };
    let reply = create(&mut world, &user(500, 600), ROOT, "f", args).unwrap();
    let attr = reply.attr.as_ref().unwrap();
    assert!(reply.created);
    assert_eq!((attr.mode, attr.uid, attr.gid, attr.nlink), (0o107_640, 500, 600, 1));
    assert_eq!((attr.size, attr.blocks, attr.rdev), (0, 0, 0));
    let now = world.now;
    assert_eq!([attr.atime, attr.mtime, attr.ctime, attr.btime], [now; 4]);
    assert_eq!(attr.inode.home(), ROOT.home(), "a file lives in the shard of its directory");
    let root = world.inode(ROOT);
    assert_eq!((root.mtime, root.ctime, root.atime), (now, now, before.atime));
    assert_eq!((root.size, root.nlink), (1, 2));
    let policy = World::root_policy();
    assert_eq!(world.inode(attr.inode).kind, Kind::Regular(FileData::Inline { policy, generation: 0 }));
    assert_eq!(world.accounted().inodes, 2);
    assert_eq!(world.outcome.revealed.as_slice(), [attr.inode]);
    assert_eq!(world.outcome.entries.len(), 1);
}

#[test]
fn an_existing_entry_is_found_without_write_permission_or_refused_if_exclusive() {
    let mut world = World::new();
    let (file, _) = (world.make_file(ROOT, "f"), world.make_directory(ROOT, "d"));
    let (nobody, before) = (user(500, 600), world.inode(ROOT));
    let found = create(&mut world, &nobody, ROOT, "f", CreateArgs::default()).unwrap();
    assert_eq!((found.inode, found.created), (file, false));
    assert_eq!(world.inode(ROOT), before, "nothing is changed by finding");
    let exclusive = CreateArgs { exclusive: true, ..CreateArgs::default() };
    assert_eq!(create(&mut world, &nobody, ROOT, "f", exclusive), Err(Errno::EEXIST));
    assert_eq!(create(&mut world, &nobody, ROOT, "d", exclusive), Err(Errno::EEXIST));
    assert_eq!(create(&mut world, &nobody, ROOT, "d", CreateArgs::default()), Err(Errno::EISDIR));
    assert_eq!(create(&mut world, &nobody, ROOT, "new", CreateArgs::default()), Err(Errno::EACCES));
    assert_eq!(create(&mut world, &nobody, file, "new", CreateArgs::default()), Err(Errno::ENOTDIR));
    open_root(&mut world, 0o776);
    assert_eq!(create(&mut world, &nobody, ROOT, "f", exclusive), Err(Errno::EACCES), "no search permission");
}

#[test]
fn a_removed_directory_that_is_still_open_takes_no_entries() {
    let mut world = World::new();
    let gone = world.make_directory(ROOT, "d");
    world.hold_open(gone, SessionId(1));
    world.as_root(|txn, context| verb::rmdir(txn, context, ROOT, name("d"))).unwrap();
    let root = Credentials::root();
    assert_eq!(create(&mut world, &root, gone, "f", CreateArgs::default()), Err(Errno::ENOENT));
    assert_eq!(mkdir(&mut world, &root, gone, "f", 0o777, 0), Err(Errno::ENOENT));
    let unnamed = world.as_root(|txn, context| verb::tmpfile(txn, context, gone, 0o666, 0));
    assert_eq!(unnamed, Err(Errno::EPERM));
    let file = world.make_file(ROOT, "f");
    let linked = world.as_root(|txn, context| verb::link(txn, context, file, gone, name("f")));
    assert_eq!(linked, Err(Errno::ENOENT));
    let looked_up = world.as_root(|txn, context| verb::lookup(txn, context, gone, name("f")));
    assert_eq!(looked_up, Err(Errno::ENOENT));
    let unknown = InodeId::new(ShardId(2), 999).unwrap();
    assert_eq!(create(&mut world, &root, unknown, "f", CreateArgs::default()), Err(Errno::ESTALE));
}

#[test]
fn mkdir_links_its_parent_and_may_live_in_another_shard() {
    let mut world = World::new();
    let attr = mkdir(&mut world, &Credentials::root(), ROOT, "d", 0o107_777, 0o022).unwrap();
    assert_eq!(attr.mode, 0o041_755, "set-id bits are not for mkdir to give");
    assert_eq!((attr.nlink, attr.size, attr.blocks), (2, 0, 0));
    assert_ne!(attr.inode.home(), ROOT.home());
    let (root, now) = (world.inode(ROOT), world.now);
    assert_eq!((root.nlink, root.size, root.mtime, root.ctime), (3, 1, now, now));
    assert_eq!(world.inode(attr.inode).as_directory().unwrap(), (ROOT, World::root_policy()));
    assert_eq!(mkdir(&mut world, &user(5, 5), ROOT, "d", 0o777, 0), Err(Errno::EEXIST));
    assert_eq!(mkdir(&mut world, &user(5, 5), ROOT, "e", 0o777, 0), Err(Errno::EACCES));
    let file = world.make_file(ROOT, "f");
    assert_eq!(mkdir(&mut world, &Credentials::root(), file, "e", 0o777, 0), Err(Errno::ENOTDIR));
    assert_eq!(mkdir(&mut world, &Credentials::root(), ROOT, "f", 0o777, 0), Err(Errno::EEXIST));
}

#[test]
fn a_setgid_directory_hands_down_its_group() {
    let mut world = World::new();
    world.edit(ROOT, |root| (root.mode, root.gid) = (0o042_777, 77));
    let caller = user(500, 600);
    let below = mkdir(&mut world, &caller, ROOT, "d", 0o755, 0).unwrap();
    assert_eq!((below.mode, below.gid), (0o042_755, 77));
    let link = symlink(&mut world, &caller, "l", b"t").unwrap();
    assert_eq!((link.mode, link.gid), (0o120_777, 77));
    let mut make = |text, mode, creds: &Credentials| {
        let args = CreateArgs { mode, umask: 0o022, exclusive: true };
        create(&mut world, creds, ROOT, text, args)
            .map(|reply| reply.attr.map(|attr| (attr.mode, attr.gid)).unwrap())
    };
    assert_eq!(make("a", 0o2755, &caller), Ok((0o100_755, 77)), "not a member: the bit goes");
    assert_eq!(make("b", 0o2745, &caller), Ok((0o102_745, 77)), "no group-execute: it stays");
    assert_eq!(make("c", 0o2755, &user(500, 77)), Ok((0o102_755, 77)), "a member keeps it");
    let privileged = Credentials { caps: Capabilities::FSETID, ..caller.clone() };
    assert_eq!(make("d2", 0o2755, &privileged), Ok((0o102_755, 77)));
    let unsure = Credentials { complete: false, ..caller };
    assert_eq!(make("e", 0o2755, &unsure), Err(Errno::EPERM), "ask again with all groups");
    assert_eq!(make("e", 0o755, &unsure), Ok((0o100_755, 77)));
}

#[test]
fn a_default_acl_overrules_the_umask_and_is_handed_down() {
    let mut world = World::new();
    let entry = |tag, perm, id| Entry { tag, perm, id };
    let default_acl = Acl::from_entries(&[
        entry(Tag::UserObj, 7, 0),
        entry(Tag::User, 7, 1001),
        entry(Tag::GroupObj, 5, 0),
        entry(Tag::Mask, 7, 0),
        entry(Tag::Other, 0, 0),
    ])
    .unwrap()
    .encode();
    world.edit(ROOT, |root| root.acl_default = Some(default_acl.clone()));
    let root = Credentials::root();
    let args = CreateArgs { mode: 0o666, umask: 0o077, exclusive: true };
    let file = create(&mut world, &root, ROOT, "f", args).unwrap().attr.unwrap();
    assert_eq!(file.mode, 0o100_660);
    let record = world.inode(file.inode);
    let acl = Acl::parse(&record.acl_access.unwrap()).unwrap().unwrap();
    assert_eq!(acl.entries().iter().map(|entry| entry.perm).collect::<Vec<_>>(), [6, 7, 5, 6, 0]);
    assert_eq!(record.acl_default, None);

    let below = mkdir(&mut world, &root, ROOT, "d", 0o777, 0o077).unwrap();
    assert_eq!(below.mode, 0o040_770);
    let record = world.inode(below.inode);
    assert_eq!(record.acl_default, Some(default_acl.clone()));
    assert_eq!(record.acl_access, Some(default_acl));
    let link = symlink(&mut world, &root, "l", b"t").unwrap();
    assert_eq!((link.mode, world.inode(link.inode).acl_access), (0o120_777, None));

    let args = CreateArgs { mode: 0o600, ..args };
    create(&mut world, &user(1001, 1), below.inode, "named users may write here", args).unwrap();
    assert_eq!(create(&mut world, &user(1002, 1), below.inode, "others not", args), Err(Errno::EACCES));
}

#[test]
fn mknod_makes_every_type_but_directories_and_links() {
    let mut world = World::new();
    let root = Credentials::root();
    for (text, mode, rdev) in
        [("p", 0o010_644, 0), ("s", 0o140_644, 0), ("c", 0o020_644, 0x501), ("b", 0o060_644, 0x801)]
    {
        let attr = mknod(&mut world, &root, text, mode, rdev).unwrap();
        assert_eq!((attr.mode, attr.rdev, attr.blocks), (mode, rdev, 0));
        assert_eq!(world.inode(attr.inode).kind, Kind::Special);
    }
    let plain = mknod(&mut world, &root, "f", 0o666, 0x501).unwrap();
    assert_eq!((plain.mode, plain.rdev, plain.file_type()), (0o100_644, 0, FileType::Regular));
    assert_eq!(mknod(&mut world, &root, "d", 0o040_755, 0), Err(Errno::EPERM));
    assert_eq!(mknod(&mut world, &root, "l", 0o120_777, 0), Err(Errno::EINVAL));
    assert_eq!(mknod(&mut world, &root, "x", 0o170_777, 0), Err(Errno::EINVAL));
    assert_eq!(mknod(&mut world, &user(5, 5), "c", 0o020_644, 5), Err(Errno::EEXIST));
    assert_eq!(mknod(&mut world, &user(5, 5), "n", 0o020_644, 5), Err(Errno::EACCES));
    open_root(&mut world, 0o777);
    assert_eq!(mknod(&mut world, &user(5, 5), "n", 0o020_644, 5), Err(Errno::EPERM));
    assert_eq!(mknod(&mut world, &user(5, 5), "n", 0o060_644, 0), Err(Errno::EPERM));
    mknod(&mut world, &user(5, 5), "fifo", 0o010_644, 0).unwrap();
    mknod(&mut world, &user(5, 5), "whiteout", 0o020_000, 0).unwrap();
    let maker = Credentials { caps: Capabilities::MKNOD, ..user(5, 5) };
    mknod(&mut world, &maker, "n", 0o020_644, 5).unwrap();
}

#[test]
fn symbolic_links_keep_their_target_and_account_its_length() {
    let mut world = World::new();
    let root = Credentials::root();
    let attr = symlink(&mut world, &root, "l", b"../over there").unwrap();
    assert_eq!((attr.mode, attr.size, attr.blocks), (0o120_777, 13, 0));
    let read = |world: &mut World, inode| world.as_root(|txn, _| verb::readlink(txn, inode));
    assert_eq!(read(&mut world, attr.inode).unwrap().target, b"../over there"[..]);
    assert_eq!(read(&mut world, ROOT), Err(Errno::EINVAL));
    assert_eq!(world.accounted().bytes, 13);
    let longest = vec![b'x'; 4095];
    assert_eq!(symlink(&mut world, &root, "m", &longest).unwrap().size, 4095);
    assert_eq!(symlink(&mut world, &root, "n", &[b'x'; 4096]), Err(Errno::ENAMETOOLONG));
    assert_eq!(symlink(&mut world, &root, "n", b""), Err(Errno::ENOENT));
    assert_eq!(symlink(&mut world, &root, "n", b"a\0b"), Err(Errno::EINVAL));
    assert_eq!(symlink(&mut world, &root, "l", b"t"), Err(Errno::EEXIST));
    assert_eq!(symlink(&mut world, &user(5, 5), "n", b"t"), Err(Errno::EACCES));
}

#[test]
fn a_tmpfile_lives_without_a_name_until_it_gets_one() {
    let mut world = World::new();
    let before = world.inode(ROOT);
    let make = |world: &mut World, creds: &Credentials, parent| {
        world
            .run(creds, |txn, context| verb::tmpfile(txn, context, parent, 0o666, 0o022))
            .map(|reply| reply.attr)
    };
    assert_eq!(make(&mut world, &user(5, 5), ROOT), Err(Errno::EACCES));
    let attr = make(&mut world, &Credentials::root(), ROOT).unwrap();
    assert_eq!((attr.mode, attr.nlink), (0o100_644, 0));
    assert_eq!(world.inode(ROOT), before, "the directory does not change");
    assert_eq!((world.store.table(b'O').count(), world.accounted().inodes), (1, 2));
    assert_eq!(make(&mut world, &Credentials::root(), attr.inode), Err(Errno::ENOTDIR));

    let link = |world: &mut World, text: &str| {
        world.as_root(|txn, context| verb::link(txn, context, attr.inode, ROOT, name(text)))
    };
    let linked = link(&mut world, "f").unwrap().attr;
    assert_eq!((linked.nlink, linked.ctime, world.store.table(b'O').count()), (1, world.now, 0));
    world.hold_open(attr.inode, SessionId(4));
    world.as_root(|txn, context| verb::unlink(txn, context, ROOT, name("f"))).unwrap();
    assert_eq!(link(&mut world, "g"), Err(Errno::ENOENT), "once unlinked, no name any more");
}
