//! Content that lives with its inode: random writes, appends, truncations, allocations and holes against a plain byte vector, and
//! the limits.

#![allow(clippy::unwrap_used)] // The helpers of a test panic as the test does.

use ashlar_namespace::testing::World;
use ashlar_namespace::verb::{
    self, AllocateArgs, OpenArgs, ReadInlineReply, SetxattrArgs, SetxattrMode, WriteArgs, WriteReply,
};
use ashlar_types::message::{DataGrant, SetAttr};
use ashlar_types::{Credentials, Errno, InodeId};

const ROOT: InodeId = InodeId::ROOT;
/// The inline threshold of the root's default policy.
const LIMIT: u64 = World::INLINE_BYTES;

fn write(
    world: &mut World,
    id: InodeId,
    offset: u64,
    data: &[u8],
    append: bool,
) -> Result<WriteReply, Errno> {
    let args = WriteArgs { append, ..WriteArgs::default() };
    world.as_root(|txn, context| verb::write_inline(txn, context, id, offset, data, args))
}

fn read(world: &mut World, id: InodeId, offset: u64, len: u32) -> Vec<u8> {
    match world.as_root(|txn, context| verb::read_inline(txn, context, id, offset, len)).unwrap() {
        ReadInlineReply::Bytes { data, .. } => data.to_vec(),
        ReadInlineReply::InChunks { .. } => panic!("the file is inline"),
    }
}

fn allocate(world: &mut World, id: InodeId, mode: u32, offset: u64, len: u64) -> Result<WriteReply, Errno> {
    let args = AllocateArgs { mode, offset, len, kill_set_id: false };
    world.as_root(|txn, context| verb::allocate_inline(txn, context, id, &args))
}

