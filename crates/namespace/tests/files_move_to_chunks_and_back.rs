//! Layouts: proposal, binding, writing, truncation, garbage, and what a late or repeated call may and may not do.

#![allow(clippy::unwrap_used)] // The helpers of a test panic as the test does.

use ashlar_kv::Snapshot;
use ashlar_namespace::check::{for_each_chunked_file, for_each_garbage};
use ashlar_namespace::record::Garbage;
use ashlar_namespace::testing::{World, name};
use ashlar_namespace::verb::{
    self, Collected, CommitWrite, OpenArgs, ReadInlineReply, WriteArgs, WriteReply,
};
use ashlar_namespace::{FileData, Kind, key};
use ashlar_types::message::{DataGrant, SetAttr, TimeSet};
use ashlar_types::{
    Attr, ChainId, Credentials, Errno, FileLayout, InodeId, LayoutPolicy, SessionId, ShardId, Timespec, codec,
};
use std::ops::ControlFlow;

const ROOT: InodeId = InodeId::ROOT;

fn world() -> World {
    let mut world = World::new();
    world.placement.chains = [ChainId(3), ChainId(9)].into_iter().collect();
    world
}

/// A layout for a file that has bytes to copy.
fn propose(world: &mut World, id: InodeId) -> Result<FileLayout, Errno> {
    let proposal = world.as_root(|txn, context| verb::propose_layout(txn, context, id))?;
    assert!(!proposal.is_bound);
    Ok(proposal.layout)
}

fn bind(world: &mut World, id: InodeId, layout: &FileLayout, blocks: u64) -> Result<Attr, Errno> {
    world.as_root(|txn, context| verb::set_layout(txn, context, id, layout, blocks))
}

fn write(world: &mut World, id: InodeId, data: &[u8]) -> WriteReply {
    let args = WriteArgs::default();
    world.as_root(|txn, context| verb::write_inline(txn, context, id, 0, data, args)).unwrap()
}

fn commit(world: &mut World, id: InodeId, report: CommitWrite) -> Result<Attr, Errno> {
    world.as_root(|txn, context| verb::commit_write(txn, context, id, &report))
}

fn begin(world: &mut World, id: InodeId) -> Result<Attr, Errno> {
    world.as_root(|txn, context| verb::begin_write(txn, context, id, false, false)).map(|reply| reply.attr)
}

/// Truncates; returns whether chunks must be cut.
fn truncate(world: &mut World, id: InodeId, size: u64) -> Result<bool, Errno> {
    let changes = SetAttr { size: Some(size), ..SetAttr::default() };
    world.as_root(|txn, context| verb::setattr(txn, context, id, &changes)).map(|reply| reply.must_cut)
}

fn collect(
    world: &mut World,
    id: InodeId,
    generation: u32,
    keep_bytes: u64,
    blocks_freed: u64,
) -> Result<(), Errno> {
    let cut = Collected { generation, keep_bytes, blocks_freed };
    world.as_root(|txn, context| verb::collected(txn, context, id, &cut))
}

fn garbage(world: &World, id: InodeId, generation: u32) -> Option<Garbage> {
    let bytes = world.store.get(&key::garbage(id, generation)).unwrap()?;
    Some(codec::decode(&bytes, "garbage").unwrap())
}

/// A file of 1000 inline bytes that has moved to chunks, 8 units.
fn chunked(world: &mut World) -> (InodeId, FileLayout) {
    let id = world.make_file(ROOT, "f");
    write(world, id, &[1; 1000]);
    let layout = propose(world, id).unwrap();
    bind(world, id, &layout, 8).unwrap();
    (id, layout)
}

#[test]
fn what_has_nothing_to_copy_is_bound_at_once_at_any_length() {
    let mut world = world();
    for (name, size) in [("empty", 0), ("hole", 1 << 40)] {
        let id = world.make_file(ROOT, name);
        truncate(&mut world, id, size).unwrap();
        let proposal = world.as_root(|txn, context| verb::propose_layout(txn, context, id)).unwrap();
        assert!(proposal.is_bound);
        assert!(world.outcome.changed.contains(&id), "leases on the content are recalled");
        let attr = world.inode(id).attr(id);
        assert_eq!((attr.size, attr.blocks), (size, 0));
        assert_eq!(garbage(&world, id, proposal.layout.generation), None);
        assert_eq!(write(&mut world, id, b"x"), WriteReply::InChunks { layout: proposal.layout.clone() });
        assert_eq!(bind(&mut world, id, &proposal.layout, 8), Err(Errno::EAGAIN));
        assert_eq!(propose(&mut world, id), Err(Errno::EAGAIN));
    }
    assert_eq!(world.store.table(b'W').count(), 2, "the session is noted as writing them");
    assert_eq!((world.accounted().blocks, world.findings()), (0, Vec::new()));
}

