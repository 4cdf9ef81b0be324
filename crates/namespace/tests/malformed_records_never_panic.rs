//! Goal: a record of the namespace that says something nobody would say makes no verb and no check panic or run for ever, and what the check
//! calls repairable can be repaired. Method: a namespace with one of everything, of which one record has fields changed.
#![allow(clippy::unwrap_used)] // A test fails by panicking.

use ashlar_env::sim::SimEntropy;
use ashlar_kv::Key;
use ashlar_namespace::check::Finding;
use ashlar_namespace::key::Cookie;
use ashlar_namespace::record::{Account, Garbage};
use ashlar_namespace::testing::{World, name};
use ashlar_namespace::verb::{self, OpenArgs, SetxattrArgs, SetxattrMode, WriteArgs};
use ashlar_namespace::{Bucket, Inode};
use ashlar_types::message::{RenameFlags, SetAttr};
use ashlar_types::testing::mutated;
use ashlar_types::{ChainId, Credentials, InodeId, SessionId, codec};
use bytes::Bytes;
use std::ops::ControlFlow;

const ROUNDS: u64 = 10_000;
const ROOT: InodeId = InodeId::ROOT;
const NAMES: [&str; 5] = ["d", "inline", "chunked", "link", "second"];
/// Checks and repairs until nothing repairable may be left: one repair may show what another one hid.
const REPAIRS_MAX: usize = 6;

/// A sound namespace with one of everything.
fn sample() -> World {
    let mut world = World::new();
    world.placement.chains = [ChainId(1)].into_iter().collect();
    let directory = world.make_directory(ROOT, "d");
    let inline = world.make_file(directory, "inline");
    let write = WriteArgs::default();
    world.as_root(|txn, context| verb::write_inline(txn, context, inline, 20_000, b"end", write)).unwrap();
    let xattr = SetxattrArgs { name: b"user.a", value: b"1", mode: SetxattrMode::Any, kill_setgid: false };
    world.as_root(|txn, context| verb::setxattr(txn, context, inline, &xattr)).unwrap();
    world.as_root(|txn, context| verb::link(txn, context, inline, ROOT, name("second"))).unwrap();
    let chunked = world.make_file(ROOT, "chunked");
    world.as_root(|txn, context| verb::write_inline(txn, context, chunked, 0, b"start", write)).unwrap();
    let proposal = world.as_root(|txn, context| verb::propose_layout(txn, context, chunked)).unwrap();
    world.as_root(|txn, context| verb::set_layout(txn, context, chunked, &proposal.layout, 8)).unwrap();
    world.as_root(|txn, context| verb::symlink(txn, context, ROOT, name("link"), b"target")).unwrap();
    let orphan = world.make_file(ROOT, "orphan");
    world.hold_open(orphan, SessionId(4));
    world.as_root(|txn, context| verb::unlink(txn, context, ROOT, name("orphan"))).unwrap();
    let proposed = world.make_file(ROOT, "proposed");
    world.as_root(|txn, context| verb::write_inline(txn, context, proposed, 0, b"start", write)).unwrap();
    world.as_root(|txn, context| verb::propose_layout(txn, context, proposed)).unwrap();
    world
}

/// The value with some fields changed, by the type that its table has.
fn mutate(key: &[u8], value: &[u8], random: &SimEntropy) -> Vec<u8> {
    let draw = |below: u64| random.below(below.max(1));
    match key[2] {
        b'I' => mutated(&codec::decode::<Inode>(value, "inode").unwrap(), draw),
        b'D' => mutated(&codec::decode::<Bucket>(value, "bucket").unwrap(), draw),
        b'A' => mutated(&codec::decode::<Account>(value, "account").unwrap(), draw),
        b'G' => mutated(&codec::decode::<Garbage>(value, "garbage").unwrap(), draw),
        b'C' => mutated(&codec::decode::<u64>(value, "counter").unwrap(), draw),
        // Plain bytes: of a file, a link target, an attribute, a mark.
        _ => match draw(3) {
            0 => value[..draw(value.len() as u64 + 1) as usize].to_vec(),
            1 => vec![b'x'; draw(70_000) as usize],
            _ => [value, &[0]].concat(),
        },
    }
}

