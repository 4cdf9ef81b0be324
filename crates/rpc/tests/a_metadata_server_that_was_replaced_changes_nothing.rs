//! Goal: what a metadata server asks for late, after another machine has taken its place, changes nothing at a storage server: it was paused, or its calls waited for a disk. Method: a storage
//! server over TLS whose disk hangs as the test wants, and callers that are the same metadata server by their certificates, each a process of its own.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use ashlar_env::Env;
use ashlar_rpc::capability::{checking_keys, root_key, sealing_keys};
use ashlar_rpc::net::frame::Frame;
use ashlar_rpc::net::{Call, Caller, Endpoint, Link, Peer, Replier, Server, Service};
use ashlar_rpc::remote::{Granter, Granting, Routes, ServiceStart};
use ashlar_rpc::serve::{Access, StorageEndpoint};
use ashlar_rpc::wire::{Attend, Attended, StorageCall, Under};
use ashlar_rpc::{Payload, StorageCalls};
use ashlar_types::codec::{decode, encode};
use ashlar_types::message::{StorageReply, StorageRequest};
use ashlar_types::node::SessionOwner;
use ashlar_types::{
    ChainId, ChunkId, ClusterMap, Errno, InodeId, KeySet, NodeId, PeerId, Rights, Role, SessionId, TargetId,
};
use parking_lot::{Condvar, Mutex, RwLock};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};
use support::two_servers::map;
use support::{Authority, any_port, caller, link, serve, soon};

/// Calls of one target that a storage server carries out at a time.
const AT_WORK: usize = 64;
/// The metadata server.
const META: u32 = 7;

/// What has begun and what is done, while the disk hangs or not.
#[derive(Default)]
struct Disk {
    state: Mutex<(bool, usize, usize)>,
    changed: Condvar,
}

impl Disk {
    fn hang(&self, hangs: bool) {
        self.state.lock().0 = hangs;
        self.changed.notify_all();
    }

    fn begun(&self) -> usize {
        self.state.lock().1
    }

    fn done(&self) -> usize {
        self.state.lock().2
    }
}

impl StorageCalls for Disk {
    fn call(&self, _: &StorageRequest, _: Payload<'_>) -> Result<StorageReply, Errno> {
        let mut state = self.state.lock();
        state.1 += 1;
        while state.0 {
            self.changed.wait(&mut state);
        }
        state.2 += 1;
        Ok(StorageReply::Done)
    }
}

/// A storage server that knows nothing of starts for as long as it is of an earlier version.
struct Dated {
    endpoint: Mutex<Arc<StorageEndpoint>>,
    is_earlier: AtomicBool,
    /// Messages that say a start, and that say none.
    said: [AtomicU64; 2],
}

impl Endpoint for Dated {
    fn serve(&self, peer: &Peer, frame: Frame, replier: Replier) {
        match decode::<StorageCall>(frame.head(), "call").unwrap() {
            StorageCall::AttendAs { .. } => {
                self.said[0].fetch_add(1, SeqCst);
                if self.is_earlier.load(SeqCst) {
                    return replier.refuse("that is no call to a storage server");
                }
            }
            StorageCall::Attend(_) => drop(self.said[1].fetch_add(1, SeqCst)),
            _ => {}
        }
        let endpoint = self.endpoint.lock().clone();
        endpoint.serve(peer, frame, replier);
    }
}

struct Lab {
    authority: Authority,
    disk: Arc<Disk>,
    endpoint: Arc<StorageEndpoint>,
    dated: Arc<Dated>,
    map: Arc<RwLock<Arc<ClusterMap>>>,
    keys: KeySet,
    server: Server,
}

impl Lab {
    fn new() -> Lab {
        let authority = Authority::new(1);
        let disk = Arc::new(Disk::default());
        let keys = sealing_keys(&root_key(b"secret", authority.cluster), 1);
        let nowhere = any_port();
        let shared = Arc::new(RwLock::new(Arc::new(map(&authority, [nowhere, nowhere]))));
        let endpoint = endpoint(&disk, &shared, &keys);
        let (is_earlier, said) = (AtomicBool::new(false), Default::default());
        let dated = Arc::new(Dated { endpoint: Mutex::new(endpoint.clone()), is_earlier, said });
        let (server, address) = serve(authority.issue(1, &[Role::Storage]), dated.clone(), any_port());
        *shared.write() = Arc::new(map(&authority, [address, nowhere]));
        Lab { authority, disk, endpoint, dated, map: shared, keys, server }
    }

    /// Messages so far that say a start, and that say none.
    fn said(&self) -> [u64; 2] {
        [0, 1].map(|which| self.dated.said[which].load(SeqCst))
    }

    fn granter(&self, process: &Process, number: u64, is_shared: bool) -> Arc<Granter> {
        let routes = Arc::new(Routes::new(process.caller.clone(), self.map.clone()));
        let of = (self.authority.cluster, NodeId(META));
        let start = Some(ServiceStart { number, is_shared });
        Granter::start(routes, Env::os(), of, self.keys.clone(), start).unwrap()
    }

