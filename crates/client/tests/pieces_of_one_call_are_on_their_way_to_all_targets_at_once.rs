//! Goal: one read, write or sync of a file that is striped over targets has all of them at work at the same time: each target that waits for the one before has an idle
//! link. What fails in the middle leaves nothing behind the end of the file. Method: eight targets whose calls wait until all have come, or one of which fails when all others
//! are done.
#![allow(clippy::unwrap_used)] // the helpers of a test panic as the test does

mod support;

use ashlar_client::{Client, Handle, Who, WriteFlags};
use ashlar_rpc::{Payload, StorageCalls};
use ashlar_types::message::{SetAttr, StorageReply, StorageRequest};
use ashlar_types::{Errno, LayoutPolicy, TargetId};
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::time::{Duration, Instant};
use support::{KIB64, World, content, eventually, make, read, write};

const TARGETS: usize = 8;
/// With what a write begins whose answer is held back.
const HELD: u8 = 0xCD;
/// Far longer than it takes for calls that are made at the same time to come.
const PATIENCE: Duration = Duration::from_secs(10);

/// What is done to calls.
#[derive(Clone, Copy)]
enum Rule {
    Pass,
    /// Calls of a kind wait until there is one at every target.
    Meet(fn(&StorageRequest) -> bool),
    /// Writes to the target fail once so many were carried out elsewhere; those of [`HELD`] are answered when there is one more.
    Fail(TargetId, Errno, usize),
    /// Calls of a kind are not answered, all of them from the moment on at which so many have come.
    Hang(fn(&StorageRequest) -> bool, usize),
}

struct Targets {
    storage: Arc<dyn StorageCalls>,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    rule: Rule,
    /// Calls that have come under the rule; under [`Rule::Fail`] writes that were carried out.
    come: usize,
    most_at_once: usize,
    under_way: usize,
    /// Chunks in which something was punched, by number; and searches for chunks.
    punched: Vec<u64>,
    searches: usize,
}

impl State {
    fn of(rule: Rule) -> State {
        State { rule, come: 0, most_at_once: 0, under_way: 0, punched: Vec::new(), searches: 0 }
    }
}

impl Targets {
    fn set(&self, rule: Rule) {
        *self.state.lock() = State::of(rule);
    }

    /// Waits until so many have come.
    fn await_come(&self, count: usize) {
        let end = Instant::now() + PATIENCE;
        let mut state = self.state.lock();
        while state.come < count && !self.changed.wait_until(&mut state, end).timed_out() {}
    }

    fn come(&self) {
        self.state.lock().come += 1;
        self.changed.notify_all();
    }
}

impl StorageCalls for Targets {
    fn call(&self, request: &StorageRequest, payload: Payload<'_>) -> Result<StorageReply, Errno> {
        let mut state = self.state.lock();
        match request {
            StorageRequest::Punch { chunk, .. } => state.punched.push(chunk.index),
            StorageRequest::NextChunk { .. } => state.searches += 1,
            _ => {}
        }
        let rule = state.rule;
        drop(state);
        match rule {
            Rule::Meet(is_meant) if is_meant(request) => {
                let mut state = self.state.lock();
                state.under_way += 1;
                state.most_at_once = state.most_at_once.max(state.under_way);
                drop(state);
                self.come();
                self.await_come(TARGETS);
                let reply = self.storage.call(request, payload);
                self.state.lock().under_way -= 1;
                reply
            }
            Rule::Fail(target, errno, after) if matches!(request, StorageRequest::Write { .. }) => {
                if request.target() == target {
                    self.await_come(after);
                    return Err(errno);
                }
                let is_held = matches!(&payload, Payload::Write(data) if data[0] == HELD);
                let reply = self.storage.call(request, payload);
                self.come();
                if is_held {
                    self.await_come(after + 1);
                }
                reply
            }
            Rule::Hang(is_meant, count) if is_meant(request) => {
                self.come();
                self.await_come(count);
                Err(Errno::ETIMEDOUT)
            }
            _ => self.storage.call(request, payload),
        }
    }
}

struct Striped {
    client: Arc<Client>,
    targets: Arc<Targets>,
    file: Arc<Handle>,
    world: World,
}

/// A file over all targets, with `len` bytes of the first content.
fn striped(len: usize) -> Striped {
    let world = World::with_more_targets(256 << 20, &[256 << 20; TARGETS - 1]);
    let state = State::of(Rule::Pass);
    let targets = Arc::new(Targets {
        storage: world.storage.clone(),
        state: Mutex::new(state),
        changed: Condvar::new(),
    });
    let client = world.client_through(world.meta.clone(), targets.clone());
    let policy = LayoutPolicy { stripe_count: Some(0), ..LayoutPolicy::default() };
    client.layout_set(&Who::system(), ashlar_types::InodeId::ROOT, policy).unwrap();
    let file = make(&client, "f").unwrap();
    write(&client, &file, 0, &content(1, len)).unwrap();
    Striped { client, targets, file, world }
}

