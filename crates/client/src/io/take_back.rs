//! What a write has left behind the bytes that it says it has taken.
//!
//! Its pieces go to their chunks at the same time, so that one may fail while those behind it are there. In the middle of a file that is what `write(2)` may do. Behind
//! its end they must not stay: they would show when the file gets longer some day.

use super::chunk::Growth;
use crate::client::Client;
use crate::file::File;
use ashlar_types::message::LeaseSet;
use ashlar_types::{FileLayout, SessionId};

impl Client {
    /// Removes what a write that is under way has left between `from`, where the bytes that count end, and `to`, as far as that is behind the end of the file; adds to
    /// `grown` what became free. Where others may be writing there, or it cannot be removed, the file is as long as that now, and what is missing reads as zeros.
    pub(super) fn take_back(
        &self,
        session: SessionId,
        (file, layout): (&File, &FileLayout),
        (from, to): (u64, u64),
        grown: &mut Growth,
    ) {
        let mut state = file.state.lock();
        let from = from.max(state.size);
        if from >= to {
            return;
        }
        // ORDER: nothing begins meanwhile. What somebody else writes there now, and is told to have written, must not go with it.
        let is_alone = state.leases.has(LeaseSet::WRITE) && state.in_flight == 1 && !state.is_draining;
        let drained = is_alone.then(|| file.drained(&mut state));
        drop(state);
        let is_gone = is_alone && self.punch_range(session, (file, layout), (from, to), grown).is_ok();
        if !is_gone {
            tracing::warn!(inode = %file.inode, from, to, "a write failed in the middle; what it left behind the end of the file stays");
            let mut state = file.state.lock();
            state.size = state.size.max(to);
            state.is_dirty = true;
        }
        drop(drained);
    }
}