#[test]
fn outgrowing_moves_the_file_in_one_step() {
    let mut world = world();
    let id = world.make_file(ROOT, "f");
    write(&mut world, id, &[1; 1000]);
    let before = world.inode(id);
    let layout = propose(&mut world, id).unwrap();
    assert_eq!((layout.generation, layout.chunk_bytes, layout.chains.len()), (1, 1 << 20, 2));
    assert_eq!(garbage(&world, id, 1), Some(Garbage { layout: layout.clone(), keep_bytes: 0 }));
    assert!(matches!(world.inode(id).kind, Kind::Regular(FileData::Inline { generation: 1, .. })));
    assert_eq!(world.findings(), []);
    let attr = bind(&mut world, id, &layout, 8).unwrap();
    assert_eq!((attr.size, attr.blocks, attr.mtime), (1000, 8, before.mtime));
    assert_eq!(garbage(&world, id, 1), None);
    assert_eq!((world.store.table(b'B').count(), world.store.table(b'W').count()), (0, 1));
    assert!(world.outcome.changed.contains(&id), "leases on the content are recalled");
    assert_eq!(world.accounted().blocks, 8);
    assert_eq!(bind(&mut world, id, &layout, 8), Err(Errno::EAGAIN));
    assert_eq!(propose(&mut world, id), Err(Errno::EAGAIN));
    assert_eq!(write(&mut world, id, b"x"), WriteReply::InChunks { layout: layout.clone() });
    let read = world.as_root(|txn, context| verb::read_inline(txn, context, id, 0, 5)).unwrap();
    assert_eq!(read, ReadInlineReply::InChunks { layout: layout.clone(), size: 1000 });
    let args = OpenArgs { read: true, ..OpenArgs::default() };
    let open = world.as_root(|txn, context| verb::open(txn, context, id, &args)).unwrap();
    assert_eq!(open.data, DataGrant::Chunks { layout });
    assert_eq!(world.findings(), []);
}

#[test]
fn a_proposal_is_void_once_the_content_changed() {
    let mut world = world();
    let id = world.make_file(ROOT, "f");
    write(&mut world, id, b"old");
    let first = propose(&mut world, id).unwrap();
    write(&mut world, id, b"new");
    assert_eq!(bind(&mut world, id, &first, 8), Err(Errno::EAGAIN), "its chunks have the old bytes");
    let second = propose(&mut world, id).unwrap();
    let third = propose(&mut world, id).unwrap();
    assert!(first.generation < second.generation && second.generation < third.generation);
    assert_eq!(bind(&mut world, id, &second, 8), Err(Errno::EAGAIN));
    truncate(&mut world, id, 1).unwrap();
    assert_eq!(bind(&mut world, id, &third, 8), Err(Errno::EAGAIN));
    for layout in [&first, &second, &third] {
        assert!(garbage(&world, id, layout.generation).is_some());
        collect(&mut world, id, layout.generation, 0, 0).unwrap();
    }
    assert_eq!(world.store.table(b'G').count(), 0);
    let wrong = FileLayout { generation: 0, ..third };
    assert_eq!(bind(&mut world, id, &wrong, 8), Err(Errno::EAGAIN));
    assert_eq!(world.findings(), []);
}

#[test]
fn a_pending_proposal_is_collected_only_after_it_was_withdrawn() {
    let mut world = world();
    let id = world.make_file(ROOT, "f");
    write(&mut world, id, b"x");
    let layout = propose(&mut world, id).unwrap();
    let may_collect = |world: &mut World, id, generation| {
        world.as_root(|txn, _| verb::may_collect(txn, id, generation)).unwrap()
    };
    assert!(!may_collect(&mut world, id, layout.generation), "its chunks are about to be the file's");
    assert_eq!(collect(&mut world, id, layout.generation, 0, 0), Err(Errno::EAGAIN));
    let withdraw = |world: &mut World, only| {
        world.as_root(|txn, context| verb::withdraw_layout(txn, context, id, only)).unwrap()
    };
    assert!(!withdraw(&mut world, Some(layout.generation - 1)), "somebody else's");
    assert!(!may_collect(&mut world, id, layout.generation));
    let withdraw = |world: &mut World| withdraw(world, Some(layout.generation));
    assert!(withdraw(&mut world));
    assert!(!withdraw(&mut world));
    assert!(may_collect(&mut world, id, layout.generation));
    assert!(may_collect(&mut world, InodeId(99), 1));
    assert_eq!(bind(&mut world, id, &layout, 8), Err(Errno::EAGAIN));
    collect(&mut world, id, layout.generation, 0, 0).unwrap();
    assert_eq!(garbage(&world, id, layout.generation), None);
    assert!(!world.as_root(|txn, context| verb::withdraw_layout(txn, context, InodeId(99), None)).unwrap());
}

