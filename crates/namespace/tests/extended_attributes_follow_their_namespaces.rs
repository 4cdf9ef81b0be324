//! getxattr, setxattr, listxattr, removexattr: who may do what in which namespace, limits, flags, and ACLs.

#![allow(clippy::unwrap_used)] // The helpers of a test panic as the test does.

use ashlar_namespace::acl::{Acl, Entry, Tag};
use ashlar_namespace::testing::{World, name};
use ashlar_namespace::verb::{self, SetxattrArgs, SetxattrMode};
use ashlar_types::{Capabilities, Credentials, Errno, InodeId};

const ROOT: InodeId = InodeId::ROOT;

fn user(uid: u32) -> Credentials {
    Credentials { complete: true, ..Credentials::user(uid, uid) }
}

fn with_caps(uid: u32, caps: Capabilities) -> Credentials {
    Credentials { caps, ..user(uid) }
}

fn set(world: &mut World, creds: &Credentials, id: InodeId, name: &str, value: &[u8]) -> Result<(), Errno> {
    set_as(world, creds, id, (name, value), SetxattrMode::Any)
}

fn set_as(
    world: &mut World,
    creds: &Credentials,
    id: InodeId,
    (name, value): (&str, &[u8]),
    mode: SetxattrMode,
) -> Result<(), Errno> {
    let args = SetxattrArgs { name: name.as_bytes(), value, mode, kill_setgid: false };
    world.run(creds, |txn, context| verb::setxattr(txn, context, id, &args))
}

fn get(world: &mut World, creds: &Credentials, id: InodeId, name: &str) -> Result<Vec<u8>, Errno> {
    world
        .run(creds, |txn, context| verb::getxattr(txn, context, id, name.as_bytes()))
        .map(|value| value.to_vec())
}

fn remove(world: &mut World, creds: &Credentials, id: InodeId, name: &str) -> Result<(), Errno> {
    world.run(creds, |txn, context| verb::removexattr(txn, context, id, name.as_bytes()))
}

fn list(world: &mut World, creds: &Credentials, id: InodeId) -> String {
    let list = world.run(creds, |txn, context| verb::listxattr(txn, context, id)).unwrap();
    String::from_utf8(list.to_vec()).unwrap().replace('\0', "|")
}

fn acl(named: u32, perm: u16, mask: u16) -> Vec<u8> {
    let entry = |tag, perm, id| Entry { tag, perm, id };
    let entries = [
        entry(Tag::UserObj, 7, u32::MAX),
        entry(Tag::User, perm, named),
        entry(Tag::GroupObj, 5, u32::MAX),
        entry(Tag::Mask, mask, u32::MAX),
        entry(Tag::Other, 1, u32::MAX),
    ];
    Acl::from_entries(&entries).unwrap().encode().to_vec()
}

fn plain_acl() -> Vec<u8> {
    let entry = |tag, perm| Entry { tag, perm, id: u32::MAX };
    let entries = [entry(Tag::UserObj, 6), entry(Tag::GroupObj, 4), entry(Tag::Other, 0)];
    Acl::from_entries(&entries).unwrap().encode().to_vec()
}