fn truncate(world: &mut World, id: InodeId, size: u64) {
    let changes = SetAttr { size: Some(size), ..SetAttr::default() };
    world.as_root(|txn, context| verb::setattr(txn, context, id, &changes)).unwrap();
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// One random change of file and model.
fn step(world: &mut World, id: InodeId, model: &mut Vec<u8>, random: &mut Random) {
    let offset = random.below(LIMIT + 5000);
    let len = [random.below(40), random.below(5000), random.below(40_000)][random.below(3) as usize];
    let end = (offset + len) as usize;
    match random.below(8) {
        0..=3 => {
            let data: Vec<u8> = (0..len).map(|_| random.below(256) as u8).collect();
            let append = random.below(4) == 0;
            let at = if append { model.len() as u64 } else { offset };
            match write(world, id, offset, &data, append).unwrap() {
                WriteReply::Written { attr, offset } => {
                    assert!(at + len <= LIMIT || len == 0);
                    assert_eq!(offset, at);
                    if len > 0 {
                        model.resize(model.len().max((at + len) as usize), 0);
                        model[at as usize..(at + len) as usize].copy_from_slice(&data);
                    }
                    assert_eq!(attr.size, model.len() as u64);
                }
                WriteReply::NeedsChunks => assert!(at + len > LIMIT && len > 0),
                WriteReply::InChunks { .. } => panic!("the file is inline"),
            }
        }
        4 => {
            truncate(world, id, offset);
            model.resize(offset as usize, 0);
        }
        5 if len > 0 => {
            allocate(world, id, 3, offset, len).unwrap();
            let stop = end.min(model.len());
            model[(offset as usize).min(stop)..stop].fill(0);
        }
        6 | 7 if len > 0 => {
            let (mode, zeroes, keeps) =
                [(0, false, false), (1, false, true), (16, true, false), (17, true, true)]
                    [random.below(4) as usize];
            let reply = allocate(world, id, mode, offset, len).unwrap();
            if matches!(reply, WriteReply::NeedsChunks) {
                assert!(end as u64 > LIMIT);
                return;
            }
            if !keeps {
                model.resize(model.len().max(end), 0);
            }
            let stop = end.min(model.len());
            if zeroes {
                model[(offset as usize).min(stop)..stop].fill(0);
            }
        }
        _ => {}
    }
}

#[test]
fn random_changes_read_back() {
    for seed in 1..=12 {
        let (mut world, mut random, mut model) = (World::new(), Random(seed), Vec::new());
        let id = world.make_file(ROOT, "f");
        for turn in 0..250 {
            step(&mut world, id, &mut model, &mut random);
            let at = random.below(model.len() as u64 + 100);
            let len = random.below(30_000) as usize;
            let stop = (at as usize + len).min(model.len());
            let wanted = &model[(at as usize).min(stop)..stop];
            assert_eq!(read(&mut world, id, at, len as u32), wanted, "seed {seed} turn {turn}");
        }
        assert_eq!(read(&mut world, id, 0, 1 << 20), model, "seed {seed}");
        assert_eq!(world.findings(), [], "seed {seed}: blocks and pieces agree");
        truncate(&mut world, id, 0);
        assert_eq!((world.inode(id).blocks, world.store.table(b'B').count()), (0, 0));
    }
}

#[test]
fn writes_stamp_times_and_count_units() {
    let mut world = World::new();
    let id = world.make_file(ROOT, "f");
    let before = world.inode(id);
    let WriteReply::Written { attr, offset } = write(&mut world, id, 700, b"abc", false).unwrap() else {
        panic!("it fits");
    };
    assert_eq!((attr.size, attr.blocks, offset), (703, 2, 700));
    assert_eq!((attr.mtime, attr.ctime, attr.atime), (world.now, world.now, before.atime));
    let empty = write(&mut world, id, 0, b"", false).unwrap();
    assert!(matches!(empty, WriteReply::Written { attr, .. } if attr.mtime < world.now));
    assert_eq!(world.accounted().blocks, 2);
    assert_eq!(world.accounted().bytes, 703);
}

#[test]
fn only_touched_pieces_are_rewritten() {
    let mut world = World::new();
    let id = world.make_file(ROOT, "f");
    write(&mut world, id, 0, &[7; 60_000], false).unwrap();
    write(&mut world, id, 20_000, &[8; 10], false).unwrap();
    let bytes: usize =
        world.outcome.writes[0].1.0.iter().filter_map(|(_, value)| value.as_ref()).map(|v| v.len()).sum();
    assert!(bytes < 17_000, "one piece of 16 KiB, not the file: {bytes}");
}

#[test]
fn a_file_may_be_longer_than_what_it_stores() {
    let mut world = World::new();
    let id = world.make_file(ROOT, "f");
    truncate(&mut world, id, 1 << 40);
    assert_eq!(read(&mut world, id, (1 << 40) - 5, 100), [0; 5]);
    assert_eq!(read(&mut world, id, 1 << 30, 3 << 20).len(), 1 << 20, "one answer is bounded");
    assert!(matches!(write(&mut world, id, 10, b"x", false).unwrap(), WriteReply::Written { .. }));
    assert!(matches!(write(&mut world, id, LIMIT, b"x", false).unwrap(), WriteReply::NeedsChunks));
    assert!(matches!(write(&mut world, id, 0, b"x", true).unwrap(), WriteReply::NeedsChunks));
    assert_eq!(read(&mut world, id, 9, 4), [0, b'x', 0, 0]);
    assert_eq!(world.findings(), []);
}

#[test]
fn allocation_that_keeps_the_length_stores_nothing_behind_it() {
    let mut world = World::new();
    let id = world.make_file(ROOT, "f");
    write(&mut world, id, 0, &[7; 600], false).unwrap();
    for mode in [1, 17] {
        allocate(&mut world, id, mode, 500, 9000).unwrap();
        assert_eq!((world.inode(id).size, world.inode(id).blocks), (600, 2));
        assert_eq!(world.findings(), []);
    }
    assert_eq!(read(&mut world, id, 499, 9), [7, 0, 0, 0, 0, 0, 0, 0, 0]);
    allocate(&mut world, id, 0, 500, 9000).unwrap();
    assert_eq!((world.inode(id).size, world.inode(id).blocks), (9500, 19));
}

#[test]
fn limits_and_kinds_are_refused() {
    let mut world = World::new();
    let id = world.make_file(ROOT, "f");
    assert_eq!(write(&mut world, id, (1 << 63) - 1, b"x", false), Err(Errno::EFBIG));
    assert_eq!(write(&mut world, id, u64::MAX, b"x", false), Err(Errno::EFBIG));
    assert_eq!(allocate(&mut world, id, 0, (1 << 63) - 1, 1), Err(Errno::EFBIG));
    assert_eq!(allocate(&mut world, id, 0, 5, 0), Err(Errno::EINVAL));
    for mode in [2, 8, 0x20, 0x40, 0x13] {
        assert_eq!(allocate(&mut world, id, mode, 0, 5), Err(Errno::EOPNOTSUPP), "mode {mode:#x}");
    }
    let directory = world.make_directory(ROOT, "d");
    assert_eq!(write(&mut world, directory, 0, b"x", false), Err(Errno::EISDIR));
    assert_eq!(allocate(&mut world, directory, 0, 0, 1), Err(Errno::EISDIR));
    assert_eq!(write(&mut world, InodeId(99), 0, b"x", false), Err(Errno::ESTALE));
}

#[test]
fn writing_takes_privileges_off() {
    let mut world = World::new();
    let id = world.make_file(ROOT, "f");
    world.edit(id, |inode| inode.mode |= 0o6010);
    let capability = SetxattrArgs {
        name: b"security.capability",
        value: b"caps",
        mode: SetxattrMode::Any,
        kill_setgid: false,
    };
    world.as_root(|txn, context| verb::setxattr(txn, context, id, &capability)).unwrap();
    write(&mut world, id, 0, b"x", false).unwrap();
    assert_eq!(world.inode(id).mode & 0o6000, 0o6000, "without being told, set-id bits stay");
    assert!(!world.inode(id).has_xattrs, "capabilities go with any write");
    let args = WriteArgs { kill_set_id: true, ..WriteArgs::default() };
    world.as_root(|txn, context| verb::write_inline(txn, context, id, 0, b"y", args)).unwrap();
    assert_eq!(world.inode(id).mode & 0o6000, 0);
    assert_eq!(world.findings(), []);
}

#[test]
fn small_content_comes_with_open() {
    let mut world = World::new();
    let id = world.make_file(ROOT, "f");
    write(&mut world, id, 2, b"abc", false).unwrap();
    let mut args = OpenArgs { read: true, wants_body: true, ..OpenArgs::default() };
    let open = |world: &mut World, args: OpenArgs| {
        world.as_root(|txn, context| verb::open(txn, context, id, &args)).unwrap()
    };
    let reply = open(&mut world, args);
    assert_eq!(reply.data, DataGrant::Inline { body: Some(b"\0\0abc"[..].into()) });
    assert_eq!(reply.inline_bytes, LIMIT);
    args.wants_body = false;
    assert_eq!(open(&mut world, args).data, DataGrant::Inline { body: None });
    truncate(&mut world, id, LIMIT + 1);
    args.wants_body = true;
    assert_eq!(open(&mut world, args).data, DataGrant::Inline { body: None });
}

#[test]
fn an_unprivileged_truncating_open_clears_set_id_bits_and_stamps() {
    let mut world = World::new();
    let id = world.make_file(ROOT, "f");
    world.edit(id, |inode| inode.mode |= 0o4000);
    let args = OpenArgs { write: true, truncate: true, ..OpenArgs::default() };
    let creds = Credentials { complete: true, ..Credentials::user(5, 5) };
    let reply = world.run(&creds, |txn, context| verb::open(txn, context, id, &args)).unwrap();
    assert_eq!((reply.attr.mode & 0o7777, reply.attr.mtime), (0o666, world.now));
}