    /// One more process that has the certificate of the metadata server.
    fn process(&self) -> Process {
        let caller = caller(self.authority.issue(META, &[Role::Meta]), Role::Meta);
        let address = self.map.read().node(NodeId(1)).unwrap().addresses(Role::Storage)[0];
        Process { link: link(&caller, address), caller }
    }
}

fn endpoint(disk: &Arc<Disk>, map: &Arc<RwLock<Arc<ClusterMap>>>, keys: &KeySet) -> Arc<StorageEndpoint> {
    let access = Access::new(NodeId(1), map.clone(), checking_keys(keys, NodeId(1)), Env::os());
    Arc::new(StorageEndpoint::new(disk.clone(), map.clone(), Arc::new(access)))
}

fn gives(granter: &Granter) -> bool {
    let granting = Granting {
        session: SessionId(1),
        owner: SessionOwner { node: NodeId(9), instance: [9; 16] },
        inode: InodeId(5),
        generation: 1,
        rights: Rights::READ,
    };
    granter.grant_at(granting, NodeId(1), None).is_some()
}

struct Process {
    caller: Arc<Caller>,
    link: Link,
}

impl Process {
    fn answer<T: serde::de::DeserializeOwned>(&self, call: &StorageCall) -> Result<T, Errno> {
        let is_urgent = matches!(call, StorageCall::AttendAs { .. });
        let call = Call {
            service: Service::Storage,
            head: &encode(call),
            payload: &[],
            is_once: false,
            may_repeat: true,
            is_urgent,
        };
        decode::<Result<T, Errno>>(self.link.call(&call, soon()).unwrap().head(), "answer").unwrap()
    }

    fn attend_as(&self, start: u64) -> Result<(), Errno> {
        let attend = Attend::default();
        self.answer::<Attended>(&StorageCall::AttendAs { start, attend }).map(drop)
    }

    fn attend(&self) -> Result<(), Errno> {
        self.answer::<Attended>(&StorageCall::Attend(Attend::default())).map(drop)
    }

    fn truncate(&self) -> Result<(), Errno> {
        let (target, chain, chunk_bytes, len) = (TargetId(1), ChainId(0), 65536, 0);
        let chunk = ChunkId { inode: InodeId(5), generation: 1, index: 0 };
        let request = StorageRequest::Truncate { target, chunk, chain, chunk_bytes, len };
        self.answer::<StorageReply>(&StorageCall::Call { under: Under::Role, request }).map(drop)
    }

    fn peer(&self, lab: &Lab) -> Peer {
        let roles = [Role::Meta].into_iter().collect();
        let id = PeerId { cluster: lab.authority.cluster, node: NodeId(META), roles, host: None };
        Peer { id, role: Role::Meta, instance: self.caller.instance, token: None }
    }
}