#[test]
fn no_chain_means_no_space() {
    let mut world = World::new();
    let id = world.make_file(ROOT, "f");
    assert_eq!(propose(&mut world, id), Err(Errno::ENOSPC));
    let directory = world.make_directory(ROOT, "d");
    assert_eq!(propose(&mut world, directory), Err(Errno::EISDIR));
}

#[test]
fn a_bound_layout_is_not_withdrawn_with_the_session_that_proposed_it() {
    let mut world = world();
    let (id, layout) = chunked(&mut world);
    for only in [Some(layout.generation), None] {
        assert!(!world.as_root(|txn, context| verb::withdraw_layout(txn, context, id, only)).unwrap());
        assert!(!world.outcome.has_garbage);
    }
    assert_eq!(world.findings(), Vec::new());
}

#[test]
fn overwriting_and_changing_attributes_are_taken_on_a_full_file_system() {
    let mut world = world();
    let (id, _) = chunked(&mut world);
    begin(&mut world, id).unwrap();
    assert!(world.outcome.frees_space);
    let mode = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    world.as_root(|txn, context| verb::setattr(txn, context, id, &mode)).unwrap();
    assert!(world.outcome.frees_space);
    truncate(&mut world, id, 1 << 30).unwrap();
    assert!(world.outcome.frees_space);
    world.make_file(ROOT, "new");
    assert!(!world.outcome.frees_space);
}

#[test]
fn emptying_brings_the_file_back_to_its_inode() {
    let mut world = world();
    let (id, layout) = chunked(&mut world);
    assert_eq!(truncate(&mut world, id, 0), Ok(false));
    assert!(world.outcome.has_garbage && world.outcome.frees_space);
    let inode = world.inode(id);
    assert_eq!((inode.size, inode.blocks, inode.mtime), (0, 0, world.now));
    assert_eq!(garbage(&world, id, 1), Some(Garbage { layout: layout.clone(), keep_bytes: 0 }));
    assert_eq!(world.store.table(b'W').count(), 0);
    assert_eq!(bind(&mut world, id, &layout, 8), Err(Errno::EAGAIN), "the old layout never comes back");
    let late =
        CommitWrite { generation: Some(1), size_at_least: 5000, blocks_delta: 8, ..CommitWrite::default() };
    assert_eq!(commit(&mut world, id, late).unwrap().size, 0, "bytes of the old generation are gone");
    write(&mut world, id, b"again");
    let next = propose(&mut world, id).unwrap();
    assert!(next.generation > layout.generation);
    bind(&mut world, id, &next, 8).unwrap();
    assert_eq!(commit(&mut world, id, late).unwrap().size, 5);
    collect(&mut world, id, 1, 0, 8).unwrap();
    assert_eq!((garbage(&world, id, 1), world.inode(id).blocks), (None, 8), "not its blocks");
    assert_eq!(world.findings(), []);
}

#[test]
fn shortening_cuts_before_anything_else_may_happen() {
    let mut world = world();
    let (id, _) = chunked(&mut world);
    let grown = CommitWrite { size_at_least: 5000, blocks_delta: 16, done: true, ..CommitWrite::default() };
    commit(&mut world, id, grown).unwrap();
    assert_eq!(truncate(&mut world, id, 9000), Ok(false), "growing needs no cut");
    assert_eq!(truncate(&mut world, id, 100), Ok(true));
    assert_eq!(garbage(&world, id, 1).unwrap().keep_bytes, 100);
    assert_eq!(begin(&mut world, id), Err(Errno::EAGAIN));
    assert_eq!(truncate(&mut world, id, 50), Err(Errno::EAGAIN));
    assert_eq!(truncate(&mut world, id, 200), Err(Errno::EAGAIN));
    assert_eq!(truncate(&mut world, id, 100), Ok(true), "asked again, it still must be cut");
    assert_eq!(world.findings(), []);
    collect(&mut world, id, 1, 50, 16).unwrap();
    assert!(garbage(&world, id, 1).is_some(), "another cut than the record's");
    collect(&mut world, id, 1, 100, 16).unwrap();
    assert!(world.outcome.changed.is_empty(), "leases on the content stay");
    assert_eq!(world.outcome.recounted[..], [id]);
    collect(&mut world, id, 1, 100, 16).unwrap();
    assert_eq!((garbage(&world, id, 1), world.inode(id).blocks), (None, 8), "counted once");
    begin(&mut world, id).unwrap();
    assert_eq!(truncate(&mut world, id, 50), Ok(true));
    assert_eq!(truncate(&mut world, id, 0), Ok(false), "emptying takes over the pending cut");
    assert_eq!(garbage(&world, id, 1).unwrap().keep_bytes, 0);
    assert_eq!(world.findings(), []);
}

