//! The rules of `posix_acl.c`, with the kernel's bytes.

use super::*;
use crate::record::Kind;
use ashlar_types::{Capabilities, FilesetId, Timespec};
use smallvec::smallvec;

fn entry(tag: Tag, perm: u16, id: u32) -> Entry {
    Entry { tag, perm, id }
}

fn minimal(user: u16, group: u16, other: u16) -> Vec<Entry> {
    vec![
        entry(Tag::UserObj, user, ID_UNDEFINED),
        entry(Tag::GroupObj, group, ID_UNDEFINED),
        entry(Tag::Other, other, ID_UNDEFINED),
    ]
}

/// Owner rwx, user 1001 rw-, owning group r-x, group 2001 rwx, mask rw-, others r--.
fn extended() -> Vec<Entry> {
    vec![
        entry(Tag::UserObj, 7, ID_UNDEFINED),
        entry(Tag::User, 6, 1001),
        entry(Tag::GroupObj, 5, ID_UNDEFINED),
        entry(Tag::Group, 7, 2001),
        entry(Tag::Mask, 6, ID_UNDEFINED),
        entry(Tag::Other, 4, ID_UNDEFINED),
    ]
}

fn encoded(entries: &[Entry]) -> Bytes {
    Acl::from_entries(entries).unwrap().encode()
}

#[test]
fn kernel_bytes_are_read_and_written_back() {
    // What `setfacl -m u:1001:rw` stores on a file of mode 0754.
    let bytes: &[u8] = &[
        2, 0, 0, 0, //
        1, 0, 7, 0, 255, 255, 255, 255, //
        2, 0, 6, 0, 0xe9, 3, 0, 0, //
        4, 0, 5, 0, 255, 255, 255, 255, //
        16, 0, 7, 0, 255, 255, 255, 255, //
        32, 0, 4, 0, 255, 255, 255, 255,
    ];
    let acl = Acl::parse(bytes).unwrap().unwrap();
    assert_eq!(acl.entries()[1], entry(Tag::User, 6, 1001));
    assert_eq!(acl.encode(), bytes);
    assert_eq!(acl.equivalent_mode(), (0o774, false));
}

#[test]
fn ids_of_unnamed_entries_are_not_kept() {
    let mut entries = minimal(7, 5, 0);
    entries[0].id = 77;
    let bytes = Acl { entries: SmallVec::from_vec(entries) }.encode();
    assert_eq!(Acl::parse(&bytes).unwrap().unwrap().encode(), encoded(&minimal(7, 5, 0)));
}

#[test]
fn malformed_bytes_are_refused() {
    assert_eq!(Acl::parse(&[]), Err(Errno::EINVAL));
    assert_eq!(Acl::parse(&[2, 0, 0]), Err(Errno::EINVAL));
    assert_eq!(Acl::parse(&[1, 0, 0, 0]), Err(Errno::EOPNOTSUPP));
    assert_eq!(Acl::parse(&[2, 0, 0, 0]), Ok(None));
    let whole = encoded(&minimal(7, 7, 7));
    assert_eq!(Acl::parse(&whole[..whole.len() - 1]), Err(Errno::EINVAL));
    let mut unknown_tag = whole.to_vec();
    unknown_tag[4] = 3;
    assert_eq!(Acl::parse(&unknown_tag), Err(Errno::EINVAL));
}

#[test]
fn lists_out_of_order_or_incomplete_are_refused() {
    let check = |entries: &[Entry]| Acl::from_entries(entries).map(|_| ());
    let all = extended();
    assert_eq!(check(&all), Ok(()));
    for missing in [0, 2, 4, 5] {
        let mut entries = all.clone();
        entries.remove(missing);
        assert_eq!(check(&entries), Err(Errno::EINVAL), "without entry {missing}");
    }
    for (a, b) in [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5)] {
        let mut entries = all.clone();
        entries.swap(a, b);
        assert_eq!(check(&entries), Err(Errno::EINVAL), "{a} and {b} exchanged");
    }
    for twice in [0, 2, 4, 5] {
        let mut entries = all.clone();
        entries.insert(twice, all[twice]);
        assert_eq!(check(&entries), Err(Errno::EINVAL), "entry {twice} twice");
    }
    let mut entries = all.clone();
    entries.insert(1, entry(Tag::User, 1, 1000));
    assert_eq!(check(&entries), Ok(()), "named entries need no order among themselves");
    entries[1].id = ID_UNDEFINED;
    assert_eq!(check(&entries), Err(Errno::EINVAL), "a named entry must name somebody");
    entries[1] = entry(Tag::User, 8, 5);
    assert_eq!(check(&entries), Err(Errno::EINVAL), "only read, write and execute");
    assert_eq!(check(&[]), Err(Errno::EINVAL));
    let mut masked = minimal(7, 7, 7);
    masked.insert(2, entry(Tag::Mask, 1, 0));
    assert_eq!(check(&masked), Ok(()), "a mask may be there without names");
}