#[test]
fn attributes_come_and_go() {
    let mut world = World::new();
    let root = Credentials::root();
    let id = world.make_file(ROOT, "f");
    assert_eq!(get(&mut world, &root, id, "user.a"), Err(Errno::ENODATA));
    assert_eq!(remove(&mut world, &root, id, "user.a"), Err(Errno::ENODATA));
    set(&mut world, &root, id, "user.b", b"two").unwrap();
    set(&mut world, &root, id, "user.a", b"").unwrap();
    assert_eq!((world.inode(id).ctime, world.inode(id).has_xattrs), (world.now, true));
    assert_eq!(get(&mut world, &root, id, "user.a"), Ok(vec![]));
    assert_eq!(get(&mut world, &root, id, "user.b"), Ok(b"two".to_vec()));
    assert_eq!(list(&mut world, &root, id), "user.a|user.b|");
    assert_eq!(world.findings(), []);
    let before = world.inode(id);
    set(&mut world, &root, id, "user.b", b"two").unwrap();
    assert_eq!(world.inode(id), before, "the same value again changes nothing");
    remove(&mut world, &root, id, "user.a").unwrap();
    assert_eq!(world.inode(id).ctime, world.now);
    assert_eq!(list(&mut world, &root, id), "user.b|");
    remove(&mut world, &root, id, "user.b").unwrap();
    assert!(!world.inode(id).has_xattrs);
    assert_eq!(remove(&mut world, &root, id, "user.b"), Err(Errno::ENODATA));
    set(&mut world, &root, id, "user.c", b"x").unwrap();
    world.as_root(|txn, context| verb::unlink(txn, context, ROOT, name("f"))).unwrap();
    assert_eq!(world.store.table(b'X').count(), 0);
    assert_eq!(get(&mut world, &root, id, "user.c"), Err(Errno::ESTALE));
}

#[test]
fn flags_ask_for_what_is_there() {
    let mut world = World::new();
    let root = Credentials::root();
    let id = world.make_file(ROOT, "f");
    let one = ("user.a", &b"1"[..]);
    assert_eq!(set_as(&mut world, &root, id, one, SetxattrMode::Replace), Err(Errno::ENODATA));
    set_as(&mut world, &root, id, one, SetxattrMode::Create).unwrap();
    assert_eq!(set_as(&mut world, &root, id, one, SetxattrMode::Create), Err(Errno::EEXIST));
    set_as(&mut world, &root, id, ("user.a", b"2"), SetxattrMode::Replace).unwrap();
    assert_eq!(get(&mut world, &root, id, "user.a"), Ok(b"2".to_vec()));
}

#[test]
fn names_and_sizes_have_limits() {
    let mut world = World::new();
    let root = Credentials::root();
    let id = world.make_file(ROOT, "f");
    let long = |bytes: usize| format!("user.{}", "x".repeat(bytes - 5));
    set(&mut world, &root, id, &long(255), b"1").unwrap();
    for (text, errno) in [
        (long(256).as_str(), Errno::ERANGE),
        ("", Errno::ERANGE),
        ("user.", Errno::EINVAL),
        ("trusted.", Errno::EINVAL),
        ("user.a\0b", Errno::EINVAL),
        ("system.other", Errno::EOPNOTSUPP),
        ("nothing", Errno::EOPNOTSUPP),
        ("osx.a", Errno::EOPNOTSUPP),
    ] {
        assert_eq!(set(&mut world, &root, id, text, b"1"), Err(errno), "{text:?}");
        assert_eq!(get(&mut world, &root, id, text), Err(errno), "{text:?}");
        assert_eq!(remove(&mut world, &root, id, text), Err(errno), "{text:?}");
    }
    let big = vec![7; 64 << 10];
    assert_eq!(set(&mut world, &root, id, "user.big", &vec![7; (64 << 10) + 1]), Err(Errno::E2BIG));
    for number in 0..3 {
        set(&mut world, &root, id, &format!("user.big{number}"), &big).unwrap();
    }
    assert_eq!(set(&mut world, &root, id, "user.big3", &big), Err(Errno::ENOSPC));
    set(&mut world, &root, id, "user.big2", b"less").unwrap();
    set(&mut world, &root, id, "user.big3", &big).unwrap();
}

