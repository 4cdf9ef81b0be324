//! Tables of what a policy makes of callers, ids and lists.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use super::*;
use crate::{FilesetId, InodeId, Timespec};

fn ranges(text: &[&str]) -> IdMap {
    IdMap(text.iter().map(|range| range.parse().unwrap()).collect())
}

/// Users 1000 to 1999 are 5000 and so on, group 100 is 7100.
fn mapped(squash: Squash, outside: Outside) -> NodePolicy {
    let (uids, gids) = (ranges(&["1000-1999=5000"]), ranges(&["100=7100", "200-299"]));
    NodePolicy { squash, uids, gids, outside, ..NodePolicy::default() }
}

fn squashed(squash: Squash) -> NodePolicy {
    NodePolicy { squash, anonymous: "77:88".parse().unwrap(), ..NodePolicy::default() }
}

fn caller(uid: u32, gid: u32, groups: &[u32]) -> Credentials {
    Credentials { uid, gid, groups: groups.into(), caps: Capabilities::ALL, complete: true }
}

/// User, group and other groups.
type Ids = (u32, u32, &'static [u32]);

#[test]
fn a_caller_is_who_the_policy_says() {
    use Outside::{Refuse, Squash as Anonymous};
    let (root, all, nobody) = (squashed(Squash::Root), squashed(Squash::All), NodePolicy::trusting());
    let refusing = mapped(Squash::Root, Refuse);
    let squashing = mapped(Squash::Root, Anonymous);
    let with_root = mapped(Squash::Nobody, Refuse);
    let all_mapped = mapped(Squash::All, Refuse);
    let table: &[(&NodePolicy, Ids, Option<Ids>)] = &[
        // Root, and group 0 wherever it is.
        (&root, (0, 0, &[0, 5]), Some((77, 88, &[]))),
        (&root, (0, 50, &[5]), Some((77, 88, &[]))),
        (&root, (50, 0, &[0, 5]), Some((50, 88, &[5]))),
        (&root, (50, 60, &[0]), Some((50, 60, &[]))),
        (&root, (50, 60, &[5, 6]), Some((50, 60, &[5, 6]))),
        // Everybody.
        (&all, (50, 60, &[5]), Some((77, 88, &[]))),
        (&all, (0, 0, &[]), Some((77, 88, &[]))),
        // Nobody.
        (&nobody, (0, 0, &[0, 5]), Some((0, 0, &[0, 5]))),
        (&nobody, (50, 0, &[]), Some((50, 0, &[]))),
        // Ranges, their ends, and what is outside of them.
        (&refusing, (1000, 100, &[200, 5, 0]), Some((5000, 7100, &[200]))),
        (&refusing, (1999, 299, &[100]), Some((5999, 299, &[7100]))),
        (&refusing, (2000, 100, &[]), None),
        (&refusing, (999, 100, &[]), None),
        (&refusing, (5000, 100, &[]), None),
        (&refusing, (1000, 101, &[]), None),
        (&refusing, (1000, 0, &[]), Some((5000, 65534, &[]))),
        (&refusing, (0, 100, &[100]), Some((65534, 65534, &[]))),
        (&squashing, (2000, 100, &[100]), Some((65534, 65534, &[]))),
        (&squashing, (1000, 101, &[100, 5]), Some((5000, 65534, &[7100]))),
        (&with_root, (0, 0, &[0, 100]), Some((0, 0, &[0, 7100]))),
        (&with_root, (1, 0, &[]), None),
        (&all_mapped, (2000, 5, &[]), Some((65534, 65534, &[]))),
    ];
    for (policy, (uid, gid, groups), wanted) in table {
        let asked = caller(*uid, *gid, groups);
        let found = policy.admit(&asked);
        let caps = if policy.squash == Squash::Nobody { Capabilities::ALL } else { Capabilities(0) };
        let wanted = wanted
            .ok_or(Errno::EACCES)
            .map(|(uid, gid, groups)| Credentials { caps, ..caller(uid, gid, groups) });
        assert_eq!(found, wanted, "{policy}: {asked:?}");
        let incomplete = policy.admit(&Credentials { complete: false, ..asked });
        assert_eq!(incomplete.map(|found| found.complete), wanted.map(|_| false), "{policy}");
    }
}

#[test]
fn ids_go_to_the_servers_and_back() {
    let policy = mapped(Squash::Root, Outside::Refuse);
    let user = |id| policy.id_to_server(IdKind::User, id);
    assert_eq!((user(1000), user(1999)), (Ok(5000), Ok(5999)));
    // Nobody is given a file, or let in by a list, in whose place it would be somebody else.
    for id in [0, 999, 2000, 5000, 65534] {
        assert_eq!(user(id), Err(Errno::EINVAL), "{id}");
    }
    for (server, node) in [(5000, 1000), (5999, 1999), (6000, 65534), (1000, 65534), (0, 65534)] {
        assert_eq!(policy.id_to_node(IdKind::User, server), node, "{server}");
    }
    assert_eq!(policy.id_to_node(IdKind::Group, 7100), 100);
    for id in 1..3000 {
        if let Ok(server) = user(id) {
            assert_eq!(policy.id_to_node(IdKind::User, server), id, "there and back");
        }
    }
    let with_root = mapped(Squash::Nobody, Outside::Refuse);
    assert_eq!(with_root.id_to_server(IdKind::User, 0), Ok(0));
    assert_eq!(with_root.id_to_node(IdKind::User, 0), 0);
    let plain = squashed(Squash::Root);
    for id in [0, 5, 65534] {
        assert_eq!(plain.id_to_server(IdKind::User, id), Ok(id));
        assert_eq!(plain.id_to_node(IdKind::User, id), id);
    }
}

#[test]
fn attributes_and_access_lists_have_the_ids_of_whoever_reads_them() {
    let policy = mapped(Squash::Root, Outside::Refuse);
    let time = Timespec::default();
    let mut attr = Attr {
        inode: InodeId::ROOT,
        mode: 0o100644,
        nlink: 1,
        uid: 5001,
        gid: 7100,
        rdev: 0,
        size: 0,
        blocks: 0,
        atime: time,
        mtime: time,
        ctime: time,
        btime: time,
        block_size: 4096,
        fileset: FilesetId::default(),
    };
    policy.attr_to_node(&mut attr);
    assert_eq!((attr.uid, attr.gid), (1001, 100));
    policy.attr_to_server(&mut attr);
    assert_eq!((attr.uid, attr.gid), (5001, 7100));

    // Owner, user, owning group, group, mask, others: only the second and the fourth have ids.
    let list = |user: u32, group: u32| {
        let mut list = 2u32.to_le_bytes().to_vec();
        for (tag, id) in
            [(1u16, u32::MAX), (2, user), (4, u32::MAX), (8, group), (16, u32::MAX), (32, u32::MAX)]
        {
            list.extend([&tag.to_le_bytes()[..], &7u16.to_le_bytes(), &id.to_le_bytes()].concat());
        }
        list
    };
    assert_eq!(policy.acl_to_server(&list(1001, 100)), Ok(list(5001, 7100)));
    assert_eq!(policy.acl_to_node(&list(5001, 7100)), list(1001, 100));
    assert_eq!(policy.acl_to_node(&list(1, 1)), list(65534, 65534));
    assert_eq!(policy.acl_to_server(&list(1, 100)), Err(Errno::EINVAL));
    assert_eq!(policy.acl_to_server(&list(1001, 1)), Err(Errno::EINVAL));
    for short in [&b""[..], b"abc", b"\x02\0\0\0", b"\x02\0\0\0\x02\0"] {
        assert_eq!(policy.acl_to_server(short), Ok(short.to_vec()), "for others to refuse");
    }
}

#[test]
fn ranges_and_policies_that_contradict_themselves_are_refused() {
    for text in ["1000-1999=5000", "1000=5", "1000-1999", "7"] {
        assert_eq!(text.parse::<IdRange>().unwrap().to_string(), text);
    }
    for wrong in
        ["", "0", "0-10", "5-4", "1-4294967295", "10=0", "1-10=4294967290", "a-b", "1-2-3", "1=2=3", "-1"]
    {
        let error = wrong.parse::<IdRange>().unwrap_err();
        assert!(error.contains("no range of ids"), "{wrong}: {error}");
    }
    for wrong in ["", "65534", "0:5", "5:0", "1:2:3", "x:y", "4294967295:1"] {
        assert!(wrong.parse::<Anonymous>().is_err(), "{wrong}");
    }
    let with = |uids: &[&str]| NodePolicy { uids: ranges(uids), ..NodePolicy::default() };
    assert_eq!(with(&["1-10=101", "11-20=111"]).check(), Ok(()));
    assert!(with(&["1-10=101", "10-20=200"]).check().is_err_and(|why| why.contains("of the node")));
    assert!(with(&["1-10=101", "11-20=110"]).check().is_err_and(|why| why.contains("of the servers")));
    let many: Vec<String> = (1..=17).map(|id| id.to_string()).collect();
    let many = with(&many.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(many.check().is_err_and(|why| why.contains("more than 16")));
    let zero = Anonymous { uid: 0, gid: 1 };
    assert!(NodePolicy { anonymous: zero, ..NodePolicy::default() }.check().is_err());
}

#[test]
fn a_node_that_only_mounts_has_its_root_squashed_and_one_of_administrators_has_not() {
    let client = NodePolicy::of_new_node(Roles::default().with(Role::Client));
    assert_eq!((client.squash, client.anonymous.to_string()), (Squash::Root, "65534:65534".into()));
    assert!(!client.is_trusting() && client.takes_capabilities());
    let admin = NodePolicy::of_new_node(Roles::default().with(Role::Client).with(Role::Admin));
    assert!(admin.is_trusting());
    assert_eq!(
        mapped(Squash::Root, Outside::Refuse).to_string(),
        "root becomes 65534:65534, uids 1000-1999=5000, gids 100=7100,200-299, others are refused"
    );
}
