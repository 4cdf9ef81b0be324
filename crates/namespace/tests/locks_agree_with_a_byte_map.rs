//! Random lock calls on the lock table and on a model that keeps one cell per byte and owner; every answer, every grant and the
//! final state must agree. The seed is in the message of a failure.
//!
//! A cell knows through which description it was locked, so that the end of one drops what was. Of a deadlock that may be one only because
//! two descriptions had one address the model says that it is none yet, and checks that what is ended later is one.

#![allow(clippy::unwrap_used)] // The helpers of a test panic as the test does.

use ashlar_namespace::lock::{
    DESCRIPTION_END_MAX, LOCK_END_MAX, LockConflict, LockFrom, LockGrant, LockLimits, LockTable, LockWait,
    WaitArgs, WaitId,
};
use ashlar_types::message::{LockKind, LockRange, LockRequest};
use ashlar_types::{DescriptionId, Errno, InodeId, LockOwner, SessionId};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Bytes the model tells apart; the last one stands for everything behind.
const CELLS: usize = 24;
const SESSIONS: u64 = 3;
const OWNERS: u64 = 2;
const FILES: u64 = 2;
const DESCRIPTIONS: u64 = 2;

type Owner = (u64, u64);

#[derive(Clone, Copy, Debug)]
struct Call {
    owner: Owner,
    through: u64,
    request: LockRequest,
    ticket: u64,
}

impl Call {
    fn from(&self) -> LockFrom {
        LockFrom { session: SessionId(self.owner.0), through: DescriptionId(self.through) }
    }
}

/// One cell per byte for range locks, one for the flock.
#[derive(Default)]
struct ModelFile {
    cells: BTreeMap<Owner, [Option<(LockKind, u64)>; CELLS]>,
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
    /// Who is in the way, and through which description he got there.
    fn blockers_through(&self, call: &Call) -> BTreeSet<(Owner, u64)> {
        let kind = call.request.kind;
        let of_others = self.cells.iter().filter(|(owner, _)| **owner != call.owner);
        of_others
            .flat_map(|(owner, cells)| {
                cells[cells_of(call.request.range)].iter().map(move |cell| (owner, cell))
            })
            .filter_map(|(owner, cell)| cell.map(|(held, through)| (*owner, held, through)))
            .filter(|(_, held, _)| excludes(*held, kind))
            .map(|(owner, _, through)| (owner, through))
            .collect()
    }

