//! Random lock calls on the lock table and on a model that keeps one cell per byte and owner; every answer, every grant and the
//! final state must agree. The seed is in the message of a failure.

#![allow(clippy::unwrap_used)] // The helpers of a test panic as the test does.

use ashlar_namespace::lock::{
    LOCK_END_MAX, LockConflict, LockGrant, LockLimits, LockTable, LockWait, WaitArgs, WaitId,
};
use ashlar_types::message::{LockKind, LockRange, LockRequest};
use ashlar_types::{Errno, InodeId, LockOwner, SessionId};
use std::collections::{BTreeMap, BTreeSet};

/// Bytes the model tells apart; the last one stands for everything behind.
const CELLS: usize = 24;
const SESSIONS: u64 = 3;
const OWNERS: u64 = 2;
const FILES: u64 = 2;

type Owner = (u64, u64);

#[derive(Clone, Copy, Debug)]
struct Call {
    owner: Owner,
    request: LockRequest,
    ticket: u64,
}

/// One cell per byte for range locks, one for the flock.
#[derive(Default)]
struct ModelFile {
    cells: BTreeMap<Owner, [Option<LockKind>; CELLS]>,
    flocks: BTreeMap<Owner, LockKind>,
    waiting: Vec<Call>,
}

#[derive(Default)]
struct Model {
    files: BTreeMap<u64, ModelFile>,
}

fn cells_of(range: LockRange) -> std::ops::RangeInclusive<usize> {
    range.start.min(CELLS as u64 - 1) as usize..=range.end.min(CELLS as u64 - 1) as usize
}

fn excludes(a: LockKind, b: LockKind) -> bool {
    a == LockKind::Write || b == LockKind::Write
}

impl ModelFile {
    fn blockers(&self, call: &Call) -> BTreeSet<Owner> {
        let kind = call.request.kind;
        if kind == LockKind::Unlock {
            return BTreeSet::new();
        }
        let mut found = BTreeSet::new();
        if call.request.is_flock {
            found.extend(self.flocks.iter().filter(|(_, held)| excludes(**held, kind)).map(|(o, _)| *o));
        } else {
            for (owner, cells) in &self.cells {
                let mut range = cells_of(call.request.range);
                if range.any(|at| cells[at].is_some_and(|held| excludes(held, kind))) {
                    found.insert(*owner);
                }
            }
        }
        found.remove(&call.owner);
        found
    }

    fn apply(&mut self, call: &Call) {
        let kind = call.request.kind;
        let kept = (kind != LockKind::Unlock).then_some(kind);
        if call.request.is_flock {
            self.flocks.remove(&call.owner);
            self.flocks.extend(kept.map(|kind| (call.owner, kind)));
        } else {
            let cells = self.cells.entry(call.owner).or_insert([None; CELLS]);
            for at in cells_of(call.request.range) {
                cells[at] = kept;
            }
        }
    }

    fn try_now(&mut self, call: &Call) -> bool {
        let is_conversion = self.flocks.get(&call.owner).is_some_and(|held| *held != call.request.kind);
        if call.request.is_flock && is_conversion {
            self.flocks.remove(&call.owner);
        }
        let is_free = self.blockers(call).is_empty();
        if is_free {
            self.apply(call);
        }
        is_free
    }

    fn settle(&mut self) -> Vec<WaitId> {
        let mut granted = Vec::new();
        while let Some(at) = self.waiting.iter().position(|call| self.blockers(call).is_empty()) {
            let call = self.waiting.remove(at);
            self.apply(&call);
            granted.push(WaitId { session: SessionId(call.owner.0), ticket: call.ticket });
        }
        granted
    }
}

impl Model {
    fn file(&mut self, inode: InodeId) -> &mut ModelFile {
        self.files.entry(inode.0).or_default()
    }