#[test]
fn truncation_under_a_writer_cuts_whatever_the_record_says() {
    let mut world = world();
    let (id, _) = chunked(&mut world);
    assert_eq!(world.store.table(b'W').count(), 1);
    assert_eq!(truncate(&mut world, id, 3000), Ok(true), "the writer may have written behind 1000");
    collect(&mut world, id, 1, 3000, 0).unwrap();
    commit(&mut world, id, CommitWrite { done: true, ..CommitWrite::default() }).unwrap();
    assert_eq!(truncate(&mut world, id, 4000), Ok(false));
}

#[test]
fn reports_grow_the_file_and_never_lie_ahead_of_the_clock() {
    let mut world = world();
    let (id, _) = chunked(&mut world);
    let before = world.inode(id);
    let report = CommitWrite {
        generation: Some(1),
        size_at_least: 10,
        blocks_delta: -100,
        mtime: Some(Timespec::new(i64::MAX, 0)),
        ..CommitWrite::default()
    };
    let attr = commit(&mut world, id, report).unwrap();
    assert_eq!((attr.size, attr.blocks, attr.mtime, attr.ctime), (1000, 0, world.now, world.now));
    assert!(world.outcome.frees_space, "what has happened can be noted on a full file system");
    let old = Timespec::new(5, 0);
    let attr = commit(&mut world, id, CommitWrite { mtime: Some(old), atime: Some(old), ..report }).unwrap();
    assert_eq!((attr.mtime, attr.atime), (old, before.atime));
    assert!(attr.ctime > old);
    let quiet = CommitWrite { done: true, ..CommitWrite::default() };
    let ctime = attr.ctime;
    assert_eq!(commit(&mut world, id, quiet).unwrap().ctime, ctime, "nothing was written");
    assert_eq!(world.store.table(b'W').count(), 0);
    let far = CommitWrite { size_at_least: 1 << 63, ..CommitWrite::default() };
    assert_eq!(commit(&mut world, id, far), Err(Errno::EFBIG));
    let wrong = CommitWrite { mtime: Some(Timespec { secs: 0, nanos: u32::MAX }), ..CommitWrite::default() };
    assert_eq!(commit(&mut world, id, wrong), Err(Errno::EINVAL));
}

#[test]
fn several_sessions_may_write_one_file() {
    let mut world = world();
    let (id, _) = chunked(&mut world);
    world.session = SessionId(2);
    begin(&mut world, id).unwrap();
    assert_eq!(world.store.table(b'W').count(), 2);
    begin(&mut world, id).unwrap();
    assert!(world.outcome.writes.is_empty(), "asking again changes nothing");
    commit(&mut world, id, CommitWrite { done: true, ..CommitWrite::default() }).unwrap();
    assert_eq!(world.store.table(b'W').count(), 1);
    let inline = world.make_file(ROOT, "inline");
    begin(&mut world, inline).unwrap();
    assert!(world.outcome.writes.is_empty(), "nothing is noted for an inline file");
}

#[test]
fn the_first_write_takes_set_id_bits_off() {
    let mut world = world();
    let (id, _) = chunked(&mut world);
    world.edit(id, |inode| inode.mode |= 0o4000);
    world.as_root(|txn, context| verb::begin_write(txn, context, id, true, false)).unwrap();
    assert_eq!(world.inode(id).mode & 0o7000, 0);
}

#[test]
fn unlinking_leaves_garbage_and_no_writers() {
    let mut world = world();
    let (id, layout) = chunked(&mut world);
    begin(&mut world, id).unwrap();
    world.as_root(|txn, context| verb::unlink(txn, context, ROOT, name("f"))).unwrap();
    assert_eq!(garbage(&world, id, 1), Some(Garbage { layout, keep_bytes: 0 }));
    assert_eq!((world.find_inode(id), world.store.table(b'W').count()), (None, 0));
    let mut told = Vec::new();
    for_each_garbage(&world.store, ShardId(0), &mut |inode, record| {
        told.push((inode, record.layout.generation, record.keep_bytes));
        ControlFlow::Continue(())
    })
    .unwrap();
    assert_eq!(told, [(id, 1, 0)]);
    collect(&mut world, id, 1, 0, 8).unwrap();
    assert_eq!((world.store.table(b'G').count(), world.findings()), (0, vec![]));
}

