//! One storage server: it is told every few seconds that the metadata server is there, and at once when a session is to be fenced.

use super::ServiceStart;
use crate::net::{Call, NetError, Service};
use crate::remote::Routes;
use crate::wire::{Attend, Attended, HEED_TERM, StorageCall};
use ashlar_env::Clock;
use ashlar_types::codec::{decode, encode};
use ashlar_types::{Errno, NodeId, Role, SessionId};
use parking_lot::{Condvar, Mutex};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// Time between two messages.
const ATTEND_EVERY: Duration = Duration::from_secs(2);
/// For how long an answer is waited for.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// Time before a server that did not answer, or that has something under way for a session that is over, is asked again.
const AGAIN_AFTER: Duration = Duration::from_millis(200);
/// For how much longer than its term a storage server is taken to heed what was given: clocks run at different speeds.
const DRIFT_MAX: Duration = Duration::from_secs(1);
/// What a storage server of an earlier version, which does not know of starts, says to `AttendAs`. Its words do not change any more; others refuse for other reasons, such as that they do not
/// know yet who calls.
const NO_SUCH_CALL: &str = "that is no call to a storage server";
/// Sessions that one message names.
// LIMIT: of a message.
const FENCES_MAX: usize = 1024;

/// What a storage server said last.
#[derive(Clone, Copy, Debug)]
pub(super) struct Heard {
    pub standing: u64,
    /// Its clock.
    pub now_ms: u64,
    pub epochs: (u64, u64),
    /// When that was heard, on this server's clock: later than it was said.
    at: Duration,
}

struct State {
    heard: Option<Heard>,
    /// When the newest of its clock times was heard that it may have got back.
    echoed_at: Duration,
    /// Sessions that it is to fence and has not said that it has.
    // LIMIT: as sessions that end within its term; after that it goes by nothing that they were given.
    fences: Vec<SessionId>,
    is_woken: bool,
    /// It is told of no start. One that no other machine can serve says its start only where it has to: where others have served it before.
    is_plain: bool,
    /// That it is of an earlier version and cannot be used has been said.
    is_reported: bool,
}

/// What is left after a message.
enum Told {
    /// Nothing.
    All,
    /// What it said is to be told back before it goes by it.
    MustEcho,
    /// Something is under way there for a session that is over, or there are more of those.
    UnderWay,
}

/// See the module.
pub(super) struct Server {
    pub node: NodeId,
    /// Which start of the metadata server it is told of.
    start: Option<ServiceStart>,
    is_given_up: AtomicBool,
    state: Mutex<State>,
    woken: Condvar,
}

impl Server {
    /// One that this start of the metadata server, at `started`, has not heard of. The start before may have, until then.
    pub fn new(node: NodeId, started: Duration, start: Option<ServiceStart>) -> Server {
        let state = State {
            heard: None,
            echoed_at: started,
            fences: Vec::new(),
            is_woken: false,
            is_plain: start.is_some_and(|start| !start.is_shared),
            is_reported: false,
        };
        let (is_given_up, woken) = (AtomicBool::new(false), Condvar::new());
        Server { node, start, is_given_up, state: Mutex::new(state), woken }
    }

    /// What it said last.
    pub fn heard(&self) -> Option<Heard> {
        self.state.lock().heard
    }

    /// Whether it heeds nothing any more that was given before, because it was not told for too long that this server is there.
    pub fn has_lapsed(&self, now: Duration) -> bool {
        now >= self.state.lock().echoed_at.saturating_add(HEED_TERM + DRIFT_MAX)
    }

    /// Has it told that `session` is over.
    pub fn fence(&self, session: SessionId) {
        self.state.lock().fences.push(session);
        self.wake();
    }

    /// Whether it has not said yet that it does nothing for `session` any more.
    pub fn is_to_fence(&self, session: SessionId) -> bool {
        self.state.lock().fences.contains(&session)
    }

    /// Has it asked at once.
    pub fn wake(&self) {
        self.state.lock().is_woken = true;
        self.woken.notify_all();
    }

    /// Has it attended no more.
    pub fn give_up(&self) {
        self.is_given_up.store(true, SeqCst);
        self.wake();
    }

