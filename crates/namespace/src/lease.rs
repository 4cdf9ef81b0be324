//! Leases: what each session may cache, and what must be given back first. Sans-IO; the service sends the recalls.
//!
//! | lease | lets a session | is in the way of others that |
//! |---|---|---|
//! | ATTR | answer stat without asking | change the inode, or write the file |
//! | ENTRIES | answer lookups in a directory, the absent names included | add or remove a name there |
//! | READ | cache content | change content |
//! | WRITE | be the only writer and the authority on size and times | read or write the content, or ask for its size |
//!
//! A lease is granted only while nothing is being recalled on that inode, so that a waiting call is not overtaken for ever; the
//! holder's own calls never wait for a recall to that holder, they are answered without a lease.

use crate::txn::TxnOutcome;
use ashlar_types::message::{LeaseSet, Recall};
use ashlar_types::{InodeId, SessionId};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

/// Most inodes under lease at once; beyond it calls are answered without a lease.
// LIMIT: about 48 bytes each, so 48 MiB at the most.
pub const LEASED_INODES_MAX: usize = 1 << 20;

/// A lease in somebody's way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// Who holds it.
    pub session: SessionId,
    /// On what.
    pub inode: InodeId,
    /// Which leases must be given back.
    pub leases: LeaseSet,
    /// Whether reporting size and times is enough.
    pub flush_only: bool,
}

#[derive(Clone, Copy, Debug)]
struct Pending {
    session: SessionId,
    inode: InodeId,
    leases: LeaseSet,
    flush_only: bool,
}

/// See the module.
#[derive(Debug, Default)]
pub struct LeaseTable {
    holders: FxHashMap<InodeId, SmallVec<[(SessionId, LeaseSet); 1]>>,
    pending: FxHashMap<u64, Pending>,
    recalling: FxHashMap<InodeId, u32>,
    last_recall: u64,
}

impl LeaseTable {
    /// Leases of sessions other than `session` on `inode` that meet `leases`.
    fn others(
        &self,
        session: SessionId,
        inode: InodeId,
        leases: LeaseSet,
    ) -> impl Iterator<Item = (SessionId, LeaseSet)> {
        let held = self.holders.get(&inode).map(SmallVec::as_slice).unwrap_or_default();
        held.iter()
            .filter(move |(holder, set)| *holder != session && set.meets(leases))
            .map(move |(holder, set)| (*holder, set.and(leases)))
    }

    /// What must be given back before `session` may commit `outcome`; `flushed` names writers that have reported since the
    /// call began.
    pub fn conflicts(
        &self,
        session: SessionId,
        outcome: &TxnOutcome,
        flushed: &[(SessionId, InodeId)],
    ) -> SmallVec<[Conflict; 2]> {
        let mut found = SmallVec::new();
        let of_content = LeaseSet::ATTR.with(LeaseSet::READ).with(LeaseSet::WRITE);
        for &inode in &outcome.changed {
            let conflicts = self.others(session, inode, of_content);
            found.extend(conflicts.map(|(holder, leases)| Conflict {
                session: holder,
                inode,
                leases,
                flush_only: false,
            }));
        }
        for &(inode, _) in &outcome.entries {
            let conflicts = self.others(session, inode, LeaseSet::ENTRIES);
            found.extend(conflicts.map(|(holder, leases)| Conflict {
                session: holder,
                inode,
                leases,
                flush_only: false,
            }));
        }
        for &inode in outcome.revealed.iter().filter(|&inode| !outcome.changed.contains(inode)) {
            let conflicts = self
                .others(session, inode, LeaseSet::WRITE)
                .filter(|(holder, _)| !flushed.contains(&(*holder, inode)));
            found.extend(conflicts.map(|(holder, leases)| Conflict {
                session: holder,
                inode,
                leases,
                flush_only: true,
            }));
        }
        found
    }

    /// What must be given back before `session` may read (or write) the content of `inode`.
    pub fn conflicts_of_data(
        &self,
        session: SessionId,
        inode: InodeId,
        write: bool,
    ) -> SmallVec<[Conflict; 2]> {
        let wanted =
            if write { LeaseSet::ATTR.with(LeaseSet::READ).with(LeaseSet::WRITE) } else { LeaseSet::WRITE };
        self.others(session, inode, wanted)
            .map(|(holder, leases)| Conflict { session: holder, inode, leases, flush_only: false })
            .collect()
    }

