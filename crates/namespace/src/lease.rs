//! Leases: what each session may cache, and what must be given back first. Sans-IO; the service sends the recalls.
//!
//! | lease | lets a session | is in the way of others that |
//! |---|---|---|
//! | ATTR | answer stat without asking | change the inode, or write the file |
//! | ENTRIES | answer lookups in a directory, the absent names included | add or remove a name there |
//! | READ | cache content | change content |
//! | WRITE | be the only writer and the authority on size and times | read or write the content, or ask for its size |
//! | SHARE | read and write past every cache, beside others who do the same | cache content, want to be the only writer, or ask for its size |
//!
//! A lease is granted only while nothing is being recalled on that inode, so that a waiting call is not overtaken for ever. The holder's
//! own calls never wait for a recall to that holder: calls on attributes and names are answered without a lease, and one that needs the
//! content gets the lease ([`LeaseTable::grant_data`]), because it may hold the kernel's page that the answer to the recall waits for.
//!
//! SHARE is not held together with READ or WRITE: under it nothing is cached, so what a recall of it waits for is on its way to storage, and holds no page.
//!
//! Sessions that are close-to-open hold nothing but WRITE: see `close_to_open.rs`.

mod close_to_open;
mod share;

use crate::txn::TxnOutcome;
use ashlar_types::message::{LeaseSet, Recall};
use ashlar_types::{InodeId, SessionId, ShardId};
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::time::Duration;

/// What is in the way of whoever changes a file.
const OF_FILE: LeaseSet = LeaseSet::ATTR.with(LeaseSet::CONTENT);

/// Most inodes under lease at once; beyond it calls are answered without a lease.
// LIMIT: about 48 bytes each; what a hash table of 2^20 places takes before it doubles, so 50 MiB at the most.
pub const LEASED_INODES_MAX: usize = (1 << 20) / 8 * 7;
/// Most of them when the last ones are for content: it cannot be read or written without. Only open files need that.
const LEASED_INODES_WITH_CONTENT_MAX: usize = 2 * LEASED_INODES_MAX;
/// Inodes looked at by one search for surplus leases. LIMIT: nobody else gets at the table meanwhile; a few milliseconds.
const SURPLUS_LOOKS_MAX: usize = 1 << 15;
/// Searches for surplus leases that look at every inode under lease.
pub const SURPLUS_SEARCHES: usize = 2 * LEASED_INODES_MAX / SURPLUS_LOOKS_MAX + 1;
/// From so many on the service takes leases back that nobody may need any more ([`LeaseTable::surplus`]).
pub const LEASED_INODES_HIGH: usize = LEASED_INODES_MAX / 16 * 15;

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
    since: Duration,
    /// The newest change of names and links of the inode when it began, if somebody was asking then.
    change: u64,
}

/// A file about whose size calls under way are asking.
#[derive(Clone, Copy, Debug)]
struct Asked {
    calls: u32,
    /// The newest change of its names and links, or the first question.
    change: u64,
}

/// A recall that is not answered yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecallUnderWay {
    /// Whose answer is waited for.
    pub session: SessionId,
    /// What it is about.
    pub inode: InodeId,
    /// When it began.
    pub since: Duration,
    /// Whether pages are to be given back, so that the answer may wait for one. Any other waits for storage at the most.
    pub is_of_pages: bool,
}

/// See the module.
#[derive(Debug, Default)]
pub struct LeaseTable {
    /// Who may hold leases at all.
    sessions: FxHashSet<SessionId>,
    holders: FxHashMap<InodeId, SmallVec<[(SessionId, LeaseSet); 1]>>,
    /// Inodes in the order of their first grant; some are not under lease any more, or in line twice.
    // LIMIT: twice as many as are under lease, or as may be without content; then it is tidied.
    order: VecDeque<InodeId>,
    pending: FxHashMap<u64, Pending>,
    recalling: FxHashMap<InodeId, u32>,
    /// Files whose size is being asked of the chunks, because whoever knew it is gone.
    // LIMIT: as `holders`, of which these were part.
    settling: FxHashSet<InodeId>,
    /// Calls under way that want WRITE, or to write with the inode and wait for others, by file and session.
    // LIMIT: one per call under way.
    wanting: FxHashMap<(InodeId, SessionId), u32>,
    /// Calls under way that have SHARE taken back: nobody gets it before they are done.
    // LIMIT: one per call under way.
    alone: FxHashMap<InodeId, u32>,
    /// Directories on whose names no lease is given by the call that is granting: they are being split.
    withheld: SmallVec<[InodeId; 1]>,
    /// Whether the session of the call that is granting has leases on names in all directories of other servers that the call changes.
    keeps_entries_elsewhere: bool,
    last_recall: u64,
    // LIMIT: one per call under way.
    asked: FxHashMap<InodeId, Asked>,
    last_change: u64,
    /// When the writers of a file were last asked for a report.
    asked_at: FxHashMap<InodeId, Duration>,
}

impl LeaseTable {
    /// A table whose recalls have numbers above `mark`: those of an earlier table were not.
    pub fn above(mark: u64) -> LeaseTable {
        LeaseTable { last_recall: mark, ..LeaseTable::default() }
    }

