//! Goal: a server that died, or hangs, just after it has handed something over holds up no call: who waits for it goes where the map says, at once. Method: servers over TLS of which the first answers
//! nothing or is not there, and a map that changes while callers wait. The same for a server that another machine goes on for, under the same name at another address.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use ashlar_rpc::net::frame::Frame;
use ashlar_rpc::net::{Call, Endpoint, NetError, Peer, Replier, Service, Watch};
use ashlar_rpc::remote::{Patience, RemoteStorage, Routes};
use ashlar_rpc::{OtherTargets, Payload, StorageCalls};
use ashlar_types::codec::encode;
use ashlar_types::message::{StorageReply, StorageRequest};
use ashlar_types::{ChainId, ChunkId, Epoch, Errno, InodeId, OfChains, Role, TargetId};
use parking_lot::{Mutex, RwLock};
use smallvec::smallvec;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::time::{Duration, Instant};
use support::two_servers::{Hung, map};
use support::{Authority, Echo, any_port, caller, link, link_to, serve};

/// For how long a caller waits at the most: no call may come near that.
const PATIENCE: Duration = Duration::from_secs(60);
/// In what time a call has to be where the map says.
const AT_ONCE: Duration = Duration::from_secs(5);

/// Says of everything that it is done.
struct Done;

impl Endpoint for Done {
    fn serve(&self, _: &Peer, _: Frame, replier: Replier) {
        let answer: Result<StorageReply, Errno> = Ok(StorageReply::Done);
        replier.reply(&encode(&answer), &[]);
    }
}

/// Says after a while of everything that it is done.
struct Slow(Duration);

impl Endpoint for Slow {
    fn serve(&self, peer: &Peer, frame: Frame, replier: Replier) {
        std::thread::sleep(self.0);
        Done.serve(peer, frame, replier);
    }
}

/// Has too much to do until it is told that it has not.
#[derive(Default)]
struct Crowded {
    is_over: AtomicBool,
    refused: AtomicU32,
}

impl Endpoint for Crowded {
    fn serve(&self, peer: &Peer, frame: Frame, replier: Replier) {
        if self.is_over.load(SeqCst) {
            return Done.serve(peer, frame, replier);
        }
        self.refused.fetch_add(1, SeqCst);
        let answer: Result<StorageReply, Errno> = Err(Errno::EBUSY);
        replier.reply(&encode(&answer), &[]);
    }
}

/// Calls a first server at `first` for a chain that is handed over while that does not answer; tells how long after that each is answered, and how.
fn hand_over(authority: &Authority, first: SocketAddr) -> Vec<(Duration, Result<StorageReply, Errno>)> {
    let (_second, address) = serve(authority.issue(2, &[Role::Storage]), Arc::new(Done), any_port());
    let before = map(authority, [first, address]);
    let mut after = before.clone();
    (after.epoch, after.chains[0].targets) = (Epoch(2), smallvec![TargetId(2)]);
    let map = Arc::new(RwLock::new(Arc::new(before)));
    let routes = Routes::new(caller(authority.issue(7, &[Role::Meta]), Role::Meta), map.clone());
    let storage = RemoteStorage::new(Arc::new(routes), Patience::new(PATIENCE));
    let (target, chain, chunk_bytes, len) = (TargetId(1), ChainId(0), 65536, 0);
    let chunk = ChunkId { inode: InodeId(5), generation: 1, index: 0 };
    let chains = || OfChains::Only(smallvec![chain]);
    let requests = [
        StorageRequest::Truncate { target, chunk, chain, chunk_bytes, len },
        StorageRequest::Sync { target, chains: chains() },
        StorageRequest::Extent { target, inode: InodeId(5), generation: 1, chains: chains() },
    ];
    let moved = Mutex::new(None);
    std::thread::scope(|scope| {
        // More than there are connections, so that some wait for others to make them.
        let calls: Vec<_> = (0..4 * requests.len())
            .map(|at| {
                let (storage, moved, request) = (&storage, &moved, &requests[at % requests.len()]);
                scope.spawn(move || {
                    let outcome = storage.call(request, Payload::None);
                    let moved: Option<Instant> = *moved.lock();
                    (moved.expect("nobody answers before").elapsed(), outcome)
                })
            })
            .collect();
        std::thread::sleep(Duration::from_millis(1500));
        *moved.lock() = Some(Instant::now());
        *map.write() = Arc::new(after);
        calls.into_iter().map(|call| call.join().unwrap()).collect()
    })
}

