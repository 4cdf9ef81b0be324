//! Goal: a bug in a service that ends one call by a panic does not take more with it than that call: the file it was about can be read, written,
//! cut and closed afterwards, at once, and holds what was acknowledged. Method: each call of a run of work panics once, before it is carried out or after.
#![allow(clippy::unwrap_used)] // the helpers of a test panic as the test does

mod support;

use ashlar_client::{Client, Handle, OpenFlags, Who, WriteFlags};
use ashlar_rpc::{Caller, MetaCalls, Payload, SessionEvents, SessionGrant, StorageCalls};
use ashlar_types::message::{MetaReply, MetaRequest, SetAttr, StorageReply, StorageRequest};
use ashlar_types::{Errno, SessionId};
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any, resume_unwind, set_hook, take_hook};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::SeqCst};
use std::time::{Duration, Instant};
use support::{KIB64, World, content, make, read};

/// Far less than anybody would wait for what never comes.
const PATIENCE: Duration = Duration::from_secs(10);

/// What a panic of this test carries.
struct Planned;

/// Counts calls down, and panics at one.
struct Countdown {
    left: AtomicI64,
    is_after: bool,
}

impl Countdown {
    fn around<T>(&self, call: impl FnOnce() -> T) -> T {
        let is_it = self.left.fetch_sub(1, SeqCst) == 0;
        if is_it && !self.is_after {
            panic_any(Planned);
        }
        let done = call();
        if is_it {
            panic_any(Planned);
        }
        done
    }
}

struct Fragile<T: ?Sized> {
    service: Arc<T>,
    countdown: Arc<Countdown>,
}

impl MetaCalls for Fragile<dyn MetaCalls> {
    fn open_session(&self, events: Arc<dyn SessionEvents>) -> Result<SessionGrant, Errno> {
        self.service.open_session(events)
    }
    fn close_session(&self, session: SessionId) {
        self.service.close_session(session);
    }
    fn call(&self, caller: Caller<'_>, request: MetaRequest<'_>) -> Result<MetaReply, Errno> {
        self.countdown.around(|| self.service.call(caller, request))
    }
}

impl StorageCalls for Fragile<dyn StorageCalls> {
    fn call(&self, request: &StorageRequest, payload: Payload<'_>) -> Result<StorageReply, Errno> {
        self.countdown.around(|| self.service.call(request, payload))
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Append(usize),
    /// From the start.
    Write(usize),
    Cut(usize),
    Sync,
}

/// Goes through the inode, chunks and back.
const STEPS: [Step; 10] = [
    Step::Append(100),
    Step::Append(50),
    Step::Write(3 * KIB64),
    Step::Append(1000),
    Step::Sync,
    Step::Append(1000),
    Step::Cut(50_000),
    Step::Append(1000),
    Step::Cut(0),
    Step::Append(700),
];

impl Step {
    fn run(self, client: &Client, file: &Handle, seed: usize) -> Result<(), Errno> {
        let written = |len: usize, taken: usize| if taken == len { Ok(()) } else { Err(Errno::EIO) };
        match self {
            Step::Append(len) => {
                let flags = WriteFlags { append: Some(true), ..WriteFlags::default() };
                written(len, client.write(file, 0, &content(seed, len), flags)?)
            }
            Step::Write(len) => {
                written(len, client.write(file, 0, &content(seed, len), WriteFlags::default())?)
            }
            Step::Cut(len) => {
                let changes = SetAttr { size: Some(len as u64), ..SetAttr::default() };
                client.setattr(&Who::system(), file.file.inode, Some(file), changes).map(drop)
            }
            Step::Sync => client.fsync(file),
        }
    }

    fn apply(self, bytes: &mut Vec<u8>, seed: usize) {
        match self {
            Step::Append(len) => bytes.extend(content(seed, len)),
            Step::Write(len) => {
                bytes.resize(bytes.len().max(len), 0);
                bytes[..len].copy_from_slice(&content(seed, len));
            }
            Step::Cut(len) => bytes.resize(len, 0),
            Step::Sync => {}
        }
    }