    /// Whether any session is the sole writer of `inode`.
    pub fn has_writer(&self, inode: InodeId) -> bool {
        self.holders.get(&inode).is_some_and(|held| held.iter().any(|(_, set)| set.has(LeaseSet::WRITE)))
    }

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
        for &inode in &outcome.changed {
            // Who has names in a directory drops all he has of it: where only an owner may do something, a kernel goes by the owner that it learnt with a name.
            let all = OF_FILE.with(LeaseSet::ENTRIES);
            let unwanted = if outcome.beside.contains(&inode) { all.without(LeaseSet::SHARE) } else { all };
            found.extend(
                self.in_the_way(session, inode, unwanted, |holder| {
                    self.has_gone_before(session, holder, inode)
                }),
            );
        }
        let counts = outcome.recounted.iter().map(|&inode| (inode, LeaseSet::ATTR));
        let names = outcome.entries.iter().map(|&(inode, _)| (inode, LeaseSet::ENTRIES));
        for (inode, in_the_way) in counts.chain(names) {
            let conflicts = self.others(session, inode, in_the_way);
            found.extend(conflicts.map(|(holder, leases)| Conflict {
                session: holder,
                inode,
                leases,
                flush_only: false,
            }));
        }
        let is_told = |inode: &&InodeId| !outcome.changed.contains(inode) && !outcome.beside.contains(inode);
        for &inode in outcome.revealed.iter().filter(is_told) {
            let conflicts = self
                .others(session, inode, LeaseSet::WRITING)
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
        let unwanted = match write {
            true => OF_FILE,
            // What a writer has not reported is told late.
            false if session.is_close_to_open() => LeaseSet::NONE,
            false => LeaseSet::WRITING,
        };
        self.in_the_way(session, inode, unwanted, |holder| self.may_go_before(session, holder, inode))
            .collect()
    }

    /// Leases of others on `inode` that meet `unwanted`. Of a holder whose pages need not be waited for, as `is_excused` says, attributes still are: nobody may
    /// be told a length from before a write that has ended.
    fn in_the_way(
        &self,
        session: SessionId,
        inode: InodeId,
        unwanted: LeaseSet,
        is_excused: impl Fn(SessionId) -> bool,
    ) -> impl Iterator<Item = Conflict> {
        self.others(session, inode, unwanted)
            .map(move |(holder, leases)| {
                let leases = if is_excused(holder) { leases.without(LeaseSet::PAGES) } else { leases };
                Conflict { session: holder, inode, leases, flush_only: false }
            })
            .filter(|conflict| conflict.leases != LeaseSet::NONE)
    }

    /// Whether `session`, which has been asked for its lease and wants WRITE, need not wait until `holder` has given READ back. The answer of
    /// a session that wants WRITE too may wait for that: its write holds the page that the answer has to drop. So may ours. Any other
    /// holder answers in time, and is waited for, as it may still read what it has. So is everybody by a write while which its session answers: it does not count as
    /// wanting, and whoever waits for that session gets what it has.
    pub fn may_go_before(&self, session: SessionId, holder: SessionId, inode: InodeId) -> bool {
        self.wanting.contains_key(&(inode, session))
            && self.wanting.contains_key(&(inode, holder))
            && !self.held(holder, inode).has(LeaseSet::WRITE)
            && self.is_recalled_from(session, inode)
            && self.is_recalled_from(holder, inode)
    }

    /// Whether what `session` changes need not wait until `holder` has given READ back. Either `session` got WRITE before that
    /// ([`LeaseTable::may_go_before`]): then it has changed the content already, and what it tells of that may be what the answer of its own
    /// session, and with it a read of `holder`, waits for, whether `holder` still wants to write or not. Or it writes with the inode, for which
    /// nobody has a lease, and `holder` wants to write, too: of such writers that are asked by each other any one may be first.
    pub fn has_gone_before(&self, session: SessionId, holder: SessionId, inode: InodeId) -> bool {
        if self.held(session, inode).has(LeaseSet::WRITE) {
            return self.is_recalled_from(holder, inode);
        }
        self.may_go_before(session, holder, inode)
    }

    /// Notes that a call of `session` wants WRITE, or to write with the inode, until [`LeaseTable::end_wanting`].
    pub fn begin_wanting(&mut self, session: SessionId, inode: InodeId) {
        *self.wanting.entry((inode, session)).or_insert(0) += 1;
    }

    /// Ends what [`LeaseTable::begin_wanting`] began.
    pub fn end_wanting(&mut self, session: SessionId, inode: InodeId) {
        if let Some(count) = self.wanting.get_mut(&(inode, session)) {
            *count -= 1;
            if *count == 0 {
                self.wanting.remove(&(inode, session));
            }
        }
    }

    /// Whether a recall from `session` that waits for pages of `inode` is under way.
    fn is_recalled_from(&self, session: SessionId, inode: InodeId) -> bool {
        self.recalling.contains_key(&inode)
            && self.pending.values().any(|pending| {
                pending.session == session
                    && pending.inode == inode
                    && !pending.flush_only
                    && pending.leases.meets(LeaseSet::PAGES)
            })
    }

    /// Grants READ or WRITE for a read or write that cannot wait for a recall from its own session: it may hold the page that the answer
    /// waits for. So a session that is asked for its lease back keeps what it has until it has answered, and two that both have READ, want
    /// WRITE, and are asked for READ by each other, get WRITE one after the other; the loser's pages are on their way out already.
    pub fn grant_data(&mut self, session: SessionId, inode: InodeId, wanted: LeaseSet) -> LeaseSet {
        let is_loose = session.is_close_to_open();
        let held = self.held(session, inode);
        // Of such a session only WRITE is noted.
        let held = if is_loose && held.has(LeaseSet::WRITE) { held.with(LeaseSet::READ) } else { held };
        if held.has(wanted) {
            return held;
        }
        if is_loose && !wanted.has(LeaseSet::WRITE) || !self.is_recalled_from(session, inode) {
            return self.grant_below(session, inode, wanted, LEASED_INODES_WITH_CONTENT_MAX);
        }
        // A holder of WRITE always keeps others out. Attributes, too, may have been granted since the caller looked.
        let is_free = self.conflicts_of_data(session, inode, wanted.has(LeaseSet::WRITE)).is_empty();
        let Some(holders) = self.holders.get_mut(&inode) else { return LeaseSet::NONE };
        match holders.iter_mut().find(|(holder, _)| *holder == session) {
            Some((_, set)) if is_free => {
                *set = set.with(wanted);
                *set
            }
            _ => LeaseSet::NONE,
        }
    }

    /// Gives nobody a lease on names in `directories`, until told otherwise: what is cached of them nobody would take back when they move to slices.
    pub fn withhold(&mut self, directories: &[InodeId]) {
        self.withheld.clear();
        self.withheld.extend_from_slice(directories);
    }