    /// Whether `call.owner` can be reached from those in its way.
    fn is_deadlock(&mut self, call: &Call) -> bool {
        let mut open: Vec<Owner> = self.file(call.request.inode).blockers(call).into_iter().collect();
        let mut seen = BTreeSet::new();
        while let Some(owner) = open.pop() {
            if owner == call.owner {
                return true;
            }
            if seen.insert(owner) {
                for file in self.files.values() {
                    let waits = file.waiting.iter().filter(|w| w.owner == owner && !w.request.is_flock);
                    open.extend(waits.flat_map(|wait| file.blockers(wait)));
                }
            }
        }
        false
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }

    fn call(&mut self, ticket: u64) -> Call {
        let start = self.below(CELLS as u64);
        let last = CELLS as u64 - 1;
        let end = match start + self.below(6) {
            end if end >= last || self.below(6) == 0 => LOCK_END_MAX,
            end => end,
        };
        let kind = [LockKind::Read, LockKind::Write, LockKind::Unlock][self.below(3) as usize];
        let request = LockRequest {
            inode: InodeId(1 + self.below(FILES)),
            owner: LockOwner(self.below(OWNERS)),
            pid: 7,
            kind,
            range: LockRange { start, end },
            is_flock: self.below(5) == 0,
        };
        Call { owner: (self.below(SESSIONS), request.owner.0), request, ticket }
    }
}

fn granted(grants: &[LockGrant]) -> Vec<WaitId> {
    assert!(grants.iter().all(|grant| grant.outcome.is_ok()));
    grants.iter().map(|grant| grant.wait).collect()
}

fn run(seed: u64, steps: u64) -> BTreeMap<&'static str, u32> {
    let (mut random, mut table, mut model) = (Random(seed), LockTable::default(), Model::default());
    let mut seen: BTreeMap<&'static str, u32> = BTreeMap::new();
    for step in 0..steps {
        let call = random.call(step);
        let (session, inode) = (SessionId(call.owner.0), call.request.inode);
        let mut grants = Vec::new();
        let place = format!("seed {seed} step {step} {call:?}");
        let mut expected = Vec::new();
        match random.below(12) {
            0..=4 => {
                let is_taken = model.file(inode).try_now(&call);
                expected.extend(model.file(inode).settle());
                let outcome = table.lock(session, &call.request, &mut grants);
                assert_eq!(outcome, if is_taken { Ok(()) } else { Err(Errno::EAGAIN) }, "{place}");
            }
            5..=8 if call.request.kind != LockKind::Unlock => {
                let wait = WaitArgs { ticket: step, is_ofd: false };
                let wanted = if model.file(inode).try_now(&call) {
                    Ok(LockWait::Granted)
                } else if !call.request.is_flock && model.is_deadlock(&call) {
                    Err(Errno::EDEADLK)
                } else {
                    model.file(inode).waiting.push(call);
                    Ok(LockWait::Queued)
                };
                expected.extend(model.file(inode).settle());
                let outcome = table.lock_wait(session, &call.request, wait, &mut grants);
                assert_eq!(outcome, wanted, "{place}");
                *seen.entry(if wanted.is_ok() { "wait" } else { "deadlock" }).or_default() += 1;
            }
            9 => {
                let file = model.file(inode);
                let victim = file.waiting.first().copied();
                file.waiting.retain(|wait| Some(wait.ticket) != victim.map(|victim| victim.ticket));
                if let Some(victim) = victim {
                    assert!(table.cancel(SessionId(victim.owner.0), victim.ticket), "{place}");
                    assert!(!table.cancel(SessionId(victim.owner.0), victim.ticket), "{place}");
                }
            }
            10 => {
                let file = model.file(inode);
                if call.request.is_flock {
                    file.flocks.remove(&call.owner);
                } else {
                    file.cells.remove(&call.owner);
                }
                expected.extend(file.settle());
                table.release(session, call.request.owner, (inode, call.request.is_flock), &mut grants);
            }
            _ if random.below(4) == 0 => {
                for file in model.files.values_mut() {
                    file.cells.retain(|owner, _| owner.0 != call.owner.0);
                    file.flocks.retain(|owner, _| owner.0 != call.owner.0);
                    file.waiting.retain(|wait| wait.owner.0 != call.owner.0);
                }
                table.release_session(session, &mut grants);
                expected.extend(model.files.values_mut().flat_map(ModelFile::settle));
                let mut told = granted(&grants);
                told.sort();
                expected.sort();
                assert_eq!(told, expected, "{place}");
                continue;
            }
            _ if call.request.kind != LockKind::Unlock => {
                let blockers = model.file(inode).blockers(&call);
                let conflict: Option<LockConflict> = table.test(session, &call.request).unwrap();
                assert_eq!(conflict.is_some(), !blockers.is_empty(), "{place}");
                if let Some(conflict) = conflict {
                    let holder = (conflict.holder.session.0, conflict.holder.owner.0);
                    assert!(blockers.contains(&holder), "{place}");
                }
            }
            _ => {}
        }
        *seen.entry("granted later").or_default() += grants.len() as u32;
        assert_eq!(granted(&grants), expected, "{place}");
        let waiting: usize = model.files.values().map(|file| file.waiting.len()).sum();
        assert_eq!(table.waiting_count(), waiting, "{place}");
    }
    for session in 0..SESSIONS {
        table.release_session(SessionId(session), &mut Vec::new());
    }
    assert_eq!((table.held_count(), table.waiting_count()), (0, 0), "seed {seed}: something is left");
    seen
}

