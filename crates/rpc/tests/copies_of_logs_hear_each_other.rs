//! Goal: copies of the log of a metadata server reach each other on whichever machines they are, and nobody else reaches them. Method: servers over TLS.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use ashlar_rpc::net::{Caller, Link, Server, Service, Wanted};
use ashlar_rpc::remote::CopyLinks;
use ashlar_rpc::serve::{CopiesEndpoint, HearsCopies};
use ashlar_types::{Errno, NodeId, Role};
use parking_lot::RwLock;
use rustc_hash::FxHashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use support::{Authority, any_port, caller, serve_as, soon};

const HERE: NodeId = NodeId(40);
const LOST: NodeId = NodeId(9);
const WAIT: Duration = Duration::from_secs(20);

/// Tells what it has heard, of one metadata server.
struct Told(u8);

impl HearsCopies for Told {
    fn hear(&self, server: NodeId, from: NodeId, head: &[u8], payload: &[u8]) -> Option<Vec<u8>> {
        (server == HERE).then(|| [&[self.0, from.0 as u8], head, payload].concat())
    }

    fn go_on_without(&self, server: NodeId, lost: NodeId) -> Option<()> {
        (server == HERE && lost == LOST).then_some(())
    }
}

fn serve(authority: &Authority, node: u32, tag: u8) -> (Server, SocketAddr) {
    let endpoint = Arc::new(CopiesEndpoint::new(Arc::new(Told(tag))));
    let identity = authority.issue(node, &[Role::Meta]);
    serve_as(identity, (Service::Copies, endpoint), any_port(), Box::new(|_| Ok(())))
}

fn meta(authority: &Authority, node: u32) -> Arc<Caller> {
    caller(authority.issue(node, &[Role::Meta]), Role::Meta)
}

#[test]
fn they_hear_what_is_said_where_they_are_by_now() {
    let authority = Authority::new(1);
    let (_first, first) = serve(&authority, 2, 1);
    let (_second, second) = serve(&authority, 2, 2);
    let (_third, third) = serve(&authority, 3, 3);
    let places: FxHashMap<_, _> = [(NodeId(2), vec![first]), (NodeId(3), vec![third])].into_iter().collect();
    let places = Arc::new(RwLock::new(places));
    let links = CopyLinks::new(meta(&authority, 7), places.clone());
    let ask = |node: u32| links.ask(HERE, NodeId(node), b"head", b"payload", WAIT);
    assert_eq!(ask(2).unwrap(), b"\x01\x07headpayload");
    assert_eq!(ask(3).unwrap(), b"\x03\x07headpayload");
    assert_eq!(links.ask(HERE, NodeId(2), b"", b"", WAIT).unwrap(), b"\x01\x07");
    assert_eq!(
        links.ask(NodeId(41), NodeId(2), b"x", b"", WAIT),
        Err(Errno::EHOSTDOWN),
        "none of that is there"
    );
    let long = vec![7; (1 << 20) - 4];
    assert_eq!(
        links.ask(HERE, NodeId(2), &long, &vec![7; 16 << 20], WAIT).unwrap().len(),
        2 + (17 << 20) - 4
    );
    let begun = Instant::now();
    assert_eq!(links.ask(HERE, NodeId(2), &vec![7; (1 << 20) - 3], b"", WAIT), Err(Errno::EHOSTDOWN));
    assert_eq!(links.ask(HERE, NodeId(2), b"", &vec![7; (16 << 20) + 1], WAIT), Err(Errno::EHOSTDOWN));
    assert_eq!(ask(4), Err(Errno::EHOSTDOWN), "nobody knows where it is");
    places.write().insert(NodeId(4), Vec::new());
    assert_eq!(ask(4), Err(Errno::EHOSTDOWN));
    places.write().remove(&NodeId(2));
    assert_eq!(ask(2), Err(Errno::EHOSTDOWN));
    assert!(begun.elapsed() < WAIT / 4, "{:?}", begun.elapsed());
    places.write().insert(NodeId(2), vec![second]);
    assert_eq!(ask(2).unwrap(), b"\x02\x07headpayload");
}

#[test]
fn nobody_but_metadata_servers_reaches_them_and_administrators_say_one_thing() {
    let authority = Authority::new(1);
    let (_server, address) = serve(&authority, 2, 1);
    let send = |caller: Arc<Caller>, head: &[u8]| {
        let wanted = Wanted { role: Role::Meta, node: Some(NodeId(2)) };
        let link = Link::new(caller, wanted, Box::new(move || (vec![address], Vec::new())), 1);
        let (service, payload) = (Service::Copies, &[][..]);
        let call = ashlar_rpc::net::Call {
            service,
            head,
            payload,
            is_once: false,
            may_repeat: true,
            is_urgent: true,
        };
        link.call(&call, soon()).map(|answer| answer.head().to_vec()).map_err(|error| error.to_string())
    };
    let head = [&HERE.0.to_le_bytes()[..], b"x"].concat();
    assert_eq!(send(meta(&authority, 7), &head).unwrap(), b"\x01\x07x");
    for role in [Role::Client, Role::Storage, Role::Console, Role::Manager] {
        let text = send(caller(authority.issue(7, &[role]), role), &head).unwrap_err();
        assert!(text.contains("metadata servers"), "{role}: {text}");
    }
    let admin = |head: &[u8]| send(caller(authority.issue(7, &[Role::Admin]), Role::Admin), head);
    let without = |server: NodeId, lost: NodeId| [server.0.to_le_bytes(), lost.0.to_le_bytes()].concat();
    assert_eq!(admin(&without(HERE, LOST)).unwrap(), b"");
    assert!(admin(&without(NodeId(41), LOST)).unwrap_err().contains("no copy of that metadata server works"));
    for head in [&head[..], b"", &without(HERE, LOST)[..7], &[&without(HERE, LOST)[..], b"x"].concat()] {
        let text = admin(head).unwrap_err();
        assert!(text.contains("nothing an administrator says"), "{text}");
    }
    // Also not one that serves another metadata server by its certificate: it is a machine that keeps copies, or none.
    for host in [2, 7, 8] {
        let in_place = authority.issue_to(Some(NodeId(host)), 7, &[Role::Meta]);
        let text = send(caller(in_place, Role::Meta), &head).unwrap_err();
        assert!(text.contains("in their own name alone"), "{text}");
    }
    for len in 0..4 {
        let text = send(meta(&authority, 7), &head[..len]).unwrap_err();
        assert!(text.contains("no message"), "{text}");
    }
}
