//! Goal: a mount whose session has ended while it was asked to give something back hears of the end at once. Method: a recall of attributes is on its way when the session ends; the thread
//! that answers it is the one that hears of the end, and waited for the next session for as long as the mount waits for servers: ten minutes.
#![allow(clippy::unwrap_used)] // the helpers of a test panic as the test does

mod support;

use ashlar_rpc::MetaCalls;
use ashlar_types::message::{LeaseSet, Recall, SessionEvent};
use std::sync::Arc;
use support::heard::Heard;
use support::{World, eventually, make};

#[test]
fn and_the_next_session_goes_on_at_once() {
    let world = Arc::new(World::new(64 << 20));
    let heard = Heard::new(&world);
    let client = world.client_that_comes_back(heard.clone(), world.storage.clone());
    let file = make(&client, "f").unwrap();
    let ended = client.session();
    heard.close_session(ended);
    let recall = Recall { id: 7, inode: file.file.inode, leases: LeaseSet::ATTR, flush_only: false };
    heard.tell(SessionEvent::Recall(recall));
    heard.tell(SessionEvent::Evicted { session: ended });
    eventually(|| client.session() != ended);
}
