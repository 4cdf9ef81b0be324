//! open, release and reap_session: permissions to open, unlinked files that sessions hold, and what a dead session leaves behind.

#![allow(clippy::unwrap_used)] // The helpers of a test panic as the test does.

use ashlar_namespace::testing::{World, name};
use ashlar_namespace::verb::{self, CommitWrite, OpenArgs, ReapArgs, ReapReply, WriteArgs};
use ashlar_types::{Capabilities, ChainId, Credentials, Errno, InodeId, SessionId, ShardId};

const ROOT: InodeId = InodeId::ROOT;
const ONE: SessionId = SessionId(1);
const TWO: SessionId = SessionId(2);

fn user(uid: u32) -> Credentials {
    Credentials { complete: true, ..Credentials::user(uid, uid) }
}

fn open(world: &mut World, creds: &Credentials, id: InodeId, args: OpenArgs) -> Result<(), Errno> {
    world.run(creds, |txn, context| verb::open(txn, context, id, &args)).map(|_| ())
}

fn unlink(world: &mut World, text: &str) {
    world.as_root(|txn, context| verb::unlink(txn, context, ROOT, name(text))).unwrap();
}

fn release(world: &mut World, id: InodeId, session: SessionId) {
    world.as_root(|txn, context| verb::release(txn, context, id, session)).unwrap();
}

fn reap(world: &mut World, session: SessionId, records_max: u32) -> (u32, Vec<InodeId>, u32) {
    let (mut released, mut unsettled, mut calls) = (0, Vec::new(), 0);
    let mut from = None;
    loop {
        let args = ReapArgs { session, shard: ShardId(0), from, records_max };
        let reply: ReapReply = world.as_root(|txn, context| verb::reap_session(txn, context, &args)).unwrap();
        released += reply.released;
        unsettled.extend(reply.unsettled);
        calls += 1;
        from = reply.next;
        if from.is_none() {
            return (released, unsettled, calls);
        }
    }
}

#[test]
fn open_asks_for_what_the_handle_may_do() {
    let mut world = World::new();
    let id = world.make_file(ROOT, "f");
    world.edit(id, |inode| (inode.uid, inode.mode) = (5, inode.mode & !0o777 | 0o504));
    let read = OpenArgs { read: true, ..OpenArgs::default() };
    let write = OpenArgs { write: true, ..OpenArgs::default() };
    let truncate = OpenArgs { read: true, truncate: true, ..OpenArgs::default() };
    let execute = OpenArgs { execute: true, ..OpenArgs::default() };
    assert_eq!(open(&mut world, &user(5), id, read), Ok(()));
    assert_eq!(open(&mut world, &user(5), id, execute), Ok(()));
    assert_eq!(open(&mut world, &user(5), id, write), Err(Errno::EACCES));
    assert_eq!(open(&mut world, &user(5), id, truncate), Err(Errno::EACCES));
    assert_eq!(open(&mut world, &user(6), id, read), Ok(()));
    assert_eq!(open(&mut world, &user(6), id, execute), Err(Errno::EACCES));
    let granted = OpenArgs { is_granted: true, ..write };
    assert_eq!(open(&mut world, &user(6), id, granted), Ok(()), "whoever made it may write it");
    let override_ = Credentials { caps: Capabilities::DAC_OVERRIDE, ..user(6) };
    assert_eq!(open(&mut world, &override_, id, write), Ok(()));
    world.edit(id, |inode| inode.mode &= !0o111);
    assert_eq!(open(&mut world, &override_, id, execute), Err(Errno::EACCES), "nobody may execute it");
}

