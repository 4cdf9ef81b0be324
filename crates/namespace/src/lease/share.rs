//! Several sessions that write one file beside each other, past every cache (SHARE): a checkpoint of many clients in one file.
//!
//! The first writer of a file is its only one (WRITE). Another that wants to write has that taken back, and from then on each gets SHARE, which is in the way of none of
//! them. Nobody knows the size alone: whoever asks for it has all of them report. Whoever wants to cache content, or cut it, has SHARE taken back
//! from all; until that call is done nobody gets it again, or many writers would overtake it for ever.

use super::{Conflict, LeaseTable};
use ashlar_types::message::LeaseSet;
use ashlar_types::{InodeId, SessionId};
use smallvec::SmallVec;

impl LeaseTable {
    /// Whether `session` may ask for SHARE, at this moment: others write, and it has nothing itself of which pages may be in the way. To give such back it may
    /// have to wait for a page, and whoever holds that for the end of the very call that asks.
    pub fn may_share(&self, session: SessionId, inode: InodeId) -> bool {
        let is_written = self.others(session, inode, LeaseSet::WRITING).next().is_some();
        is_written && !self.held(session, inode).meets(LeaseSet::PAGES)
    }

    /// What must be given back before `session` may have SHARE: what others cache of content and attributes, and its own attributes.
    pub fn conflicts_of_share(&self, session: SessionId, inode: InodeId) -> SmallVec<[Conflict; 2]> {
        let own = self.held(session, inode).and(LeaseSet::ATTR);
        let others = self.others(session, inode, LeaseSet::ATTR.with(LeaseSet::PAGES));
        let own = std::iter::once((session, own)).filter(|(_, leases)| *leases != LeaseSet::NONE);
        let conflict = |(session, leases)| Conflict { session, inode, leases, flush_only: false };
        others.chain(own).map(conflict).collect()
    }

    /// Grants SHARE unless a lease or a recall under way forbids; tells whether it is held now.
    pub fn grant_share(&mut self, session: SessionId, inode: InodeId) -> bool {
        if self.held(session, inode).meets(LeaseSet::PAGES) {
            return false;
        }
        let granted =
            self.grant_below(session, inode, LeaseSet::SHARE, super::LEASED_INODES_WITH_CONTENT_MAX);
        granted.has(LeaseSet::SHARE)
    }

    /// What each has to give back who has SHARE on `inode`.
    pub fn sharers(&self, inode: InodeId) -> SmallVec<[Conflict; 2]> {
        let held = self.holders.get(&inode).map(SmallVec::as_slice).unwrap_or_default();
        let sharing = held.iter().filter(|(_, set)| set.has(LeaseSet::SHARE));
        let conflict = |session| Conflict { session, inode, leases: LeaseSet::SHARE, flush_only: false };
        sharing.map(|(session, _)| conflict(*session)).collect()
    }

    /// Notes that a call has SHARE on `inode` taken back, until [`LeaseTable::end_alone`].
    pub fn begin_alone(&mut self, inode: InodeId) {
        *self.alone.entry(inode).or_insert(0) += 1;
    }

    /// Ends what [`LeaseTable::begin_alone`] began.
    pub fn end_alone(&mut self, inode: InodeId) {
        if let Some(count) = self.alone.get_mut(&inode) {
            *count -= 1;
            if *count == 0 {
                self.alone.remove(&inode);
            }
        }
    }

