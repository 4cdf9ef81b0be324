//! Goal: who makes a file in a pool whose servers are all away, while others are there, is given a place there, where he waits for one to be back, and is not told that there is no space. Method: all roles in this
//! process, with a target that answers metadata no question about its space, and is back for the client.
#![allow(clippy::unwrap_used)] // the helpers of a test panic as the test does

mod support;

use ashlar_client::Who;
use ashlar_rpc::{Payload, StorageCalls};
use ashlar_types::message::{MetaRequest, StorageReply, StorageRequest};
use ashlar_types::{ChainId, Errno, InodeId, TargetId};
use std::sync::Arc;
use support::{KIB64, World, call, content, deaf_session, make, read, write};

const AWAY: TargetId = TargetId(2);

struct Without(Arc<dyn StorageCalls>);

impl StorageCalls for Without {
    fn call(&self, request: &StorageRequest, payload: Payload<'_>) -> Result<StorageReply, Errno> {
        match request {
            StorageRequest::Space { target: AWAY } => Err(Errno::EHOSTDOWN),
            _ => self.0.call(request, payload),
        }
    }
}

#[test]
fn and_nobody_is_told_that_it_is_full() {
    let world = World::whose_metadata_calls(64 << 20, &[64 << 20], |storage| Arc::new(Without(storage)));
    world.make_pool("flash", AWAY);
    let (client, who) = (world.client(), Who::system());
    client.layout_set_text(&who, InodeId::ROOT, b"pool=flash").unwrap();
    // Targets are asked.
    call(&world, deaf_session(&world), MetaRequest::Statfs).unwrap();
    let file = make(&client, "f").unwrap();
    let written = content(1, 4 * KIB64);
    write(&client, &file, 0, &written).unwrap();
    assert!(read(&client, &file, written.len()) == written);
    let layout = client.layout_show(&who, file.file.inode).unwrap().1.unwrap();
    assert_eq!(layout.chains.as_slice(), [ChainId(1)]);
    client.release(&file);
}