/// The target that has the chunk `index`.
fn target_of(striped: &Striped, index: u64) -> TargetId {
    let shown = striped.client.layout_show(&Who::system(), striped.file.file.inode).unwrap();
    TargetId(shown.1.unwrap().chain(index).0 + 1)
}

fn size(striped: &Striped) -> u64 {
    striped.client.getattr(&Who::system(), striped.file.file.inode).unwrap().attr.size
}

const STRIPE: usize = TARGETS * KIB64;

#[test]
fn a_write_a_read_and_a_sync_are_at_all_targets_at_once() {
    let striped = striped(STRIPE);
    let Striped { client, targets, file, .. } = &striped;
    let at_once = |what: &str| assert_eq!(targets.state.lock().most_at_once, TARGETS, "{what}");
    targets.set(Rule::Meet(|request| matches!(request, StorageRequest::Write { .. })));
    assert_eq!(client.write(file, STRIPE as u64, &content(2, STRIPE), WriteFlags::default()), Ok(STRIPE));
    at_once("write");
    targets.set(Rule::Meet(|request| matches!(request, StorageRequest::Sync { .. })));
    client.fsync(file).unwrap();
    at_once("fsync");
    targets.set(Rule::Meet(|request| matches!(request, StorageRequest::Read { .. })));
    let mut out = vec![0; STRIPE];
    assert_eq!(client.read(file, STRIPE as u64, &mut out), Ok(STRIPE));
    at_once("read");
    assert!(out == content(2, STRIPE));
}

#[test]
fn a_piece_that_fails_cuts_the_write_short_and_what_is_behind_it_goes() {
    for errno in [Errno::ENOSPC, Errno::EIO] {
        let striped = striped(STRIPE);
        let Striped { client, targets, file, .. } = &striped;
        let failing = target_of(&striped, 3);
        targets.set(Rule::Fail(failing, errno, TARGETS - 1));
        let taken = client.write(file, STRIPE as u64, &[0xAB; STRIPE], WriteFlags::default());
        assert_eq!(taken, Ok(3 * KIB64), "{errno}: what is there in front of it");
        let state = targets.state.lock();
        assert_eq!(state.come, TARGETS - 1, "{errno}: all others were written");
        let first = TARGETS as u64;
        assert_eq!(state.punched, Vec::from_iter(first + 4..2 * first), "{errno}: what it has written");
        assert_eq!(state.searches, 0, "{errno}: what it has written is known");
        drop(state);
        targets.set(Rule::Pass);
        let end = STRIPE + 3 * KIB64;
        assert_eq!(size(&striped), end as u64, "{errno}");
        let longer = SetAttr { size: Some(3 * STRIPE as u64), ..SetAttr::default() };
        client.setattr(&Who::system(), file.file.inode, Some(file), longer).unwrap();
        let all = read(client, file, 3 * STRIPE);
        assert!(all[..STRIPE] == content(1, STRIPE) && all[STRIPE..end].iter().all(|byte| *byte == 0xAB));
        assert!(all[end..].iter().all(|byte| *byte == 0), "{errno}: bytes nobody has acknowledged show");
    }
}

#[test]
fn bytes_that_were_in_the_file_stay_in_it_where_a_write_over_them_fails() {
    let striped = striped(STRIPE + KIB64);
    let Striped { client, targets, file, .. } = &striped;
    targets.set(Rule::Fail(target_of(&striped, 5), Errno::EIO, TARGETS - 1));
    let taken = client.write(file, 1000, &vec![0xAB; 2 * STRIPE], WriteFlags::default());
    assert_eq!(taken, Ok(5 * KIB64 - 1000));
    targets.set(Rule::Pass);
    assert_eq!(size(&striped), (STRIPE + KIB64) as u64);
    let (all, old) = (read(client, file, 3 * STRIPE), content(1, STRIPE + KIB64));
    assert_eq!(all.len(), old.len());
    assert!(all[..1000] == old[..1000] && all[1000..5 * KIB64].iter().all(|byte| *byte == 0xAB));
    let is_of_either = all.iter().zip(&old).all(|(now, old)| now == old || *now == 0xAB);
    assert!(is_of_either, "neither old nor new");
    assert!(all[5 * KIB64..6 * KIB64] == old[5 * KIB64..6 * KIB64], "the piece that failed");
}

