//! readdir: dots, cookies, changes between calls, attributes, permissions; getattr, lookup and access.

use ashlar_namespace::acl::{Acl, Entry, Tag};
use ashlar_namespace::key::Cookie;
use ashlar_namespace::testing::{World, name};
use ashlar_namespace::verb::{self, COOKIE_DOT, COOKIE_DOT_DOT};
use ashlar_types::{Attr, Capabilities, Credentials, Errno, FileType, InodeId, SessionId};
use std::collections::BTreeSet;
use std::ops::ControlFlow;

const ROOT: InodeId = InodeId::ROOT;

type Listed = (Cookie, String, InodeId, FileType, Option<Attr>);

fn user(uid: u32, gid: u32) -> Credentials {
    Credentials { complete: true, ..Credentials::user(uid, gid) }
}

fn list(
    world: &mut World,
    creds: &Credentials,
    directory: InodeId,
    (after, count, with_attributes): (Cookie, usize, bool),
) -> Result<(Vec<Listed>, bool), Errno> {
    let mut listed = Vec::new();
    let is_end = world.run(creds, |txn, context| {
        verb::readdir(txn, context, directory, after, with_attributes, &mut |entry| {
            if listed.len() == count {
                return ControlFlow::Break(());
            }
            let text = String::from_utf8_lossy(entry.name).into_owned();
            listed.push((entry.cookie, text, entry.inode, entry.file_type, entry.attr));
            ControlFlow::Continue(())
        })
    })?;
    Ok((listed, is_end))
}

fn names(listed: &[Listed]) -> Vec<&str> {
    listed.iter().map(|entry| entry.1.as_str()).collect()
}

#[test]
fn an_empty_directory_lists_its_dots() {
    let mut world = World::new();
    let below = world.make_directory(ROOT, "d");
    let (listed, is_end) = list(&mut world, &Credentials::root(), below, (Cookie(0), 10, true)).unwrap();
    assert!(is_end);
    assert_eq!(names(&listed), [".", ".."]);
    assert_eq!((listed[0].0, listed[1].0), (COOKIE_DOT, COOKIE_DOT_DOT));
    assert_eq!((listed[0].2, listed[1].2), (below, ROOT));
    assert!(listed[0].4.is_some() && listed[1].4.is_none());
    assert_eq!(world.outcome.revealed.as_slice(), [below]);
    let (listed, _) = list(&mut world, &Credentials::root(), below, (COOKIE_DOT, 10, true)).unwrap();
    assert_eq!(names(&listed), [".."]);
    let (listed, is_end) = list(&mut world, &Credentials::root(), below, (COOKIE_DOT_DOT, 10, true)).unwrap();
    assert!(listed.is_empty() && is_end);
    let (listed, is_end) = list(&mut world, &Credentials::root(), below, (Cookie(0), 1, false)).unwrap();
    assert!(listed.len() == 1 && !is_end);
}

#[test]
fn any_page_size_gives_each_entry_once_in_one_order() {
    let mut world = World::new();
    let below = world.make_directory(ROOT, "d");
    let made: BTreeSet<String> = (0..700).map(|number| format!("entry {number}")).collect();
    for text in &made {
        world.make_file(below, text);
    }
    let root = Credentials::root();
    let (whole, is_end) = list(&mut world, &root, below, (Cookie(0), 1000, false)).unwrap();
    assert!(is_end && whole.windows(2).all(|pair| pair[0].0 < pair[1].0));
    for (count, with_attributes) in
        [(1, false), (7, true), (127, true), (128, true), (129, true), (300, false)]
    {
        let (mut paged, mut after) = (Vec::new(), Cookie(0));
        loop {
            let (page, is_end) = list(&mut world, &root, below, (after, count, with_attributes)).unwrap();
            assert!(is_end || page.len() == count);
            after = page.last().map_or(after, |entry| entry.0);
            paged.extend(page);
            assert!(paged.len() <= whole.len(), "the listing goes on and on");
            if is_end {
                break;
            }
        }
        assert_eq!(names(&paged), names(&whole));
        assert!(paged.iter().skip(2).all(|entry| entry.4.is_some() == with_attributes));
    }
    let told: BTreeSet<String> = whole.into_iter().skip(2).map(|entry| entry.1).collect();
    assert_eq!(told, made);
}

#[test]
fn what_stays_is_listed_once_while_others_come_and_go() {
    let mut world = World::new();
    let below = world.make_directory(ROOT, "d");
    let root = Credentials::root();
    let stays: BTreeSet<String> = (0..200).map(|number| format!("stays {number}")).collect();
    for text in &stays {
        world.make_file(below, text);
    }
    for number in 0..100 {
        world.make_file(below, &format!("goes {number}"));
    }
    let (mut told, mut after, mut round) = (Vec::new(), Cookie(0), 0);
    loop {
        let (page, is_end) = list(&mut world, &root, below, (after, 10, round % 2 == 0)).unwrap();
        after = page.last().map_or(after, |entry| entry.0);
        told.extend(page.into_iter().map(|entry| entry.1));
        if is_end {
            break;
        }
        for number in [2 * round, 2 * round + 1] {
            world.make_file(below, &format!("comes {number}"));
            let text = format!("goes {number}");
            world.as_root(|txn, context| verb::unlink(txn, context, below, name(&text))).unwrap();
        }
        round += 1;
    }
    let unique: BTreeSet<&String> = told.iter().collect();
    assert_eq!(unique.len(), told.len(), "nothing is told twice");
    assert!(stays.iter().all(|text| unique.contains(text)));
}