    fn blockers(&self, call: &Call) -> BTreeSet<Owner> {
        let kind = call.request.kind;
        if kind == LockKind::Unlock {
            return BTreeSet::new();
        }
        let mut found = BTreeSet::new();
        if call.request.is_flock {
            found.extend(self.flocks.iter().filter(|(_, held)| excludes(**held, kind)).map(|(o, _)| *o));
        } else {
            found.extend(self.blockers_through(call).iter().map(|(owner, _)| *owner));
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
                cells[at] = kept.map(|kind| (kind, call.through));
            }
        }
    }

    /// A description of `owner` ends; tells who is granted.
    fn end_description(&mut self, owner: Owner, ended: u64) -> Vec<WaitId> {
        for cell in self.cells.get_mut(&owner).into_iter().flatten() {
            *cell = cell.filter(|(_, through)| *through != ended);
        }
        self.settle()
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

    /// Whether `call.owner` can be reached from those in its way; if `is_certain`, each by a wait through the description he is in the way
    /// through.
    fn is_deadlock(&mut self, call: &Call, is_certain: bool) -> bool {
        let mut open: Vec<_> = self.file(call.request.inode).blockers_through(call).into_iter().collect();
        let mut seen = BTreeSet::new();
        while let Some((owner, through)) = open.pop() {
            let waits_so = |wait: &Call| wait.owner == owner && (!is_certain || wait.through == through);
            if waits_so(call) {
                return true;
            }
            if seen.insert((owner, through)) {
                for file in self.files.values() {
                    let waits = file.waiting.iter().filter(|w| waits_so(w) && !w.request.is_flock);
                    open.extend(waits.flat_map(|wait| file.blockers_through(wait)));
                }
            }
        }
        false
    }

    /// Ends waits that are part of a deadlock, as `grants` tell.
    fn end_deadlocks(&mut self, grants: &[LockGrant], place: &str) {
        for grant in grants {
            assert_eq!(grant.outcome, Err(Errno::EDEADLK), "{place}");
            let waiting = self.files.values().flat_map(|file| &file.waiting);
            let call = *waiting.into_iter().find(|call| call.ticket == grant.wait.ticket).unwrap();
            assert!(self.is_deadlock(&call, false), "{place}: {call:?} did not wait for itself");
            self.file(call.request.inode).waiting.retain(|known| known.ticket != call.ticket);
        }
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
        let owner = (self.below(SESSIONS), request.owner.0);
        Call { owner, through: self.below(DESCRIPTIONS), request, ticket }
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
        let now = DESCRIPTION_END_MAX * step as u32 / 8;
        match random.below(13) {
            0..=4 => {
                let is_taken = model.file(inode).try_now(&call);
                expected.extend(model.file(inode).settle());
                let outcome = table.lock(call.from(), &call.request, &mut grants);
                assert_eq!(outcome, if is_taken { Ok(()) } else { Err(Errno::EAGAIN) }, "{place}");
            }
            5..=8 if call.request.kind != LockKind::Unlock => {
                let wait = WaitArgs { ticket: step, is_ofd: false, now };
                let wanted = if model.file(inode).try_now(&call) {
                    Ok(LockWait::Granted)
                } else if !call.request.is_flock && model.is_deadlock(&call, true) {
                    Err(Errno::EDEADLK)
                } else {
                    model.file(inode).waiting.push(call);
                    Ok(LockWait::Queued)
                };
                expected.extend(model.file(inode).settle());
                let outcome = table.lock_wait(call.from(), &call.request, wait, &mut grants);
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
                let place = (inode, call.request.is_flock);
                table.release(session, (call.request.owner, None), place, &mut grants);
            }
            11 => {
                expected.extend(model.file(inode).end_description(call.owner, call.through));
                let ended = (call.request.owner, Some(DescriptionId(call.through)));
                table.release(session, ended, (inode, false), &mut grants);
            }
            12 if random.below(2) == 0 => {
                table.end_deadlocks(now, &mut grants);
                model.end_deadlocks(&grants, &place);
                *seen.entry("deadlock later").or_default() += grants.len() as u32;
                grants.clear();
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
    for seed in 0..500 {
        for (what, count) in run(seed, 500) {
            *seen.entry(what).or_default() += count;
        }
    }
    for (what, at_least) in
        [("wait", 500), ("deadlock", 300), ("granted later", 500), ("deadlock later", 100)]
    {
        assert!(seen[what] > at_least, "the calls never led to enough of: {what}: {seen:?}");
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
const FROM: LockFrom = from(1);

const fn from(through: u64) -> LockFrom {
    LockFrom { session: ONE, through: DescriptionId(through) }
}

const fn wait_args(ticket: u64) -> WaitArgs {
    WaitArgs { ticket, is_ofd: false, now: Duration::ZERO }
}

#[test]
fn touching_ranges_of_one_kind_are_one_record() {
    let mut table = LockTable::default();
    for start in [0, 20, 10] {
        table.lock(FROM, &request(1, 1, LockKind::Write, start, start + 9), &mut Vec::new()).unwrap();
    }
    assert_eq!(table.held_count(), 1);
    let conflict = table.test(ONE, &request(1, 2, LockKind::Read, 15, 15)).unwrap().unwrap();
    assert_eq!((conflict.range.start, conflict.range.end, conflict.pid), (0, 29, 1));
    table.lock(FROM, &request(1, 1, LockKind::Read, 10, 19), &mut Vec::new()).unwrap();
    assert_eq!(table.held_count(), 3);
    table.lock(FROM, &request(1, 1, LockKind::Unlock, 0, LOCK_END_MAX), &mut Vec::new()).unwrap();
    assert_eq!(table.held_count(), 0);
}

#[test]
fn a_failed_flock_conversion_gives_up_the_old_lock() {
    let mut table = LockTable::default();
    let flock = |owner, kind| LockRequest { is_flock: true, ..request(1, owner, kind, 0, 0) };
    let mut grants = Vec::new();
    table.lock(FROM, &flock(1, LockKind::Read), &mut grants).unwrap();
    table.lock(FROM, &flock(2, LockKind::Read), &mut grants).unwrap();
    assert_eq!(table.lock(FROM, &flock(1, LockKind::Write), &mut grants), Err(Errno::EAGAIN));
    assert_eq!(table.lock(FROM, &flock(2, LockKind::Write), &mut grants), Ok(()));
    table.lock(FROM, &request(1, 1, LockKind::Write, 0, 9), &mut grants).unwrap();
}

#[test]
fn a_full_table_refuses_and_stays_usable() {
    let limits = LockLimits { held_max: 3, held_per_file_max: 2, waiting_max: 1 };
    let mut table = LockTable::new(limits);
    let mut grants = Vec::new();
    table.lock(FROM, &request(1, 1, LockKind::Write, 0, 9), &mut grants).unwrap();
    table.lock(FROM, &request(1, 1, LockKind::Write, 20, 29), &mut grants).unwrap();
    let third = request(1, 1, LockKind::Write, 40, 49);
    assert_eq!(table.lock(FROM, &third, &mut grants), Err(Errno::ENOLCK));
    let middle = request(1, 1, LockKind::Unlock, 4, 5);
    assert_eq!(table.lock(FROM, &middle, &mut grants), Err(Errno::ENOLCK));
    table.lock(FROM, &request(2, 1, LockKind::Write, 0, 9), &mut grants).unwrap();
    assert_eq!(table.lock(FROM, &request(3, 1, LockKind::Write, 0, 9), &mut grants), Err(Errno::ENOLCK));
    let blocked = request(2, 2, LockKind::Write, 0, 9);
    assert_eq!(table.lock_wait(FROM, &blocked, wait_args(1), &mut grants), Ok(LockWait::Queued));
    assert_eq!(table.lock_wait(FROM, &blocked, wait_args(1), &mut grants), Err(Errno::EINVAL));
    assert_eq!(table.lock_wait(FROM, &blocked, wait_args(2), &mut grants), Err(Errno::ENOLCK));
    table.lock(FROM, &request(1, 1, LockKind::Unlock, 0, 9), &mut grants).unwrap();
    assert_eq!(table.lock(FROM, &third, &mut grants), Ok(()));
    assert!(grants.is_empty());
    table.lock(FROM, &request(2, 1, LockKind::Unlock, 0, 9), &mut grants).unwrap();
    assert_eq!(grants, [LockGrant { wait: WaitId { session: ONE, ticket: 1 }, outcome: Ok(()) }]);
}

#[test]
fn open_file_descriptions_are_no_party_to_a_deadlock() {
    let mut table = LockTable::default();
    let mut grants = Vec::new();
    for owner in [1, 2] {
        table.lock(FROM, &request(1, owner, LockKind::Write, owner, owner), &mut grants).unwrap();
    }
    let wait = |ticket, is_ofd| WaitArgs { is_ofd, ..wait_args(ticket) };
    let first = request(1, 1, LockKind::Write, 2, 2);
    let second = request(1, 2, LockKind::Write, 1, 1);
    assert_eq!(table.lock_wait(FROM, &first, wait(1, true), &mut grants), Ok(LockWait::Queued));
    assert_eq!(table.lock_wait(FROM, &second, wait(2, false), &mut grants), Ok(LockWait::Queued));
    assert!(table.cancel(ONE, 1) && table.cancel(ONE, 2));
    assert_eq!(table.lock_wait(FROM, &first, wait(1, false), &mut grants), Ok(LockWait::Queued));
    assert_eq!(table.lock_wait(FROM, &second, wait(2, false), &mut grants), Err(Errno::EDEADLK));
}

#[test]
fn the_end_of_a_description_leaves_what_another_has_locked_at_its_address() {
    let mut table = LockTable::default();
    let mut grants = Vec::new();
    let lock = |start, end| request(1, 1, LockKind::Write, start, end);
    table.lock(from(1), &lock(0, 19), &mut grants).unwrap();
    // It overlaps and touches, and is a lock of its own; but whoever asks sees one.
    table.lock(from(2), &lock(10, 29), &mut grants).unwrap();
    table.lock(from(1), &lock(30, 39), &mut grants).unwrap();
    assert_eq!(table.held_count(), 3);
    for at in [0, 15, 35] {
        let conflict = table.test(ONE, &request(1, 2, LockKind::Read, at, at)).unwrap().unwrap();
        assert_eq!((conflict.range.start, conflict.range.end), (0, 39));
    }
    table.release(ONE, (LockOwner(1), Some(DescriptionId(1))), (InodeId(1), false), &mut grants);
    let conflict = table.test(ONE, &request(1, 2, LockKind::Write, 0, 99)).unwrap().unwrap();
    assert_eq!((conflict.range.start, conflict.range.end), (10, 29));
    table.release(ONE, (LockOwner(1), None), (InodeId(1), false), &mut grants);
    assert_eq!(table.held_count(), 0);
}

#[test]
fn a_cycle_of_names_that_descriptions_had_one_after_the_other_is_no_deadlock() {
    let mut table = LockTable::default();
    let mut grants = Vec::new();
    let lock = |owner, kind| request(1, owner, kind, 0, 9);
    // 11 and 12 are closed and have not been told of; 21 and 22 are at their addresses and have nothing yet.
    table.lock(from(11), &lock(1, LockKind::Read), &mut grants).unwrap();
    table.lock(from(12), &lock(2, LockKind::Read), &mut grants).unwrap();
    let mut wait = |through, owner, ticket| {
        table.lock_wait(from(through), &lock(owner, LockKind::Write), wait_args(ticket), &mut Vec::new())
    };
    assert_eq!(wait(21, 1, 1), Ok(LockWait::Queued));
    assert_eq!(wait(22, 2, 2), Ok(LockWait::Queued), "nobody waits for himself");
    table.end_deadlocks(DESCRIPTION_END_MAX / 2, &mut grants);
    assert!(grants.is_empty());
    for (owner, ended) in [(1, 11), (2, 12)] {
        let ended = (LockOwner(owner), Some(DescriptionId(ended)));
        table.release(ONE, ended, (InodeId(1), false), &mut grants);
    }
    let grant = |ticket, outcome| LockGrant { wait: WaitId { session: ONE, ticket }, outcome };
    // The second was free as soon as the first description was gone; what it has now is the first's turn after it.
    assert_eq!(grants, [grant(2, Ok(()))]);
    table.end_deadlocks(2 * DESCRIPTION_END_MAX, &mut grants);
    assert_eq!(grants.len(), 1, "it was none");
    table.release(ONE, (LockOwner(2), Some(DescriptionId(22))), (InodeId(1), false), &mut grants);
    assert_eq!(grants[1..], [grant(1, Ok(()))]);
}

#[test]
fn processes_that_lock_through_several_descriptors_are_told_of_a_deadlock_a_moment_later() {
    let mut table = LockTable::default();
    let mut grants = Vec::new();
    for (owner, through) in [(1, 11), (2, 21)] {
        table.lock(from(through), &request(owner, owner, LockKind::Write, 0, 9), &mut grants).unwrap();
    }
    let mut wait = |through, (inode, owner), ticket| {
        let wanted = request(inode, owner, LockKind::Write, 0, 9);
        table.lock_wait(from(through), &wanted, wait_args(ticket), &mut Vec::new())
    };
    assert_eq!(wait(12, (2, 1), 1), Ok(LockWait::Queued));
    assert_eq!(wait(22, (1, 2), 2), Ok(LockWait::Queued));
    table.end_deadlocks(DESCRIPTION_END_MAX / 2, &mut grants);
    assert!(grants.is_empty());
    table.end_deadlocks(DESCRIPTION_END_MAX, &mut grants);
    let told = LockGrant { wait: WaitId { session: ONE, ticket: 2 }, outcome: Err(Errno::EDEADLK) };
    assert_eq!(grants, [told]);
    assert_eq!(table.waiting_count(), 1);
    table.release(ONE, (LockOwner(2), None), (InodeId(2), false), &mut grants);
    assert_eq!(grants[1], LockGrant { wait: WaitId { session: ONE, ticket: 1 }, outcome: Ok(()) });
}

/// Two processes that hold one file each, of which the first waits for the second's; and the request of the second that closes the circle.
fn nearly_a_deadlock() -> (LockTable, LockRequest) {
    let mut table = LockTable::default();
    for (owner, through) in [(1, 11), (2, 21)] {
        let held = request(owner, owner, LockKind::Write, 0, 9);
        table.lock(from(through), &held, &mut Vec::new()).unwrap();
    }
    let first = request(2, 1, LockKind::Write, 0, 9);
    assert_eq!(table.lock_wait(from(12), &first, wait_args(1), &mut Vec::new()), Ok(LockWait::Queued));
    (table, request(1, 2, LockKind::Write, 0, 9))
}

fn deadlock(ticket: u64) -> LockGrant {
    LockGrant { wait: WaitId { session: ONE, ticket }, outcome: Err(Errno::EDEADLK) }
}

#[test]
fn a_deadlock_is_told_though_signals_interrupt_the_wait_again_and_again() {
    let (mut table, second) = nearly_a_deadlock();
    let mut grants = Vec::new();
    let step = DESCRIPTION_END_MAX / 4;
    for turn in 0..5 {
        let ticket = 2 + u64::from(turn);
        let args = WaitArgs { now: turn * step, ..wait_args(ticket) };
        assert_eq!(table.lock_wait(from(22), &second, args, &mut grants), Ok(LockWait::Queued));
        table.end_deadlocks(turn * step, &mut grants);
        if turn < 4 {
            assert!(grants.is_empty(), "{turn}");
            assert!(table.cancel(ONE, ticket));
        } else {
            assert_eq!(grants, [deadlock(ticket)]);
        }
    }
}

#[test]
fn a_wait_that_was_given_up_long_ago_says_nothing_of_one_that_begins_now() {
    let (mut table, second) = nearly_a_deadlock();
    let mut grants = Vec::new();
    table.lock_wait(from(22), &second, wait_args(2), &mut grants).unwrap();
    assert!(table.cancel(ONE, 2));
    for turn in 1..3 {
        table.end_deadlocks(turn * DESCRIPTION_END_MAX, &mut grants);
    }
    let now = 2 * DESCRIPTION_END_MAX;
    table.lock_wait(from(22), &second, WaitArgs { now, ..wait_args(3) }, &mut grants).unwrap();
    table.end_deadlocks(now, &mut grants);
    assert!(grants.is_empty());
}

#[test]
fn a_deadlock_is_told_though_a_lock_of_it_is_taken_anew_meanwhile() {
    let (mut table, second) = nearly_a_deadlock();
    let mut grants = Vec::new();
    table.lock_wait(from(22), &second, wait_args(2), &mut grants).unwrap();
    // Through another description: it may be somebody else's.
    table.lock(from(13), &request(1, 1, LockKind::Write, 0, 9), &mut grants).unwrap();
    table.end_deadlocks(DESCRIPTION_END_MAX, &mut grants);
    assert!(grants.is_empty());
    // Through the same: nothing new.
    table.lock(from(13), &request(1, 1, LockKind::Write, 2, 5), &mut grants).unwrap();
    table.end_deadlocks(2 * DESCRIPTION_END_MAX, &mut grants);
    assert_eq!(grants, [deadlock(2)]);
}

#[test]
fn malformed_ranges_are_refused() {
    let mut table = LockTable::default();
    for (start, end) in [(5, 4), (0, LOCK_END_MAX + 1)] {
        let wrong = request(1, 1, LockKind::Read, start, end);
        assert_eq!(table.lock(FROM, &wrong, &mut Vec::new()), Err(Errno::EINVAL));
        assert_eq!(table.test(ONE, &wrong), Err(Errno::EINVAL));
    }
    assert_eq!(table.test(ONE, &request(1, 1, LockKind::Unlock, 0, 1)), Err(Errno::EINVAL));
}
