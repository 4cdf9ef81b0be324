//! Goal: calls over TCP with mutual TLS reach the server once and are answered, whatever becomes of connections; strangers reach nothing.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use ashlar_rpc::net::{Answers, Call, Link, NetError, Peer, Service};
use ashlar_types::{NodeId, PeerId, Role, Roles};
use parking_lot::Mutex;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};
use support::{Authority, Echo, Proxy, any_port, caller, link, serve, serve_those, soon};

fn call<'a>(head: &'a [u8], payload: &'a [u8]) -> Call<'a> {
    Call { service: Service::Storage, head, payload, is_once: false, may_repeat: false, is_urgent: false }
}

fn once(head: &[u8]) -> Call<'_> {
    Call { is_once: true, ..call(head, &[]) }
}

fn refused(link: &Link) -> String {
    match link.call(&call(b"x", &[]), soon()) {
        Ok(_) => panic!("it was served"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn what_is_sent_comes_back_whole_up_to_the_largest_chunk() {
    let authority = Authority::new(1);
    let (_server, address) =
        serve(authority.issue(1, &[Role::Storage]), Arc::new(Echo::default()), any_port());
    let link = link(&caller(authority.issue(2, &[Role::Client]), Role::Client), address);
    for bytes in [0, 1, 4096, 1 << 20, 16 << 20] {
        let payload: Vec<u8> = (0..bytes).map(|at: usize| (at * 7 % 251) as u8).collect();
        let answer = link.call(&call(b"some head", &payload), soon()).unwrap();
        assert!(answer.head() == b"some head" && answer.payload() == payload, "{bytes}");
    }
}

#[test]
fn many_threads_share_a_link() {
    let authority = Authority::new(1);
    let (server, address) =
        serve(authority.issue(1, &[Role::Storage]), Arc::new(Echo::default()), any_port());
    let link = link(&caller(authority.issue(2, &[Role::Client]), Role::Client), address);
    std::thread::scope(|scope| {
        for thread in 0..16u32 {
            let link = &link;
            scope.spawn(move || {
                for at in 0..500u32 {
                    let head = [thread.to_le_bytes(), at.to_le_bytes()].concat();
                    let payload = vec![at as u8; (at as usize * 37) % 30_000];
                    let answer = link.call(&call(&head, &payload), soon()).unwrap();
                    assert!(answer.head() == head && answer.payload() == payload);
                }
            });
        }
    });
    assert!(server.threads() < 64, "{}", server.threads());
}

/// The second was taken for the first, and its first call for one that had been answered: nobody answered it.
#[test]
fn two_links_of_a_caller_to_one_server_do_not_stand_in_for_each_other() {
    let authority = Authority::new(1);
    let (_server, address) =
        serve(authority.issue(1, &[Role::Storage]), Arc::new(Echo::default()), any_port());
    let caller = caller(authority.issue(2, &[Role::Client]), Role::Client);
    for at in 0..4u8 {
        let (first, second) = (link(&caller, address), link(&caller, address));
        for link in [&first, &second, &first] {
            assert_eq!(link.call(&once(&[at]), soon()).unwrap().head(), [at]);
        }
    }
}

#[test]
fn calls_are_carried_out_once_although_connections_are_cut() {
    let authority = Authority::new(1);
    let echo = Arc::new(Echo::default());
    let (_server, address) = serve(authority.issue(1, &[Role::Storage]), echo.clone(), any_port());
    let proxy = Proxy::start(address);
    let link = link(&caller(authority.issue(2, &[Role::Client]), Role::Client), proxy.address);
    let is_done = AtomicBool::new(false);
    let calls = std::thread::scope(|scope| {
        let callers: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    let mut calls = 0u64;
                    let end = Instant::now() + Duration::from_secs(3);
                    while Instant::now() < end {
                        link.call(&once(b"count"), soon()).unwrap();
                        calls += 1;
                    }
                    calls
                })
            })
            .collect();
        scope.spawn(|| {
            while !is_done.load(SeqCst) {
                std::thread::sleep(Duration::from_millis(30));
                proxy.cut();
            }
        });
        let calls: u64 = callers.into_iter().map(|one| one.join().unwrap()).sum();
        is_done.store(true, SeqCst);
        calls
    });
    assert_eq!(echo.served.load(SeqCst), calls);
    assert!(calls > 200, "{calls} calls");
}