#[track_caller]
fn require_at_once(answers: Vec<(Duration, Result<StorageReply, Errno>)>) {
    for (at, (took, outcome)) in answers.into_iter().enumerate() {
        assert!(took < AT_ONCE, "call {at} took {took:?} after the chain had another server");
        match at % 3 {
            0 => assert!(matches!(outcome, Ok(StorageReply::Done)), "{outcome:?}"),
            // Whoever calls for several chains asks where they are.
            _ => assert_eq!(outcome.err(), Some(Errno::EREMCHG)),
        }
    }
}

#[test]
fn a_server_that_died_after_it_had_handed_a_chain_over_holds_up_no_call() {
    let authority = Authority::new(1);
    let (gone, address) = serve(authority.issue(1, &[Role::Storage]), Arc::new(Done), any_port());
    drop(gone);
    require_at_once(hand_over(&authority, address));
}

#[test]
fn a_server_that_hangs_after_it_had_handed_a_chain_over_holds_up_no_call() {
    let authority = Authority::new(1);
    let hung = Arc::new(Hung::default());
    let (_first, address) = serve(authority.issue(1, &[Role::Storage]), hung.clone(), any_port());
    require_at_once(hand_over(&authority, address));
    assert!(!hung.0.lock().is_empty(), "it was asked first");
}

#[test]
fn a_chain_on_its_way_is_copied_to_a_target_that_is_slow_although_the_map_does_not_say_that_it_is_there() {
    let authority = Authority::new(1);
    let (_first, from) = serve(authority.issue(1, &[Role::Storage]), Arc::new(Done), any_port());
    let took = Duration::from_millis(700);
    let (_second, to) = serve(authority.issue(2, &[Role::Storage]), Arc::new(Slow(took)), any_port());
    let map = Arc::new(RwLock::new(Arc::new(map(&authority, [from, to]))));
    let routes = Routes::new(caller(authority.issue(1, &[Role::Storage]), Role::Storage), map);
    let storage = RemoteStorage::new(Arc::new(routes), Patience::new(PATIENCE));
    let (target, chain, chunk_bytes, len) = (TargetId(2), ChainId(0), 65536, 0);
    let chunk = ChunkId { inode: InodeId(5), generation: 1, index: 0 };
    let request = StorageRequest::Truncate { target, chunk, chain, chunk_bytes, len };
    let copy = |wait: Duration| storage.call_in_attempt(1, &request, Payload::None, wait);
    assert!(matches!(copy(took * 20), Ok(StorageReply::Done)));
    assert_eq!(copy(took / 2).err(), Some(Errno::ETIMEDOUT), "it is not waited for longer than was said");
}

