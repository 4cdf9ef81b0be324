//! Goal: a write that makes a file outgrow its inode goes on when the answer that the file has chunks now was lost with a metadata server, and the call
//! was made again: to the program it looked as if the file were not ready (`EAGAIN`). Method: metadata that carries such calls out twice.
#![allow(clippy::unwrap_used)] // the helpers of a test panic as the test does

mod support;

use ashlar_meta::MetaService;
use ashlar_rpc::{Caller, MetaCalls, SessionEvents, SessionGrant};
use ashlar_types::message::{MetaReply, MetaRequest};
use ashlar_types::{Errno, OpId, SessionId};
use std::sync::Arc;
use support::{KIB64, World, content, make, read, write};

/// Metadata of which every first answer about a layout is lost.
struct Forgetful(Arc<MetaService>);

impl MetaCalls for Forgetful {
    fn open_session(&self, events: Arc<dyn SessionEvents>) -> Result<SessionGrant, Errno> {
        self.0.open_session(events)
    }
    fn close_session(&self, session: SessionId) {
        MetaCalls::close_session(&*self.0, session);
    }
    fn call(&self, caller: Caller<'_>, request: MetaRequest<'_>) -> Result<MetaReply, Errno> {
        if matches!(request, MetaRequest::ProposeLayout { .. }) {
            let op = OpId { sequence: 0, ..caller.op };
            self.0.call(Caller { op, ..caller }, request.clone())?;
        }
        self.0.call(caller, request)
    }
}

#[test]
fn a_file_is_written_that_was_empty_or_not() {
    let world = World::new(64 << 20);
    let client = world.client_over(Arc::new(Forgetful(world.meta.clone())));
    for (name, before) in [("empty", 0), ("small", 4096)] {
        let file = make(&client, name).unwrap();
        let whole = content(1, 3 * KIB64);
        write(&client, &file, 0, &whole[..before]).unwrap();
        write(&client, &file, before as u64, &whole[before..]).unwrap();
        assert!(read(&client, &file, 4 * KIB64) == whole, "{name}");
        client.release(&file);
    }
}