    /// Whether a call has SHARE on `inode` taken back and is not done.
    pub fn is_wanted_alone(&self, inode: InodeId) -> bool {
        self.alone.contains_key(&inode)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::txn::TxnOutcome;
    use std::time::Duration;

    const A: SessionId = SessionId(1);
    const B: SessionId = SessionId(2);
    const C: SessionId = SessionId(3);
    const X: InodeId = InodeId(77);

    fn table() -> LeaseTable {
        let mut table = LeaseTable::default();
        [A, B, C].into_iter().for_each(|session| table.begin_session(session));
        table
    }

    /// A table in which A and B write X beside each other.
    fn shared() -> LeaseTable {
        let mut table = table();
        assert!(table.grant_share(A, X) && table.grant_share(B, X));
        table
    }

    fn changed() -> TxnOutcome {
        TxnOutcome { changed: [X].into_iter().collect(), ..TxnOutcome::default() }
    }

    #[test]
    fn the_only_writer_gives_that_back_to_go_on_beside_another() {
        let mut table = table();
        assert!(!table.may_share(A, X), "nobody else writes");
        table.grant_data(A, X, LeaseSet::PAGES);
        assert!(table.may_share(B, X));
        assert!(!table.grant_share(B, X));
        let conflict = table.conflicts_of_share(B, X)[0];
        assert_eq!((conflict.session, conflict.leases), (A, LeaseSet::PAGES));
        let (id, _) = table.begin_recall(conflict, Duration::ZERO).unwrap();
        assert!(!table.grant_share(B, X), "not while A answers");
        table.end_recall(id);
        assert!(table.grant_share(B, X));
        assert!(table.may_share(A, X) && table.conflicts_of_share(A, X).is_empty());
        assert!(table.grant_share(A, X), "both of them");
    }

    #[test]
    fn nobody_caches_anything_beside_writers() {
        let mut table = shared();
        let all = LeaseSet::ATTR.with(LeaseSet::READ).with(LeaseSet::WRITE);
        assert_eq!(table.grant(C, X, all), LeaseSet::NONE);
        assert_eq!(table.grant_data(C, X, LeaseSet::READ), LeaseSet::NONE);
        let found = table.conflicts_of_data(C, X, false);
        assert_eq!(found.iter().map(|conflict| conflict.session).collect::<Vec<_>>(), [A, B]);
        assert_eq!(table.grant(A, X, LeaseSet::ATTR), LeaseSet::NONE, "B changes them");
        table.drop_leases(B, X, LeaseSet::SHARE);
        assert_eq!(table.grant(A, X, LeaseSet::READ), LeaseSet::NONE, "A writes past its pages");
    }

    #[test]
    fn one_gives_back_its_own_attributes_first_and_takes_its_turn_if_it_has_pages() {
        let mut table = table();
        table.grant(A, X, LeaseSet::ATTR.with(LeaseSet::READ));
        table.grant_share(B, X);
        assert!(!table.may_share(A, X) && !table.grant_share(A, X));
        table.drop_leases(A, X, LeaseSet::READ);
        let conflict = table.conflicts_of_share(A, X)[0];
        assert_eq!((conflict.session, conflict.leases), (A, LeaseSet::ATTR));
    }

    #[test]
    fn a_report_beside_others_is_in_nobodys_way_and_a_change_is() {
        let table = shared();
        let report = TxnOutcome { beside: [X].into_iter().collect(), ..changed() };
        assert!(table.conflicts(A, &report, &[]).is_empty());
        assert_eq!(table.conflicts(A, &changed(), &[])[0].leases, LeaseSet::SHARE);
        let told = TxnOutcome { revealed: [X].into_iter().collect(), ..TxnOutcome::default() };
        let asked = table.conflicts(C, &told, &[]);
        assert_eq!(asked.len(), 2, "both know of a size that C does not");
        assert!(asked.iter().all(|conflict| conflict.flush_only));
        assert_eq!(table.conflicts(A, &told, &[]).len(), 1, "A knows its own");
    }

    #[test]
    fn a_sharer_is_never_passed_by_though_it_wants_to_write_alone() {
        let mut table = shared();
        for session in [A, B] {
            table.begin_wanting(session, X);
        }
        for session in [A, B] {
            table.begin_recall(table.conflicts_of_data(session, X, true)[0], Duration::ZERO).unwrap();
        }
        for session in [A, B] {
            assert_eq!(table.conflicts_of_data(session, X, true)[0].leases, LeaseSet::SHARE);
            assert!(!table.grant_data(session, X, LeaseSet::WRITE).has(LeaseSet::WRITE));
        }
        table.drop_leases(A, X, LeaseSet::SHARE);
        table.drop_leases(B, X, LeaseSet::SHARE);
        assert!(table.grant_data(A, X, LeaseSet::WRITE).has(LeaseSet::WRITE), "the recalls are over");
    }

    #[test]
    fn the_size_that_a_dead_sharer_knew_is_measured_when_the_others_have_reported() {
        let mut table = shared();
        let written = table.end_session(A);
        assert_eq!(written, [X]);
        table.begin_settling(&written);
        assert_eq!(table.sharers(X).iter().map(|conflict| conflict.session).collect::<Vec<_>>(), [B]);
        let report = TxnOutcome { beside: [X].into_iter().collect(), ..changed() };
        assert!(!table.is_settling(&report), "it is waited for");
        assert!(table.is_settling(&changed()));
        let (id, _) = table.begin_recall(table.sharers(X)[0], Duration::ZERO).unwrap();
        table.end_recall(id);
        assert!(table.sharers(X).is_empty() && !table.grant_share(B, X), "not before it is known");
        table.end_settling(&written);
        assert!(table.grant_share(B, X));
    }

    #[test]
    fn nobody_overtakes_who_wants_the_file_alone() {
        let mut table = shared();
        table.begin_alone(X);
        table.begin_alone(X);
        table.end_alone(X);
        assert!(table.is_wanted_alone(X));
        table.end_alone(X);
        assert!(!table.is_wanted_alone(X) && table.alone.is_empty());
    }
}
