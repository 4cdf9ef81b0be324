//! Sessions that this server knows only because another one has told of them, with a shard that was to come.
//!
//! | an unmet session | becomes |
//! |---|---|
//! | its holder calls | one as any other |
//! | a shard comes in which it has something | one as any other |
//! | nothing is heard of it for long, and no shard is coming | forgotten, and its holder hears nothing of that |
//! | the service is started anew, and a shard has come meanwhile in which it has something | one as any other |
//! | the service is started anew | unmet: nobody waits for what it has here, which is nothing |
//!
//! Whether it is met is in the log (table `K`). A holder who has been told nothing of this server cannot tell it that the session is there. If that were taken for silence, the session would be
//! ended, and with it what it has at other servers, because a shard did not come, or took long.

use super::super::message::Hold;
use crate::MetaService;
use ashlar_kv::{Key, Snapshot};
use ashlar_namespace::{NsError, Txn, key, verb};
use ashlar_types::node::SessionOwner;
use ashlar_types::{Errno, SessionId, ShardId};
use parking_lot::Mutex;
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::BTreeSet;
use std::ops::ControlFlow;

/// One of them.
#[derive(Clone, Copy)]
struct Known {
    owner: SessionOwner,
    /// It is in the log.
    is_noted: bool,
    /// So many are just noting that it is met: it counts as met, unless all of them fail.
    meeting: u32,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Unmet {
    // LIMIT: as sessions.
    sessions: Mutex<FxHashMap<SessionId, Known>>,
}

impl Unmet {
    /// Called while nobody else can open the session.
    pub(crate) fn add(&self, session: SessionId, owner: SessionOwner) {
        self.sessions.lock().insert(session, Known { owner, is_noted: false, meeting: 0 });
    }

    pub(crate) fn has(&self, session: SessionId) -> bool {
        self.owner(session).is_some()
    }

    fn owner(&self, session: SessionId) -> Option<SessionOwner> {
        let sessions = self.sessions.lock();
        sessions.get(&session).filter(|known| known.meeting == 0).map(|known| known.owner)
    }

    /// Those of `of`, also those that are just met by others, who may fail.
    fn owners(&self, of: &BTreeSet<SessionId>) -> Vec<(SessionId, SessionOwner)> {
        let sessions = self.sessions.lock();
        of.iter().filter_map(|session| Some((*session, sessions.get(session)?.owner))).collect()
    }

    fn begin_meeting(&self, of: &[(SessionId, SessionOwner)]) {
        let mut sessions = self.sessions.lock();
        for (session, _) in of {
            sessions.entry(*session).and_modify(|known| known.meeting += 1);
        }
    }

    fn end_meeting(&self, of: &[(SessionId, SessionOwner)], is_met: bool) {
        let mut sessions = self.sessions.lock();
        for (session, _) in of {
            // One that has ended and come along once more meanwhile is another one.
            match sessions.get_mut(session) {
                Some(known) if known.meeting > 0 && is_met => drop(sessions.remove(session)),
                Some(known) if known.meeting > 0 => {
                    (known.meeting, known.is_noted) = (known.meeting - 1, false)
                }
                _ => {}
            }
        }
    }

    /// Whether it is one that is not in the log yet.
    pub(super) fn is_to_be_noted(&self, session: SessionId) -> bool {
        self.sessions.lock().get(&session).is_some_and(|known| !known.is_noted && known.meeting == 0)
    }

    pub(crate) fn remove(&self, session: SessionId) {
        self.sessions.lock().remove(&session);
    }