#[test]
fn calls_that_hang_are_not_in_the_way_of_the_thousands_behind_them_and_all_are_carried_out_once() {
    let authority = Authority::new(1);
    let echo = Arc::new(Echo::default());
    let (_server, address) = serve(authority.issue(1, &[Role::Storage]), echo.clone(), any_port());
    let proxy = Proxy::start(address);
    let link = link(&caller(authority.issue(2, &[Role::Client]), Role::Client), proxy.address);
    let (hung, others) = (20, 4 * 3000);
    let late = || Instant::now() + Duration::from_secs(120);
    std::thread::scope(|scope| {
        let hang = || scope.spawn(|| link.call(&once(b"park"), late()).map(drop));
        let mut waiting: Vec<_> = (0..hung / 2).map(|_| hang()).collect();
        let calls = |count: u32| {
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    scope
                        .spawn(|| (0..count).for_each(|_| drop(link.call(&once(b"count"), soon()).unwrap())));
                }
            });
        };
        calls(1400);
        // Some hang from the middle on, and what was said of those that have ended may get lost.
        waiting.extend((0..hung / 2).map(|_| hang()));
        calls(200);
        proxy.cut();
        calls(1400);
        assert!(waiting.iter().all(|waiting| !waiting.is_finished()));
        link.call(&call(b"free", &[]), soon()).unwrap();
        waiting.into_iter().for_each(|waiting| waiting.join().unwrap().unwrap());
    });
    assert_eq!(echo.served.load(SeqCst), others + hung + 1);
}

#[test]
fn a_call_that_a_server_may_have_carried_out_before_it_was_started_anew_is_not_repeated() {
    let authority = Authority::new(1);
    let echo = Arc::new(Echo::default());
    let (server, address) = serve(authority.issue(1, &[Role::Storage]), echo.clone(), any_port());
    let link = link(&caller(authority.issue(2, &[Role::Client]), Role::Client), address);
    link.call(&call(b"x", &[]), soon()).unwrap();
    let outcomes = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| link.call(&once(b"park"), soon()).map(drop));
        let repeated = scope.spawn(|| link.call(&call(b"park", &[]), soon()).map(drop));
        while echo.parked.lock().len() < 2 {
            std::thread::sleep(Duration::from_millis(5));
        }
        drop(server);
        let second = Arc::new(Echo::default());
        let server = serve(authority.issue(1, &[Role::Storage]), second.clone(), address);
        while second.parked.lock().is_empty() {
            std::thread::sleep(Duration::from_millis(5));
        }
        link.call(&call(b"free", &[]), soon()).unwrap();
        let outcomes = (waiting.join().unwrap(), repeated.join().unwrap());
        drop(server);
        outcomes
    });
    assert!(matches!(outcomes.0, Err(NetError::Restarted)), "{:?}", outcomes.0);
    outcomes.1.unwrap();
}

#[test]
fn answers_may_come_late_and_calls_that_others_wait_for_pass_those_that_wait() {
    let authority = Authority::new(1);
    let (_server, address) =
        serve(authority.issue(1, &[Role::Storage]), Arc::new(Echo::default()), any_port());
    let link = link(&caller(authority.issue(2, &[Role::Client]), Role::Client), address);
    std::thread::scope(|scope| {
        let parked = scope.spawn(|| link.park(&call(b"park", &[]), soon()).unwrap().head().to_vec());
        let slow: Vec<_> =
            (0..100).map(|_| scope.spawn(|| link.call(&call(b"sleep", &[]), soon()).map(drop))).collect();
        std::thread::sleep(Duration::from_millis(100));
        let begin = Instant::now();
        link.call(&Call { is_urgent: true, ..call(b"free", &[]) }, soon()).unwrap();
        assert!(begin.elapsed() < Duration::from_millis(250), "{:?}", begin.elapsed());
        assert_eq!(parked.join().unwrap(), b"freed");
        slow.into_iter().for_each(|one| one.join().unwrap().unwrap());
    });
}