    /// Notes whether the session of the call that grants next has leases on names in all directories of other servers that the call changes.
    pub fn note_kept_elsewhere(&mut self, keeps: bool) {
        self.keeps_entries_elsewhere = keeps;
    }

    /// What [`LeaseTable::note_kept_elsewhere`] noted.
    pub fn keeps_entries_elsewhere(&self) -> bool {
        self.keeps_entries_elsewhere
    }

    /// Whether `session` may have a name of `directory` cached that it has not looked up there, but moved there: whoever changes the name takes it back.
    pub fn keeps_entries(&self, session: SessionId, directory: InodeId) -> bool {
        // Of one that was asked for its lease the answer may be on its way.
        session.is_close_to_open()
            || !self.recalling.contains_key(&directory)
                && self.held(session, directory).has(LeaseSet::ENTRIES)
    }

    /// Grants as much of `wanted` as nobody else's lease or a recall under way forbids; tells what is held now of `wanted`.
    pub fn grant(&mut self, session: SessionId, inode: InodeId, wanted: LeaseSet) -> LeaseSet {
        self.grant_below(session, inode, wanted, LEASED_INODES_MAX)
    }

    /// As [`LeaseTable::grant`]; nothing on one inode more when `inodes_max` are under lease.
    fn grant_below(
        &mut self,
        session: SessionId,
        inode: InodeId,
        wanted: LeaseSet,
        inodes_max: usize,
    ) -> LeaseSet {
        let wanted = if self.withheld.contains(&inode) { wanted.without(LeaseSet::ENTRIES) } else { wanted };
        match session.is_close_to_open() {
            true => self.grant_loosely(session, inode, wanted, inodes_max),
            false => self.grant_noted(session, inode, wanted, inodes_max),
        }
    }

