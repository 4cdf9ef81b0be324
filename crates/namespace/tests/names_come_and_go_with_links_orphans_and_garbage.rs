//! link, unlink, rmdir: errnos, sticky directories, link counts, times, and what is left of an inode after its last name.

use ashlar_kv::Snapshot;
use ashlar_namespace::record::{Garbage, NLINK_MAX};
use ashlar_namespace::testing::{World, name};
use ashlar_namespace::verb;
use ashlar_namespace::{FileData, Kind, key};
use ashlar_types::{
    Attr, Capabilities, ChainId, Credentials, Errno, FileLayout, FilesetId, InodeId, LayoutPolicy, SessionId,
    codec,
};
use bytes::Bytes;

const ROOT: InodeId = InodeId::ROOT;

fn user(uid: u32, gid: u32) -> Credentials {
    Credentials { complete: true, ..Credentials::user(uid, gid) }
}

fn link(
    world: &mut World,
    creds: &Credentials,
    inode: InodeId,
    parent: InodeId,
    text: &str,
) -> Result<Attr, Errno> {
    world
        .run(creds, |txn, context| verb::link(txn, context, inode, parent, name(text)))
        .map(|reply| reply.attr)
}

fn unlink(world: &mut World, creds: &Credentials, parent: InodeId, text: &str) -> Result<u32, Errno> {
    world.run(creds, |txn, context| verb::unlink(txn, context, parent, name(text))).map(|reply| reply.nlink)
}

fn rmdir(world: &mut World, creds: &Credentials, parent: InodeId, text: &str) -> Result<(), Errno> {
    world.run(creds, |txn, context| verb::rmdir(txn, context, parent, name(text))).map(|_| ())
}

#[test]
fn a_link_counts_and_stamps_both_sides() {
    let mut world = World::new();
    let (file, below) = (world.make_file(ROOT, "f"), world.make_directory(ROOT, "d"));
    let old = world.inode(file);
    let attr = link(&mut world, &Credentials::root(), file, below, "g").unwrap();
    assert_eq!((attr.nlink, attr.ctime, attr.mtime), (2, world.now, old.mtime));
    let directory = world.inode(below);
    assert_eq!(
        (directory.mtime, directory.ctime, directory.size, directory.nlink),
        (world.now, world.now, 1, 2)
    );
    assert_eq!(world.find(below, "g"), Some(file), "an entry may point to another shard");
}

#[test]
fn links_are_refused_as_on_linux() {
    let mut world = World::new();
    let (file, below) = (world.make_file(ROOT, "f"), world.make_directory(ROOT, "d"));
    let root = Credentials::root();
    assert_eq!(link(&mut world, &user(5, 5), file, ROOT, "f"), Err(Errno::EEXIST));
    assert_eq!(link(&mut world, &user(5, 5), file, ROOT, "g"), Err(Errno::EACCES));
    assert_eq!(link(&mut world, &root, below, ROOT, "g"), Err(Errno::EPERM));
    assert_eq!(link(&mut world, &root, below, ROOT, "f"), Err(Errno::EEXIST));
    assert_eq!(link(&mut world, &root, file, file, "g"), Err(Errno::ENOTDIR));
    world.edit(file, |inode| inode.nlink = NLINK_MAX);
    assert_eq!(link(&mut world, &root, file, ROOT, "g"), Err(Errno::EMLINK));
    world.edit(file, |inode| (inode.nlink, inode.fileset) = (1, FilesetId(9)));
    assert_eq!(link(&mut world, &root, file, ROOT, "g"), Err(Errno::EXDEV));
}