#[test]
fn user_attributes_follow_permissions_and_types() {
    let mut world = World::new();
    let root = Credentials::root();
    let id = world.make_file(ROOT, "f");
    world.edit(id, |inode| (inode.uid, inode.mode) = (5, inode.mode & !0o777 | 0o640));
    set(&mut world, &user(5), id, "user.a", b"1").unwrap();
    assert_eq!(set(&mut world, &user(6), id, "user.a", b"1"), Err(Errno::EACCES));
    assert_eq!(get(&mut world, &user(6), id, "user.a"), Err(Errno::EACCES));
    assert_eq!(remove(&mut world, &user(6), id, "user.a"), Err(Errno::EACCES));
    assert_eq!(list(&mut world, &user(6), id), "user.a|");
    world.as_root(|txn, context| verb::symlink(txn, context, ROOT, name("l"), b"f")).unwrap();
    let link = world.find(ROOT, "l").unwrap();
    assert_eq!(set(&mut world, &root, link, "user.a", b"1"), Err(Errno::EPERM));
    assert_eq!(get(&mut world, &root, link, "user.a"), Err(Errno::ENODATA));
    let sticky = world.make_directory(ROOT, "sticky");
    world.edit(sticky, |inode| inode.mode |= 0o1000);
    assert_eq!(set(&mut world, &user(6), sticky, "user.a", b"1"), Err(Errno::EPERM));
    set(&mut world, &with_caps(6, Capabilities::FOWNER), sticky, "user.a", b"1").unwrap();
    let open = world.make_directory(ROOT, "open");
    set(&mut world, &user(6), open, "user.a", b"1").unwrap();
}

#[test]
fn trusted_and_security_attributes_are_for_the_privileged() {
    let mut world = World::new();
    let admin = with_caps(5, Capabilities::SYS_ADMIN);
    let id = world.make_file(ROOT, "f");
    world.edit(id, |inode| inode.uid = 6);
    assert_eq!(set(&mut world, &user(6), id, "trusted.a", b"1"), Err(Errno::EPERM));
    assert_eq!(set(&mut world, &user(6), id, "security.a", b"1"), Err(Errno::EPERM));
    assert_eq!(set(&mut world, &user(6), id, "security.capability", b"1"), Err(Errno::EPERM));
    set(&mut world, &admin, id, "trusted.a", b"1").unwrap();
    set(&mut world, &admin, id, "security.a", b"2").unwrap();
    set(&mut world, &with_caps(0, Capabilities::FOWNER), id, "security.capability", b"3").unwrap();
    assert_eq!(get(&mut world, &user(6), id, "trusted.a"), Err(Errno::ENODATA));
    assert_eq!(get(&mut world, &admin, id, "trusted.a"), Ok(b"1".to_vec()));
    assert_eq!(get(&mut world, &user(7), id, "security.a"), Ok(b"2".to_vec()));
    assert_eq!(list(&mut world, &user(6), id), "security.a|security.capability|");
    assert_eq!(list(&mut world, &admin, id), "security.a|security.capability|trusted.a|");
    assert_eq!(remove(&mut world, &user(6), id, "trusted.a"), Err(Errno::EPERM));
    assert_eq!(remove(&mut world, &user(6), id, "security.capability"), Err(Errno::EPERM));
    let chown = ashlar_types::message::SetAttr { uid: Some(7), ..Default::default() };
    world.as_root(|txn, context| verb::setattr(txn, context, id, &chown)).unwrap();
    assert_eq!(get(&mut world, &admin, id, "security.capability"), Err(Errno::ENODATA), "chown drops it");
    assert_eq!(world.findings(), []);
}

#[test]
fn access_acls_and_mode_are_one_thing() {
    let mut world = World::new();
    let id = world.make_file(ROOT, "f");
    world.edit(id, |inode| (inode.uid, inode.gid) = (5, 50));
    let access = "system.posix_acl_access";
    assert_eq!(get(&mut world, &user(5), id, access), Err(Errno::ENODATA));
    assert_eq!(set(&mut world, &user(6), id, access, &acl(8, 6, 6)), Err(Errno::EPERM));
    set(&mut world, &user(5), id, access, &acl(8, 6, 6)).unwrap();
    let inode = world.inode(id);
    assert_eq!((inode.mode & 0o777, inode.ctime, inode.has_xattrs), (0o761, world.now, false));
    assert_eq!(get(&mut world, &user(9), id, access), Ok(acl(8, 6, 6)));
    assert_eq!(list(&mut world, &user(9), id), "system.posix_acl_access|");
    set(&mut world, &user(5), id, access, &plain_acl()).unwrap();
    assert_eq!((world.inode(id).mode & 0o777, world.inode(id).acl_access.clone()), (0o640, None));
    set(&mut world, &user(5), id, access, &acl(8, 6, 6)).unwrap();
    remove(&mut world, &user(5), id, access).unwrap();
    remove(&mut world, &user(5), id, access).unwrap();
    assert_eq!((world.inode(id).mode & 0o777, world.inode(id).acl_access.clone()), (0o761, None));
    set(&mut world, &user(5), id, access, &acl(8, 6, 6)).unwrap();
    set(&mut world, &user(5), id, access, b"").unwrap();
    assert_eq!(world.inode(id).acl_access, None, "an empty value removes");
    for wrong in [&b"x"[..], &[2, 0, 0, 0, 1][..], &acl(8, 6, 6)[..20]] {
        assert_eq!(set(&mut world, &user(5), id, access, wrong), Err(Errno::EINVAL));
    }
    assert_eq!(set(&mut world, &user(5), id, access, &[1, 0, 0, 0]), Err(Errno::EOPNOTSUPP));
}