    /// Whether `now` can be what is there when this step ended half done on `before`.
    fn may_leave(self, before: &[u8], now: &[u8]) -> bool {
        match self {
            Step::Append(len) => now.starts_with(before) && now.len() <= before.len() + len,
            Step::Write(len) => now.get(len..).unwrap_or_default() == before.get(len..).unwrap_or_default(),
            Step::Cut(len) => now == before || now == &before[..len],
            Step::Sync => now == before,
        }
    }
}

/// Runs `work`, which may panic as planned.
fn attempt<T>(work: impl FnOnce() -> T) -> Option<T> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(done) => Some(done),
        Err(payload) if payload.is::<Planned>() => None,
        Err(payload) => resume_unwind(payload),
    }
}

/// The whole file; a second time if the first one panics.
fn whole(client: &Client, file: &Handle) -> Vec<u8> {
    let bytes = || read(client, file, 4 * KIB64);
    attempt(bytes).unwrap_or_else(bytes)
}

/// Lengths and the place of the first difference.
fn difference(left: &[u8], right: &[u8]) -> Option<(usize, usize, Option<usize>)> {
    let place = left.iter().zip(right).position(|(left, right)| left != right);
    (left != right).then_some((left.len(), right.len(), place))
}

/// Does all steps with a panic at call `at`; tells whether it came.
fn survives(at: i64, is_after: bool) -> bool {
    let world = World::new(48 << 20);
    let countdown = Arc::new(Countdown { left: AtomicI64::new(i64::MAX), is_after });
    let meta: Arc<dyn MetaCalls> = world.meta.clone();
    let storage: Arc<dyn StorageCalls> = world.storage.clone();
    let meta = Arc::new(Fragile { service: meta, countdown: countdown.clone() });
    let storage = Arc::new(Fragile { service: storage, countdown: countdown.clone() });
    let client = world.client_through(meta, storage);
    let file = make(&client, "f").unwrap();
    countdown.left.store(at, SeqCst);
    let mut bytes = Vec::new();
    for (seed, step) in STEPS.into_iter().enumerate() {
        let begun = Instant::now();
        match attempt(|| step.run(&client, &file, seed)) {
            Some(done) => {
                done.unwrap_or_else(|errno| panic!("{step:?}, a panic at call {at}: {errno}"));
                step.apply(&mut bytes, seed);
            }
            None => {
                let now = whole(&client, &file);
                assert!(step.may_leave(&bytes, &now), "{step:?} left {} of {}", now.len(), bytes.len());
                bytes = now;
            }
        }
        assert_eq!(difference(&whole(&client, &file), &bytes), None, "after {step:?}, panic at call {at}");
        assert!(begun.elapsed() < PATIENCE, "{step:?} waits, panic at call {at}");
    }
    let has_come = countdown.left.swap(i64::MAX, SeqCst) < 0;
    // Another mount gets all of it, and so does whoever opens it when everybody has closed it.
    let flags = OpenFlags { read: true, ..OpenFlags::default() };
    let other = world.client();
    let seen = || {
        let opened = other.open(&Who::system(), file.file.inode, flags).unwrap().handle;
        let bytes = read(&other, &opened, 4 * KIB64);
        other.release(&opened);
        bytes
    };
    assert_eq!(difference(&seen(), &bytes), None, "through another mount, panic at call {at}");
    client.release(&file);
    assert_eq!(difference(&seen(), &bytes), None, "after the close, panic at call {at}");
    has_come
}

#[test]
fn whichever_call_it_is() {
    let print = take_hook();
    set_hook(Box::new(move |info| {
        if !info.payload().is::<Planned>() {
            print(info);
        }
    }));
    for is_after in [false, true] {
        let calls = (0..).take_while(|&at| survives(at, is_after)).count();
        assert!(calls > STEPS.len(), "{calls} calls");
    }
}