#[test]
fn unlinks_are_refused_as_on_linux() {
    let mut world = World::new();
    let (file, _) = (world.make_file(ROOT, "f"), world.make_directory(ROOT, "d"));
    let root = Credentials::root();
    assert_eq!(unlink(&mut world, &root, ROOT, "none"), Err(Errno::ENOENT));
    assert_eq!(
        unlink(&mut world, &user(5, 5), ROOT, "none"),
        Err(Errno::ENOENT),
        "absent comes before forbidden"
    );
    assert_eq!(unlink(&mut world, &user(5, 5), ROOT, "f"), Err(Errno::EACCES));
    assert_eq!(unlink(&mut world, &user(5, 5), ROOT, "d"), Err(Errno::EACCES));
    assert_eq!(unlink(&mut world, &root, ROOT, "d"), Err(Errno::EISDIR));
    assert_eq!(unlink(&mut world, &root, file, "x"), Err(Errno::ENOTDIR));
    assert_eq!(rmdir(&mut world, &root, ROOT, "f"), Err(Errno::ENOTDIR));
    assert_eq!(rmdir(&mut world, &root, ROOT, "none"), Err(Errno::ENOENT));
    assert_eq!(rmdir(&mut world, &root, file, "x"), Err(Errno::ENOTDIR));
    assert_eq!(rmdir(&mut world, &user(5, 5), ROOT, "d"), Err(Errno::EACCES));
    let below = world.find(ROOT, "d").unwrap();
    world.make_file(below, "f");
    assert_eq!(rmdir(&mut world, &root, ROOT, "d"), Err(Errno::ENOTEMPTY));
}

#[test]
fn in_a_sticky_directory_only_owners_remove() {
    let mut world = World::new();
    world.edit(ROOT, |root| (root.mode, root.uid) = (0o041_777, 900));
    for (text, owner) in [("a", 500), ("b", 500), ("c", 500), ("e", 500)] {
        let file = world.make_file(ROOT, text);
        world.edit(file, |inode| inode.uid = owner);
    }
    let below = world.make_directory(ROOT, "d");
    world.edit(below, |inode| inode.uid = 500);
    assert_eq!(unlink(&mut world, &user(600, 5), ROOT, "a"), Err(Errno::EPERM));
    assert_eq!(rmdir(&mut world, &user(600, 5), ROOT, "d"), Err(Errno::EPERM));
    assert_eq!(
        unlink(&mut world, &user(600, 5), ROOT, "d"),
        Err(Errno::EPERM),
        "sticky comes before the type"
    );
    let like_owner = Credentials { caps: Capabilities::FOWNER, ..user(600, 5) };
    assert_eq!(unlink(&mut world, &like_owner, ROOT, "a"), Ok(0));
    assert_eq!(unlink(&mut world, &user(500, 5), ROOT, "b"), Ok(0), "owner of the file");
    assert_eq!(unlink(&mut world, &user(900, 5), ROOT, "c"), Ok(0), "owner of the directory");
    let without = Credentials { caps: Capabilities::DAC_OVERRIDE, ..user(0, 0) };
    assert_eq!(unlink(&mut world, &without, ROOT, "e"), Err(Errno::EPERM), "uid 0 alone is no privilege");
    assert_eq!(rmdir(&mut world, &user(500, 5), ROOT, "d"), Ok(()));
}

#[test]
fn one_name_of_two_leaves_the_other() {
    let mut world = World::new();
    let file = world.make_file(ROOT, "f");
    link(&mut world, &Credentials::root(), file, ROOT, "g").unwrap();
    assert_eq!(unlink(&mut world, &Credentials::root(), ROOT, "f"), Ok(1));
    let (inode, root) = (world.inode(file), world.inode(ROOT));
    assert_eq!((inode.nlink, inode.ctime), (1, world.now));
    assert!(inode.mtime < world.now);
    assert_eq!((root.size, root.mtime, root.ctime), (1, world.now, world.now));
    assert!(world.outcome.frees_space);
}

