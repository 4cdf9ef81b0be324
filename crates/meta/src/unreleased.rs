//! Files without a name that a session has closed, and that could not be removed then: another operation held them. They are tried again, or they would take their space for as long as
//! the session lasts.

use crate::MetaService;
use ashlar_types::{Errno, InodeId, SessionId};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// Time between two tries.
const TRY_PAUSE: Duration = Duration::from_secs(1);

/// See the module. Also of files that are to be measured.
#[derive(Debug, Default)]
pub(crate) struct Unreleased {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    // LIMIT: as closes that other operations were in the way of, each for as long as these last.
    left: BTreeSet<(InodeId, SessionId)>,
    tried: Duration,
}

impl Unreleased {
    /// Notes that `session` holds `inode` in the records, and has closed it or ended.
    pub(crate) fn note(&self, inode: InodeId, session: SessionId) {
        self.state.lock().left.insert((inode, session));
    }

    /// All of them, which are forgotten, if they were not tried a moment ago.
    pub(crate) fn take(&self, now: Duration) -> BTreeSet<(InodeId, SessionId)> {
        let mut state = self.state.lock();
        if state.left.is_empty() || now.saturating_sub(state.tried) < TRY_PAUSE {
            return BTreeSet::new();
        }
        state.tried = now;
        std::mem::take(&mut state.left)
    }
}

impl MetaService {
    /// Removes what can be removed by now, in a thread of its own: that may wait for other servers. To be called several times a second.
    pub(crate) fn begin_releasing(self: &Arc<Self>) {
        let left = self.unreleased.take(self.env.clock.monotonic());
        if left.is_empty() {
            return;
        }
        let (service, again) = (self.clone(), left.clone());
        let release = Box::new(move || service.release_again(left));
        if self.env.tasks.spawn("ashlar-release", release).is_err() {
            again.into_iter().for_each(|(inode, session)| self.unreleased.note(inode, session));
        }
    }

    /// What has gone to another server with its shard is left to the end of the session.
    fn release_again(&self, left: BTreeSet<(InodeId, SessionId)>) {
        for (inode, session) in left {
            if !self.is_here(inode.home()) || !self.sessions.has(session) {
                continue;
            }
            // One that fails is noted again.
            match self.release_orphan(inode, session) {
                Ok(()) => tracing::debug!(%inode, %session, "a file that was closed is removed late"),
                Err(Errno::EHOSTDOWN) => {}
                Err(errno) => {
                    tracing::warn!(%errno, %inode, "a file without a name that nobody has open cannot be removed; trying again");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_is_tried_once_a_second() {
        let unreleased = Unreleased::default();
        let at = Duration::from_millis;
        assert!(unreleased.take(at(5000)).is_empty());
        unreleased.note(InodeId(7), SessionId(1));
        unreleased.note(InodeId(7), SessionId(1));
        assert_eq!(unreleased.take(at(5001)).len(), 1);
        unreleased.note(InodeId(7), SessionId(1));
        assert!(unreleased.take(at(5500)).is_empty());
        assert_eq!(unreleased.take(at(6001)).len(), 1);
        assert!(unreleased.take(at(9000)).is_empty());
    }
}