#[test]
fn random_calls_agree_with_the_model() {
    let mut seen: BTreeMap<&'static str, u32> = BTreeMap::new();
    for seed in 0..200 {
        for (what, count) in run(seed, 500) {
            *seen.entry(what).or_default() += count;
        }
    }
    for what in ["wait", "deadlock", "granted later"] {
        assert!(seen[what] > 500, "the calls never led to enough of: {what}: {seen:?}");
    }
}

fn request(inode: u64, owner: u64, kind: LockKind, start: u64, end: u64) -> LockRequest {
    LockRequest {
        inode: InodeId(inode),
        owner: LockOwner(owner),
        pid: owner as u32,
        kind,
        range: LockRange { start, end },
        is_flock: false,
    }
}

const ONE: SessionId = SessionId(1);

#[test]
fn touching_ranges_of_one_kind_are_one_record() {
    let mut table = LockTable::default();
    for start in [0, 20, 10] {
        table.lock(ONE, &request(1, 1, LockKind::Write, start, start + 9), &mut Vec::new()).unwrap();
    }
    assert_eq!(table.held_count(), 1);
    let conflict = table.test(ONE, &request(1, 2, LockKind::Read, 15, 15)).unwrap().unwrap();
    assert_eq!((conflict.range.start, conflict.range.end, conflict.pid), (0, 29, 1));
    table.lock(ONE, &request(1, 1, LockKind::Read, 10, 19), &mut Vec::new()).unwrap();
    assert_eq!(table.held_count(), 3);
    table.lock(ONE, &request(1, 1, LockKind::Unlock, 0, LOCK_END_MAX), &mut Vec::new()).unwrap();
    assert_eq!(table.held_count(), 0);
}

#[test]
fn a_failed_flock_conversion_gives_up_the_old_lock() {
    let mut table = LockTable::default();
    let flock = |owner, kind| LockRequest { is_flock: true, ..request(1, owner, kind, 0, 0) };
    let mut grants = Vec::new();
    table.lock(ONE, &flock(1, LockKind::Read), &mut grants).unwrap();
    table.lock(ONE, &flock(2, LockKind::Read), &mut grants).unwrap();
    assert_eq!(table.lock(ONE, &flock(1, LockKind::Write), &mut grants), Err(Errno::EAGAIN));
    assert_eq!(table.lock(ONE, &flock(2, LockKind::Write), &mut grants), Ok(()));
    table.lock(ONE, &request(1, 1, LockKind::Write, 0, 9), &mut grants).unwrap();
}

