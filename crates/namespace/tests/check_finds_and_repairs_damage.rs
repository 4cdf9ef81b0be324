//! The consistency check: silent on what the verbs make, finds each kind of damage, and its repairs leave nothing to find.

#![allow(clippy::unwrap_used)] // The helpers of a test panic as the test does.

use ashlar_kv::{Key, Snapshot};
use ashlar_namespace::check::{CheckArgs, CheckReport, Finding, check};
use ashlar_namespace::key::{self, NameHash};
use ashlar_namespace::record::{Account, Garbage};
use ashlar_namespace::testing::{HASH_KEY, World, name};
use ashlar_namespace::verb::{self, SetxattrArgs, SetxattrMode, WriteArgs};
use ashlar_namespace::{Bucket, FileData, Inode, Kind, Txn};
use ashlar_types::{ChainId, FileLayout, FileType, InodeId, SessionId, ShardId, codec};
use bytes::Bytes;
use std::ops::ControlFlow;

const ROOT: InodeId = InodeId::ROOT;

fn run_with(world: &World, args: &CheckArgs<'_>) -> (CheckReport, Vec<Finding>) {
    let mut found = Vec::new();
    let report = check(&world.store, args, &mut |finding| {
        found.push(finding);
        ControlFlow::Continue(())
    })
    .unwrap();
    assert_eq!(report.findings, found.len() as u64);
    (report, found)
}

/// The findings; checks that small passes find the same.
fn findings(world: &World) -> Vec<Finding> {
    let args = CheckArgs::new(3, &HASH_KEY);
    let found = run_with(world, &args).1;
    let small = CheckArgs { inodes_per_pass: 2, accounts_per_pass: 1, ..args };
    let mut again = run_with(world, &small).1;
    let mut sorted = found.clone();
    let by_text = |finding: &Finding| format!("{finding}");
    again.sort_by_key(by_text);
    sorted.sort_by_key(by_text);
    assert_eq!(again, sorted, "one pass or many");
    found
}

/// Ids of what [`sample`] makes.
struct Sample {
    world: World,
    directory: InodeId,
    nested: InodeId,
    inline: InodeId,
    chunked: InodeId,
    link: InodeId,
    orphan: InodeId,
}

/// A sound namespace with one of everything.
fn sample() -> Sample {
    let mut world = World::new();
    world.placement.chains = [ChainId(1)].into_iter().collect();
    let directory = world.make_directory(ROOT, "d");
    let nested = world.make_directory(directory, "nested");
    let inline = world.make_file(directory, "inline");
    let write = WriteArgs::default();
    world.as_root(|txn, context| verb::write_inline(txn, context, inline, 20_000, b"end", write)).unwrap();
    let xattr = SetxattrArgs { name: b"user.a", value: b"1", mode: SetxattrMode::Any, kill_setgid: false };
    world.as_root(|txn, context| verb::setxattr(txn, context, inline, &xattr)).unwrap();
    world.as_root(|txn, context| verb::link(txn, context, inline, nested, name("second"))).unwrap();
    let chunked = world.make_file(ROOT, "chunked");
    world.as_root(|txn, context| verb::write_inline(txn, context, chunked, 0, b"start", write)).unwrap();
    let proposal = world.as_root(|txn, context| verb::propose_layout(txn, context, chunked)).unwrap();
    world.as_root(|txn, context| verb::set_layout(txn, context, chunked, &proposal.layout, 8)).unwrap();
    world.as_root(|txn, context| verb::symlink(txn, context, ROOT, name("link"), b"target")).unwrap();
    let link = world.find(ROOT, "link").unwrap();
    let orphan = world.make_file(ROOT, "orphan");
    world.hold_open(orphan, SessionId(4));
    world.as_root(|txn, context| verb::unlink(txn, context, ROOT, name("orphan"))).unwrap();
    assert_eq!(findings(&world), [], "the sample is sound");
    Sample { world, directory, nested, inline, chunked, link, orphan }
}

