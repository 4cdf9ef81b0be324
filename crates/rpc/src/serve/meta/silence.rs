//! Sessions of which nothing is heard any more.

use super::{DRIFT_MAX, MetaEndpoint, RemoteSession, SessionState, Standing};
use crate::SessionEvents;
use crate::wire::{LEASE_TERM, MetaAnswer, SILENCE_MAX};
use ashlar_types::{EventKind, SessionId};
use rustc_hash::FxHashSet;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// For how long a question for events is held back.
const PARKED_MAX: Duration = Duration::from_secs(20);
/// For how long after a start sessions are waited for that are there and do not tell what they have.
const RECLAIM_MAX: Duration = Duration::from_secs(60);
/// Sessions that are remembered after their end.
const ENDED_MAX: usize = 65_536;

/// The latest sessions that were ended although their holders may go on.
#[derive(Default)]
pub(super) struct Ended {
    // LIMIT: ENDED_MAX.
    order: VecDeque<SessionId>,
    all: FxHashSet<SessionId>,
}

impl Ended {
    pub fn has(&self, session: SessionId) -> bool {
        self.all.contains(&session)
    }

    fn note(&mut self, session: SessionId) {
        if !self.all.insert(session) {
            return;
        }
        self.order.push_back(session);
        if self.order.len() > ENDED_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.all.remove(&oldest);
        }
    }
}

impl SessionState {
    /// It is known by hearsay alone, and has not been told of for long.
    fn may_be_forgotten(&self, now: Duration) -> bool {
        let age = now.saturating_sub(self.renewed);
        self.standing == Standing::Unmet && !self.is_revoked && age > SILENCE_MAX
    }
}

impl MetaEndpoint {
    /// Ends sessions that have fallen silent, answers questions that have waited long, and has sessions follow the policies of their nodes. To be
    /// called every second or so.
    pub fn tidy(&self) {
        self.forget_unmet();
        let now = self.clock.monotonic();
        let mut ending = Vec::new();
        for (id, session) in self.all_sessions() {
            self.follow_policy(id, &session);
            if self.map.read().node(session.owner.node).is_none() && !session.state.lock().is_ending {
                self.begin_end(id);
            }
            let (is_silent, is_told, waited) = {
                let is_late = self.must_reclaim(id) && now.saturating_sub(self.started) > RECLAIM_MAX;
                let mut state = session.state.lock();
                let age = now.saturating_sub(state.renewed);
                let is_over = state.is_ending && age > LEASE_TERM + DRIFT_MAX;
                // One that is unmet is waited for while shards are coming, and then forgotten; unless others have wanted what it has.
                let may_be_silent = state.standing != Standing::Unmet || state.is_revoked;
                let is_silent = is_late || is_over || (may_be_silent && age > SILENCE_MAX);
                let is_long =
                    state.parked.as_ref().is_some_and(|(_, since)| now.saturating_sub(*since) > PARKED_MAX);
                (is_silent, is_over, if is_long { state.parked.take() } else { None })
            };
            if let Some((replier, _)) = waited {
                self.tell(replier, &MetaAnswer::Events(Vec::new()));
            }
            // ORDER: not renewed any more before it is fenced, and fenced before what it has goes to others. Who is waited for is looked at next time.
            if is_silent && session.revoke().is_zero() {
                tracing::warn!(session = %id, node = %session.owner.node, "a session has fallen silent and is ended");
                if is_told {
                    session.report(EventKind::SessionRemoved, id, "ended as an administrator wanted");
                } else {
                    let text = "nothing was heard of its mount; its locks and leases go to others";
                    session.report(EventKind::SessionSilent, id, text);
                }
                ending.push(id);
            }
        }
        if ending.is_empty() {
            return;
        }
        // ORDER: of all, before the first is ended: its end may need what waits for the others to tell what they have.
        self.meta.give_up_on(&ending);
        for id in ending {
            // ORDER: remembered before it is not known. Storage servers do nothing for it any more, whatever it has at other metadata servers: its holder must hear of that wherever he comes.
            self.ended.lock().note(id);
            self.end(id);
        }
    }

    fn all_sessions(&self) -> Vec<(SessionId, Arc<RemoteSession>)> {
        self.sessions.read().iter().map(|(id, session)| (*id, session.clone())).collect()
    }

    /// Forgets sessions that have come along with shards, of whose holders nothing was heard, and which have nothing here, or they would be met ([`SessionEvents::met`]): they go on
    /// where they are, and come here as to any server that does not know them.
    fn forget_unmet(&self) {
        let now = self.clock.monotonic();
        let is_due =
            |(_, session): &(SessionId, Arc<RemoteSession>)| session.state.lock().may_be_forgotten(now);
        let due: Vec<_> = self.all_sessions().into_iter().filter(is_due).collect();
        if due.is_empty() {
            return;
        }
        // ORDER: first. No shard that begins to come after this brings one of them along as it is now; who is just brought along is heard of before.
        let sessions = self.sessions.write();
        self.leaving.lock().extend(due.iter().map(|(id, _)| *id));
        drop(sessions);
        // ORDER: what came before is served, or it is seen to be on its way.
        let since = self.meta.takes_shards_since();
        for (id, session) in &due {
            self.forget_one_unmet(*id, session, since);
        }
        let mut leaving = self.leaving.lock();
        due.iter().for_each(|(id, _)| {
            leaving.remove(id);
        });
    }

    /// `since`: since when shards have been on their way here. Who was told of since then may have something in them.
    fn forget_one_unmet(&self, id: SessionId, session: &RemoteSession, since: Option<Duration>) {
        {
            let mut state = session.state.lock();
            let may_have_something = since.is_some_and(|since| state.renewed >= since);
            // Its holder has called meanwhile, or it was told of once more, or a shard has come.
            if may_have_something || !state.may_be_forgotten(self.clock.monotonic()) {
                return;
            }
            state.is_revoked = true;
            debug_assert!(state.parked.is_none(), "whoever asks for events is met");
        }
        tracing::debug!(session = %id, "a session that has come along with a shard has nothing here, and is forgotten");
        self.sessions.write().remove(&id);
        // Storage servers are told nothing: this server has given it nothing.
        self.meta.close_session(id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_that_were_ended_are_remembered() {
        let mut ended = Ended::default();
        (0..ENDED_MAX as u64 + 2).for_each(|number| ended.note(SessionId(number)));
        ended.note(SessionId(ENDED_MAX as u64));
        assert_eq!((ended.order.len(), ended.all.len()), (ENDED_MAX, ENDED_MAX));
        assert!(!ended.has(SessionId(1)) && ended.has(SessionId(2)));
    }
}
