//! Room on a full file system: every metadata server is asked to delete what removed files still hold.

use super::RemoteMeta;
use crate::Caller;
use ashlar_types::message::{MetaReply, MetaRequest};
use ashlar_types::{Errno, NodeId, ShardId};
use parking_lot::{Condvar, Mutex};
use rustc_hash::FxHashMap;
use std::time::{Duration, Instant};

/// For how long servers are waited for that make room: a little longer than each takes for it.
const ROOM_MAX: Duration = Duration::from_secs(7);
/// For how long one may take to get the question.
const REACH_MAX: Duration = Duration::from_secs(1);
/// For how long one that could not be reached is not asked again: it would hold up every write.
const SILENT_MAX: Duration = Duration::from_secs(30);

/// Who asks, and whom.
#[derive(Default)]
pub(super) struct Room {
    rounds: Rounds,
    /// Servers that could not be reached, and since when. Not those that only took long: they may be about to free a lot.
    // LIMIT: one per metadata server.
    silent: Mutex<FxHashMap<NodeId, Instant>>,
}

/// Rounds of asking all servers, one at a time: of those who want room at the same time one asks for all.
#[derive(Default)]
struct Rounds {
    state: Mutex<RoundsState>,
    ended: Condvar,
}

#[derive(Default)]
struct RoundsState {
    /// Rounds that have begun.
    begun: u64,
    is_under_way: bool,
}

/// A round is under way, until dropped.
struct Round<'a>(&'a Rounds);

impl Drop for Round<'_> {
    fn drop(&mut self) {
        self.0.state.lock().is_under_way = false;
        self.0.ended.notify_all();
    }
}

impl Rounds {
    /// Begins a round; `None` when another one has begun and ended since the call, so that what was removed before it has been looked for, or at `deadline`.
    fn begin(&self, deadline: Instant) -> Option<Round<'_>> {
        let mut state = self.state.lock();
        let before = state.begun;
        while state.is_under_way {
            if self.ended.wait_until(&mut state, deadline).timed_out() {
                return None;
            }
        }
        if state.begun > before {
            return None;
        }
        state.begun += 1;
        state.is_under_way = true;
        Some(Round(self))
    }
}

impl RemoteMeta {
    /// Has every server delete what removed files still hold, all of them at the same time, whether or not the session has anything at them. One that does not answer
    /// in time holds nobody up for longer than [`ROOM_MAX`], and one that cannot be reached that once in [`SILENT_MAX`]; what it did not free is not there. So the only error is `ENOTCONN`, when the session has ended.
    pub(super) fn make_room_everywhere(
        &self,
        caller: Caller<'_>,
        deadline: Instant,
    ) -> Result<MetaReply, Errno> {
        let session = self.live_session(caller.op.session)?;
        // One round may be under way, and another one be begun by somebody else.
        let Some(_round) = self.room.rounds.begin(deadline.min(Instant::now() + 2 * ROOM_MAX)) else {
            return Ok(MetaReply::Done);
        };
        let begin = Instant::now();
        let ask = |(server, shard): (NodeId, ShardId)| {
            let is_silent = match session.presence(server, deadline.min(begin + REACH_MAX)) {
                Ok(presence) => {
                    let until = deadline.min(begin + ROOM_MAX);
                    match self.call_home(caller, MetaRequest::MakeRoom, shard, until) {
                        Ok(_) => return,
                        Err(errno) => {
                            tracing::warn!(%errno, %server, "a metadata server made no room in time")
                        }
                    }
                    presence.is_silent()
                }
                Err(errno) => {
                    tracing::warn!(%errno, %server, "a metadata server was not there to make room");
                    true
                }
            };
            if is_silent {
                self.room.silent.lock().insert(server, Instant::now());
            }
        };
        let asked = self.servers_to_ask(begin);
        // LIMIT: a thread per metadata server, for some seconds.
        std::thread::scope(|scope| {
            let Some((last, others)) = asked.split_last() else { return };
            for server in others {
                let asking = std::thread::Builder::new().name("ashlar-room".into());
                if let Err(error) = asking.spawn_scoped(scope, || ask(*server)) {
                    tracing::warn!(%error, "a metadata server could not be asked to make room");
                }
            }
            ask(*last);
        });
        self.live_session(caller.op.session).map(|_| MetaReply::Done)
    }

    /// Servers that have not been silent lately, each with a shard of its own.
    fn servers_to_ask(&self, now: Instant) -> Vec<(NodeId, ShardId)> {
        let mut silent = self.room.silent.lock();
        silent.retain(|_, since| now.saturating_duration_since(*since) < SILENT_MAX);
        let mut servers: Vec<(NodeId, ShardId)> = Vec::new();
        for shard in &self.routes.map().shards {
            let is_known = servers.iter().any(|(server, _)| *server == shard.primary);
            if !is_known && !silent.contains_key(&shard.primary) {
                servers.push((shard.primary, shard.id));
            }
        }
        servers
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    #[test]
    fn of_many_who_want_room_at_once_one_asks_for_those_who_came_meanwhile() {
        let (rounds, made) = (Rounds::default(), AtomicUsize::new(0));
        let deadline = Instant::now() + Duration::from_secs(60);
        let first = rounds.begin(deadline).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..20 {
                scope.spawn(|| {
                    let round = rounds.begin(deadline);
                    made.fetch_add(usize::from(round.is_some()), SeqCst);
                    // Long enough for the others to see that it is under way.
                    std::thread::sleep(Duration::from_millis(50));
                    drop(round);
                });
            }
            // All of them are waiting.
            std::thread::sleep(Duration::from_millis(500));
            drop(first);
        });
        assert_eq!(made.into_inner(), 1, "rounds for those who came during the first one");
        assert!(rounds.begin(deadline).is_some(), "the next one comes after all that");
    }

    #[test]
    fn nobody_waits_longer_than_he_may() {
        let rounds = Rounds::default();
        let begin = Instant::now();
        let _first = rounds.begin(begin).unwrap();
        assert!(rounds.begin(begin + Duration::from_millis(30)).is_none());
        assert!(begin.elapsed() >= Duration::from_millis(30));
    }
}
