//! Goal: a caller that does not take its answers keeps no thread of the server, gets all of them when it goes on, and is cut off when it does not; strangers that say nothing keep nobody out.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use ashlar_rpc::net::frame::{Frame, Header, Kind, PROTOCOL};
use ashlar_rpc::net::hello::Hello;
use ashlar_rpc::net::{Call, Endpoint, Link, Peer, Replier, Service, Wanted};
use ashlar_types::codec::encode;
use ashlar_types::{Epoch, Role};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};
use support::{Authority, Echo, Proxy, any_port, caller, link, serve};

/// More than the sockets on the way take.
const ANSWER_BYTES: usize = 4 << 20;
const CALLS: usize = 32;

/// Answers with so many bytes of what it was asked for, and tells how many calls are at work.
#[derive(Default)]
struct Reader {
    served: AtomicUsize,
    at_work: AtomicUsize,
}

impl Endpoint for Reader {
    fn serve(&self, _: &Peer, request: Frame, replier: Replier) {
        self.at_work.fetch_add(1, SeqCst);
        let content = vec![request.head()[0]; if request.head().len() > 1 { 1 } else { ANSWER_BYTES }];
        replier.reply(request.head(), &content);
        self.at_work.fetch_sub(1, SeqCst);
        self.served.fetch_add(1, SeqCst);
    }
}

fn call(head: &[u8]) -> Call<'_> {
    Call { service: Service::Storage, head, payload: &[], is_once: false, may_repeat: true, is_urgent: false }
}

fn within(most: Duration, what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < most, "not within {most:?}: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Has a caller hang for `hang` with calls under way, while another one is served; tells how many connections it made.
fn hang_for(hang: Duration) -> u64 {
    let authority = Authority::new(1);
    let reader = Arc::new(Reader::default());
    let (_server, address) = serve(authority.issue(1, &[Role::Storage]), reader.clone(), any_port());
    let proxy = Proxy::start(address);
    let hanging = link(&caller(authority.issue(2, &[Role::Client]), Role::Client), proxy.address);
    let other = link(&caller(authority.issue(3, &[Role::Client]), Role::Client), address);
    hanging.call(&call(b"ok"), Instant::now() + Duration::from_secs(20)).unwrap();
    proxy.is_hanging.store(true, SeqCst);
    std::thread::scope(|scope| {
        let ask = |number: usize| {
            let head = [number as u8];
            let answer = hanging.call(&call(&head), Instant::now() + Duration::from_secs(60)).unwrap();
            assert!(
                answer.head() == head && answer.payload() == vec![number as u8; ANSWER_BYTES],
                "{number}"
            );
        };
        let asking: Vec<_> = (0..CALLS).map(|number| scope.spawn(move || ask(number))).collect();
        let begun = Instant::now();
        within(Duration::from_secs(10), "calls of the one that hangs", || reader.served.load(SeqCst) > 2);
        within(Duration::from_secs(5), "no call is at work", || reader.at_work.load(SeqCst) == 0);
        while begun.elapsed() < hang {
            let asked = Instant::now();
            other.call(&call(b"ok"), Instant::now() + Duration::from_secs(5)).unwrap();
            assert!(asked.elapsed() < Duration::from_secs(5));
            std::thread::sleep(Duration::from_millis(50));
        }
        assert!(
            !asking.iter().any(std::thread::ScopedJoinHandle::is_finished),
            "an answer came while it hung"
        );
        proxy.is_hanging.store(false, SeqCst);
        asking.into_iter().for_each(|asking| asking.join().unwrap());
    });
    assert!(hanging_works(&hanging));
    proxy.accepted.load(SeqCst)
}

fn hanging_works(link: &Link) -> bool {
    link.call(&call(b"ok"), Instant::now() + Duration::from_secs(20)).is_ok()
}

#[test]
fn a_caller_that_hangs_for_a_moment_gets_every_answer_whole() {
    assert!(hang_for(Duration::from_secs(1)) <= 2);
}

#[test]
fn a_caller_that_hangs_for_long_is_cut_off_and_asks_again() {
    // Longer than a caller may take nothing.
    assert!(hang_for(Duration::from_secs(13)) > 2);
}

/// The bytes of a frame.
fn frame(kind: Kind, (id, is_once): (u64, bool), head: &[u8]) -> Vec<u8> {
    let plain = Header::plain(kind, Service::Storage, Epoch(1), head);
    let header = Header { id, is_once, lowest: 1, ..plain };
    [&header.encode(head)[..], head].concat()
}

#[test]
fn a_call_that_came_before_nonsense_is_carried_out() {
    let authority = Authority::new(1);
    let echo = Arc::new(Echo::default());
    let (_server, address) = serve(authority.issue(1, &[Role::Storage]), echo.clone(), any_port());
    let identity = authority.issue(2, &[Role::Client]);
    let config = identity.calling(Wanted { role: Role::Storage, node: None }).unwrap();
    let connect = |attempt: u64, more: &[u8]| {
        let tls = rustls::ClientConnection::new(config.clone(), "node.ashlar".try_into().unwrap()).unwrap();
        let mut stream = rustls::StreamOwned::new(tls, TcpStream::connect(address).unwrap());
        let (cluster, role) = (authority.cluster, Role::Client);
        let (protocol_min, protocol_max) = (1, PROTOCOL);
        let hello =
            Hello { protocol_min, protocol_max, cluster, role, instance: [9; 16], channel: 0, attempt };
        let counted = frame(Kind::Request, (2, true), b"count");
        let all = [&frame(Kind::Hello, (0, false), &encode(&hello)), &counted, more].concat();
        stream.write_all(&all).and_then(|()| stream.flush()).unwrap();
        stream
    };
    let first = connect(1, &[0xff; 200]);
    within(Duration::from_secs(10), "the call is carried out", || echo.served.load(SeqCst) == 1);
    // Its caller asks again, and gets that answer.
    let mut second = connect(2, &[]);
    let mut told = vec![0; 4096];
    let mut len = 0;
    second.sock.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    while let Ok(more @ 1..) = second.read(&mut told[len..]) {
        len += more;
    }
    let answer = frame(Kind::Reply, (2, false), &1u64.to_le_bytes());
    assert!(told[..len].windows(8).any(|bytes| bytes == &answer[answer.len() - 8..]), "{:?}", &told[..len]);
    assert_eq!(echo.served.load(SeqCst), 1);
    drop(first);
}

#[test]
fn strangers_that_say_nothing_keep_nobody_out() {
    let authority = Authority::new(1);
    let (_server, address) =
        serve(authority.issue(1, &[Role::Storage]), Arc::new(Echo::default()), any_port());
    let strangers: Vec<TcpStream> = (0..600).map(|_| TcpStream::connect(address).unwrap()).collect();
    let link = link(&caller(authority.issue(2, &[Role::Client]), Role::Client), address);
    let begun = Instant::now();
    link.call(&call(b"x"), Instant::now() + Duration::from_secs(8)).unwrap();
    assert!(begun.elapsed() < Duration::from_secs(5), "it waited until the strangers had to go");
    drop(strangers);
}