#[test]
fn where_another_write_is_under_way_behind_the_end_nothing_is_taken_from_it() {
    let striped = striped(STRIPE);
    let Striped { client, targets, file, .. } = &striped;
    targets.set(Rule::Fail(target_of(&striped, 3), Errno::EIO, TARGETS));
    // The one that fails does so when the other, over the same bytes, is done and not answered yet.
    std::thread::scope(|scope| {
        let failing =
            scope.spawn(|| client.write(file, STRIPE as u64, &[0xAB; STRIPE], WriteFlags::default()));
        eventually(|| targets.state.lock().come >= TARGETS - 1);
        let place = (STRIPE + 6 * KIB64) as u64;
        let beside = scope.spawn(move || client.write(file, place, &[HELD; KIB64], WriteFlags::default()));
        assert_eq!(failing.join().unwrap(), Ok(3 * KIB64));
        targets.come();
        assert_eq!(beside.join().unwrap(), Ok(KIB64));
    });
    targets.set(Rule::Pass);
    let all = read(client, file, 3 * STRIPE);
    assert!(all[STRIPE + 6 * KIB64..STRIPE + 7 * KIB64].iter().all(|byte| *byte == HELD));
}

/// Each has all the time that the mount waits: one after another would take it many times over.
#[test]
fn no_piece_is_begun_after_one_that_nobody_answers() {
    // More than can be under way at once for one call: 31 helpers and the caller.
    const PIECES: usize = 80;
    const AT_ONCE: usize = 32;
    let striped = striped(PIECES * KIB64);
    let Striped { client, targets, file, .. } = &striped;
    targets.set(Rule::Hang(|request| matches!(request, StorageRequest::Read { .. }), AT_ONCE));
    assert_eq!(client.read(file, 0, &mut vec![0; PIECES * KIB64]), Err(Errno::ETIMEDOUT));
    assert_eq!(targets.state.lock().come, AT_ONCE);
    targets.set(Rule::Hang(|request| matches!(request, StorageRequest::Write { .. }), AT_ONCE));
    let taken = client.write(file, 0, &[0xAB; PIECES * KIB64], WriteFlags::default());
    assert_eq!(taken, Err(Errno::ETIMEDOUT));
    assert_eq!(targets.state.lock().come, AT_ONCE);
}

/// The target may answer other calls as late, and all who use the file would wait for it.
#[test]
fn a_file_waits_for_no_target_where_a_piece_was_not_answered() {
    let striped = striped(STRIPE);
    let Striped { client, targets, file, .. } = &striped;
    targets.set(Rule::Fail(target_of(&striped, 3), Errno::ETIMEDOUT, TARGETS - 1));
    let taken = client.write(file, STRIPE as u64, &[0xAB; STRIPE], WriteFlags::default());
    assert_eq!(taken, Ok(3 * KIB64));
    let state = targets.state.lock();
    assert_eq!((state.punched.len(), state.searches), (0, 0));
    drop(state);
    targets.set(Rule::Pass);
    assert_eq!(size(&striped), 2 * STRIPE as u64, "it shows now what would show later");
    let all = read(client, file, 3 * STRIPE);
    assert!(all[STRIPE + 3 * KIB64..][..KIB64].iter().all(|byte| *byte == 0), "the piece that failed");
    assert!(all[STRIPE + 4 * KIB64..].iter().all(|byte| *byte == 0xAB));
}

#[test]
fn a_file_is_no_longer_for_pieces_that_nobody_answers() {
    let striped = striped(STRIPE);
    let Striped { client, targets, file, .. } = &striped;
    targets.set(Rule::Hang(|request| matches!(request, StorageRequest::Write { .. }), TARGETS));
    let taken = client.write(file, STRIPE as u64, &[0xAB; STRIPE], WriteFlags::default());
    assert_eq!(taken, Err(Errno::ETIMEDOUT));
    assert_eq!(size(&striped), STRIPE as u64);
}

#[test]
fn a_write_that_makes_the_file_longer_is_a_change_though_no_byte_of_it_counts() {
    let striped = striped(STRIPE);
    let Striped { client, targets, file, world } = &striped;
    client.fsync(file).unwrap();
    world.clock.advance(Duration::from_secs(100));
    targets.set(Rule::Fail(target_of(&striped, 0), Errno::ETIMEDOUT, TARGETS - 1));
    let taken = client.write(file, STRIPE as u64, &[0xAB; STRIPE], WriteFlags::default());
    assert_eq!(taken, Err(Errno::ETIMEDOUT));
    targets.set(Rule::Pass);
    client.fsync(file).unwrap();
    let attr = world.client().getattr(&Who::system(), file.file.inode).unwrap().attr;
    assert_eq!(attr.size, 2 * STRIPE as u64);
    assert_eq!(attr.mtime.secs, 1_700_000_100, "the time of that write");
}
