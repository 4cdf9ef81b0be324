//! Goal: once anybody was promised that the content of an inline file is durable, the file moves to chunks only if the chunks are. Method:
//! the calls of a client that moves a file, one by one, and syncs of another between them.
#![allow(clippy::unwrap_used)] // the helpers of a test panic as the test does

mod support;

use ashlar_types::message::{MetaReply, MetaRequest, SyncScope};
use ashlar_types::{Errno, FileLayout, InodeId, SessionId};
use support::{World, call, deaf_session, propose_layout};

/// A session that has made a file and is about to move it to chunks.
fn about_to_move(world: &World) -> (SessionId, InodeId, FileLayout) {
    let session = deaf_session(world);
    let (inode, layout) = propose_layout(world, session, b"f");
    (session, inode, layout)
}

fn bind(inode: InodeId, layout: &FileLayout, is_synced: bool) -> MetaRequest<'static> {
    MetaRequest::SetLayout { inode, layout: layout.clone(), blocks: 0, is_synced }
}

fn sync_file(inode: InodeId, generation: Option<u32>) -> MetaRequest<'static> {
    MetaRequest::Sync(SyncScope::File { inode, generation })
}

#[test]
fn a_file_nobody_has_synced_moves_without_a_sync() {
    let world = World::new(48 << 20);
    let (session, inode, layout) = about_to_move(&world);
    let other = deaf_session(&world);
    // Somebody's entries, and somebody's other file.
    call(&world, other, MetaRequest::Sync(SyncScope::Names)).unwrap();
    call(&world, other, sync_file(InodeId::ROOT, None)).unwrap();
    assert_eq!(call(&world, session, bind(inode, &layout, false)), Ok(MetaReply::Done));
}

#[test]
fn a_file_another_client_has_synced_moves_only_with_a_sync() {
    for is_all in [true, false] {
        let world = World::new(48 << 20);
        let (session, inode, layout) = about_to_move(&world);
        let other = deaf_session(&world);
        let scope = if is_all { SyncScope::All } else { SyncScope::File { inode, generation: None } };
        call(&world, other, MetaRequest::Sync(scope)).unwrap();
        assert_eq!(call(&world, session, bind(inode, &layout, false)), Err(Errno::EAGAIN));
        assert_eq!(call(&world, session, bind(inode, &layout, true)), Ok(MetaReply::Done));
    }
}

#[test]
fn a_sync_that_knows_nothing_of_the_chunks_promises_nothing() {
    let world = World::new(48 << 20);
    let (session, inode, layout) = about_to_move(&world);
    call(&world, session, bind(inode, &layout, false)).unwrap();
    let other = deaf_session(&world);
    assert_eq!(call(&world, other, sync_file(inode, None)), Err(Errno::EAGAIN));
    assert_eq!(call(&world, other, sync_file(inode, Some(layout.generation))), Ok(MetaReply::Done));
}