#[test]
fn setting_an_access_acl_takes_setgid_from_outsiders() {
    let mut world = World::new();
    let id = world.make_file(ROOT, "f");
    world.edit(id, |inode| (inode.uid, inode.gid, inode.mode) = (5, 50, inode.mode | 0o2000));
    let access = "system.posix_acl_access";
    let member = Credentials { gid: 50, ..user(5) };
    set(&mut world, &member, id, access, &acl(8, 6, 6)).unwrap();
    assert_eq!(world.inode(id).mode & 0o2000, 0o2000);
    let untold = Credentials::user(5, 5);
    assert_eq!(set(&mut world, &untold, id, access, &acl(8, 6, 6)), Err(Errno::EPERM));
    set(&mut world, &user(5), id, access, &acl(8, 6, 6)).unwrap();
    assert_eq!(world.inode(id).mode & 0o2000, 0);
    world.edit(id, |inode| inode.mode |= 0o2000);
    let told = SetxattrArgs {
        name: access.as_bytes(),
        value: &acl(8, 6, 6),
        mode: SetxattrMode::Any,
        kill_setgid: true,
    };
    world.as_root(|txn, context| verb::setxattr(txn, context, id, &told)).unwrap();
    assert_eq!(world.inode(id).mode & 0o2000, 0, "the kernel says so");
}

#[test]
fn default_acls_are_for_directories() {
    let mut world = World::new();
    let root = Credentials::root();
    let default = "system.posix_acl_default";
    let file = world.make_file(ROOT, "f");
    assert_eq!(set(&mut world, &root, file, default, &acl(8, 6, 6)), Err(Errno::EACCES));
    assert_eq!(set(&mut world, &root, file, default, b""), Ok(()));
    assert_eq!(remove(&mut world, &root, file, default), Ok(()));
    let directory = world.make_directory(ROOT, "d");
    let mode = world.inode(directory).mode;
    assert_eq!(set(&mut world, &user(9), directory, default, &acl(8, 6, 6)), Err(Errno::EPERM));
    set(&mut world, &root, directory, default, &acl(8, 6, 6)).unwrap();
    assert_eq!(get(&mut world, &root, directory, default), Ok(acl(8, 6, 6)));
    assert_eq!(world.inode(directory).mode, mode);
    set(&mut world, &root, directory, default, &plain_acl()).unwrap();
    assert_eq!(
        get(&mut world, &root, directory, default),
        Ok(plain_acl()),
        "kept, though a mode could say it"
    );
    remove(&mut world, &root, directory, default).unwrap();
    assert_eq!(get(&mut world, &root, directory, default), Err(Errno::ENODATA));
    world.as_root(|txn, context| verb::symlink(txn, context, ROOT, name("l"), b"f")).unwrap();
    let link = world.find(ROOT, "l").unwrap();
    assert_eq!(set(&mut world, &root, link, default, &acl(8, 6, 6)), Err(Errno::EOPNOTSUPP));
    assert_eq!(get(&mut world, &root, link, default), Err(Errno::EOPNOTSUPP));
    assert_eq!(world.findings(), []);
}