fn within(most: Duration, what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < most, "not within {most:?}: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

const LONG: Duration = Duration::from_secs(20);
const REFUSED: Result<(), Errno> = Err(Errno::EACCES);

#[test]
fn what_it_asks_for_late_is_refused_and_what_the_new_one_asks_for_is_done() {
    let lab = Lab::new();
    let (old, new, stranger) = (lab.process(), lab.process(), lab.process());
    assert_eq!((old.attend_as(3), old.truncate(), old.attend()), (Ok(()), Ok(()), Ok(())));
    assert_eq!((new.truncate(), new.attend(), new.attend_as(3)), (REFUSED, REFUSED, REFUSED));
    assert_eq!((new.attend_as(4), new.truncate()), (Ok(()), Ok(())));
    assert_eq!((old.truncate(), old.attend_as(3), old.attend()), (REFUSED, REFUSED, REFUSED));
    // The server forgets a process that is not connected any more. What has taken the place of another one stays there.
    lab.endpoint.forgotten(&new.peer(&lab));
    lab.endpoint.forgotten(&old.peer(&lab));
    assert_eq!((old.truncate(), old.attend_as(3), old.attend()), (REFUSED, REFUSED, REFUSED));
    assert_eq!((stranger.truncate(), stranger.attend()), (REFUSED, REFUSED));
    assert_eq!((new.attend_as(4), new.truncate()), (Ok(()), Ok(())));
    assert_eq!(lab.disk.done(), 3);
}

#[test]
fn one_that_no_other_machine_serves_is_served_whichever_process_it_is() {
    let lab = Lab::new();
    let (first, second) = (lab.process(), lab.process());
    for process in [&first, &second, &first] {
        assert_eq!((process.attend(), process.truncate()), (Ok(()), Ok(())));
    }
}

#[test]
fn what_is_under_way_is_waited_for_and_what_waits_for_its_turn_is_refused_when_that_comes() {
    let lab = Lab::new();
    let (old, new) = (lab.process(), lab.process());
    assert_eq!(old.attend_as(1), Ok(()));
    lab.disk.hang(true);
    std::thread::scope(|scope| {
        let at_work: Vec<_> = (0..AT_WORK).map(|_| scope.spawn(|| old.truncate())).collect();
        within(LONG, "all are at work", || lab.disk.begun() == AT_WORK);
        let waiting: Vec<_> = (0..10).map(|_| scope.spawn(|| old.truncate())).collect();
        // Until they have come, and wait for one of those to end.
        std::thread::sleep(Duration::from_millis(300));
        let begun = Instant::now();
        assert_eq!(new.attend_as(2), Err(Errno::EAGAIN), "something is under way");
        assert!((400..5000).contains(&begun.elapsed().as_millis()), "{:?}", begun.elapsed());
        // Nothing of the old one begins any more, although the new one is not heeded yet.
        assert_eq!((old.truncate(), old.attend(), old.attend_as(1)), (REFUSED, REFUSED, REFUSED));
        assert_eq!((new.truncate(), new.attend()), (REFUSED, REFUSED), "nor of the new one, for that");
        let heeded = scope.spawn(|| {
            while let Err(errno) = new.attend_as(2) {
                assert_eq!(errno, Errno::EAGAIN);
            }
            lab.disk.done()
        });
        std::thread::sleep(Duration::from_millis(700));
        assert!(!heeded.is_finished() && lab.disk.done() == 0);
        lab.disk.hang(false);
        assert_eq!(heeded.join().unwrap(), AT_WORK, "all that was under way, and nothing else, by then");
        at_work.into_iter().for_each(|call| assert_eq!(call.join().unwrap(), Ok(())));
        waiting.into_iter().for_each(|call| assert_eq!(call.join().unwrap(), REFUSED));
    });
    assert_eq!(lab.disk.begun(), AT_WORK, "nothing was done of what waited");
    assert_eq!(new.truncate(), Ok(()));
}

/// The storage server has just been started, and has not heard of any start.
#[test]
fn what_came_before_any_start_was_heard_of_is_waited_for_too() {
    let lab = Lab::new();
    let (old, new) = (lab.process(), lab.process());
    lab.disk.hang(true);
    std::thread::scope(|scope| {
        let under_way = scope.spawn(|| old.truncate());
        within(LONG, "it is under way", || lab.disk.begun() == 1);
        assert_eq!(new.attend_as(2), Err(Errno::EAGAIN));
        lab.disk.hang(false);
        assert_eq!(under_way.join().unwrap(), Ok(()));
        assert_eq!((new.attend_as(2), old.attend_as(1)), (Ok(()), REFUSED));
    });
}

#[test]
fn its_granter_gives_nothing_before_the_storage_server_has_done_with_the_one_before() {
    let lab = Lab::new();
    let (old, new) = (lab.process(), lab.process());
    lab.disk.hang(true);
    std::thread::scope(|scope| {
        let under_way = scope.spawn(|| old.truncate());
        within(LONG, "it is under way", || lab.disk.begun() == 1);
        let granter = lab.granter(&new, 2, true);
        // Longer than it takes to be refused, and to ask again.
        std::thread::sleep(Duration::from_millis(1500));
        assert!(!gives(&granter));
        lab.disk.hang(false);
        assert_eq!(under_way.join().unwrap(), Ok(()));
        within(Duration::from_secs(5), "it is asked again, and soon", || gives(&granter));
        // One that comes late has nothing to give.
        let late = lab.granter(&old, 1, true);
        std::thread::sleep(Duration::from_millis(700));
        assert!(!gives(&late) && gives(&granter));
        late.stop();
        granter.stop();
    });
    lab.server.stop();
}

#[test]
fn one_that_no_other_machine_can_serve_says_its_start_where_others_have_served_it_before() {
    let lab = Lab::new();
    let (process, stranger) = (lab.process(), lab.process());
    lab.dated.is_earlier.store(true, SeqCst);
    let granter = lab.granter(&process, 8, false);
    within(Duration::from_secs(5), "it is used by one that knows nothing of starts", || gives(&granter));
    assert_eq!(lab.said()[0], 0, "nor does it hear of them");
    lab.dated.is_earlier.store(false, SeqCst);
    // Restored: those that have served it from copies were known by their starts.
    assert_eq!(stranger.attend_as(7), Ok(()));
    within(LONG, "it hears which start it is", || stranger.truncate() == REFUSED);
    within(LONG, "it is heeded", || process.truncate() == Ok(()));
    granter.stop();
    lab.server.stop();
}

#[test]
fn one_that_several_machines_can_serve_does_without_a_storage_server_of_an_earlier_version() {
    let lab = Lab::new();
    let process = lab.process();
    lab.dated.is_earlier.store(true, SeqCst);
    let granter = lab.granter(&process, 1, true);
    within(LONG, "it is asked again and again", || lab.said()[0] > 5);
    assert_eq!((lab.said()[1], gives(&granter)), (0, false));
    lab.dated.is_earlier.store(false, SeqCst);
    within(Duration::from_secs(5), "it is of this version by now", || gives(&granter));
    granter.stop();
    lab.server.stop();
}