    /// Grants as much of `wanted` as nobody else's lease or a recall under way forbids; tells what is held now of `wanted`.
    pub fn grant(&mut self, session: SessionId, inode: InodeId, wanted: LeaseSet) -> LeaseSet {
        if self.recalling.contains_key(&inode) {
            return LeaseSet::NONE;
        }
        let mut allowed = wanted;
        let is_full = self.holders.len() >= LEASED_INODES_MAX;
        match self.holders.get_mut(&inode) {
            Some(held) => {
                for (_, set) in held.iter().filter(|(holder, _)| *holder != session) {
                    if set.has(LeaseSet::WRITE) {
                        allowed = allowed.and(LeaseSet::ENTRIES);
                    } else if !set.and(LeaseSet::ATTR.with(LeaseSet::READ)).meets(LeaseSet(u8::MAX)) {
                        continue;
                    } else {
                        allowed = allowed.without(LeaseSet::WRITE);
                    }
                }
                match held.iter_mut().find(|(holder, _)| *holder == session) {
                    Some((_, set)) => *set = set.with(allowed),
                    None if allowed != LeaseSet::NONE => held.push((session, allowed)),
                    None => {}
                }
            }
            None if is_full => return LeaseSet::NONE,
            None if allowed != LeaseSet::NONE => {
                self.holders.insert(inode, SmallVec::from_buf([(session, allowed)]));
            }
            None => {}
        }
        allowed
    }

    /// Leases of `session` on `inode`.
    pub fn held(&self, session: SessionId, inode: InodeId) -> LeaseSet {
        let held =
            self.holders.get(&inode).and_then(|held| held.iter().find(|(holder, _)| *holder == session));
        held.map_or(LeaseSet::NONE, |(_, set)| *set)
    }

    /// Takes leases back without asking (the holder said so, or is gone).
    pub fn drop_leases(&mut self, session: SessionId, inode: InodeId, leases: LeaseSet) {
        if let Some(held) = self.holders.get_mut(&inode) {
            for (_, set) in held.iter_mut().filter(|(holder, _)| *holder == session) {
                *set = set.without(leases);
            }
            held.retain(|(_, set)| *set != LeaseSet::NONE);
            if held.is_empty() {
                self.holders.remove(&inode);
            }
        }
    }

    /// Begins to recall: from now on nothing is granted on that inode. The service sends the returned message to the holder. A
    /// recall of the same leases that is under way already is joined, then there is nothing to send.
    pub fn begin_recall(&mut self, conflict: Conflict) -> (u64, Option<Recall>) {
        let same = self.pending.iter().find(|(_, pending)| {
            pending.session == conflict.session
                && pending.inode == conflict.inode
                && pending.leases.has(conflict.leases)
                && pending.flush_only == conflict.flush_only
        });
        if let Some((&id, _)) = same {
            return (id, None);
        }
        self.last_recall += 1;
        let id = self.last_recall;
        let Conflict { session, inode, leases, flush_only } = conflict;
        self.pending.insert(id, Pending { session, inode, leases, flush_only });
        *self.recalling.entry(inode).or_insert(0) += 1;
        (id, Some(Recall { id, inode, leases, flush_only }))
    }

    /// Ends a recall: the leases are given back. Unknown ids are late answers and change nothing.
    pub fn end_recall(&mut self, id: u64) {
        if let Some(pending) = self.pending.remove(&id) {
            if !pending.flush_only {
                self.drop_leases(pending.session, pending.inode, pending.leases);
            }
            self.end_block(pending.inode);
        }
    }

    /// Keeps everybody from new leases on `inode` until [`LeaseTable::end_block`]: its content is being cut.
    pub fn begin_block(&mut self, inode: InodeId) {
        *self.recalling.entry(inode).or_insert(0) += 1;
    }

    /// Ends what [`LeaseTable::begin_block`] began.
    pub fn end_block(&mut self, inode: InodeId) {
        if let Some(count) = self.recalling.get_mut(&inode) {
            *count -= 1;
            if *count == 0 {
                self.recalling.remove(&inode);
            }
        }
    }