    /// Attends it until `is_stopping`, or it is given up.
    pub fn attend(&self, routes: &Routes, clock: &dyn Clock, is_stopping: &AtomicBool) {
        while !is_stopping.load(SeqCst) && !self.is_given_up.load(SeqCst) {
            let pause = match self.tell(routes, clock) {
                Ok(Told::All) => ATTEND_EVERY,
                Ok(Told::MustEcho) => continue,
                Ok(Told::UnderWay) => AGAIN_AFTER,
                // Also one that waits until nothing of an earlier start is under way there.
                Err(error) => {
                    self.note_failed(&error);
                    tracing::debug!(%error, server = %self.node, "a storage server does not answer");
                    AGAIN_AFTER
                }
            };
            let mut state = self.state.lock();
            if !state.is_woken {
                self.woken.wait_for(&mut state, pause);
            }
            state.is_woken = false;
        }
    }

    /// A message was not answered, or refused: that decides which one it is sent next.
    fn note_failed(&self, error: &NetError) {
        let is_no_such_call = matches!(error, NetError::Refused(words) if words == NO_SUCH_CALL);
        let is_other_newest = matches!(error, NetError::Errno(Errno::EACCES));
        let Some(start) = self.start else { return };
        let mut state = self.state.lock();
        if !start.is_shared {
            // It has been told of starts: this is a later one, of a metadata server that other machines could serve until it was restored.
            state.is_plain = if state.is_plain { !is_other_newest } else { is_no_such_call };
            return;
        }
        if !is_no_such_call {
            return;
        }
        if start.is_shared && !std::mem::replace(&mut state.is_reported, true) {
            tracing::error!(server = %self.node, "a storage server is of an earlier version, which cannot be used with a metadata server that several machines can serve; it gives no content until it is brought up to date");
        }
    }

    /// One message.
    fn tell(&self, routes: &Routes, clock: &dyn Clock) -> Result<Told, NetError> {
        let has_lapsed = self.has_lapsed(clock.monotonic());
        let (attend, start) = {
            let mut state = self.state.lock();
            if has_lapsed {
                state.fences.clear();
            }
            state.is_woken = false;
            let echo = state.heard.map(|heard| (heard.standing, heard.now_ms));
            // ORDER: noted before it is sent: it may be heard although no answer comes.
            if let Some(heard) = state.heard {
                state.echoed_at = state.echoed_at.max(heard.at);
            }
            let fences = state.fences.iter().take(FENCES_MAX).copied().collect();
            (Attend { echo, fences }, self.start.filter(|_| !state.is_plain))
        };
        let is_first = attend.echo.is_none();
        let head = encode(&match start {
            Some(start) => StorageCall::AttendAs { start: start.number, attend },
            None => StorageCall::Attend(attend),
        });
        let call = Call {
            service: Service::Storage,
            head: &head,
            payload: &[],
            // Said twice it is the same, and what is said late promises no more than its clock time does.
            is_once: false,
            may_repeat: true,
            is_urgent: true,
        };
        let answer = routes.link(self.node, Role::Storage).call(&call, Instant::now() + ANSWER_MAX)?;
        let attended: Result<Attended, Errno> = decode(answer.head(), "answer of a storage server")
            .map_err(|_| NetError::Malformed("no answer"))?;
        let Attended { standing, now_ms, epochs, fenced } = attended.map_err(NetError::Errno)?;
        let mut state = self.state.lock();
        let is_other = state.heard.is_some_and(|heard| heard.standing != standing);
        if is_other {
            tracing::info!(server = %self.node, "a storage server was started anew, or has not heard of this metadata server for long; what it let clients do is void");
            // ORDER: it goes by nothing that was given before, so nothing has to be fenced there.
            state.fences.clear();
        }
        state.fences.retain(|session| !fenced.contains(session));
        state.heard = Some(Heard { standing, now_ms, epochs, at: clock.monotonic() });
        Ok(match () {
            () if is_first || is_other => Told::MustEcho,
            () if !state.fences.is_empty() => Told::UnderWay,
            () => Told::All,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STARTED: Duration = Duration::from_secs(100);

    #[test]
    fn one_that_was_not_heard_of_may_go_by_what_the_start_before_has_given() {
        let server = Server::new(NodeId(1), STARTED, None);
        assert!(server.heard().is_none());
        assert!(!server.has_lapsed(STARTED + HEED_TERM), "clocks differ a little");
        assert!(server.has_lapsed(STARTED + HEED_TERM + DRIFT_MAX));
    }

    #[test]
    fn a_session_is_to_be_fenced_until_the_server_says_so() {
        let server = Server::new(NodeId(1), STARTED, None);
        server.fence(SessionId(7));
        assert!(server.is_to_fence(SessionId(7)) && !server.is_to_fence(SessionId(8)));
        server.state.lock().fences.clear();
        assert!(!server.is_to_fence(SessionId(7)));
    }
}