#[test]
fn open_refuses_what_cannot_be_opened() {
    let mut world = World::new();
    let directory = world.make_directory(ROOT, "d");
    let root = Credentials::root();
    let read = OpenArgs { read: true, ..OpenArgs::default() };
    assert_eq!(open(&mut world, &root, directory, read), Ok(()));
    for args in
        [OpenArgs { write: true, ..OpenArgs::default() }, OpenArgs { truncate: true, ..OpenArgs::default() }]
    {
        assert_eq!(open(&mut world, &root, directory, args), Err(Errno::EISDIR));
    }
    world.as_root(|txn, context| verb::symlink(txn, context, ROOT, name("l"), b"t")).unwrap();
    let link = world.find(ROOT, "l").unwrap();
    assert_eq!(open(&mut world, &root, link, read), Err(Errno::ELOOP));
    assert_eq!(open(&mut world, &root, InodeId(99), read), Err(Errno::ESTALE));
}

#[test]
fn an_unlinked_file_lives_until_the_last_session_lets_go() {
    let mut world = World::new();
    let id = world.make_file(ROOT, "f");
    let args = WriteArgs::default();
    world.as_root(|txn, context| verb::write_inline(txn, context, id, 0, b"content", args)).unwrap();
    world.hold_open(id, ONE);
    world.hold_open(id, TWO);
    unlink(&mut world, "f");
    assert_eq!((world.inode(id).nlink, world.store.table(b'O').count()), (0, 2));
    assert_eq!(world.findings(), []);
    let read = OpenArgs { read: true, ..OpenArgs::default() };
    assert_eq!(open(&mut world, &Credentials::root(), id, read), Ok(()), "it is one of those that hold it");
    world.open.clear();
    assert_eq!(open(&mut world, &Credentials::root(), id, read), Ok(()), "its record says so");
    world.session = SessionId(3);
    assert_eq!(open(&mut world, &Credentials::root(), id, read), Err(Errno::ESTALE));
    release(&mut world, id, SessionId(3));
    release(&mut world, id, TWO);
    release(&mut world, id, TWO);
    assert!(world.find_inode(id).is_some());
    release(&mut world, id, ONE);
    assert!(world.outcome.frees_space);
    assert_eq!(world.find_inode(id), None);
    assert_eq!((world.store.table(b'B').count(), world.store.table(b'O').count()), (0, 0));
    assert_eq!(world.accounted().inodes, 1);
    release(&mut world, id, ONE);
}

#[test]
fn releasing_a_file_that_has_a_name_changes_nothing() {
    let mut world = World::new();
    let id = world.make_file(ROOT, "f");
    release(&mut world, id, ONE);
    assert!(world.outcome.writes.is_empty());
    assert!(world.find_inode(id).is_some());
}

#[test]
fn a_dead_session_is_reaped_in_bounded_steps() {
    let mut world = World::new();
    world.placement.chains = [ChainId(1)].into_iter().collect();
    let mut written = Vec::new();
    for number in 0..10 {
        let text = format!("f{number}");
        let id = world.make_file(ROOT, &text);
        world.session = if number % 3 == 0 { TWO } else { ONE };
        let session = world.session;
        if number % 2 == 0 {
            world.hold_open(id, session);
            unlink(&mut world, &text);
        } else {
            assert!(world.as_root(|txn, context| verb::propose_layout(txn, context, id)).unwrap().is_bound);
            written.push((session, id));
        }
    }
    world.session = SessionId(9);
    let of_one: Vec<InodeId> =
        written.iter().filter(|(session, _)| *session == ONE).map(|(_, id)| *id).collect();
    let (released, unsettled, calls) = reap(&mut world, ONE, 3);
    assert_eq!((released, &unsettled), (3, &of_one));
    assert!(calls >= 3, "ten records in steps of three");
    assert_eq!(reap(&mut world, ONE, 100).0, 0);
    assert_eq!((world.store.table(b'O').count(), world.store.table(b'W').count()), (2, 5));
    world.session = ONE;
    for id in unsettled {
        let report = CommitWrite { size_at_least: 7, done: true, ..CommitWrite::default() };
        world.as_root(|txn, context| verb::commit_write(txn, context, id, &report)).unwrap();
        assert_eq!(world.inode(id).size, 7);
    }
    assert_eq!(reap(&mut world, ONE, 1).1, []);
    assert_eq!(world.store.table(b'W').count(), 2);
    assert_eq!(world.findings(), []);
}