#[test]
fn a_full_table_refuses_and_stays_usable() {
    let limits = LockLimits { held_max: 3, held_per_file_max: 2, waiting_max: 1 };
    let mut table = LockTable::new(limits);
    let mut grants = Vec::new();
    table.lock(ONE, &request(1, 1, LockKind::Write, 0, 9), &mut grants).unwrap();
    table.lock(ONE, &request(1, 1, LockKind::Write, 20, 29), &mut grants).unwrap();
    let third = request(1, 1, LockKind::Write, 40, 49);
    assert_eq!(table.lock(ONE, &third, &mut grants), Err(Errno::ENOLCK));
    let middle = request(1, 1, LockKind::Unlock, 4, 5);
    assert_eq!(table.lock(ONE, &middle, &mut grants), Err(Errno::ENOLCK));
    table.lock(ONE, &request(2, 1, LockKind::Write, 0, 9), &mut grants).unwrap();
    assert_eq!(table.lock(ONE, &request(3, 1, LockKind::Write, 0, 9), &mut grants), Err(Errno::ENOLCK));
    let waits = |ticket| WaitArgs { ticket, is_ofd: false };
    let blocked = request(2, 2, LockKind::Write, 0, 9);
    assert_eq!(table.lock_wait(ONE, &blocked, waits(1), &mut grants), Ok(LockWait::Queued));
    assert_eq!(table.lock_wait(ONE, &blocked, waits(1), &mut grants), Err(Errno::EINVAL));
    assert_eq!(table.lock_wait(ONE, &blocked, waits(2), &mut grants), Err(Errno::ENOLCK));
    table.lock(ONE, &request(1, 1, LockKind::Unlock, 0, 9), &mut grants).unwrap();
    assert_eq!(table.lock(ONE, &third, &mut grants), Ok(()));
    assert!(grants.is_empty());
    table.lock(ONE, &request(2, 1, LockKind::Unlock, 0, 9), &mut grants).unwrap();
    assert_eq!(grants, [LockGrant { wait: WaitId { session: ONE, ticket: 1 }, outcome: Ok(()) }]);
}

#[test]
fn open_file_descriptions_are_no_party_to_a_deadlock() {
    let mut table = LockTable::default();
    let mut grants = Vec::new();
    for owner in [1, 2] {
        table.lock(ONE, &request(1, owner, LockKind::Write, owner, owner), &mut grants).unwrap();
    }
    let wait = |ticket, is_ofd| WaitArgs { ticket, is_ofd };
    let first = request(1, 1, LockKind::Write, 2, 2);
    let second = request(1, 2, LockKind::Write, 1, 1);
    assert_eq!(table.lock_wait(ONE, &first, wait(1, true), &mut grants), Ok(LockWait::Queued));
    assert_eq!(table.lock_wait(ONE, &second, wait(2, false), &mut grants), Ok(LockWait::Queued));
    assert!(table.cancel(ONE, 1) && table.cancel(ONE, 2));
    assert_eq!(table.lock_wait(ONE, &first, wait(1, false), &mut grants), Ok(LockWait::Queued));
    assert_eq!(table.lock_wait(ONE, &second, wait(2, false), &mut grants), Err(Errno::EDEADLK));
}

#[test]
fn malformed_ranges_are_refused() {
    let mut table = LockTable::default();
    for (start, end) in [(5, 4), (0, LOCK_END_MAX + 1)] {
        let wrong = request(1, 1, LockKind::Read, start, end);
        assert_eq!(table.lock(ONE, &wrong, &mut Vec::new()), Err(Errno::EINVAL));
        assert_eq!(table.test(ONE, &wrong), Err(Errno::EINVAL));
    }
    assert_eq!(table.test(ONE, &request(1, 1, LockKind::Unlock, 0, 1)), Err(Errno::EINVAL));
}