#[test]
fn a_server_that_has_too_much_to_do_for_a_target_is_asked_again_by_one_caller_at_a_time() {
    let authority = Authority::new(1);
    let crowded = Arc::new(Crowded::default());
    let (_first, address) = serve(authority.issue(1, &[Role::Storage]), crowded.clone(), any_port());
    let map = Arc::new(RwLock::new(Arc::new(map(&authority, [address, address]))));
    let routes = Arc::new(Routes::new(caller(authority.issue(7, &[Role::Meta]), Role::Meta), map));
    let (target, chain, chunk_bytes, len) = (TargetId(1), ChainId(0), 65536, 0);
    let chunk = ChunkId { inode: InodeId(5), generation: 1, index: 0 };
    let request = StorageRequest::Truncate { target, chunk, chain, chunk_bytes, len };
    let hasty = RemoteStorage::new(routes.clone(), Patience::new(Duration::from_millis(300)));
    assert_eq!(hasty.call(&request, Payload::None).err(), Some(Errno::ETIMEDOUT));
    crowded.refused.store(0, SeqCst);
    let storage = RemoteStorage::new(routes, Patience::new(PATIENCE));
    let callers = 16;
    std::thread::scope(|scope| {
        let call = || storage.call(&request, Payload::None);
        let calls: Vec<_> = (0..callers).map(|_| scope.spawn(call)).collect();
        std::thread::sleep(Duration::from_secs(3));
        assert!(calls.iter().all(|call| !call.is_finished()));
        let refused = crowded.refused.load(SeqCst);
        // Each once, and one of them again and again, ever less often.
        assert!((callers + 3..callers + 12).contains(&refused), "{refused} were refused");
        crowded.is_over.store(true, SeqCst);
        let begun = Instant::now();
        calls.into_iter().for_each(|call| assert!(matches!(call.join().unwrap(), Ok(StorageReply::Done))));
        assert!(begun.elapsed() < AT_ONCE, "{:?}", begun.elapsed());
    });
}

#[test]
fn who_waits_for_a_server_knows_whether_it_may_have_got_the_call() {
    let authority = Authority::new(1);
    let calls = caller(authority.issue(7, &[Role::Client]), Role::Client);
    let call = Call {
        service: Service::Storage,
        head: b"question",
        payload: &[],
        is_once: false,
        may_repeat: false,
        is_urgent: false,
    };
    let (gone, address) = serve(authority.issue(1, &[Role::Storage]), Arc::new(Done), any_port());
    drop(gone);
    let watch = Watch::default();
    let soon = || Instant::now() + Duration::from_millis(300);
    assert!(link(&calls, address).call_watched(&call, soon(), &watch).is_err());
    assert!(!watch.was_sent(), "nobody was there");
    let (_hung, address) = serve(authority.issue(1, &[Role::Storage]), Arc::new(Hung::default()), any_port());
    let watch = Watch::default();
    let outcome = link(&calls, address).call_watched(&call, soon(), &watch);
    assert!(matches!(outcome, Err(NetError::Stuck)) && watch.was_sent());
    let is_there = AtomicBool::new(true);
    let look = || is_there.load(SeqCst);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(200));
            is_there.store(false, SeqCst);
        });
        let late = Instant::now() + PATIENCE;
        let outcome = link(&calls, address).call_watched(&call, late, &Watch::while_there(&look));
        assert!(matches!(outcome, Err(NetError::Elsewhere)));
    });
}

fn question(payload: &[u8]) -> Call<'_> {
    let (service, head) = (Service::Storage, &b"question"[..]);
    Call { service, head, payload, is_once: false, may_repeat: false, is_urgent: false }
}

