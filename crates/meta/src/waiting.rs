//! Calls that wait for somebody else: for leases to be given back, for keys that a transaction holds, for another server. Each takes up a thread of the server, so no session has many of
//! them; a call beyond is told to come again, and is decided anew then. Calls that need not wait never meet this, among them those by which leases come back.

use crate::MetaService;
use ashlar_types::{Errno, OpId, SessionId};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::time::Duration;

/// Calls of sessions that may wait: half of what is left is a session's, so that there is always some for the next one.
// LIMIT: of a server, which has twice as many threads (`THREADS_MAX` of `rpc`).
const CALLS_MAX: usize = 128;
/// Questions of other servers that may wait, for leases alone. Apart from the others, which may be waiting for just such answers.
// LIMIT: of a server.
const QUESTIONS_MAX: usize = 32;
/// Calls beyond that wait for a moment: most leases come back sooner than a caller would.
// LIMIT: of a server.
const MOMENTS_MAX: usize = 32;
/// That moment.
const MOMENT: Duration = Duration::from_millis(10);

/// Who would wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waiter {
    /// The service itself, or a caller in this process: that one has its own threads, and does not come again.
    Itself,
    /// Whoever looks past keys that a transaction holds: because what holds them waits for him, or because he wants nothing that it will change.
    PastKeys,
    /// A call of a session.
    Call(SessionId),
    /// A question of another server on behalf of a session.
    Question(SessionId),
}

impl Waiter {
    /// The answer to whoever has waited for leases as long as one try may: a call of a session comes again, for as long as the mount wants, as whoever has the lease may be waiting for a
    /// server that is away. Nothing was done.
    pub(crate) fn out_of_time(self) -> Errno {
        match self {
            Waiter::Call(_) => Errno::EHOSTDOWN,
            Waiter::Itself | Waiter::PastKeys | Waiter::Question(_) => Errno::ETIMEDOUT,
        }
    }
}

/// Who waits at this moment.
#[derive(Default)]
pub(crate) struct Waiting {
    calls: Mutex<Shares>,
    questions: Mutex<Shares>,
    moments: Mutex<usize>,
}

#[derive(Default)]
struct Shares {
    all: usize,
    // LIMIT: as sessions that wait.
    by_session: FxHashMap<SessionId, usize>,
}

impl Shares {
    /// Whether one more of `session` may wait, of `most` in all; it counts from here on.
    fn begin(&mut self, session: SessionId, most: usize) -> bool {
        let own = self.by_session.get(&session).copied().unwrap_or(0);
        let others = self.all - own;
        if own >= most.saturating_sub(others).div_ceil(2) {
            return false;
        }
        self.all += 1;
        *self.by_session.entry(session).or_default() += 1;
        true
    }

    fn end(&mut self, session: SessionId) {
        self.all -= 1;
        if let Some(own) = self.by_session.get_mut(&session) {
            *own -= 1;
            if *own == 0 {
                self.by_session.remove(&session);
            }
        }
    }
}

/// May wait, for as long as it lives.
pub(crate) struct Turn<'a> {
    waiting: &'a Waiting,
    of: Option<Waiter>,
}

impl Turn<'_> {
    /// Whether it is for a [`MOMENT`] only.
    pub(crate) fn is_short(&self) -> bool {
        self.of.is_none()
    }

    /// For how long to wait in it at the most.
    pub(crate) fn at_most(&self, wait: Duration) -> Duration {
        if self.is_short() { wait.min(MOMENT) } else { wait }
    }

    /// Ends it.
    ///
    /// # Errors
    /// `EHOSTDOWN` when it was short: whoever had it does not go on waiting.
    pub(crate) fn end(self) -> Result<(), Errno> {
        if self.is_short() { Err(Errno::EHOSTDOWN) } else { Ok(()) }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        match self.of {
            None => *self.waiting.moments.lock() -= 1,
            Some(Waiter::Itself | Waiter::PastKeys) => {}
            Some(Waiter::Call(session)) => self.waiting.calls.lock().end(session),
            Some(Waiter::Question(session)) => self.waiting.questions.lock().end(session),
        }
    }
}

impl Waiting {
    /// Begins to wait.
    ///
    /// # Errors
    /// `EHOSTDOWN` when it has to come again instead.
    pub(crate) fn begin(&self, waiter: Waiter) -> Result<Turn<'_>, Errno> {
        let is_let_in = match waiter {
            Waiter::Itself | Waiter::PastKeys => true,
            Waiter::Call(session) => self.calls.lock().begin(session, CALLS_MAX),
            Waiter::Question(session) => self.questions.lock().begin(session, QUESTIONS_MAX),
        };
        if is_let_in { Ok(Turn { waiting: self, of: Some(waiter) }) } else { Err(Errno::EHOSTDOWN) }
    }

    /// Begins to wait, if need be for a moment only.
    ///
    /// # Errors
    /// `EHOSTDOWN` when it has to come again at once.
    pub(crate) fn begin_or_look(&self, waiter: Waiter) -> Result<Turn<'_>, Errno> {
        self.begin(waiter).or_else(|errno| {
            let mut moments = self.moments.lock();
            if *moments >= MOMENTS_MAX {
                return Err(errno);
            }
            *moments += 1;
            Ok(Turn { waiting: self, of: None })
        })
    }
}

impl MetaService {
    /// Who waits when the call `op` does. What the service does by itself has no number.
    pub(crate) fn waiter(&self, op: OpId) -> Waiter {
        match op.sequence != 0 && self.across.has_peers() {
            true => Waiter::Call(op.session),
            false => Waiter::Itself,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn let_in<'a>(waiting: &'a Waiting, waiter: Waiter) -> Vec<Turn<'a>> {
        std::iter::from_fn(|| waiting.begin(waiter).ok()).take(CALLS_MAX * 2).collect()
    }

    #[test]
    fn a_session_that_waits_with_all_its_calls_leaves_half_of_what_there_is_to_the_next_one() {
        let waiting = Waiting::default();
        let all: Vec<Vec<Turn<'_>>> =
            (1..=8).map(|session| let_in(&waiting, Waiter::Call(SessionId(session)))).collect();
        let counts: Vec<usize> = all.iter().map(Vec::len).collect();
        assert_eq!(counts, [64, 32, 16, 8, 4, 2, 1, 1]);
        assert_eq!(let_in(&waiting, Waiter::Question(SessionId(1))).len(), QUESTIONS_MAX / 2);
        assert_eq!(let_in(&waiting, Waiter::Itself).len(), CALLS_MAX * 2);
        let short: Vec<_> =
            std::iter::from_fn(|| waiting.begin_or_look(Waiter::Call(SessionId(1))).ok()).collect();
        assert!(short.len() == MOMENTS_MAX && short.iter().all(Turn::is_short));
        drop((all, short));
        let (calls, questions) = (waiting.calls.lock().all, waiting.questions.lock().all);
        assert_eq!((calls, questions, *waiting.moments.lock()), (0, 0, 0));
        assert!(waiting.calls.lock().by_session.is_empty());
    }
}
