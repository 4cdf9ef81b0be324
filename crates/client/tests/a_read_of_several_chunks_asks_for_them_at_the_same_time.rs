//! Goal: a read that concerns several chunks takes the time of one of them where storage is behind a network. Method: storage that answers a read only once all others of the same call have
//! come as well.
#![allow(clippy::unwrap_used, reason = "the helpers of a test panic as the test does")]

mod support;

use ashlar_rpc::{Payload, StorageCalls};
use ashlar_types::Errno;
use ashlar_types::message::{StorageReply, StorageRequest};
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::time::Duration;
use support::{KIB64, World, content, make, write};

const CHUNKS: usize = 4;
/// Until the others have come, on a machine that is busy.
const WAIT_MAX: Duration = Duration::from_secs(20);

/// Storage whose reads wait for each other.
struct Meeting {
    storage: Arc<dyn StorageCalls>,
    /// How many have come, and the chunk that cannot be read.
    state: Mutex<(usize, Option<u64>)>,
    changed: Condvar,
}

impl StorageCalls for Meeting {
    fn call(&self, request: &StorageRequest, payload: Payload<'_>) -> Result<StorageReply, Errno> {
        let StorageRequest::Read { chunk, .. } = request else { return self.storage.call(request, payload) };
        let mut state = self.state.lock();
        state.0 += 1;
        self.changed.notify_all();
        while state.0 < CHUNKS {
            assert!(!self.changed.wait_for(&mut state, WAIT_MAX).timed_out(), "{} of {CHUNKS}", state.0);
        }
        let is_damaged = state.1 == Some(chunk.index);
        drop(state);
        if is_damaged { Err(Errno::EIO) } else { self.storage.call(request, payload) }
    }
}

#[test]
fn pieces_of_several_chunks_are_under_way_together_and_come_in_order() {
    let world = World::new(64 << 20);
    let state = Mutex::new((0, None));
    let meeting =
        Arc::new(Meeting { storage: world.storage.clone(), state, changed: Condvar::new() });
    let client = world.client_through(world.meta.clone(), meeting.clone());
    let file = make(&client, "file").unwrap();
    let all = content(3, CHUNKS * KIB64);
    write(&client, &file, 0, &all).unwrap();
    // From the middle of the first chunk to that of the last.
    let mut read = vec![0; all.len() - 2000];
    assert_eq!(client.read(&file, 1000, &mut read).unwrap(), read.len());
    assert_eq!(read, all[1000..all.len() - 1000]);
    for damaged in 0..CHUNKS as u64 {
        *meeting.state.lock() = (0, Some(damaged));
        assert_eq!(client.read(&file, 1000, &mut read), Err(Errno::EIO), "chunk {damaged}");
    }
    client.flush(&file).unwrap();
    client.release(&file);
    client.disconnect().unwrap();
}