#[test]
fn answers_that_go_together_reach_each_its_caller_also_when_the_connection_is_cut_under_them() {
    const CALLS: u32 = 12;
    let authority = Authority::new(1);
    let echo = Arc::new(Echo::default());
    let (_server, address) = serve(authority.issue(1, &[Role::Storage]), echo.clone(), any_port());
    let proxy = Proxy::start(address);
    let link = link(&caller(authority.issue(2, &[Role::Client]), Role::Client), proxy.address);
    for is_cut in [false, true] {
        let told = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for _ in 0..CALLS {
                scope.spawn(|| {
                    let answer = link.call(&once(b"park"), soon()).unwrap();
                    told.lock().push(u32::from_le_bytes(answer.head().try_into().unwrap()));
                });
            }
            while echo.parked.lock().len() < CALLS as usize {
                std::thread::sleep(Duration::from_millis(1));
            }
            // Whoever has read the last of them is to be through with the connection.
            std::thread::sleep(Duration::from_millis(50));
            let mut answers = Answers::default();
            for (number, parked) in (0..CALLS).zip(echo.parked.lock().drain(..)) {
                parked.reply_with(&mut answers, &number.to_le_bytes());
            }
            if is_cut {
                proxy.cut();
            } else {
                std::thread::sleep(Duration::from_millis(50));
                assert_eq!(*told.lock(), [0; 0], "they were sent one by one");
            }
            drop(answers);
        });
        let mut told = told.into_inner();
        told.sort_unstable();
        assert_eq!(told, (0..CALLS).collect::<Vec<_>>(), "cut: {is_cut}");
    }
    assert_eq!(echo.served.load(SeqCst), u64::from(2 * CALLS), "carried out twice");
}

#[test]
fn a_server_that_says_nothing_is_waited_for_as_long_as_the_caller_wants() {
    let authority = Authority::new(1);
    let (_server, address) =
        serve(authority.issue(1, &[Role::Storage]), Arc::new(Echo::default()), any_port());
    let link = link(&caller(authority.issue(2, &[Role::Client]), Role::Client), address);
    let begin = Instant::now();
    let outcome = link.call(&call(b"park", &[]), begin + Duration::from_millis(300));
    assert!(matches!(outcome, Err(NetError::Stuck)));
    assert!((250..2000).contains(&begin.elapsed().as_millis()));
    link.call(&call(b"x", &[]), soon()).unwrap();
}

#[test]
fn a_panic_in_a_call_is_an_answer_and_the_server_goes_on() {
    let authority = Authority::new(1);
    let (_server, address) =
        serve(authority.issue(1, &[Role::Storage]), Arc::new(Echo::default()), any_port());
    let link = link(&caller(authority.issue(2, &[Role::Client]), Role::Client), address);
    let outcome = link.call(&call(b"panic", &[]), soon()).map(drop);
    assert!(
        matches!(&outcome, Err(NetError::Refused(text)) if text.contains("without an answer")),
        "{outcome:?}"
    );
    link.call(&call(b"x", &[]), soon()).unwrap();
}

#[test]
fn who_is_not_who_he_should_be_is_told_so_and_reaches_nothing() {
    let (authority, other) = (Authority::new(1), Authority::new(2));
    let echo = Arc::new(Echo::default());
    let (_server, address) = serve(authority.issue(1, &[Role::Storage]), echo.clone(), any_port());
    let uri = |authority: &Authority, roles: &[Role]| {
        let roles: Roles = roles.iter().copied().collect();
        PeerId { cluster: authority.cluster, node: NodeId(2), roles, host: None }.to_string()
    };
    // Another file system.
    let stranger = link(&caller(other.issue(2, &[Role::Client]), Role::Client), address);
    let text = refused(&stranger);
    assert!(text.contains("another"), "{text}");
    // A certificate of another file system's name, by our authority.
    let named = authority.issue_with(&[uri(&other, &[Role::Client])], (2020, 2120));
    let text = refused(&link(&caller(named, Role::Client), address));
    assert!(!text.is_empty());
    // Out of date, and not valid yet.
    for years in [(2020, 2021), (2100, 2120)] {
        let old = authority.issue_with(&[uri(&authority, &[Role::Client])], years);
        let text = refused(&link(&caller(old, Role::Client), address));
        assert!(text.contains("expired") || text.contains("ertificate"), "{text}");
    }
    // What it may not be.
    let text = refused(&link(&caller(authority.issue(2, &[Role::Client]), Role::Storage), address));
    assert!(text.contains("does not allow it to act as storage"), "{text}");
    // Somebody who was removed.
    let text = refused(&link(&caller(authority.issue(99, &[Role::Client]), Role::Client), address));
    assert!(text.contains("was removed"), "{text}");
    // A server that is another one than was meant.
    let (_second, second) = serve(authority.issue(5, &[Role::Storage]), echo.clone(), any_port());
    let text = refused(&link(&caller(authority.issue(2, &[Role::Client]), Role::Client), second));
    assert!(text.contains("not the storage node-1 that was meant"), "{text}");
    let (_third, third) = serve(authority.issue(1, &[Role::Meta]), echo.clone(), any_port());
    let text = refused(&link(&caller(authority.issue(2, &[Role::Client]), Role::Client), third));
    assert!(text.contains("not the storage node-1 that was meant"), "{text}");
    assert_eq!(echo.served.load(SeqCst), 0);
}