/// Changes the store behind the verbs' back, accounting left as it is.
fn damage(world: &mut World, change: impl FnOnce(&mut Txn<'_>)) {
    world
        .as_root(|txn, _| {
            change(txn);
            Ok(())
        })
        .unwrap();
}

fn put_inode(world: &mut World, id: InodeId, change: impl FnOnce(&mut Inode)) {
    let mut inode = world.inode(id);
    change(&mut inode);
    damage(world, |txn| txn.put_record(key::inode(id), &inode));
}

fn bucket_key(directory: InodeId, text: &str) -> Key {
    key::bucket(directory, NameHash::of(name(text), &HASH_KEY))
}

fn edit_bucket(world: &mut World, directory: InodeId, text: &str, change: impl FnOnce(&mut Bucket)) {
    let place = bucket_key(directory, text);
    let mut bucket: Bucket = match world.store.get(&place).unwrap() {
        Some(bytes) => codec::decode(&bytes, "bucket").unwrap(),
        None => Bucket::default(),
    };
    change(&mut bucket);
    damage(world, |txn| txn.put_record(place, &bucket));
}

/// Checks that a finding of this kind is told, repairs all findings, and checks that nothing is left.
fn expect(mut world: World, what: &str, is_it: impl Fn(&Finding) -> bool) -> World {
    let found = findings(&world);
    assert!(found.iter().any(&is_it), "{what}: {found:?}");
    for finding in found {
        assert!(finding.remedy().is_some(), "{what}: {finding}");
        world.as_root(|txn, context| verb::repair(txn, context, &finding)).unwrap();
    }
    assert_eq!(findings(&world), [], "{what}: something is left");
    world
}

#[test]
fn counts_and_flags_are_set_right() {
    /// What it is called, which inode, what is done to it, and what must be told.
    type Case = (&'static str, fn(&Sample) -> InodeId, fn(&mut Inode), fn(&Finding) -> bool);
    let cases: [Case; 8] = [
        (
            "nlink of a file",
            |s| s.inline,
            |i| i.nlink = 7,
            |f| matches!(f, Finding::Nlink { counted: 2, .. }),
        ),
        (
            "nlink of a directory",
            |s| s.directory,
            |i| i.nlink = 2,
            |f| matches!(f, Finding::Nlink { stored: 2, counted: 3, .. }),
        ),
        (
            "size of a directory",
            |s| s.directory,
            |i| i.size = 9,
            |f| matches!(f, Finding::DirectorySize { stored: 9, counted: 2, .. }),
        ),
        ("blocks", |s| s.inline, |i| i.blocks += 5, |f| matches!(f, Finding::Blocks { counted: 8, .. })),
        ("link size", |s| s.link, |i| i.size = 3, |f| matches!(f, Finding::LinkSize { counted: 6, .. })),
        (
            "xattr flag",
            |s| s.inline,
            |i| i.has_xattrs = false,
            |f| matches!(f, Finding::XattrFlag { stored: false, .. }),
        ),
        (
            "body behind the end",
            |s| s.inline,
            |i| i.size = 10,
            |f| matches!(f, Finding::BodyBeyondEnd { size: 10, .. }),
        ),
        ("owner", |s| s.chunked, |i| i.uid = 77, |f| matches!(f, Finding::Account { .. })),
    ];
    for (what, id, change, is_it) in cases {
        let mut sample = sample();
        let id = id(&sample);
        put_inode(&mut sample.world, id, change);
        expect(sample.world, what, is_it);
    }
}

#[test]
fn lost_names_are_found_again() {
    let mut sample = sample();
    for (directory, text) in [(ROOT, "d"), (ROOT, "chunked")] {
        damage(&mut sample.world, |txn| txn.delete(bucket_key(directory, text)));
    }
    let mut world = expect(
        sample.world,
        "lost names",
        |finding| matches!(finding, Finding::Unreachable { inode } if inode.counter() > 0),
    );
    let lost = world.find(ROOT, "lost+found").unwrap();
    let text = format!("#{}-{}", sample.directory.home().0, sample.directory.counter());
    assert_eq!(world.find(lost, &text), Some(sample.directory));
    assert_eq!(world.inode(sample.directory).as_directory().unwrap().0, lost);
    assert_eq!(world.find(sample.directory, "nested"), Some(sample.nested));
    assert_eq!(world.inode(lost).nlink, 3);
}

#[test]
fn entries_that_point_wrong_go() {
    let mut sample = sample();
    let (directory, chunked) = (sample.directory, sample.chunked);
    damage(&mut sample.world, |txn| txn.delete(key::inode(chunked)));
    expect(
        sample.world,
        "dangling",
        |finding| matches!(finding, Finding::EntryDangling { inode, .. } if *inode == chunked),
    );

    let mut sample = self::sample();
    edit_bucket(&mut sample.world, directory, "inline", |bucket| {
        bucket.entries[0].file_type = FileType::Directory;
    });
    expect(sample.world, "type", |finding| {
        matches!(finding, Finding::EntryType { actual: FileType::Regular, .. })
    });

    let mut sample = self::sample();
    edit_bucket(&mut sample.world, directory, "inline", |bucket| {
        bucket.entries[0].inode = InodeId::new(ShardId(60), 5).unwrap();
    });
    expect(sample.world, "shard", |finding| matches!(finding, Finding::EntryDangling { .. }));
}

#[test]
fn directories_have_one_parent() {
    let mut sample = sample();
    let (directory, nested) = (sample.directory, sample.nested);
    put_inode(&mut sample.world, nested, |inode| {
        let policy = inode.as_directory().unwrap().1;
        inode.kind = Kind::Directory { parent: ROOT, policy };
    });
    let world = expect(
        sample.world,
        "parent",
        |finding| matches!(finding, Finding::Parent { inode, found, .. } if (*inode, *found) == (nested, directory)),
    );
    assert_eq!(world.inode(nested).as_directory().unwrap().0, directory);

    let mut sample = self::sample();
    let mut entry = None;
    edit_bucket(&mut sample.world, directory, "nested", |bucket| entry = Some(bucket.entries[0].clone()));
    let mut entry = entry.unwrap();
    entry.name = b"twice"[..].into();
    edit_bucket(&mut sample.world, ROOT, "twice", |bucket| bucket.entries.push(entry));
    let mut world = expect(
        sample.world,
        "second name",
        |finding| matches!(finding, Finding::EntryExtra { inode, .. } if *inode == nested),
    );
    assert_eq!((world.find(ROOT, "twice"), world.find(directory, "nested")), (None, Some(nested)));
}

#[test]
fn a_loop_of_directories_is_told_once_and_left_alone() {
    let mut sample = sample();
    let (directory, nested) = (sample.directory, sample.nested);
    damage(&mut sample.world, |txn| txn.delete(bucket_key(ROOT, "d")));
    put_inode(&mut sample.world, directory, |inode| {
        let policy = inode.as_directory().unwrap().1;
        (inode.kind, inode.nlink) = (Kind::Directory { parent: nested, policy }, 3);
    });
    let mut bucket = Bucket::default();
    bucket.entries.push(ashlar_namespace::BucketEntry {
        collision: 0,
        file_type: FileType::Directory,
        inode: directory,
        name: b"up"[..].into(),
    });
    edit_bucket(&mut sample.world, nested, "up", |stored| *stored = bucket);
    let loops: Vec<Finding> =
        findings(&sample.world).into_iter().filter(|f| matches!(f, Finding::Loop { .. })).collect();
    assert_eq!(loops, [Finding::Loop { inode: directory.min(nested) }]);
    assert_eq!(loops[0].remedy(), None);
    let done = sample.world.as_root(|txn, context| verb::repair(txn, context, &loops[0]));
    assert_eq!(done, Ok(false));
}

#[test]
fn what_nobody_holds_is_removed() {
    let mut sample = sample();
    let orphan = sample.orphan;
    damage(&mut sample.world, |txn| txn.delete(key::orphan(orphan, SessionId(4))));
    let world = expect(sample.world, "forgotten", |finding| *finding == Finding::Forgotten { inode: orphan });
    assert_eq!(world.find_inode(orphan), None);

    let mut sample = self::sample();
    let inline = sample.inline;
    damage(&mut sample.world, |txn| txn.put(key::orphan(inline, SessionId(4)), Bytes::new()));
    let world = expect(
        sample.world,
        "orphan with names",
        |finding| matches!(finding, Finding::OrphanNamed { inode, .. } if *inode == inline),
    );
    assert!(world.find_inode(inline).is_some());
}

#[test]
fn stray_records_go() {
    let gone = InodeId::new(ShardId(1), 4000).unwrap();
    let link = sample().link;
    for (what, stray) in [
        ("body of nothing", key::body(gone, 0)),
        ("entries of nothing", key::bucket(gone, NameHash(5))),
        ("target of nothing", key::link_target(gone)),
        ("orphan of nothing", key::orphan(gone, SessionId(1))),
        ("writer of nothing", key::writer_of(gone, SessionId(1))),
        ("attribute of nothing", key::xattr(gone, b"user.a")),
        ("body of a link", key::body(link, 0)),
        ("writer of a link", key::writer_of(link, SessionId(1))),
        ("piece out of range", key::body(sample().inline, 16)),
    ] {
        let mut sample = sample();
        let value = if what.starts_with("entries") { codec::encode(&Bucket::default()) } else { vec![1] };
        damage(&mut sample.world, |txn| txn.put(stray.clone(), value.into()));
        expect(sample.world, what, |finding| *finding == Finding::RecordStray { key: stray.clone() });
    }
    let mut sample = sample();
    let layout =
        FileLayout { generation: 3, chunk_bytes: 1 << 16, chains: [ChainId(1)].into_iter().collect() };
    let garbage = Garbage { layout, keep_bytes: 0 };
    damage(&mut sample.world, |txn| txn.put_record(key::garbage(gone, 3), &garbage));
    assert_eq!(findings(&sample.world), [], "garbage of a file that is gone is as it should be");
}

#[test]
fn garbage_never_names_chunks_in_use() {
    let mut sample = sample();
    let (chunked, inline) = (sample.chunked, sample.inline);
    let Kind::Regular(FileData::Chunks { layout, .. }) = sample.world.inode(chunked).kind else {
        panic!("it is in chunks");
    };
    let live = Garbage { layout: layout.clone(), keep_bytes: 0 };
    damage(&mut sample.world, |txn| txn.put_record(key::garbage(chunked, layout.generation), &live));
    let world = expect(sample.world, "live garbage", |finding| {
        *finding == Finding::GarbageLive { inode: chunked, generation: 1 }
    });
    assert_eq!(world.store.table(b'G').count(), 0);

    let mut sample = self::sample();
    damage(&mut sample.world, |txn| txn.put_record(key::garbage(inline, 6), &live));
    let world = expect(sample.world, "garbage ahead", |finding| {
        *finding == Finding::GarbageAhead { inode: inline, generation: 6 }
    });
    assert!(matches!(world.inode(inline).kind, Kind::Regular(FileData::Inline { generation: 7, .. })));
}

#[test]
fn counters_are_corrected() {
    let mut sample = sample();
    damage(&mut sample.world, |txn| txn.put_record(key::counter(ShardId(0)), &1_u64));
    expect(sample.world, "inode counter", |finding| {
        matches!(finding, Finding::CounterLow { shard: ShardId(0), stored: 1, .. })
    });

    let mut sample = self::sample();
    let accounts: Vec<Key> = sample.world.store.table(b'A').map(|(key, _)| key.clone()).collect();
    let wrong = Account { inodes: 1, bytes: 2, blocks: 3 };
    damage(&mut sample.world, |txn| txn.put_record(accounts[0].clone(), &wrong));
    damage(&mut sample.world, |txn| txn.put(accounts[1].clone(), vec![255].into()));
    damage(&mut sample.world, |txn| txn.delete(accounts[2].clone()));
    let of_nobody = key::account(ShardId(1), ashlar_types::FilesetId(9), 9, 9, 9);
    damage(&mut sample.world, |txn| txn.put_record(of_nobody, &wrong));
    let told = findings(&sample.world);
    assert_eq!(told.iter().filter(|f| matches!(f, Finding::Account { .. })).count(), 4, "{told:?}");
    expect(sample.world, "accounts", |finding| matches!(finding, Finding::Account { stored: None, .. }));
}

#[test]
fn an_entry_under_the_wrong_hash_is_moved() {
    let mut sample = sample();
    let inline = sample.inline;
    let directory = sample.directory;
    let bytes = sample.world.store.get(&bucket_key(directory, "inline")).unwrap().unwrap();
    damage(&mut sample.world, |txn| {
        txn.delete(bucket_key(directory, "inline"));
        txn.put(key::bucket(directory, NameHash(1)), bytes);
    });
    let mut world = expect(sample.world, "misplaced", |f| matches!(f, Finding::EntryMisplaced { .. }));
    assert_eq!(world.find(directory, "inline"), Some(inline));
}

#[test]
fn damage_that_needs_a_person_is_told_and_left() {
    let told = |world: &mut World, is_it: fn(&Finding) -> bool| {
        let found = findings(world);
        let finding = found.iter().find(|finding| is_it(finding));
        let finding = finding.unwrap_or_else(|| panic!("{found:?}")).clone();
        assert_eq!(finding.remedy(), None, "{finding}");
        assert_eq!(world.as_root(|txn, context| verb::repair(txn, context, &finding)), Ok(false));
    };
    let sample = sample();
    let mut world = sample.world;
    put_inode(&mut world, sample.link, |inode| inode.mode = 0o100_777);
    damage(&mut world, |txn| txn.put(bucket_key(sample.directory, "inline"), vec![9].into()));
    damage(&mut world, |txn| txn.put(Key::from_slice(b"\0\x02Zunknown"), Bytes::new()));
    damage(&mut world, |txn| txn.put(Key::from_slice(b"\0\x01Ishort"), Bytes::new()));
    edit_bucket(&mut world, ROOT, "chunked", |bucket| {
        let twin = bucket.entries[0].clone();
        bucket.entries.push(twin);
    });
    told(&mut world, |f| matches!(f, Finding::InodeMalformed { .. }));
    told(&mut world, |f| matches!(f, Finding::ValueMalformed { .. }));
    told(&mut world, |f| matches!(f, Finding::KeyMalformed { key } if key.contains(&b'Z')));
    told(&mut world, |f| matches!(f, Finding::KeyMalformed { key } if key.ends_with(b"short")));
    told(&mut world, |f| matches!(f, Finding::BucketMalformed { .. }));
    let mut world = self::sample().world;
    damage(&mut world, |txn| txn.put(key::inode(sample.inline), vec![1, 2, 3].into()));
    told(&mut world, |f| matches!(f, Finding::ValueMalformed { .. }));
    let strays = findings(&world).into_iter().filter(|f| matches!(f, Finding::RecordStray { .. }));
    assert_eq!(strays.count(), 0, "what belongs to a damaged inode is not taken for stray");
}

#[test]
fn a_receiver_may_stop_the_check() {
    let mut sample = sample();
    for id in [sample.inline, sample.chunked] {
        put_inode(&mut sample.world, id, |inode| inode.nlink = 9);
    }
    let args = CheckArgs::new(3, &HASH_KEY);
    let report = check(&sample.world.store, &args, &mut |_| ControlFlow::Break(())).unwrap();
    assert_eq!((report.findings, report.is_cut_short), (1, true));
}

#[test]
fn many_inodes_are_checked_in_batches() {
    let mut world = World::new();
    let directory = world.make_directory(ROOT, "d");
    for number in 0..2500 {
        world.make_file(directory, &format!("f{number}"));
    }
    let (report, found) = run_with(&world, &CheckArgs::new(3, &HASH_KEY));
    assert_eq!((report.inodes, report.entries, found), (2502, 2501, vec![]));
    let gone = InodeId::new(directory.home(), 1500).unwrap();
    let stray = InodeId::new(directory.home(), 9999).unwrap();
    damage(&mut world, |txn| {
        txn.put(key::link_target(gone), Bytes::from_static(b"x"));
        txn.put(key::link_target(stray), Bytes::from_static(b"x"));
    });
    assert_eq!(findings(&world).len(), 2);
}