#[test]
fn listing_asks_for_read_and_attributes_for_search_permission() {
    let mut world = World::new();
    let (below, file) = (world.make_directory(ROOT, "d"), world.make_file(ROOT, "f"));
    world.make_file(below, "x");
    let caller = user(500, 600);
    world.edit(below, |inode| inode.mode = 0o040_700 | 0o070);
    assert_eq!(list(&mut world, &caller, below, (Cookie(0), 9, false)), Err(Errno::EACCES));
    world.hold_open(below, SessionId(1));
    assert!(list(&mut world, &caller, below, (Cookie(0), 9, false)).is_ok(), "checked when it was opened");
    world.open.clear();
    world.edit(below, |inode| inode.mode = 0o040_704);
    let (listed, _) = list(&mut world, &caller, below, (Cookie(0), 9, true)).unwrap();
    assert!(listed.iter().all(|entry| entry.4.is_none()) && listed.len() == 3);
    assert!(world.outcome.revealed.is_empty());
    let searcher = Credentials { caps: Capabilities::DAC_READ_SEARCH, ..caller };
    let (listed, _) = list(&mut world, &searcher, below, (Cookie(0), 9, true)).unwrap();
    assert!(listed[2].4.is_some() && world.outcome.revealed.contains(&listed[2].2));
    assert_eq!(list(&mut world, &searcher, file, (Cookie(0), 9, false)), Err(Errno::ENOTDIR));
}

#[test]
fn lookup_needs_search_permission_and_getattr_none() {
    let mut world = World::new();
    let below = world.make_directory(ROOT, "d");
    let file = world.make_file(below, "f");
    world.edit(below, |inode| inode.mode = 0o040_766);
    let look_up = |world: &mut World, creds: &Credentials, parent, text| {
        world
            .run(creds, |txn, context| verb::lookup(txn, context, parent, name(text)))
            .map(|reply| reply.inode)
    };
    assert_eq!(look_up(&mut world, &user(5, 5), below, "f"), Err(Errno::EACCES));
    assert_eq!(look_up(&mut world, &user(5, 5), below, "none"), Err(Errno::EACCES));
    assert_eq!(look_up(&mut world, &Credentials::root(), below, "f"), Ok(file));
    assert_eq!(look_up(&mut world, &Credentials::root(), below, "none"), Err(Errno::ENOENT));
    assert_eq!(look_up(&mut world, &Credentials::root(), file, "f"), Err(Errno::ENOTDIR));
    let attr = world.run(&user(5, 5), |txn, _| verb::getattr(txn, file)).unwrap().attr;
    assert_eq!((attr.mode, attr.block_size), (0o100_666, 4096));
    let unknown = InodeId(99);
    assert_eq!(world.as_root(|txn, _| verb::getattr(txn, unknown)), Err(Errno::ESTALE));
}

/// Whether access is granted for masks 1 to 7, as a string of the granted ones.
fn granted(world: &mut World, creds: &Credentials, inode: InodeId) -> String {
    let may = |mask: &u32| world.run(creds, |txn, context| verb::access(txn, context, inode, *mask)).is_ok();
    (1..8).filter(may).map(|mask| mask.to_string()).collect()
}

#[test]
fn access_follows_classes_capabilities_and_acls() {
    let mut world = World::new();
    let (file, below) = (world.make_file(ROOT, "f"), world.make_directory(ROOT, "d"));
    for inode in [file, below] {
        world.edit(inode, |inode| {
            (inode.uid, inode.gid) = (500, 600);
            inode.mode = inode.mode & !0o777 | 0o426;
        });
    }
    let with = |caps, creds: Credentials| Credentials { caps, ..creds };
    for (creds, on_file, on_directory) in [
        (user(500, 600), "4", "4"),
        (user(7, 600), "2", "2"),
        (user(7, 7), "246", "246"),
        (with(Capabilities::DAC_READ_SEARCH, user(500, 1)), "4", "145"),
        (with(Capabilities::DAC_OVERRIDE, user(500, 1)), "246", "1234567"),
        (user(0, 0), "246", "1234567"),
        (with(Capabilities::default(), user(0, 0)), "246", "246"),
    ] {
        assert_eq!(granted(&mut world, &creds, file), on_file, "{creds:?}");
        assert_eq!(granted(&mut world, &creds, below), on_directory, "{creds:?}");
    }
    let unsure = Credentials { complete: false, ..user(7, 7) };
    assert_eq!(granted(&mut world, &unsure, file), "2", "only what the group gets, too");
    world.edit(file, |inode| inode.mode |= 0o010);
    assert_eq!(granted(&mut world, &user(0, 0), file), "1234567", "executable for somebody");

    let entry = |tag, perm, id| Entry { tag, perm, id };
    let acl = Acl::from_entries(&[
        entry(Tag::UserObj, 6, 0),
        entry(Tag::User, 7, 1001),
        entry(Tag::GroupObj, 0, 0),
        entry(Tag::Mask, 5, 0),
        entry(Tag::Other, 2, 0),
    ])
    .unwrap();
    world.edit(file, |inode| {
        inode.mode = 0o100_652;
        inode.acl_access = Some(acl.encode());
    });
    assert_eq!(granted(&mut world, &user(500, 1), file), "246");
    assert_eq!(granted(&mut world, &user(1001, 1), file), "145", "masked");
    assert_eq!(granted(&mut world, &user(7, 600), file), "");
    assert_eq!(granted(&mut world, &user(7, 7), file), "2");
    world.edit(file, |inode| inode.mode = 0o100_602);
    assert_eq!(granted(&mut world, &user(1001, 1), file), "2", "without group bits the ACL is not asked");
    let odd = world.as_root(|txn, context| verb::access(txn, context, file, 8));
    assert_eq!(odd, Err(Errno::EINVAL));
    world.as_root(|txn, context| verb::access(txn, context, file, 0)).unwrap();
}
