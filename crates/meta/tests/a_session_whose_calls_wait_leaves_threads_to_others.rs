//! Goal: the calls of one session that wait, for leases of somebody who is silent or for the vote of a server that hangs, do not take all threads of a server, and come to their end.
//! Method: a service that has as many threads as a server, a session that is deaf and has a lease, one that makes more calls than there are threads which need it back, and one that
//! asks for something else; and the same with a second service that hangs when it is to vote.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use ashlar_types::message::MetaRequest;
use ashlar_types::{InodeId, NodeId};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};
use support::{Goes, Hanging, Nowhere, PART_BYTES_MIN, Server, THREADS};

const CALLS: usize = THREADS + 44;
/// Far less than a recall is waited for.
const SOON: Duration = Duration::from_secs(2);
/// Less than a session may have waiting, and more than are there by chance.
const VOTES_MIN: usize = 32;

#[test]
fn a_session_with_more_calls_that_wait_than_a_server_has_threads_holds_up_nobody_else() {
    let server = Server::start();
    let (silent, many, other) = (server.open(1), server.open(2), server.open(3));
    let elsewhere = server.mkdir(other, "elsewhere").unwrap();
    server.cache_root(silent);
    let made = AtomicUsize::new(0);
    let began = Instant::now();
    std::thread::scope(|scope| {
        for number in 0..CALLS {
            let (server, made) = (&server, &made);
            scope.spawn(move || {
                server.mkdir(many, &format!("d{number}")).unwrap();
                made.fetch_add(1, SeqCst);
            });
        }
        // Until they all wait, for the answer or for a thread.
        std::thread::sleep(Duration::from_secs(1));
        assert_eq!(made.load(SeqCst), 0, "the lease is not given back");
        let asked = Instant::now();
        server.call(other, &MetaRequest::Getattr { inode: elsewhere }).unwrap();
        let took = asked.elapsed();
        assert!(took < SOON, "a call that waits for nobody took {took:?}");
        assert!(*server.idle.lock() >= THREADS / 4, "{} threads are idle", *server.idle.lock());
    });
    // Who is silent was ended, and nobody has waited for the end of another's patience.
    assert_eq!(made.load(SeqCst), CALLS);
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
}

#[test]
fn a_session_that_waits_for_votes_of_a_server_that_hangs_holds_up_nobody_else() {
    let (way, servers) = (Arc::new(Hanging::default()), [NodeId(1), NodeId(2)]);
    let server = Server::start_as(NodeId(1), &servers, way.clone());
    let second = Server::start_as(NodeId(2), &servers, Arc::new(Nowhere));
    *way.other.lock() = Some(second.meta.clone());
    let (many, other) = (server.open(2), server.open(3));
    // Each call in a directory of its own: one that waits for a vote holds its parent. Nobody else has leases on them. Half of the calls wait, more than there are threads.
    let made: Vec<InodeId> =
        (0..5 * CALLS).map(|number| server.mkdir(many, &format!("p{number}")).unwrap()).collect();
    let here: Vec<InodeId> =
        made.into_iter().filter(|inode| inode.home().0 % 2 == 0).take(2 * CALLS).collect();
    assert_eq!(here.len(), 2 * CALLS, "both servers get directories");
    way.hangs_from.store(PART_BYTES_MIN, SeqCst);
    way.hangs.store(true, SeqCst);
    std::thread::scope(|scope| {
        let server = &server;
        // Also when a check fails, so that the threads come to their end.
        let goes = Goes(&way);
        let threads: Vec<_> =
            here[1..].iter().map(|&parent| scope.spawn(move || server.mkdir_in(many, parent, "d"))).collect();
        // Until as many wait for a vote as may.
        let until = Instant::now() + Duration::from_secs(60);
        while way.waited.load(SeqCst) < VOTES_MIN {
            assert!(Instant::now() < until, "{} wait for a vote", way.waited.load(SeqCst));
            std::thread::sleep(Duration::from_millis(10));
        }
        std::thread::sleep(Duration::from_millis(500));
        let asked = Instant::now();
        server.call(other, &MetaRequest::Getattr { inode: here[0] }).unwrap();
        let took = asked.elapsed();
        assert!(took < SOON, "a call that waits for nobody took {took:?}");
        assert!(*server.idle.lock() >= THREADS / 4, "{} threads are idle", *server.idle.lock());
        drop(goes);
        for thread in threads {
            thread.join().unwrap().unwrap();
        }
    });
}