    /// Grants what is noted here, and recalled.
    fn grant_noted(
        &mut self,
        session: SessionId,
        inode: InodeId,
        wanted: LeaseSet,
        inodes_max: usize,
    ) -> LeaseSet {
        // A session that was ended while a call of its own was under way must not leave a lease nobody would give back.
        if self.recalling.contains_key(&inode) || !self.sessions.contains(&session) {
            return LeaseSet::NONE;
        }
        let mut allowed = wanted;
        let is_full = self.holders.len() >= inodes_max;
        match self.holders.get_mut(&inode) {
            Some(held) => {
                for (_, set) in held.iter().filter(|(holder, _)| *holder != session) {
                    if set.has(LeaseSet::WRITE) {
                        allowed = allowed.and(LeaseSet::ENTRIES);
                    } else if set.has(LeaseSet::SHARE) {
                        allowed = allowed.and(LeaseSet::ENTRIES.with(LeaseSet::SHARE));
                    } else if !set.and(LeaseSet::ATTR.with(LeaseSet::READ)).meets(LeaseSet(u8::MAX)) {
                        continue;
                    } else {
                        allowed = allowed.without(LeaseSet::WRITING);
                    }
                }
                let own = held.iter().find(|(holder, _)| *holder == session);
                if own.is_some_and(|(_, set)| set.has(LeaseSet::SHARE)) {
                    allowed = allowed.without(LeaseSet::PAGES);
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
                self.note_first_grant(inode);
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

    /// Takes leases back without asking (the holder said so, or is gone). Recalls to which nothing is left to give back are over: their answer
    /// may wait for a page, and whoever holds the page for a lease that is not granted while the recall is under way.
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
        if !self.recalling.contains_key(&inode) {
            return;
        }
        let left = self.held(session, inode);
        let pending = self.pending.extract_if(|_, pending| {
            (pending.session, pending.inode) == (session, inode)
                && !pending.flush_only
                && !pending.leases.meets(left)
        });
        for _ in 0..pending.count() {
            self.end_block(inode);
        }
    }

    /// Begins to recall: from now on nothing is granted on that inode. The service sends the returned message to the holder. A
    /// recall of the same leases that is under way already is joined, then there is nothing to send. `now` is a time of a monotonic clock.
    /// Nothing at all when the holder has given back all of it since `conflict` was found: it would answer when its reads under way have
    /// ended, and those would wait for a lease that is not granted before it has answered.
    pub fn begin_recall(&mut self, conflict: Conflict, now: Duration) -> Option<(u64, Option<Recall>)> {
        let Conflict { session, inode, flush_only, .. } = conflict;
        let leases = conflict.leases.and(self.held(session, inode));
        if leases == LeaseSet::NONE {
            return None;
        }
        // A recall of attributes alone is answered at once. It must not join one of content, whose answer may wait for whoever asks here.
        let same = self.pending.iter().find(|(_, pending)| {
            (pending.session, pending.inode, pending.flush_only) == (session, inode, flush_only)
                && pending.leases.has(leases)
                && pending.leases.meets(LeaseSet::PAGES) == leases.meets(LeaseSet::PAGES)
        });
        if let Some((&id, _)) = same {
            return Some((id, None));
        }
        self.last_recall += 1;
        let id = self.last_recall;
        if flush_only {
            self.note_asked(inode, now);
        }
        let change = self.change_of(inode);
        self.pending.insert(id, Pending { session, inode, leases, flush_only, since: now, change });
        *self.recalling.entry(inode).or_insert(0) += 1;
        Some((id, Some(Recall { id, inode, leases, flush_only })))
    }

    /// A call is about to ask the writers of `inode` what they have not reported, until [`LeaseTable::end_asking`].
    pub fn begin_asking(&mut self, inode: InodeId) {
        let change = self.last_change;
        self.asked.entry(inode).or_insert(Asked { calls: 0, change }).calls += 1;
    }

    /// Ends what [`LeaseTable::begin_asking`] began.
    pub fn end_asking(&mut self, inode: InodeId) {
        if let Some(asked) = self.asked.get_mut(&inode) {
            asked.calls -= 1;
            if asked.calls == 0 {
                self.asked.remove(&inode);
            }
        }
    }

    /// Names or links of `inodes` have changed: a report from before tells a size that was never there with what a stat would tell now.
    pub fn note_links_changed(&mut self, inodes: &[InodeId]) {
        self.last_change += 1;
        for inode in inodes {
            if let Some(asked) = self.asked.get_mut(inode) {
                asked.change = self.last_change;
            }
        }
    }

    /// The newest change of names and links of an inode that is being asked about.
    pub fn change_of(&self, inode: InodeId) -> u64 {
        self.asked.get(&inode).map_or(self.last_change, |asked| asked.change)
    }

    /// As [`LeaseTable::change_of`], when the recall `id`, which is not over, began.
    pub fn change_before_recall(&self, id: u64) -> Option<u64> {
        self.pending.get(&id).map(|pending| pending.change)
    }

    /// Ends the recall `id` that `session` has answered for `inode`. One that another server sent before the shard came here has a number of that one,
    /// which may be that of somebody else's here.
    pub fn end_recall_of(&mut self, id: u64, session: SessionId, inode: InodeId) {
        let is_meant = |pending: &Pending| (pending.session, pending.inode) == (session, inode);
        if self.pending.get(&id).is_some_and(is_meant) {
            self.end_recall(id);
        }
    }

    /// Ends a recall: the leases are given back. Unknown ids are late answers and change nothing.
    pub fn end_recall(&mut self, id: u64) {
        if let Some(pending) = self.pending.remove(&id) {
            if !pending.flush_only {
                // Who gives WRITE back has dropped its pages, and READ with them. Believed to have it still, it would be asked for it.
                let with_it =
                    if pending.leases.has(LeaseSet::WRITE) { LeaseSet::READ } else { LeaseSet::NONE };
                self.drop_leases(pending.session, pending.inode, pending.leases.with(with_it));
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

    /// Keeps everybody from new leases on files whose writer is gone, and from knowing their size, until [`LeaseTable::end_settling`].
    pub fn begin_settling(&mut self, inodes: &[InodeId]) {
        for &inode in inodes {
            self.begin_block(inode);
            self.settling.insert(inode);
        }
    }

    /// Ends what [`LeaseTable::begin_settling`] began.
    pub fn end_settling(&mut self, inodes: &[InodeId]) {
        for &inode in inodes {
            self.settling.remove(&inode);
            self.end_block(inode);
        }
    }

    /// Whether `outcome` tells or changes a size that is not known at this moment.
    pub fn is_settling(&self, outcome: &TxnOutcome) -> bool {
        let is_unknown = |inode: &InodeId| self.settling.contains(inode) && !outcome.beside.contains(inode);
        !self.settling.is_empty() && outcome.revealed.iter().chain(&outcome.changed).any(is_unknown)
    }

    /// All leases on inodes of `shard`, for the table of the server that has the shard next. A recall under way is none of it: who waits for it asks there.
    pub fn of_shard(&self, shard: ShardId) -> Vec<(InodeId, SessionId, LeaseSet)> {
        let of_shard = self.holders.iter().filter(|(inode, _)| inode.home() == shard);
        of_shard
            .flat_map(|(inode, held)| held.iter().map(|(session, set)| (*inode, *session, *set)))
            .collect()
    }

    /// Forgets all of that, and the recalls under way.
    pub fn forget_shard(&mut self, shard: ShardId) {
        self.holders.retain(|inode, _| inode.home() != shard);
        let ids: Vec<u64> =
            self.pending.iter().filter(|(_, p)| p.inode.home() == shard).map(|(&id, _)| id).collect();
        ids.into_iter().for_each(|id| self.end_recall(id));
    }

    /// Takes over what [`LeaseTable::of_shard`] told, as it is, but of sessions that there are.
    pub fn take_over(&mut self, leases: &[(InodeId, SessionId, LeaseSet)]) {
        for &(inode, session, set) in leases {
            if !self.sessions.contains(&session) {
                continue;
            }
            match self.holders.get_mut(&inode) {
                Some(held) => held.push((session, set)),
                None => {
                    self.holders.insert(inode, SmallVec::from_buf([(session, set)]));
                    self.note_first_grant(inode);
                }
            }
        }
    }

    /// Has recalls from now on have numbers above `mark`, the newest of another table some of whose leases come here.
    pub fn raise_recalls(&mut self, mark: u64) {
        self.last_recall = self.last_recall.max(mark);
    }

    /// Forgets all leases on an inode that is no more.
    pub fn forget_inode(&mut self, inode: InodeId) {
        self.holders.remove(&inode);
    }

    /// What the recall `id` waits for, if it is not over.
    pub fn recall_under_way(&self, id: u64) -> Option<RecallUnderWay> {
        let Pending { session, inode, leases, since, .. } = *self.pending.get(&id)?;
        Some(RecallUnderWay { session, inode, since, is_of_pages: leases.meets(LeaseSet::PAGES) })
    }

    /// Of the recalls on `inode` the one that has been under way for longest: nobody is granted anything on it meanwhile.
    pub fn oldest_recall_of(&self, inode: InodeId) -> Option<RecallUnderWay> {
        if !self.recalling.contains_key(&inode) {
            return None;
        }
        let of_inode = self.pending.iter().filter(|(_, pending)| pending.inode == inode);
        let (id, _) = of_inode.min_by_key(|(id, pending)| (pending.since, **id))?;
        self.recall_under_way(*id)
    }

    /// Lets a session hold leases.
    pub fn begin_session(&mut self, session: SessionId) {
        self.sessions.insert(session);
    }

    /// Whether a session may hold leases.
    pub fn has_session(&self, session: SessionId) -> bool {
        self.sessions.contains(&session)
    }

    /// The number of the newest recall. A grant made now is void for a client that has answered a later one before the grant arrives.
    pub fn recall_mark(&self) -> u64 {
        self.last_recall
    }

    /// Forgets a session with all its leases and recalls; tells the files of which it was the sole writer.
    pub fn end_session(&mut self, session: SessionId) -> Vec<InodeId> {
        self.sessions.remove(&session);
        // ORDER: who was writing is noted before recalls under way take the WRITE lease, or nobody would settle the file's size.
        let mut written = Vec::new();
        self.holders.retain(|&inode, held| {
            if held.iter().any(|(holder, set)| *holder == session && set.meets(LeaseSet::WRITING)) {
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

    /// Up to `count` leases to take back to make room, those that were granted first: of inodes that `is_open` does not name, and without
    /// WRITE or another of `kept`. (A recall of ENTRIES costs a session all names it knows.) What is passed over gets to the end of the
    /// line.
    pub fn surplus(
        &mut self,
        count: usize,
        kept: LeaseSet,
        is_open: impl Fn(InodeId) -> bool,
    ) -> Vec<Conflict> {
        let kept = kept.with(LeaseSet::WRITING);
        let mut found = Vec::with_capacity(count);
        for _ in 0..self.order.len().min(SURPLUS_LOOKS_MAX) {
            if found.len() >= count {
                break;
            }
            let Some(inode) = self.order.pop_front() else { break };
            let Some(held) = self.holders.get(&inode) else { continue };
            // It stays in line until the answer is there; then it is found to be gone.
            self.order.push_back(inode);
            if held.iter().any(|(_, set)| set.meets(kept))
                || self.recalling.contains_key(&inode)
                || is_open(inode)
            {
                continue;
            }
            found.extend(held.iter().map(|&(session, leases)| Conflict {
                session,
                inode,
                leases,
                flush_only: false,
            }));
        }
        found
    }

    /// Puts an inode that nobody held anything on in line for [`LeaseTable::surplus`].
    fn note_first_grant(&mut self, inode: InodeId) {
        self.order.push_back(inode);
        if self.order.len() >= 2 * self.holders.len().max(LEASED_INODES_MAX) {
            let holders = &self.holders;
            let mut seen = FxHashSet::default();
            self.order.retain(|inode| holders.contains_key(inode) && seen.insert(*inode));
        }
    }

    /// For each session that has leases: on how many inodes.
    pub fn inodes_by_session(&self) -> FxHashMap<SessionId, u64> {
        let mut counts = FxHashMap::default();
        let holders = self.holders.values().flatten().filter(|(_, set)| *set != LeaseSet::default());
        holders.for_each(|(session, _)| *counts.entry(*session).or_default() += 1);
        counts
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

    fn table() -> LeaseTable {
        let mut table = LeaseTable::default();
        table.begin_session(A);
        table.begin_session(B);
        table
    }

    #[test]
    fn leases_of_a_shard_hold_in_the_table_of_its_next_server() {
        let mut table = table();
        let inode = |shard, number| InodeId::new(ShardId(shard), number).unwrap();
        let (written, read, other) = (inode(3, 5), inode(3, 6), inode(4, 5));
        table.grant(A, written, LeaseSet::WRITE.with(LeaseSet::ATTR));
        table.grant(A, read, LeaseSet::READ);
        table.grant(B, read, LeaseSet::READ);
        table.grant(B, other, LeaseSet::ATTR);
        let conflict = table.conflicts_of_data(B, written, false)[0];
        let (recall, _) = table.begin_recall(conflict, Duration::ZERO).unwrap();
        let mut next = LeaseTable::above(recall - 1);
        next.begin_session(A);
        next.begin_session(B);
        next.grant(B, inode(9, 9), LeaseSet::WRITE);
        let (own, _) =
            next.begin_recall(next.conflicts_of_data(A, inode(9, 9), false)[0], Duration::ZERO).unwrap();
        assert_eq!(own, recall, "servers count for themselves");
        next.take_over(&table.of_shard(ShardId(3)));
        next.raise_recalls(table.recall_mark());
        table.forget_shard(ShardId(3));
        assert_eq!((table.len(), table.recall_under_way(recall)), (1, None));
        assert!(next.held(A, written).has(LeaseSet::WRITE) && next.held(B, read).has(LeaseSet::READ));
        assert_eq!(next.held(B, other), LeaseSet::NONE);
        // The answer to the server before, which comes here, ends nothing.
        next.end_recall_of(recall, A, written);
        assert!(next.recall_under_way(own).is_some());
        assert_eq!(next.conflicts_of_data(B, written, false).len(), 1);
        assert_eq!(next.grant(B, written, LeaseSet::READ), LeaseSet::NONE);
    }

    #[test]
    fn only_leases_that_nobody_misses_are_surplus() {
        let mut table = table();
        let [open, written, directory, recalled, idle] = [1, 2, 3, 4, 5].map(InodeId);
        table.grant(A, open, LeaseSet::ATTR);
        table.grant(A, written, LeaseSet::WRITE);
        table.grant(A, directory, LeaseSet::ATTR.with(LeaseSet::ENTRIES));
        table.grant(A, recalled, LeaseSet::READ);
        table.begin_recall(table.conflicts_of_data(B, recalled, true)[0], Duration::ZERO).unwrap();
        table.grant(A, idle, LeaseSet::ATTR.with(LeaseSet::READ));
        let surplus = table.surplus(10, LeaseSet::ENTRIES, |inode| inode == open);
        assert_eq!(surplus.iter().map(|conflict| conflict.inode).collect::<Vec<_>>(), vec![idle]);
        assert_eq!(surplus[0].leases, LeaseSet::ATTR.with(LeaseSet::READ));
        table.grant(A, InodeId(6), LeaseSet::ATTR);
        let surplus = table.surplus(1, LeaseSet::ENTRIES, |_| false);
        assert_eq!(surplus[0].inode, open, "first come, first taken back");
        assert!(table.surplus(0, LeaseSet::ENTRIES, |_| false).is_empty());
    }

    #[test]
    fn names_in_a_directory_go_with_its_attributes_whoever_has_either() {
        let mut table = table();
        table.grant(A, X, LeaseSet::ATTR.with(LeaseSet::ENTRIES));
        let other = SessionId(3);
        table.begin_session(other);
        table.grant(other, X, LeaseSet::ENTRIES);
        let changed = TxnOutcome { changed: [X].into_iter().collect(), ..TxnOutcome::default() };
        let mut found: Vec<_> =
            table.conflicts(B, &changed, &[]).iter().map(|found| (found.session, found.leases)).collect();
        found.sort_by_key(|(session, _)| *session);
        assert_eq!(found, [(A, LeaseSet::ATTR.with(LeaseSet::ENTRIES)), (other, LeaseSet::ENTRIES)]);
    }

    #[test]
    fn a_cut_carried_out_for_one_session_leaves_the_content_to_the_other_that_waits_for_it() {
        let mut table = table();
        table.grant(A, X, LeaseSet::ATTR.with(LeaseSet::READ).with(LeaseSet::WRITE));
        let outcome = TxnOutcome { recounted: [X].into_iter().collect(), ..TxnOutcome::default() };
        let conflicts = table.conflicts(B, &outcome, &[]);
        assert_eq!(
            conflicts.iter().map(|found| (found.session, found.leases)).collect::<Vec<_>>(),
            [(A, LeaseSet::ATTR)]
        );
        assert!(table.conflicts(A, &outcome, &[]).is_empty());
    }

    #[test]
    fn who_got_write_first_changes_the_file_while_the_loser_still_answers() {
        let mut table = table();
        let both = LeaseSet::READ.with(LeaseSet::WRITE);
        for session in [A, B] {
            table.grant(session, X, LeaseSet::READ);
            table.begin_wanting(session, X);
        }
        for (session, holder) in [(A, B), (B, A)] {
            table.begin_recall(table.conflicts_of_data(session, X, true)[0], Duration::ZERO).unwrap();
            assert_eq!(table.held(holder, X), LeaseSet::READ);
        }
        assert!(table.grant_data(A, X, both).has(both), "one of them has to be first");
        let changed = TxnOutcome { changed: [X].into_iter().collect(), ..TxnOutcome::default() };
        assert!(
            table.conflicts(A, &changed, &[]).is_empty(),
            "B answers when its write has ended, and that waits for A"
        );
        assert!(!table.conflicts(B, &changed, &[]).is_empty());
    }

    #[test]
    fn who_went_first_reports_though_the_loser_reads_by_now_and_waits_for_the_report() {
        let mut table = table();
        let changed = TxnOutcome { changed: [X].into_iter().collect(), ..TxnOutcome::default() };
        for session in [A, B] {
            table.grant(session, X, LeaseSet::READ);
            table.begin_wanting(session, X);
        }
        for session in [A, B] {
            table.begin_recall(table.conflicts_of_data(session, X, true)[0], Duration::ZERO).unwrap();
        }
        assert!(table.grant_data(A, X, LeaseSet::WRITE).has(LeaseSet::WRITE));
        // Its write with the inode was told that the file has chunks now, and another thread of it asks for READ first.
        table.end_wanting(B, X);
        table.begin_recall(table.conflicts_of_data(B, X, false)[0], Duration::ZERO).unwrap();
        assert!(table.conflicts(A, &changed, &[]).is_empty(), "the answer of A waits for this report");
    }

    #[test]
    fn of_two_that_write_with_the_inode_and_are_asked_by_each_other_one_goes_first() {
        let mut table = table();
        let changed = TxnOutcome { changed: [X].into_iter().collect(), ..TxnOutcome::default() };
        table.grant(A, X, LeaseSet::READ);
        table.grant(B, X, LeaseSet::READ);
        table.begin_wanting(A, X);
        let (from_b, _) = table.begin_recall(table.conflicts(A, &changed, &[])[0], Duration::ZERO).unwrap();
        assert_eq!(table.conflicts(A, &changed, &[]).len(), 1, "B waits for nobody, and will answer");
        let (from_a, _) = table.begin_recall(table.conflicts(B, &changed, &[])[0], Duration::ZERO).unwrap();
        assert_eq!(table.conflicts(A, &changed, &[]).len(), 1, "B does not say that it writes");
        table.begin_wanting(B, X);
        assert!(table.conflicts(A, &changed, &[]).is_empty(), "B answers when its write has ended");
        table.end_wanting(A, X);
        assert_eq!(table.conflicts(A, &changed, &[]).len(), 1, "another change of A holds no page");
        assert_eq!(table.conflicts(B, &changed, &[]).len(), 1, "A has ended its write, and will answer");
        table.end_recall(from_a);
        assert!(table.conflicts(B, &changed, &[]).is_empty());
        table.end_wanting(B, X);
        table.end_recall(from_b);
        assert!(table.is_empty() && table.wanting.is_empty());
    }

    #[test]
    fn a_recall_to_which_nothing_is_left_to_give_back_is_over() {
        let mut table = table();
        table.grant(A, X, LeaseSet::READ);
        let (first, _) = table.begin_recall(table.conflicts_of_data(B, X, true)[0], Duration::ZERO).unwrap();
        // Its own call may get WRITE meanwhile, and lose that to another recall, which is answered before the first.
        table.grant_data(A, X, LeaseSet::WRITE);
        let all = LeaseSet::READ.with(LeaseSet::WRITE);
        let rest = Conflict { session: A, inode: X, leases: all, flush_only: false };
        let (second, _) = table.begin_recall(rest, Duration::ZERO).unwrap();
        table.end_recall(second);
        assert_eq!(table.recall_under_way(first), None);
        assert_eq!(table.grant(A, X, LeaseSet::READ), LeaseSet::READ, "nothing is under way any more");
    }

    #[test]
    fn what_was_given_back_before_the_recall_began_is_not_recalled() {
        let mut table = table();
        table.grant(A, X, LeaseSet::ATTR.with(LeaseSet::READ));
        let found = table.conflicts_of_data(B, X, true)[0];
        table.drop_leases(A, X, LeaseSet::ATTR);
        let (id, recall) = table.begin_recall(found, Duration::ZERO).unwrap();
        assert_eq!(recall.unwrap().leases, LeaseSet::READ, "the rest of it is");
        table.end_recall(id);
        assert_eq!(table.begin_recall(found, Duration::ZERO), None);
        assert!(
            table.grant_data(A, X, LeaseSet::READ).has(LeaseSet::READ),
            "a read of A has a page that the answer of A would wait for"
        );
    }

    #[test]
    fn attributes_are_given_back_while_the_content_is_still_waited_for() {
        let mut table = table();
        table.grant(A, X, LeaseSet::ATTR.with(LeaseSet::READ));
        let (content, _) =
            table.begin_recall(table.conflicts_of_data(B, X, true)[0], Duration::ZERO).unwrap();
        let cut = TxnOutcome { recounted: [X].into_iter().collect(), ..TxnOutcome::default() };
        let (attributes, recall) =
            table.begin_recall(table.conflicts(B, &cut, &[])[0], Duration::ZERO).unwrap();
        assert_eq!(
            recall.map(|recall| recall.leases),
            Some(LeaseSet::ATTR),
            "A's write may wait for the cut"
        );
        table.end_recall(attributes);
        assert!(table.conflicts(B, &cut, &[]).is_empty());
        assert!(table.recall_under_way(content).is_some());
    }

    #[test]
    fn of_two_that_write_each_waits_for_the_others_attributes_though_not_for_its_pages() {
        let mut table = table();
        let changed = TxnOutcome { changed: [X].into_iter().collect(), ..TxnOutcome::default() };
        for session in [A, B] {
            table.grant(session, X, LeaseSet::ATTR.with(LeaseSet::READ));
            table.begin_wanting(session, X);
        }
        for session in [A, B] {
            let found = table.conflicts_of_data(session, X, true)[0];
            assert_eq!(found.leases, LeaseSet::ATTR.with(LeaseSet::READ));
            let (id, _) = table.begin_recall(found, Duration::ZERO).unwrap();
            assert!(table.recall_under_way(id).unwrap().is_of_pages);
        }
        let attributes = Conflict { session: B, inode: X, leases: LeaseSet::ATTR, flush_only: false };
        assert_eq!(table.conflicts_of_data(A, X, true).as_slice(), [attributes]);
        assert_eq!(table.conflicts(A, &changed, &[]).as_slice(), [attributes], "also with the inode");
        let (id, recall) = table.begin_recall(attributes, Duration::ZERO).unwrap();
        assert_eq!(recall.unwrap().leases, LeaseSet::ATTR, "it joins nothing that waits for a page");
        assert!(!table.recall_under_way(id).unwrap().is_of_pages);
        assert!(!table.grant_data(A, X, LeaseSet::WRITE).has(LeaseSet::WRITE));
        table.end_recall(id);
        assert!(table.conflicts(A, &changed, &[]).is_empty());
        assert!(table.grant_data(A, X, LeaseSet::WRITE).has(LeaseSet::WRITE));
    }

    #[test]
    fn who_has_only_attributes_left_to_give_back_does_not_read_beside_the_one_that_went_first() {
        let mut table = table();
        table.grant(A, X, LeaseSet::ATTR.with(LeaseSet::READ));
        table.grant(B, X, LeaseSet::READ);
        for session in [A, B] {
            table.begin_wanting(session, X);
        }
        for session in [A, B] {
            table.begin_recall(table.conflicts_of_data(session, X, true)[0], Duration::ZERO).unwrap();
        }
        table.drop_leases(A, X, LeaseSet::READ);
        assert_eq!(
            table.grant_data(A, X, LeaseSet::READ),
            LeaseSet::ATTR.with(LeaseSet::READ),
            "nobody writes"
        );
        table.drop_leases(A, X, LeaseSet::READ);
        assert!(
            !table.grant_data(B, X, LeaseSet::WRITE).has(LeaseSet::WRITE),
            "A may still tell the old size"
        );
        table.drop_leases(A, X, LeaseSet::ATTR);
        assert!(table.grant_data(B, X, LeaseSet::WRITE).has(LeaseSet::WRITE));
        assert!(!table.grant_data(A, X, LeaseSet::READ).has(LeaseSet::READ));
    }

    #[test]
    fn a_stat_that_came_while_a_write_was_begun_is_not_kept_beside_the_write() {
        let mut table = table();
        let both = LeaseSet::READ.with(LeaseSet::WRITE);
        table.grant(A, X, LeaseSet::READ);
        table.begin_wanting(A, X);
        assert!(table.conflicts_of_data(A, X, true).is_empty());
        // Then another session stats the file, and a third one that wants to write asks both.
        table.grant(B, X, LeaseSet::ATTR);
        let asked: Vec<_> = table.conflicts_of_data(SessionId(3), X, true).into_iter().collect();
        for conflict in asked {
            table.begin_recall(conflict, Duration::ZERO).unwrap();
        }
        assert!(!table.grant_data(A, X, both).has(LeaseSet::WRITE), "B may still tell the old size");
        table.drop_leases(B, X, LeaseSet::ATTR);
        assert!(table.grant_data(A, X, both).has(LeaseSet::WRITE));
    }

    #[test]
    fn content_is_granted_when_the_table_is_full_of_directories() {
        let mut table = table();
        for number in 0..LEASED_INODES_MAX as u64 {
            table.grant(A, InodeId(1000 + number), LeaseSet::ENTRIES);
        }
        assert_eq!(table.grant(A, X, LeaseSet::ATTR), LeaseSet::NONE, "the table is full");
        assert!(table.surplus(1, LeaseSet::ENTRIES, |_| false).is_empty(), "names are taken back last");
        assert_eq!(table.surplus(300, LeaseSet::NONE, |_| false).len(), 300);
        let both = LeaseSet::READ.with(LeaseSet::WRITE);
        assert!(table.grant_data(A, X, both).has(both), "nothing can be read or written without");
        table.drop_leases(A, X, both);
        assert!(table.grant_data(B, X, LeaseSet::READ).has(LeaseSet::READ));
    }

    #[test]
    fn a_session_that_was_ended_is_granted_nothing() {
        let mut table = table();
        table.end_session(A);
        assert_eq!(table.grant(A, X, LeaseSet::ATTR), LeaseSet::NONE);
        assert!(table.is_empty());
    }

    #[test]
    fn a_holder_keeps_its_lease_until_it_has_answered_the_recall() {
        let mut table = table();
        table.grant(A, X, LeaseSet::READ);
        let (id, _) = table.begin_recall(table.conflicts_of_data(B, X, true)[0], Duration::ZERO).unwrap();
        assert!(
            table.grant_data(A, X, LeaseSet::READ).has(LeaseSet::READ),
            "a read of A must not wait for A"
        );
        assert_eq!(table.grant_data(B, X, LeaseSet::READ), LeaseSet::NONE, "nobody else gets in between");
        table.end_recall(id);
        assert_eq!(table.held(A, X), LeaseSet::NONE);
    }

    #[test]
    fn two_readers_that_both_want_to_write_get_their_turns_without_waiting_for_each_other() {
        let mut table = table();
        let both = LeaseSet::READ.with(LeaseSet::WRITE);
        table.grant(A, X, LeaseSet::READ);
        table.grant(B, X, LeaseSet::READ);
        table.begin_wanting(A, X);
        let (from_b, _) = table.begin_recall(table.conflicts_of_data(A, X, true)[0], Duration::ZERO).unwrap();
        let (from_a, _) = table.begin_recall(table.conflicts_of_data(B, X, true)[0], Duration::ZERO).unwrap();
        assert_eq!(table.conflicts_of_data(A, X, true).len(), 1, "B only reads, and will answer");
        assert!(!table.grant_data(A, X, both).has(LeaseSet::WRITE), "B may still read what it has");
        table.begin_wanting(B, X);
        assert!(
            table.conflicts_of_data(A, X, true).is_empty(),
            "B is giving back already, and may be waiting for A"
        );
        assert!(table.grant_data(A, X, both).has(both));
        assert_eq!(table.conflicts_of_data(B, X, true).len(), 1, "B waits for the writer A");
        assert!(!table.grant_data(B, X, both).has(LeaseSet::WRITE), "never two writers");
        table.end_recall(from_b);
        table.end_recall(from_a);
        assert_eq!(table.held(A, X), LeaseSet::WRITE);
        table.end_wanting(A, X);
        table.end_wanting(B, X);
        assert!(table.wanting.is_empty());
    }

    #[test]
    fn a_writer_excludes_every_other_lease_on_content() {
        let mut table = table();
        assert_eq!(table.grant(A, X, LeaseSet::WRITE), LeaseSet::WRITE);
        assert_eq!(table.grant(B, X, LeaseSet::ATTR.with(LeaseSet::READ)), LeaseSet::NONE);
        let conflicts = table.conflicts_of_data(B, X, false);
        assert_eq!(conflicts.len(), 1);
        let (id, recall) = table.begin_recall(conflicts[0], Duration::ZERO).unwrap();
        assert!(recall.is_some());
        assert_eq!(table.grant(A, X, LeaseSet::ATTR), LeaseSet::NONE, "nothing is granted during a recall");
        table.end_recall(id);
        assert!(table.conflicts_of_data(B, X, true).is_empty());
        assert_eq!(table.grant(B, X, LeaseSet::WRITE), LeaseSet::WRITE);
    }

    #[test]
    fn a_reader_of_attributes_must_give_them_back_before_a_change_by_another() {
        let mut table = table();
        table.grant(A, X, LeaseSet::ATTR);
        let outcome = TxnOutcome { changed: SmallVec::from_slice(&[X]), ..TxnOutcome::default() };
        assert_eq!(table.conflicts(B, &outcome, &[]).len(), 1);
        assert!(table.conflicts(A, &outcome, &[]).is_empty(), "one's own lease is never in the way");
        assert_eq!(table.grant(B, X, LeaseSet::WRITE), LeaseSet::NONE);
    }

    #[test]
    fn a_stat_by_another_makes_the_writer_report_once() {
        let mut table = table();
        table.grant(A, X, LeaseSet::WRITE);
        let outcome = TxnOutcome { revealed: SmallVec::from_slice(&[X]), ..TxnOutcome::default() };
        let conflict = table.conflicts(B, &outcome, &[])[0];
        assert!(conflict.flush_only);
        let (id, _) = table.begin_recall(conflict, Duration::ZERO).unwrap();
        table.end_recall(id);
        assert!(table.conflicts(B, &outcome, &[(A, X)]).is_empty());
        assert_eq!(table.held(A, X), LeaseSet::WRITE);
    }

    #[test]
    fn a_dead_session_leaves_nothing_behind_but_the_files_it_was_writing() {
        let mut table = table();
        table.grant(A, X, LeaseSet::WRITE);
        table.grant(A, InodeId(5), LeaseSet::ENTRIES);
        let (_, recall) = table.begin_recall(table.conflicts_of_data(B, X, true)[0], Duration::ZERO).unwrap();
        assert!(recall.is_some());
        assert_eq!(table.end_session(A), vec![X]);
        assert!(table.is_empty());
        assert_eq!(table.grant(B, X, LeaseSet::WRITE), LeaseSet::WRITE);
    }

    #[test]
    fn the_size_of_a_file_whose_writer_is_gone_is_not_told_before_it_is_known() {
        let mut table = table();
        assert_eq!(table.grant(A, X, LeaseSet::WRITE), LeaseSet::WRITE);
        let written = table.end_session(A);
        assert_eq!(written, [X]);
        table.begin_settling(&written);
        let stat = TxnOutcome { revealed: [X].into_iter().collect(), ..TxnOutcome::default() };
        assert!(table.conflicts(B, &stat, &[]).is_empty(), "nobody is left to be asked");
        assert!(table.is_settling(&stat));
        assert!(!table.is_settling(&TxnOutcome::default()));
        assert_eq!(table.grant(B, X, LeaseSet::READ), LeaseSet::NONE);
        table.end_settling(&written);
        assert!(!table.is_settling(&stat));
        assert_eq!(table.grant(B, X, LeaseSet::READ), LeaseSet::READ);
    }
}
