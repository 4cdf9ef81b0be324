//! Sessions that this server knows only because another one has told of them, with a shard that was to come.
//!
//! | an unmet session | becomes |
//! |---|---|
//! | its holder calls | one as any other |
//! | a shard comes in which it has something | one as any other |
//! | nothing is heard of it for long, and no shard is coming | forgotten, and its holder hears nothing of that |
//! | the service is started anew | unmet: nobody waits for what it has here, which is nothing |
//!
//! Whether it is met is in the log (table `K`). A holder who has been told nothing of this server cannot tell it that the session is there. If that were taken for silence, the session would be
//! ended, and with it what it has at other servers, because a shard did not come, or took long.

use super::super::message::Hold;
use crate::MetaService;
use crate::call::verb as number;
use crate::execute::itself;
use ashlar_kv::Snapshot;
use ashlar_namespace::{NsError, Txn, key, verb};
use ashlar_rpc::Caller;
use ashlar_types::node::SessionOwner;
use ashlar_types::{Errno, OpId, SessionId, ShardId};
use parking_lot::Mutex;
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::BTreeSet;
use std::ops::ControlFlow;

/// See the module.
#[derive(Default)]
pub(crate) struct Unmet {
    // LIMIT: as sessions.
    sessions: Mutex<FxHashMap<SessionId, SessionOwner>>,
}

impl Unmet {
    pub(crate) fn add(&self, sessions: &[(SessionId, SessionOwner)]) {
        self.sessions.lock().extend(sessions.iter().copied());
    }

    pub(crate) fn has(&self, session: SessionId) -> bool {
        self.sessions.lock().contains_key(&session)
    }

    fn owner(&self, session: SessionId) -> Option<SessionOwner> {
        self.sessions.lock().get(&session).copied()
    }

    pub(crate) fn remove(&self, session: SessionId) {
        self.sessions.lock().remove(&session);
    }

    pub(crate) fn all(&self) -> Vec<(SessionId, SessionOwner)> {
        self.sessions.lock().iter().map(|(session, owner)| (*session, *owner)).collect()
    }
}

/// Who has something of a shard.
pub(crate) fn holders(holds: &[Hold]) -> BTreeSet<SessionId> {
    let holder = |hold: &Hold| match hold {
        Hold::Open(session, ..) | Hold::Lease(_, session, _) | Hold::Proposal(session, ..) => Some(*session),
        Hold::Lock(lock) => Some(lock.session),
        Hold::LockWait(wait) => Some(wait.wanted.session),
        Hold::Unsettled(..) => None,
    };
    holds.iter().filter_map(holder).collect()
}

/// Every session is met: what each has of a shard that has come nobody knows.
///
/// # Errors
/// [`NsError::Kv`] when the store cannot answer.
pub(crate) fn meet_all(txn: &mut Txn<'_>) -> Result<(), NsError> {
    let (from, to) = key::table_range(ShardId(0), b'K');
    let mut unmet = Vec::new();
    txn.scan(&from, &to, &mut |record_key, _| {
        unmet.extend(key::session_of(record_key));
        ControlFlow::Continue(())
    })?;
    unmet.into_iter().try_for_each(|session| verb::meet_session(txn, session))
}

impl MetaService {
    /// Finds those that were unmet when the service ended, among the `lasting` sessions. Of those among `left_behind` there is something here: they are met.
    ///
    /// # Errors
    /// `EIO` from the store.
    pub(crate) fn find_unmet(
        &self,
        lasting: &[(SessionId, SessionOwner)],
        left_behind: impl Fn(SessionId) -> bool,
    ) -> Result<(), Errno> {
        let (from, to) = key::table_range(ShardId(0), b'K');
        let mut noted = FxHashSet::default();
        let mut visit = |record_key: &[u8], _: &[u8]| {
            noted.extend(key::session_of(record_key));
            ControlFlow::Continue(())
        };
        self.lane.read().scan(&from, &to, &mut visit).map_err(|error| self.answer(&error.into()))?;
        let is_unmet = |session: SessionId| noted.contains(&session) && !left_behind(session);
        let unmet: Vec<_> = lasting.iter().filter(|(session, _)| is_unmet(*session)).copied().collect();
        self.unmet.add(&unmet);
        noted.retain(|session| !self.unmet.has(*session));
        if noted.is_empty() {
            return Ok(());
        }
        self.note(|txn| noted.iter().try_for_each(|session| verb::meet_session(txn, *session)))
    }

    /// The holder of a session is here, durably.
    ///
    /// # Errors
    /// `EIO` or `ENOSPC` from the log.
    pub(crate) fn meet_session(&self, session: SessionId) -> Result<(), Errno> {
        let Some(owner) = self.unmet.owner(session) else { return Ok(()) };
        let creds = itself();
        let met = self.mutate(
            Caller::new(OpId::default(), &creds),
            number::OPEN_SESSION,
            |txn, _| {
                // ORDER: here, where one thing is decided after the other. Whoever is about to note that it is unmet looks there, too.
                self.unmet.remove(session);
                verb::meet_session(txn, session)
            },
            |(), _| (),
        );
        // ORDER: durable before it has anything here: the next start would not wait for it.
        let met = met.and_then(|()| self.lane.flush_all().map_err(|error| self.answer(&error.into())));
        if met.is_err() {
            self.unmet.add(&[(session, owner)]);
        }
        met
    }

    /// Notes `sessions`, which [`Unmet::add`] was told of, with those that are to outlive this start; those that were met since as any others.
    ///
    /// # Errors
    /// `EIO` or `ENOSPC` from the log.
    pub(crate) fn note_unmet(&self, sessions: &[(SessionId, SessionOwner)]) -> Result<(), Errno> {
        if sessions.is_empty() {
            return Ok(());
        }
        let creds = itself();
        self.mutate(
            Caller::new(OpId::default(), &creds),
            number::OPEN_SESSION,
            |txn, _| {
                sessions.iter().try_for_each(|&(session, owner)| match self.unmet.has(session) {
                    true => verb::hear_of_session(txn, session, owner),
                    false => verb::open_session(txn, session, owner),
                })
            },
            |(), _| (),
        )
    }
}