#[test]
fn too_long_a_list_is_refused() {
    let mut entries = extended();
    let named = entries[1];
    entries.splice(1..1, std::iter::repeat_n(named, ENTRIES_MAX));
    assert_eq!(Acl::from_entries(&entries), Err(Errno::E2BIG));
    entries.drain(1..=entries.len() - ENTRIES_MAX);
    let bytes = Acl::from_entries(&entries).unwrap().encode();
    assert!(bytes.len() <= 4096 && Acl::parse(&bytes).unwrap().is_some());
}

#[test]
fn mode_says_all_only_without_names_and_mask() {
    let exact = Acl::from_entries(&minimal(6, 4, 0)).unwrap();
    assert_eq!(exact.equivalent_mode(), (0o640, true));
    let acl = Acl::from_entries(&extended()).unwrap();
    assert_eq!(acl.equivalent_mode(), (0o764, false), "group bits are the mask");
}

#[test]
fn chmod_sets_the_mask_or_else_the_group() {
    let changed = Acl::parse(&chmod(&encoded(&extended()), 0o107241).unwrap()).unwrap().unwrap();
    assert_eq!(changed.equivalent_mode().0, 0o241);
    assert_eq!(changed.entries()[2].perm, 5, "the owning group keeps its own permissions");
    let changed = Acl::parse(&chmod(&encoded(&minimal(7, 7, 7)), 0o421).unwrap()).unwrap().unwrap();
    assert_eq!(changed.entries(), minimal(4, 2, 1));
    assert!(matches!(chmod(b"nonsense", 0), Err(NsError::Kv(_))));
}

#[test]
fn inheritance_narrows_to_the_mode_asked_for() {
    let inherited = inherit(&encoded(&extended()), 0o104_640).unwrap();
    assert_eq!(inherited.mode, 0o104_640);
    let access = Acl::parse(&inherited.access.unwrap()).unwrap().unwrap();
    let perms: Vec<u16> = access.entries().iter().map(|entry| entry.perm).collect();
    assert_eq!(perms, [6, 6, 5, 7, 4, 0], "owner, mask and others narrowed, the rest kept");

    let inherited = inherit(&encoded(&minimal(7, 5, 1)), 0o100_666).unwrap();
    assert_eq!(inherited, Inherited { mode: 0o100_640, access: None }, "the mode says it all");
}

fn inode(mode: u32) -> Inode {
    Inode::new(0o100_000 | mode, 500, 600, FilesetId::default(), Timespec::default(), Kind::Special)
}

fn caller(uid: u32, groups: &[u32]) -> Credentials {
    Credentials {
        uid,
        gid: 9999,
        groups: SmallVec::from_slice(groups),
        caps: Capabilities::default(),
        complete: true,
    }
}

#[test]
fn the_first_matching_class_decides_under_the_mask() {
    let (bytes, inode) = (encoded(&extended()), inode(0o764));
    let permits = |creds: &Credentials, wanted| permits(&bytes, &inode, creds, wanted).unwrap();
    assert!(permits(&caller(500, &[]), 7), "the owner is not masked");
    assert!(
        permits(&caller(1001, &[]), 6) && !permits(&caller(1001, &[2001]), 1),
        "a named user has no groups"
    );
    assert!(permits(&caller(7, &[600]), 4) && !permits(&caller(7, &[600]), 1), "the owning group is masked");
    assert!(permits(&caller(7, &[600, 2001]), 6), "any group that grants all is enough");
    assert!(!permits(&caller(7, &[2001]), 7));
    assert!(permits(&caller(7, &[]), 4) && !permits(&caller(7, &[]), 2));
}

#[test]
fn a_group_that_refuses_keeps_others_out() {
    let mut entries = extended();
    (entries[2].perm, entries[3].perm) = (0, 0);
    let (bytes, inode) = (encoded(&entries), inode(0o764));
    assert!(!permits(&bytes, &inode, &caller(7, &[2001]), 4).unwrap());
    assert!(permits(&bytes, &inode, &caller(7, &[]), 4).unwrap());
    let unsure = Credentials { complete: false, ..caller(7, &[]) };
    assert!(!permits(&bytes, &inode, &unsure, 4).unwrap(), "it may yet turn out to be in that group");
    let unsure = Credentials { groups: smallvec![], ..unsure };
    assert!(permits(&encoded(&extended()), &inode, &unsure, 4).unwrap(), "every group would grant it");
}
