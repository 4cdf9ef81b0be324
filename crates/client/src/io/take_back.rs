//! What a write has left behind the bytes that it says it has taken.
//!
//! Its pieces go to their chunks at the same time, so that one may fail while those behind it are there. In the middle of a file that is what `write(2)` may do. Behind its
//! end they would show when the file gets longer some day: so what is known to be there is removed, or the file is as long as that now.
//!
//! Known weaknesses: what a piece that failed has left itself may show some day, as after a write of one piece; one that nobody answered may even be carried out later. What somebody
//! had reserved behind the end goes with what is removed. A chunk from which all was removed keeps its length, so a file whose writer dies before it has told how long it is may
//! come out as long as the write that failed; what it has there reads as zeros.

use super::chunk::{Behind, Growth};
use crate::client::Client;
use crate::file::File;
use ashlar_types::message::LeaseSet;
use ashlar_types::{FileLayout, SessionId};

impl Client {
    /// Removes what a write that is under way has left `behind` the bytes that count, as far as that is behind the end of the file; adds to `grown` what became free. Tells
    /// how long the file must be, bytes, so that it has all of it that stays, and nothing shows later; what is missing in between reads as zeros. 0 if nothing stays.
    pub(super) fn take_back(
        &self,
        session: SessionId,
        (file, layout): (&File, &FileLayout),
        behind: &Behind,
        grown: &mut Growth,
    ) -> u64 {
        if behind.written.is_empty() {
            return 0;
        }
        let mut state = file.state.lock();
        let size = state.size;
        let cut = behind.written.iter().map(|&(from, to)| (from.max(size), to));
        let left: Vec<(u64, u64)> = cut.filter(|(from, to)| from < to).collect();
        let Some(&(_, end)) = left.last() else { return 0 };
        // ORDER: nothing begins meanwhile. What somebody else writes there now, and is told to have written, must not go with it. Nobody is kept waiting for targets of which one
        // does not answer.
        let is_alone = state.leases.has(LeaseSet::WRITE) && state.in_flight == 1 && !state.is_draining;
        // A session that has ended changes nothing any more.
        let can_punch = is_alone && !behind.is_unanswered && session == self.session();
        let drained = can_punch.then(|| file.drained(&mut state));
        drop(state);
        let punch = |(from, to): (u64, u64)| {
            let mut pieces = layout.pieces(from, to - from);
            pieces.try_for_each(|piece| self.punch_piece(session, (file.inode, layout), piece, grown))
        };
        if drained.is_some() && left.into_iter().try_for_each(punch).is_ok() {
            return 0;
        }
        tracing::warn!(inode = %file.inode, end, "a write failed in the middle; what it left behind the end of the file stays");
        end
    }
}
