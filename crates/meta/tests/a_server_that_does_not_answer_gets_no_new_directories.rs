//! Goal: making directories goes on while a metadata server does not answer, and does not wait for it each time: it did so for five seconds whenever the turn was at one of that server's
//! shards. Method: two services, the way to the second of which hangs, when it votes or altogether.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use ashlar_types::{NodeId, SessionId};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};
use support::{Goes, Hanging, Nowhere, Server};

const SERVERS: [NodeId; 2] = [NodeId(1), NodeId(2)];
const DIRECTORIES: usize = 40;

fn servers() -> (Arc<Hanging>, Server, Server) {
    let way = Arc::new(Hanging::default());
    let first = Server::start_as(NodeId(1), &SERVERS, way.clone());
    let second = Server::start_as(NodeId(2), &SERVERS, Arc::new(Nowhere));
    *way.other.lock() = Some(second.meta.clone());
    (way, first, second)
}

/// Makes directories; tells how many are at the second server.
fn make(server: &Server, session: SessionId, prefix: &str) -> usize {
    let made = (0..DIRECTORIES).map(|at| server.mkdir(session, &format!("{prefix}{at}")).unwrap());
    made.filter(|inode| inode.home().0 % 2 == 1).count()
}

/// Makes directories while the way hangs, for messages of so many bytes and more.
#[track_caller]
fn make_while_it_hangs(way: &Hanging, (server, session): (&Server, SessionId), bytes_min: usize) {
    let goes = Goes(way);
    let before = way.waited.load(SeqCst);
    way.hangs_from.store(bytes_min, SeqCst);
    way.hangs.store(true, SeqCst);
    let began = Instant::now();
    assert_eq!(make(server, session, "while it hangs"), 0);
    let (took, waited) = (began.elapsed(), way.waited.load(SeqCst) - before);
    // It is tried again now and then, which on a slow machine may be more than once.
    let tries = 1 + took.as_secs() as usize / 10;
    assert!((1..=tries).contains(&waited), "waited {waited} times in {took:?}");
    drop(goes);
}

#[test]
fn when_it_does_not_vote() {
    let (way, first, _second) = servers();
    let session = first.open(2);
    assert_eq!(make(&first, session, "before"), DIRECTORIES / 2);
    make_while_it_hangs(&way, (&first, session), support::PART_BYTES_MIN);
    // It is remembered for a time only.
    std::thread::sleep(Duration::from_secs(11));
    assert_eq!(make(&first, session, "after"), DIRECTORIES / 2);
}

#[test]
fn when_it_gives_no_numbers_of_inodes() {
    let (way, first, _second) = servers();
    let session = first.open(2);
    make_while_it_hangs(&way, (&first, session), 0);
}