#[test]
fn the_last_name_takes_everything_along() {
    let mut world = World::new();
    let empty = world.store.clone();
    let file = world.make_file(ROOT, "f");
    world
        .as_root(|txn, _| {
            for piece in 0..3 {
                txn.put(key::body(file, piece), Bytes::from_static(b"bytes"));
            }
            txn.put(key::xattr(file, b"user.a"), Bytes::from_static(b"1"));
            txn.put(key::xattr(file, b"user.b"), Bytes::from_static(b"2"));
            let inode = txn.inode_mut(file)?;
            (inode.size, inode.blocks, inode.has_xattrs) = (40_000, 3, true);
            Ok(())
        })
        .unwrap();
    assert_eq!(unlink(&mut world, &Credentials::root(), ROOT, "f"), Ok(0));
    let link = world.as_root(|txn, context| verb::symlink(txn, context, ROOT, name("l"), b"t")).unwrap();
    assert_eq!(unlink(&mut world, &Credentials::root(), ROOT, "l"), Ok(0));
    assert_eq!(world.find_inode(link.attr.inode), None);
    let small = world.make_file(ROOT, "s");
    world
        .as_root(|txn, _| {
            txn.put(key::body(small, 0), Bytes::from_static(b"bytes"));
            let inode = txn.inode_mut(small)?;
            (inode.size, inode.blocks) = (5, 1);
            Ok(())
        })
        .unwrap();
    assert_eq!(unlink(&mut world, &Credentials::root(), ROOT, "s"), Ok(0));
    let below = world.make_directory(ROOT, "d");
    assert_eq!(rmdir(&mut world, &Credentials::root(), ROOT, "d"), Ok(()));
    assert_eq!(world.find_inode(below), None);

    // Nothing is left but the counters of ids and the times of the root.
    let left: Vec<_> =
        world.store.pairs().filter(|(key, _)| key[2] != b'C').map(|(key, _)| key.clone()).collect();
    let first: Vec<_> = empty.pairs().map(|(key, _)| key.clone()).collect();
    assert_eq!(left, first);
    assert_eq!(world.accounted().inodes, 1);
}

#[test]
fn chunks_of_a_forgotten_file_become_garbage() {
    let mut world = World::new();
    let file = world.make_file(ROOT, "f");
    let layout =
        FileLayout { generation: 3, chunk_bytes: 1 << 20, chains: [ChainId(4)].into_iter().collect() };
    let (kept, policy) = (layout.clone(), LayoutPolicy::root_default());
    world.edit(file, |inode| {
        inode.kind = Kind::Regular(FileData::Chunks { layout: kept, policy });
        (inode.size, inode.blocks) = (5 << 20, 10 << 11);
    });
    world
        .as_root(|txn, context| {
            txn.put(key::writer_of(file, context.session), Bytes::new());
            Ok(())
        })
        .unwrap();
    unlink(&mut world, &Credentials::root(), ROOT, "f").unwrap();
    assert!(world.outcome.has_garbage && world.outcome.frees_space);
    let record = world.store.get(&key::garbage(file, 3)).unwrap().unwrap();
    assert_eq!(codec::decode::<Garbage>(&record, "garbage").unwrap(), Garbage { layout, keep_bytes: 0 });
    assert_eq!((world.find_inode(file), world.store.table(b'W').count()), (None, 0));
    assert_eq!((world.accounted().inodes, world.accounted().blocks), (1, 0));
}

#[test]
fn an_open_inode_outlives_its_last_name_as_an_orphan_of_each_session() {
    let mut world = World::new();
    let (file, below) = (world.make_file(ROOT, "f"), world.make_directory(ROOT, "d"));
    for inode in [file, below] {
        world.hold_open(inode, SessionId(7));
        world.hold_open(inode, SessionId(8));
    }
    assert_eq!(unlink(&mut world, &Credentials::root(), ROOT, "f"), Ok(0));
    rmdir(&mut world, &Credentials::root(), ROOT, "d").unwrap();
    for inode in [file, below] {
        assert_eq!(world.inode(inode).nlink, 0);
        for session in [7, 8] {
            let record = world.store.get(&key::orphan(inode, SessionId(session))).unwrap();
            assert_eq!(record, Some(Bytes::new()));
        }
    }
    let attr = world.as_root(|txn, _| verb::getattr(txn, file)).unwrap().attr;
    assert_eq!(attr.nlink, 0);
    let root = world.inode(ROOT);
    assert_eq!((root.nlink, root.size), (2, 0));
    assert_eq!(world.accounted().inodes, 3, "an orphan still counts");
    assert_eq!(link(&mut world, &Credentials::root(), file, ROOT, "again"), Err(Errno::ENOENT));
}