/// Waits until a server that hangs has so many calls.
fn await_calls(hung: &Hung, count: usize) {
    let late = Instant::now() + PATIENCE;
    while hung.0.lock().len() < count {
        assert!(Instant::now() < late, "it is asked first");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_call_to_a_server_that_hangs_goes_where_the_map_says_it_is_now() {
    let authority = Authority::new(1);
    let identity = || authority.issue(1, &[Role::Storage]);
    let hung = Arc::new(Hung::default());
    let (_first, first) = serve(identity(), hung.clone(), any_port());
    let (_second, second) = serve(identity(), Arc::new(Echo::default()), any_port());
    let addresses = Arc::new(RwLock::new(vec![first]));
    let link = link_to(&caller(authority.issue(7, &[Role::Client]), Role::Client), addresses.clone(), 2);
    let plain = question(&[]);
    let calls = [
        plain,
        Call { is_once: true, may_repeat: true, ..plain },
        Call { is_once: true, ..plain },
        // One that a server holds back.
        plain,
    ];
    std::thread::scope(|scope| {
        let late = Instant::now() + PATIENCE;
        let waiting: Vec<_> = calls
            .iter()
            .enumerate()
            .map(|(at, call)| {
                let link = &link;
                scope.spawn(move || if at == 3 { link.park(call, late) } else { link.call(call, late) })
            })
            .collect();
        await_calls(&hung, calls.len());
        // Nobody knows where it is, or one more address is known: then it is waited for where it was.
        addresses.write().clear();
        std::thread::sleep(Duration::from_millis(800));
        *addresses.write() = vec![second, first];
        std::thread::sleep(Duration::from_millis(800));
        assert!(waiting.iter().all(|waiting| !waiting.is_finished()) && hung.0.lock().len() == calls.len());
        *addresses.write() = vec![second];
        let moved = Instant::now();
        for (at, waiting) in waiting.into_iter().enumerate() {
            match waiting.join().unwrap() {
                Ok(answer) => assert!(answer.was_repeated() && at != 2, "call {at}"),
                Err(error) => assert!(matches!(error, NetError::Restarted) && at == 2, "call {at}: {error}"),
            }
        }
        assert!(moved.elapsed() < AT_ONCE, "{:?}", moved.elapsed());
    });
}

#[test]
fn a_call_that_a_server_does_not_even_take_goes_where_the_map_says_it_is_now() {
    let authority = Authority::new(1);
    let identity = || authority.issue(1, &[Role::Storage]);
    let hung = Arc::new(Hung::default());
    let (_first, first) = serve(identity(), hung.clone(), any_port());
    let (_second, second) = serve(identity(), Arc::new(Echo::default()), any_port());
    let addresses = Arc::new(RwLock::new(vec![first]));
    let link = link_to(&caller(authority.issue(7, &[Role::Client]), Role::Client), addresses.clone(), 1);
    let payload = vec![7; 16 << 20];
    let call = question(&payload);
    std::thread::scope(|scope| {
        // As much as a server reads from one connection; their callers give up, so that none of them looks where it is.
        let ask = || link.call(&call, Instant::now() + Duration::from_secs(4)).is_err();
        let asking: Vec<_> = (0..4).map(|_| scope.spawn(ask)).collect();
        await_calls(&hung, 4);
        assert!(asking.into_iter().all(|asking| asking.join().unwrap()));
        let waiting = scope.spawn(|| link.call(&call, Instant::now() + PATIENCE).map(drop));
        std::thread::sleep(Duration::from_millis(800));
        assert!(!waiting.is_finished() && hung.0.lock().len() == 4);
        *addresses.write() = vec![second];
        let moved = Instant::now();
        waiting.join().unwrap().unwrap();
        assert!(moved.elapsed() < AT_ONCE, "{:?}", moved.elapsed());
    });
}

/// What it remembers is from before the other machine went on for it.
#[test]
fn a_server_that_is_back_where_it_was_is_not_taken_to_know_what_the_one_between_has_done() {
    let authority = Authority::new(1);
    let identity = || authority.issue(1, &[Role::Storage]);
    let (echo, hung) = (Arc::new(Echo::default()), Arc::new(Hung::default()));
    let (_first, first) = serve(identity(), echo.clone(), any_port());
    let (_between, between) = serve(identity(), hung.clone(), any_port());
    let addresses = Arc::new(RwLock::new(vec![first]));
    let link = link_to(&caller(authority.issue(7, &[Role::Client]), Role::Client), addresses.clone(), 1);
    let late = Instant::now() + PATIENCE;
    let once = Call { is_once: true, ..question(&[]) };
    std::thread::scope(|scope| {
        let parked = scope.spawn(|| link.call(&Call { head: b"park", ..question(&[]) }, late).map(drop));
        while echo.parked.lock().is_empty() {
            std::thread::sleep(Duration::from_millis(5));
        }
        *addresses.write() = vec![between];
        await_calls(&hung, 1);
        let waiting = scope.spawn(|| link.call(&once, late).map(drop));
        await_calls(&hung, 2);
        *addresses.write() = vec![first];
        let outcome = waiting.join().unwrap();
        assert!(matches!(outcome, Err(NetError::Restarted)), "{outcome:?}");
        link.call(&Call { head: b"free", ..question(&[]) }, late).unwrap();
        parked.join().unwrap().unwrap();
    });
}