    pub(crate) fn all(&self) -> Vec<(SessionId, SessionOwner)> {
        self.sessions.lock().iter().map(|(session, known)| (*session, known.owner)).collect()
    }
}

/// Who has something of a shard.
pub(super) fn holders(holds: &[Hold]) -> BTreeSet<SessionId> {
    let holder = |hold: &Hold| match hold {
        Hold::Open(session, ..) | Hold::Lease(_, session, _) | Hold::Proposal(session, ..) => Some(*session),
        Hold::Lock(lock) => Some(lock.session),
        Hold::LockWait(wait) => Some(wait.wanted.session),
        Hold::Unsettled(..) => None,
    };
    holds.iter().filter_map(holder).collect()
}

/// Those are met that have something in `shard`, which has come while the service was down.
///
/// # Errors
/// [`NsError::Kv`] when the store cannot answer.
pub(super) fn meet_holders(txn: &mut Txn<'_>, shard: ShardId) -> Result<(), NsError> {
    let (from, to) = key::table_range(ShardId(0), b'K');
    // LIMIT: as sessions.
    let mut met = Vec::new();
    txn.scan(&from, &to, &mut |record_key, noted| {
        let is_met = key::session_of(record_key).is_some_and(|session| session.0 != 0);
        met.extend((is_met && verb::is_holder(noted, shard)).then(|| Key::from_slice(record_key)));
        ControlFlow::Continue(())
    })?;
    met.into_iter().for_each(|record_key| txn.delete(record_key));
    Ok(())
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
            noted.extend(key::session_of(record_key).filter(|session| session.0 != 0));
            ControlFlow::Continue(())
        };
        self.lane.read().scan(&from, &to, &mut visit).map_err(|error| self.answer(&error.into()))?;
        for &(session, owner) in lasting {
            if noted.contains(&session) && !left_behind(session) {
                self.unmet.sessions.lock().insert(session, Known { owner, is_noted: true, meeting: 0 });
                noted.remove(&session);
            }
        }
        if noted.is_empty() {
            return Ok(());
        }
        self.note(|txn| {
            noted.iter().for_each(|session| txn.delete(key::unmet(*session)));
            Ok(())
        })
    }

    /// Those of `sessions` that were unmet are met from now on, durably; `also` changes what belongs to that.
    ///
    /// # Errors
    /// `EIO` or `ENOSPC` from the log: they are as before.
    pub(super) fn meet(
        &self,
        sessions: &BTreeSet<SessionId>,
        also: impl FnOnce(&mut Txn<'_>),
    ) -> Result<(), Errno> {
        let met = self.unmet.owners(sessions);
        let noted = self.note(|txn| {
            also(txn);
            // ORDER: here, where one thing is decided after the other. Whoever is about to note that it is unmet looks there, too, and who ends it has it gone before.
            self.unmet.begin_meeting(&met);
            met.iter()
                .filter(|(session, _)| self.sessions.has(*session))
                .try_for_each(|&(session, owner)| verb::open_session(txn, session, owner))
        });
        self.unmet.end_meeting(&met, noted.is_ok());
        noted
    }

    /// The holder of a session is here.
    ///
    /// # Errors
    /// As [`MetaService::meet`].
    pub(crate) fn meet_holder(&self, session: SessionId) -> Result<(), Errno> {
        if !self.unmet.has(session) {
            return Ok(());
        }
        // ORDER: durable before it has anything here: the next start would not wait for it.
        self.meet(&[session].into_iter().collect(), |_| ())
    }

    /// Notes `sessions` with those that are to outlive this start, not durably: what comes is behind it in the log.
    ///
    /// # Errors
    /// `EIO` or `ENOSPC` from the log.
    pub(super) fn note_unmet(&self, sessions: &[(SessionId, SessionOwner)]) -> Result<(), Errno> {
        if sessions.is_empty() {
            return Ok(());
        }
        self.note_soon(|txn| {
            let is_unmet = |session: &SessionId| self.unmet.has(*session) && self.sessions.has(*session);
            let unmet = sessions.iter().filter(|(session, _)| is_unmet(session));
            unmet
                .into_iter()
                .try_for_each(|&(session, owner)| verb::hear_of_session(txn, session, owner, None))
        })?;
        let mut known = self.unmet.sessions.lock();
        for (session, _) in sessions {
            known.entry(*session).and_modify(|known| known.is_noted = true);
        }
        Ok(())
    }

    /// Notes which of `holders` are unmet, with what says that all of `shard` is here.
    ///
    /// # Errors
    /// [`NsError::Kv`] when the store cannot answer.
    pub(super) fn note_holders(
        &self,
        txn: &mut Txn<'_>,
        shard: ShardId,
        holders: &BTreeSet<SessionId>,
    ) -> Result<(), NsError> {
        holders.iter().try_for_each(|&session| match self.unmet.owner(session) {
            Some(owner) if self.sessions.has(session) => {
                verb::hear_of_session(txn, session, owner, Some(shard))
            }
            _ => Ok(()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ashlar_types::NodeId;

    const SESSION: SessionId = SessionId(7);
    const OWNER: SessionOwner = SessionOwner { node: NodeId(2), instance: [2; 16] };

    /// Its holder has called, and a shard comes in which it has something: both are just noting that.
    fn met_twice() -> (Unmet, Vec<(SessionId, SessionOwner)>) {
        let unmet = Unmet::default();
        unmet.add(SESSION, OWNER);
        let met = unmet.owners(&[SESSION].into_iter().collect());
        unmet.begin_meeting(&met);
        // Found by the second one although the first one is at it.
        assert_eq!(unmet.owners(&[SESSION].into_iter().collect()), met);
        unmet.begin_meeting(&met);
        assert!(!unmet.has(SESSION) && !unmet.is_to_be_noted(SESSION));
        (unmet, met)
    }

    #[test]
    fn one_that_two_are_noting_as_met_is_met_if_one_of_them_can() {
        for first in [true, false] {
            let (unmet, met) = met_twice();
            unmet.end_meeting(&met, first);
            assert!(!unmet.has(SESSION), "the other one is at it, or it is met");
            unmet.end_meeting(&met, !first);
            assert!(unmet.all().is_empty());
        }
    }

    #[test]
    fn one_that_nobody_can_note_as_met_is_unmet_and_to_be_noted_as_that() {
        let (unmet, met) = met_twice();
        unmet.end_meeting(&met, false);
        unmet.end_meeting(&met, false);
        assert!(unmet.has(SESSION) && unmet.is_to_be_noted(SESSION));
    }

    #[test]
    fn one_that_has_come_along_once_more_meanwhile_is_left_alone() {
        let (unmet, met) = met_twice();
        unmet.remove(SESSION);
        unmet.add(SESSION, OWNER);
        unmet.end_meeting(&met, true);
        assert!(unmet.has(SESSION));
    }
}