    /// Forgets all leases on an inode that is no more.
    pub fn forget_inode(&mut self, inode: InodeId) {
        self.holders.remove(&inode);
    }

    /// The session a recall under way waits for.
    pub fn recall_holder(&self, id: u64) -> Option<SessionId> {
        self.pending.get(&id).map(|pending| pending.session)
    }

    /// Forgets a session with all its leases and recalls; tells the files of which it was the sole writer.
    pub fn end_session(&mut self, session: SessionId) -> Vec<InodeId> {
        // ORDER: who was writing is noted before recalls under way take the WRITE lease, or nobody would settle the file's size.
        let mut written = Vec::new();
        self.holders.retain(|&inode, held| {
            if held.iter().any(|(holder, set)| *holder == session && set.has(LeaseSet::WRITE)) {
                written.push(inode);
            }
            held.retain(|(holder, _)| *holder != session);
            !held.is_empty()
        });
        let ids: Vec<u64> =
            self.pending.iter().filter(|(_, p)| p.session == session).map(|(&id, _)| id).collect();
        ids.into_iter().for_each(|id| self.end_recall(id));
        written.sort();
        written
    }

    /// Inodes under lease now.
    pub fn len(&self) -> usize {
        self.holders.len()
    }

    /// Whether nothing is under lease.
    pub fn is_empty(&self) -> bool {
        self.holders.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: SessionId = SessionId(1);
    const B: SessionId = SessionId(2);
    const X: InodeId = InodeId(77);

    #[test]
    fn a_writer_excludes_every_other_lease_on_content() {
        let mut table = LeaseTable::default();
        assert_eq!(table.grant(A, X, LeaseSet::WRITE), LeaseSet::WRITE);
        assert_eq!(table.grant(B, X, LeaseSet::ATTR.with(LeaseSet::READ)), LeaseSet::NONE);
        let conflicts = table.conflicts_of_data(B, X, false);
        assert_eq!(conflicts.len(), 1);
        let (id, recall) = table.begin_recall(conflicts[0]);
        assert!(recall.is_some());
        assert_eq!(table.grant(A, X, LeaseSet::ATTR), LeaseSet::NONE, "nothing is granted during a recall");
        table.end_recall(id);
        assert!(table.conflicts_of_data(B, X, true).is_empty());
        assert_eq!(table.grant(B, X, LeaseSet::WRITE), LeaseSet::WRITE);
    }

    #[test]
    fn a_reader_of_attributes_must_give_them_back_before_a_change_by_another() {
        let mut table = LeaseTable::default();
        table.grant(A, X, LeaseSet::ATTR);
        let outcome = TxnOutcome { changed: SmallVec::from_slice(&[X]), ..TxnOutcome::default() };
        assert_eq!(table.conflicts(B, &outcome, &[]).len(), 1);
        assert!(table.conflicts(A, &outcome, &[]).is_empty(), "one's own lease is never in the way");
        assert_eq!(table.grant(B, X, LeaseSet::WRITE), LeaseSet::NONE);
    }

    #[test]
    fn a_stat_by_another_makes_the_writer_report_once() {
        let mut table = LeaseTable::default();
        table.grant(A, X, LeaseSet::WRITE);
        let outcome = TxnOutcome { revealed: SmallVec::from_slice(&[X]), ..TxnOutcome::default() };
        let conflict = table.conflicts(B, &outcome, &[])[0];
        assert!(conflict.flush_only);
        let (id, _) = table.begin_recall(conflict);
        table.end_recall(id);
        assert!(table.conflicts(B, &outcome, &[(A, X)]).is_empty());
        assert_eq!(table.held(A, X), LeaseSet::WRITE);
    }

    #[test]
    fn a_dead_session_leaves_nothing_behind_but_the_files_it_was_writing() {
        let mut table = LeaseTable::default();
        table.grant(A, X, LeaseSet::WRITE);
        table.grant(A, InodeId(5), LeaseSet::ENTRIES);
        let (_, recall) = table.begin_recall(table.conflicts_of_data(B, X, true)[0]);
        assert!(recall.is_some());
        assert_eq!(table.end_session(A), vec![X]);
        assert!(table.is_empty());
        assert_eq!(table.grant(B, X, LeaseSet::WRITE), LeaseSet::WRITE);
    }
}