#[test]
fn a_connection_ends_with_the_certificate_that_it_was_made_with() {
    let (authority, echo) = (Authority::new(1), Arc::new(Echo::default()));
    let (server, address) = serve(authority.issue(1, &[Role::Storage]), echo.clone(), any_port());
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let (long_ago, soon_over) = (Duration::from_secs(1_000_000_000), now + Duration::from_secs(3));
    let roles = Roles::default().with(Role::Client);
    let name = PeerId { cluster: authority.cluster, node: NodeId(2), roles, host: None }.to_string();
    let short = authority.issue_between(&[name], (long_ago, soon_over));
    let [short, long] = [short, authority.issue(3, &[Role::Client])]
        .map(|identity| link(&caller(identity, Role::Client), address));
    let answered = |link: &Link| drop(link.call(&call(b"count", &[]), soon()).unwrap());
    answered(&short);
    answered(&long);
    server.end_expired();
    answered(&short);
    while std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap()
        < soon_over + Duration::from_secs(1)
    {
        std::thread::sleep(Duration::from_millis(50));
    }
    server.end_expired();
    let served = echo.served.load(SeqCst);
    let text = refused(&short);
    assert!(text.contains("expired") || text.contains("ertificate"), "{text}");
    assert_eq!(
        echo.served.load(SeqCst),
        served,
        "something was served that came by a certificate that is too old"
    );
    answered(&long);
}

#[test]
fn callers_that_wait_to_be_let_in_hold_nobody_up() {
    let authority = Authority::new(1);
    let (waiting, may_go) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let (counted, gate) = (waiting.clone(), may_go.clone());
    let admit = move |peer: &Peer| {
        if peer.id.node == NodeId(8) {
            counted.fetch_add(1, SeqCst);
            while !gate.load(SeqCst) {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        Ok(())
    };
    let identity = authority.issue(1, &[Role::Storage]);
    let (_server, address) = serve_those(identity, Arc::new(Echo::default()), any_port(), Box::new(admit));
    let links: Vec<Link> =
        (0..20).map(|_| link(&caller(authority.issue(8, &[Role::Client]), Role::Client), address)).collect();
    std::thread::scope(|scope| {
        let calls: Vec<_> = links
            .iter()
            .map(|link| scope.spawn(|| link.call(&call(b"late", b""), soon()).map(drop)))
            .collect();
        let late = soon();
        while waiting.load(SeqCst) < links.len() as u64 && Instant::now() < late {
            std::thread::sleep(Duration::from_millis(1));
        }
        let all_waited = waiting.load(SeqCst) == links.len() as u64;
        let other = link(&caller(authority.issue(7, &[Role::Client]), Role::Client), address);
        let answered = other.call(&call(b"now", b""), soon()).map(drop);
        may_go.store(true, SeqCst);
        assert!(all_waited, "so many can wait at a time");
        answered.unwrap();
        calls.into_iter().for_each(|call| call.join().unwrap().unwrap());
    });
}

#[test]
fn bytes_that_are_no_tls_end_the_connection_and_nothing_else() {
    let authority = Authority::new(1);
    let echo = Arc::new(Echo::default());
    let (_server, address) = serve(authority.issue(1, &[Role::Storage]), echo.clone(), any_port());
    for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0; 100], &[0xff; 70_000], &[0x16, 3, 1, 0xff, 0xff]] {
        let mut socket = TcpStream::connect(address).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(15))).unwrap();
        // The server may have ended it before all was sent.
        let _ = socket.write_all(bytes);
        let mut answer = Vec::new();
        // At the latest when the time for saying who calls is over.
        let ended = socket.read_to_end(&mut answer);
        assert!(
            ended.is_ok() || ended.is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionReset)
        );
    }
    let link = link(&caller(authority.issue(2, &[Role::Client]), Role::Client), address);
    link.call(&call(b"x", &[]), soon()).unwrap();
    assert_eq!(echo.served.load(SeqCst), 1);
}