/// Everything that is done to files; answers of any kind will do.
fn use_it(world: &mut World, random: &SimEntropy) {
    let root = Credentials::root();
    let inodes: Vec<InodeId> =
        world.store.table(b'I').filter_map(|(key, _)| ashlar_namespace::key::inode_of(key)).collect();
    for &inode in &inodes {
        let _ = world.try_run(&root, |txn, _| verb::getattr(txn, inode));
        let _ = world.try_run(&root, |txn, context| {
            let mut emit = |_: verb::DirEntry<'_>| ControlFlow::Continue(());
            verb::readdir(txn, context, inode, Cookie(0), true, &mut emit)
        });
        let _ = world.try_run(&root, |txn, context| verb::read_inline(txn, context, inode, 10, 100_000));
        let _ = world.try_run(&root, |txn, _| verb::readlink(txn, inode));
        let _ = world.try_run(&root, |txn, context| verb::listxattr(txn, context, inode));
        let _ = world.try_run(&root, |txn, context| verb::layout_show(txn, context, inode));
        let open = OpenArgs {
            read: true,
            write: true,
            truncate: random.below(2) == 0,
            wants_body: true,
            ..OpenArgs::default()
        };
        let _ = world.try_run(&root, |txn, context| verb::open(txn, context, inode, &open));
        let write = WriteArgs::default();
        let _ =
            world.try_run(&root, |txn, context| verb::write_inline(txn, context, inode, 5, b"more", write));
        let changes = SetAttr {
            uid: Some(8),
            mode: Some(0o600),
            size: Some(random.below(40_000)),
            ..SetAttr::default()
        };
        let _ = world.try_run(&root, |txn, context| verb::setattr(txn, context, inode, &changes));
        let _ = world.try_run(&root, |txn, context| verb::propose_layout(txn, context, inode));
        let _ = world.try_run(&root, |txn, context| verb::withdraw_layout(txn, context, inode, None));
    }
    for &parent in &inodes {
        for text in NAMES {
            let _ = world.try_run(&root, |txn, context| verb::lookup(txn, context, parent, name(text)));
        }
        let flags = [RenameFlags::Replace, RenameFlags::Exchange][random.below(2) as usize];
        let _ = world.try_run(&root, |txn, context| {
            verb::rename(txn, context, parent, name(NAMES[0]), ROOT, name("other"), flags)
        });
        let _ = world.try_run(&root, |txn, context| verb::mkdir(txn, context, parent, name("new"), 0o755, 0));
        for text in NAMES {
            let _ = world.try_run(&root, |txn, context| verb::unlink(txn, context, parent, name(text)));
            let _ = world.try_run(&root, |txn, context| verb::rmdir(txn, context, parent, name(text)));
        }
    }
}

#[test]
fn ten_thousand_records_with_other_fields_are_answered() {
    let random = SimEntropy::new(21);
    let (mut found, mut repaired) = (0, 0);
    for round in 0..ROUNDS {
        let mut world = sample();
        assert!(round > 0 || world.findings().is_empty(), "the sample is sound");
        let pairs: Vec<(Key, Bytes)> =
            world.store.pairs().map(|(key, value)| (key.clone(), value.clone())).collect();
        let (key, value) = &pairs[random.below(pairs.len() as u64) as usize];
        let malformed = mutate(key, value, &random);
        let put = world.try_run(&Credentials::root(), |txn, _| {
            txn.put(key.clone(), malformed.clone().into());
            Ok(())
        });
        put.unwrap();
        if round % 2 == 0 {
            use_it(&mut world, &random);
        }
        let mut left = world.findings();
        found += u64::from(!left.is_empty());
        for _ in 0..REPAIRS_MAX {
            let repairable: Vec<&Finding> =
                left.iter().filter(|finding| finding.remedy().is_some()).collect();
            if repairable.is_empty() {
                break;
            }
            for finding in repairable {
                let _ =
                    world.try_run(&Credentials::root(), |txn, context| verb::repair(txn, context, finding));
            }
            left = world.findings();
            repaired += 1;
        }
        let rest: Vec<String> = left
            .iter()
            .filter(|finding| finding.remedy().is_some())
            .map(|finding| format!("{finding}"))
            .collect();
        // What needs a person may hide that something else is right.
        let needs_person = left.iter().any(|finding| finding.remedy().is_none());
        // What a file has in chunks is known to the targets only (the chunk check of fsck counts it); no counter holds more.
        let is_beyond_counting = left.iter().any(|finding| {
            matches!(finding, Finding::Account { summed, .. } if summed.blocks == u64::MAX || summed.bytes == u64::MAX)
        });
        assert!(
            needs_person || is_beyond_counting || rest.is_empty(),
            "round {round}, {key:?} {value:?} -> {malformed:?}: not repaired: {rest:#?}"
        );
    }
    assert!(found > ROUNDS / 4 && repaired > ROUNDS / 8, "{found} found, {repaired} repaired");
}
