//! Sessions as a storage server knows them: what is under way for each, and which are over.

use ashlar_types::node::SessionOwner;
use ashlar_types::{Capability, Errno, SessionId};
use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use rustc_hash::FxHashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

/// Most sessions that are known at a time.
// LIMIT: as many as a metadata server has, and those that have ended lately.
const SESSIONS_MAX: usize = 131_072;

/// For how long a session that has ended is remembered: longer than a capability can be good that was sealed while it ended.
const REMEMBERED: Duration = Capability::TERM.saturating_mul(2);

/// One session.
#[derive(Default)]
pub(super) struct Gate {
    is_closed: AtomicBool,
    /// Shared by whatever is under way.
    under_way: RwLock<()>,
}

impl Gate {
    /// Lets something through, which is under way for as long as what it returns lives.
    ///
    /// # Errors
    /// `EACCES` when the session is over.
    pub fn enter(&self) -> Result<RwLockReadGuard<'_, ()>, Errno> {
        // Without waiting for whoever waits in `close`.
        if self.is_closed.load(SeqCst) {
            return Err(Errno::EACCES);
        }
        let under_way = self.under_way.read();
        // ORDER: looked at when it counts. Either whoever closes waits for this, or this is seen to come too late.
        match self.is_closed.load(SeqCst) {
            true => Err(Errno::EACCES),
            false => Ok(under_way),
        }
    }

    /// Lets nothing more through; tells whether nothing is under way any more, or will within `wait`.
    fn close(&self, wait: Duration) -> bool {
        // ORDER: before it is waited for.
        self.is_closed.store(true, SeqCst);
        self.under_way.try_write_for(wait).is_some()
    }
}

struct Known {
    gate: Arc<Gate>,
    /// Nobody's, if the session was over before it was heard of.
    owner: Option<SessionOwner>,
    /// When it was closed.
    closed: Option<Duration>,
}

/// All sessions.
#[derive(Default)]
pub(super) struct Gates {
    all: Mutex<FxHashMap<SessionId, Known>>,
}

impl Gates {
    /// That of `session`, which is of `owner`.
    ///
    /// # Errors
    /// `EACCES` when the session is over, is somebody else's, or there are too many.
    pub fn open(&self, session: SessionId, owner: SessionOwner, now: Duration) -> Result<Arc<Gate>, Errno> {
        let mut all = self.all.lock();
        if let Some(known) = all.get(&session) {
            let is_good = known.closed.is_none() && known.owner == Some(owner);
            return if is_good { Ok(known.gate.clone()) } else { Err(Errno::EACCES) };
        }
        if all.len() >= SESSIONS_MAX {
            forget_old(&mut all, now);
            if all.len() >= SESSIONS_MAX {
                tracing::error!("there are too many sessions for this storage server");
                return Err(Errno::EACCES);
            }
        }
        let gate = Arc::new(Gate::default());
        all.insert(session, Known { gate: gate.clone(), owner: Some(owner), closed: None });
        Ok(gate)
    }

    /// Closes those of `sessions`; tells of which nothing is under way any more, after waiting for at most `wait`.
    pub fn close(&self, sessions: &[SessionId], now: Duration, wait: Duration) -> Vec<SessionId> {
        let gates: Vec<(SessionId, Arc<Gate>)> = {
            let mut all = self.all.lock();
            forget_old(&mut all, now);
            let close = |&session: &SessionId| {
                let new = || Known { gate: Arc::default(), owner: None, closed: None };
                let known = all.entry(session).or_insert_with(new);
                known.closed.get_or_insert(now);
                // ORDER: none is let in while the first ones are waited for.
                known.gate.is_closed.store(true, SeqCst);
                (session, known.gate.clone())
            };
            sessions.iter().map(close).collect()
        };
        let mut wait = wait;
        let mut fenced = Vec::new();
        for (session, gate) in gates {
            match gate.close(wait) {
                true => fenced.push(session),
                // One that hangs is waited for, and not each of many.
                false => wait = Duration::ZERO,
            }
        }
        fenced
    }

    /// A process is not expected back: what is not closed of it is forgotten. Should it come after all, it has to show everything anew.
    pub fn forget(&self, owner: SessionOwner) {
        self.all.lock().retain(|_, known| {
            let is_gone = known.owner == Some(owner) && known.closed.is_none();
            // ORDER: nothing goes through a gate that cannot be found to be closed.
            known.gate.is_closed.fetch_or(is_gone, SeqCst);
            !is_gone
        });
    }
}

fn forget_old(all: &mut FxHashMap<SessionId, Known>, now: Duration) {
    all.retain(|_, known| known.closed.is_none_or(|closed| now.saturating_sub(closed) < REMEMBERED));
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use ashlar_types::NodeId;

    const S: SessionId = SessionId(1);
    const OWNER: SessionOwner = SessionOwner { node: NodeId(1), instance: [1; 16] };
    const SOON: Duration = Duration::from_millis(20);

    #[test]
    fn a_session_that_is_over_is_over_when_nothing_of_it_is_under_way() {
        let gates = Gates::default();
        let gate = gates.open(S, OWNER, Duration::ZERO).unwrap();
        let under_way = gate.enter().unwrap();
        assert!(gates.close(&[S], Duration::ZERO, SOON).is_empty(), "something is under way");
        assert!(gate.enter().is_err(), "and nothing more is let in");
        drop(under_way);
        assert_eq!(gates.close(&[S], Duration::ZERO, SOON), [S]);
        assert!(gate.enter().is_err() && gates.open(S, OWNER, Duration::ZERO).is_err());
    }

    #[test]
    fn one_that_hangs_does_not_make_the_answer_about_others_late() {
        let gates = Gates::default();
        let gate = gates.open(S, OWNER, Duration::ZERO).unwrap();
        let _under_way = gate.enter().unwrap();
        let many: Vec<SessionId> = (1..200).map(SessionId).collect();
        let begun = std::time::Instant::now();
        assert_eq!(gates.close(&many, Duration::ZERO, SOON), many[1..]);
        assert!(begun.elapsed() < SOON * 20, "{:?}", begun.elapsed());
    }

    #[test]
    fn one_that_was_over_before_it_came_is_refused_until_no_capability_of_it_can_be_good() {
        let gates = Gates::default();
        assert_eq!(gates.close(&[S], Duration::ZERO, SOON), [S]);
        gates.forget(OWNER);
        assert!(gates.open(S, OWNER, Capability::TERM).is_err());
        gates.close(&[], REMEMBERED, SOON);
        assert!(gates.open(S, OWNER, REMEMBERED).is_ok());
    }

    #[test]
    fn a_session_is_its_owner_s() {
        let gates = Gates::default();
        gates.open(S, OWNER, Duration::ZERO).unwrap();
        let other = SessionOwner { instance: [2; 16], ..OWNER };
        assert!(gates.open(S, other, Duration::ZERO).is_err());
        let gate = gates.open(S, OWNER, Duration::ZERO).unwrap();
        gates.forget(OWNER);
        assert!(gate.enter().is_err(), "nobody could close it any more");
        assert!(gates.open(S, other, Duration::ZERO).is_ok());
    }
}
