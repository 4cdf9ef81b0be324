//! What sessions are told that are [`Coherence::CloseToOpen`]: of all leases they hold WRITE alone. What else they cache they keep for a moment
//! only, so nobody has to ask them for it, and what they want to know of a file that somebody else writes they are told as it was last reported.

use super::{Conflict, LeaseTable};
use ashlar_types::message::LeaseSet;
use ashlar_types::{Coherence, InodeId, SessionId};
use smallvec::SmallVec;
use std::time::Duration;

/// Files of which it is remembered when their writers were last asked.
// LIMIT: 24 bytes each. Past it the oldest questions are forgotten, or all of them, and writers are asked a little more often.
const ASKED_MAX: usize = 1 << 16;

impl LeaseTable {
    /// As [`LeaseTable::grant`], for such a session. READ is told, and not noted.
    pub(super) fn grant_loosely(
        &mut self,
        session: SessionId,
        inode: InodeId,
        wanted: LeaseSet,
        inodes_max: usize,
    ) -> LeaseSet {
        if !self.sessions.contains(&session) {
            return LeaseSet::NONE;
        }
        let told = wanted.and(LeaseSet::READ);
        if wanted.has(LeaseSet::WRITE) {
            let noted = self.grant_noted(session, inode, LeaseSet::WRITE, inodes_max);
            return if noted.has(LeaseSet::WRITE) { noted.with(told) } else { LeaseSet::NONE };
        }
        if self.is_blocked(inode) { LeaseSet::NONE } else { told }
    }

    /// Whether the content is being cut or settled: who read it now would see what never was there. A mere recall is no reason to wait.
    fn is_blocked(&self, inode: InodeId) -> bool {
        let Some(&count) = self.recalling.get(&inode) else { return false };
        let recalls = self.pending.values().filter(|pending| pending.inode == inode).count();
        count as usize > recalls
    }

    /// Notes that the writers of `inode` are asked for a report.
    pub(super) fn note_asked(&mut self, inode: InodeId, now: Duration) {
        if self.asked_at.len() >= ASKED_MAX && !self.asked_at.contains_key(&inode) {
            self.asked_at.retain(|_, at| now.saturating_sub(*at) < Coherence::ASKED_AFTER);
            if self.asked_at.len() >= ASKED_MAX {
                self.asked_at.clear();
            }
        }
        self.asked_at.insert(inode, now);
    }

    /// Has the writers of `inode` be asked when the next one wants to know.
    pub fn forget_asked(&mut self, inode: InodeId) {
        self.asked_at.remove(&inode);
    }

    /// Takes out of `conflicts` what `session` need not wait for: another report of a writer that was asked not long before `now`.
    pub fn excuse(&self, session: SessionId, conflicts: &mut SmallVec<[Conflict; 2]>, now: Duration) {
        if !session.is_close_to_open() {
            return;
        }
        conflicts.retain(|conflict| {
            let asked_at = self.asked_at.get(&conflict.inode);
            let is_recent = asked_at.is_some_and(|at| now.saturating_sub(*at) < Coherence::ASKED_AFTER);
            !(conflict.flush_only && is_recent)
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::txn::TxnOutcome;

    const STRICT: SessionId = SessionId(1);
    const OTHER: SessionId = SessionId(3);
    const X: InodeId = InodeId(77);

    fn loose() -> SessionId {
        SessionId::close_to_open(2)
    }

    fn table() -> LeaseTable {
        let mut table = LeaseTable::default();
        table.begin_session(STRICT);
        table.begin_session(loose());
        table
    }

    fn changed() -> TxnOutcome {
        TxnOutcome {
            changed: [X].into_iter().collect(),
            entries: [(X, SmallVec::new())].into_iter().collect(),
            ..TxnOutcome::default()
        }
    }

    #[test]
    fn what_it_caches_is_in_nobodys_way() {
        let mut table = table();
        let all = LeaseSet::ATTR.with(LeaseSet::ENTRIES).with(LeaseSet::READ);
        assert_eq!(table.grant(loose(), X, all), LeaseSet::READ);
        assert_eq!(table.held(loose(), X), LeaseSet::NONE);
        assert!(table.is_empty());
        assert!(table.conflicts(STRICT, &changed(), &[]).is_empty());
        assert!(table.conflicts_of_data(STRICT, X, true).is_empty());
    }

    #[test]
    fn it_reads_beside_a_writer_and_changes_what_others_cache_as_anybody() {
        let mut table = table();
        let write = LeaseSet::WRITE.with(LeaseSet::READ);
        table.grant(STRICT, X, write);
        assert!(table.conflicts_of_data(loose(), X, false).is_empty());
        assert_eq!(table.grant_data(loose(), X, LeaseSet::READ), LeaseSet::READ);
        assert_eq!(
            table.conflicts_of_data(loose(), X, true)[0].session,
            STRICT,
            "to write it takes the lease"
        );
        assert!(!table.conflicts(loose(), &changed(), &[]).is_empty());
    }

    #[test]
    fn its_writes_are_under_a_lease_that_others_get_back() {
        let mut table = table();
        let write = LeaseSet::WRITE.with(LeaseSet::READ);
        assert_eq!(table.grant_data(loose(), X, write), write);
        assert_eq!(table.held(loose(), X), LeaseSet::WRITE);
        let conflict = table.conflicts_of_data(STRICT, X, false)[0];
        let (id, recall) = table.begin_recall(conflict, Duration::ZERO).unwrap();
        assert_eq!(recall.map(|recall| recall.leases), Some(LeaseSet::WRITE));
        assert!(table.grant_data(loose(), X, write).has(write), "it keeps what it has until it answers");
        table.end_recall(id);
        assert_eq!(table.grant(STRICT, X, LeaseSet::READ), LeaseSet::READ);
        assert_eq!(table.grant_data(loose(), X, write), LeaseSet::NONE);
    }

    #[test]
    fn a_writer_is_asked_on_its_behalf_now_and_then_only() {
        let mut table = table();
        table.grant(STRICT, X, LeaseSet::WRITE);
        let revealed = TxnOutcome { revealed: [X].into_iter().collect(), ..TxnOutcome::default() };
        let asks = |table: &LeaseTable, session, ms| {
            let mut conflicts = table.conflicts(session, &revealed, &[]);
            table.excuse(session, &mut conflicts, Duration::from_millis(ms));
            !conflicts.is_empty()
        };
        assert!(asks(&table, loose(), 5_000), "the first time");
        let conflict = table.conflicts(loose(), &revealed, &[])[0];
        let (id, _) = table.begin_recall(conflict, Duration::from_millis(5_000)).unwrap();
        table.end_recall(id);
        assert!(!asks(&table, loose(), 5_900));
        assert!(asks(&table, OTHER, 5_900), "others are told what is so");
        assert!(asks(&table, loose(), 6_001));
        table.forget_asked(X);
        assert!(asks(&table, loose(), 5_900), "a lock was let go");
    }

    #[test]
    fn nobody_reads_what_is_being_cut() {
        let mut table = table();
        table.begin_block(X);
        assert_eq!(table.grant_data(loose(), X, LeaseSet::READ), LeaseSet::NONE);
        table.end_block(X);
        assert_eq!(table.grant_data(loose(), X, LeaseSet::READ), LeaseSet::READ);
    }
}