#[test]
fn chunked_files_are_listed_for_the_comparison_with_targets() {
    let mut world = world();
    let (id, layout) = chunked(&mut world);
    world.make_file(ROOT, "inline");
    let mut told = Vec::new();
    for_each_chunked_file(&world.store, ShardId(0), &mut |file| {
        told.push(file);
        ControlFlow::Continue(())
    })
    .unwrap();
    assert_eq!(told.len(), 1);
    assert_eq!((told[0].inode, &told[0].layout, told[0].size, told[0].blocks), (id, &layout, 1000, 8));
}

#[test]
fn layout_settings_belong_to_directories_and_empty_files() {
    let mut world = world();
    let directory = world.make_directory(ROOT, "d");
    let one = LayoutPolicy { stripe_count: Some(1), ..LayoutPolicy::default() };
    let layout_set = |world: &mut World, creds: &Credentials, id, policy: LayoutPolicy| {
        world.run(creds, |txn, context| verb::layout_set(txn, context, id, &policy))
    };
    let root = Credentials::root();
    let user = Credentials { complete: true, ..Credentials::user(5, 5) };
    assert_eq!(layout_set(&mut world, &user, directory, one), Err(Errno::EPERM));
    let policy = layout_set(&mut world, &root, directory, one).unwrap();
    assert_eq!(policy, one.or(World::root_policy()));
    let odd = LayoutPolicy { chunk_bytes: Some(100_000), ..LayoutPolicy::default() };
    assert_eq!(layout_set(&mut world, &root, directory, odd), Err(Errno::EINVAL));
    let id = world.make_file(directory, "f");
    let show = |world: &mut World, id| world.as_root(|txn, context| verb::layout_show(txn, context, id));
    assert_eq!(show(&mut world, id).unwrap().policy, policy);
    let none = LayoutPolicy { inline_bytes: Some(0), ..LayoutPolicy::default() };
    layout_set(&mut world, &root, id, none).unwrap();
    assert_eq!(write(&mut world, id, b"x"), WriteReply::NeedsChunks);
    let layout = world.as_root(|txn, context| verb::propose_layout(txn, context, id)).unwrap().layout;
    assert_eq!(layout_set(&mut world, &root, id, one), Err(Errno::EINVAL));
    assert_eq!(show(&mut world, id).unwrap().layout, Some(layout));
    let full = world.make_file(directory, "g");
    write(&mut world, full, b"x");
    assert_eq!(layout_set(&mut world, &root, full, one), Err(Errno::EINVAL));
    world.as_root(|txn, context| verb::symlink(txn, context, ROOT, name("l"), b"t")).unwrap();
    let link = world.find(ROOT, "l").unwrap();
    assert_eq!(layout_set(&mut world, &root, link, one), Err(Errno::EINVAL));
    assert_eq!(show(&mut world, link).map(|_| ()), Err(Errno::EINVAL));
    assert_eq!(world.findings(), []);
}

#[test]
fn of_writers_beside_each_other_none_takes_the_time_of_another_back() {
    let mut world = world();
    let (id, _) = chunked(&mut world);
    world.now = Timespec::new(2_000_000_000, 0);
    let report = |world: &mut World, secs: i64, is_beside: bool| {
        let report = CommitWrite { mtime: Some(Timespec::new(secs, 0)), ..CommitWrite::default() };
        let told = world.as_root(|txn, context| {
            if is_beside {
                txn.mark_beside(id);
            }
            verb::commit_write(txn, context, id, &report)
        });
        told.unwrap().mtime.secs
    };
    assert_eq!(report(&mut world, 1_999_999_990, true), 1_999_999_990);
    assert_eq!(report(&mut world, 1_999_999_980, true), 1_999_999_990, "it comes late");
    assert_eq!(report(&mut world, 1_999_999_995, true), 1_999_999_995);
    assert_eq!(report(&mut world, 1_999_999_970, false), 1_999_999_970, "the only writer knows better");
    let mtime = Some(TimeSet::At(Timespec::new(2_999_999_999, 0)));
    let changes = SetAttr { mtime, ..SetAttr::default() };
    world.as_root(|txn, context| verb::setattr(txn, context, id, &changes)).unwrap();
    assert_eq!(
        report(&mut world, 1_999_999_998, true),
        1_999_999_998,
        "a time that a program has set is not one"
    );
}
