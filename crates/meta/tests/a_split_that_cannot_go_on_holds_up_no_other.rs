//! Goal: directories are split whatever becomes of the split of another one. Method: three services, the way to one of which hangs for as long as the test wants; and one service whose clock makes the
//! thread that looks for directories panic.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use ashlar_env::{Clock, Env};
use ashlar_meta::MetaService;
use ashlar_rpc::{LastingSessions, MetaPeers};
use ashlar_types::message::{MetaReply, MetaRequest};
use ashlar_types::{Errno, InodeId, NodeId, SessionId, Timespec};
use parking_lot::{Condvar, Mutex};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;
use support::{Deaf, Nowhere, Server, wait_until};

const SERVERS: [NodeId; 3] = [NodeId(1), NodeId(2), NodeId(3)];
const HANGS: NodeId = NodeId(3);

/// The ways between all servers, of which those to [`HANGS`] can hang: not for the time of a call, but until they go on.
#[derive(Default)]
struct Ways {
    servers: Mutex<BTreeMap<NodeId, Arc<MetaService>>>,
    hangs: Mutex<bool>,
    goes_on: Condvar,
}

impl Ways {
    fn hang(&self, hangs: bool) {
        *self.hangs.lock() = hangs;
        self.goes_on.notify_all();
    }
}

impl MetaPeers for Ways {
    fn ask(&self, to: NodeId, message: &[u8], _: bool, _: Duration) -> Result<Vec<u8>, Errno> {
        if to == HANGS {
            self.goes_on.wait_while(&mut self.hangs.lock(), |hangs| *hangs);
        }
        let server = self.servers.lock().get(&to).cloned().ok_or(Errno::EHOSTDOWN)?;
        server.hear(message, &Deaf)
    }
}

/// The way goes on when this ends, so that the service does.
struct GoesOn<'a>(&'a Ways);

impl Drop for GoesOn<'_> {
    fn drop(&mut self) {
        self.0.hang(false);
    }
}

/// Makes a directory at the first server with some entries, whose split in two is begun; it and its slices. Not of all the same number of entries: they go to servers in turn as slices do.
fn begin(server: &Server, session: SessionId, number: usize) -> Option<(InodeId, Vec<InodeId>)> {
    let directory = server.mkdir(session, &format!("directory{number}")).unwrap();
    if ![0, 3].contains(&directory.home().0) {
        return None;
    }
    for at in 0..6 + number / 4 % 4 {
        server.mkdir_in(session, directory, &format!("entry{at}")).unwrap();
    }
    let split = MetaRequest::Split { directory, slices: 2, of_new: false };
    assert_eq!(server.call(session, &split), Ok(MetaReply::Done));
    match server.call(session, &MetaRequest::Slices { directory }) {
        Ok(MetaReply::Slices(split)) => Some((directory, split.slices)),
        other => panic!("{other:?}"),
    }
}

/// They waited for as long as it did not answer, each time anew.
#[test]
fn directories_are_split_while_another_one_waits_for_a_server_that_does_not_answer() {
    let ways = Arc::new(Ways::default());
    let servers = SERVERS.map(|node| Server::start_as(node, &SERVERS, ways.clone()));
    for (node, server) in SERVERS.iter().zip(&servers) {
        ways.servers.lock().insert(*node, server.meta.clone());
    }
    let [first, ..] = &servers;
    let session = first.open(2);
    first.meta.split_in_steps(0, 1);
    let begun: BTreeMap<InodeId, Vec<InodeId>> =
        (0..40).filter_map(|number| begin(first, session, number)).collect();
    // Shards are at the three servers in turn.
    let waits: Vec<bool> =
        begun.values().map(|slices| slices.iter().any(|slice| slice.home().0 == 2)).collect();
    let first_that_waits = waits.iter().position(|waits| *waits).unwrap();
    assert!(waits[first_that_waits..].contains(&false), "{waits:?}");

    ways.hang(true);
    let goes_on = GoesOn(&ways);
    first.meta.start_splitter(0).unwrap();
    let others = waits.iter().filter(|waits| !**waits).count();
    wait_until("the others are split", || first.meta.measures().splits.ended == others as u64);
    assert_eq!(first.meta.measures().splits.under_way, begun.len() - others);
    drop(goes_on);
    wait_until("all are split", || first.meta.measures().splits.under_way == 0);
    assert_eq!(first.meta.measures().splits.ended, begun.len() as u64);
    ways.servers.lock().clear();
}

/// A clock that makes the thread that looks for directories to split panic, once it is to.
struct Trap {
    clock: Arc<dyn Clock>,
    is_set: AtomicBool,
}

impl Clock for Trap {
    fn now(&self) -> Timespec {
        self.clock.now()
    }

    fn monotonic(&self) -> Duration {
        let is_it = std::thread::current().name() == Some("ashlar-split");
        assert!(!(is_it && self.is_set.swap(false, SeqCst)), "a panic that the test wants");
        self.clock.monotonic()
    }
}

#[test]
fn directories_are_split_after_a_look_for_them_has_panicked() {
    let env = Env::os();
    let trap = Arc::new(Trap { clock: env.clock.clone(), is_set: AtomicBool::new(true) });
    let env = Env { clock: trap.clone(), ..env };
    let server = Server::start_in(env, NodeId(1), &[NodeId(1)], Arc::new(Nowhere));
    let session = server.open(2);
    server.meta.split_in_steps(0, 1);
    server.meta.start_splitter(0).unwrap();
    wait_until("it panics", || !trap.is_set.load(SeqCst));
    let begun = (0..4).find_map(|number| begin(&server, session, number));
    assert!(begun.is_some());
    wait_until("it is split", || server.meta.measures().splits.ended == 1);
    assert_eq!(server.meta.measures().splits.under_way, 0);
}
