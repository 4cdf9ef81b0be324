//! What administrators ask of sessions.

use super::MetaEndpoint;
use crate::wire::{MetaAnswer, SessionInfo};
use ashlar_types::{Errno, SessionId};

impl MetaEndpoint {
    pub(super) fn list(&self) -> MetaAnswer {
        let holds = self.meta.holds();
        let now = self.clock.monotonic();
        let mut all: Vec<SessionInfo> = self
            .sessions
            .read()
            .iter()
            .map(|(id, session)| {
                let state = session.state.lock();
                let held = holds.get(id).copied().unwrap_or_default();
                SessionInfo {
                    session: *id,
                    owner: session.owner,
                    since_s: session.since_s,
                    heard_ms: now.saturating_sub(state.renewed).as_millis() as u64,
                    leases: held.leases,
                    opens: held.opens,
                    locks: held.locks,
                    is_ending: state.is_ending || state.is_revoked,
                }
            })
            .collect();
        all.sort_by_key(|info| info.session);
        MetaAnswer::Sessions(all)
    }

    /// Has a session be ended once its holder does not rely on its leases any more, and its holder told now.
    pub(super) fn begin_end(&self, id: SessionId) -> MetaAnswer {
        let Some(session) = self.sessions.read().get(&id).cloned() else {
            return MetaAnswer::Failed(Errno::ENOENT);
        };
        let parked = {
            let mut state = session.state.lock();
            // ORDER: not renewed any more before its holder is told, who may ask once more.
            (state.is_revoked, state.is_ending) = (true, true);
            state.parked.take()
        };
        session.fence();
        tracing::warn!(session = %id, node = %session.owner.node, "a session is ended before its time");
        if let Some((replier, _)) = parked {
            self.tell(replier, &MetaAnswer::Failed(Errno::ENOTCONN));
        }
        MetaAnswer::Done
    }
}
