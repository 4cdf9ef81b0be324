//! Goal: a mount that wants all its changes to be durable before they are answered is not served by a metadata server that does not know of that; another mount is. Method: a metadata server over
//! TLS that refuses a call it does not know, as earlier versions do.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use ashlar_env::Env;
use ashlar_rpc::net::frame::Frame;
use ashlar_rpc::net::{Endpoint, Peer, Replier, Service};
use ashlar_rpc::remote::{Patience, RemoteMeta, Routes};
use ashlar_rpc::wire::{MetaAnswer, MetaCall};
use ashlar_rpc::{MetaCalls, SessionEvents};
use ashlar_types::codec::{decode, encode};
use ashlar_types::map::Shard;
use ashlar_types::message::SessionEvent;
use ashlar_types::node::Listening;
use ashlar_types::{Durability, Errno, NodeId, Role, SessionId, ShardId};
use parking_lot::{Mutex, RwLock};
use std::sync::Arc;
use std::time::Duration;
use support::two_servers::map;
use support::{Authority, any_port, caller, serve_as};

/// A metadata server, and the sessions that it was asked to open.
struct Server {
    knows_sync: bool,
    opened: Mutex<Vec<SessionId>>,
}

impl Endpoint for Server {
    fn serve(&self, _: &Peer, frame: Frame, replier: Replier) {
        let opened = match decode::<MetaCall<'_>>(frame.head(), "metadata call").unwrap() {
            MetaCall::OpenSync(_) if !self.knows_sync => {
                return replier.refuse("that is no call to metadata");
            }
            MetaCall::OpenSync(session) => session,
            MetaCall::Open(session) => session.unwrap_or(SessionId(7)),
            _ => return replier.reply(&encode(&MetaAnswer::Done), &[]),
        };
        self.opened.lock().push(opened);
        replier.reply(&encode(&MetaAnswer::Session(opened, 1)), &[]);
    }
}

struct Deaf;

impl SessionEvents for Deaf {
    fn deliver(&self, _: SessionEvent) {}
}

/// What a mount that wants `durability` is told by such a server, and the sessions that were opened there.
fn open(knows_sync: bool, durability: Durability) -> (Result<SessionId, Errno>, Vec<SessionId>) {
    let authority = Authority::new(1);
    let server = Arc::new(Server { knows_sync, opened: Mutex::default() });
    let served = (Service::Meta, server.clone() as Arc<dyn Endpoint>);
    let identity = authority.issue(1, &[Role::Meta]);
    let (_listens, address) = serve_as(identity, served, any_port(), Box::new(|_| Ok(())));
    let mut map = map(&authority, [address, address]);
    map.nodes[0].roles = [Role::Meta].into_iter().collect();
    map.nodes[0].listening = vec![Listening { role: Role::Meta, addresses: vec![address] }];
    map.shards = vec![Shard { id: ShardId(0), primary: NodeId(1) }];
    let map = Arc::new(RwLock::new(Arc::new(map)));
    let routes = Routes::new(caller(authority.issue(7, &[Role::Client]), Role::Client), map);
    let meta = RemoteMeta::new(Arc::new(routes), Env::os(), Patience::new(Duration::from_secs(20)));
    let meta = meta.with_durability(durability);
    let told = meta.open_session(Arc::new(Deaf)).map(|grant| grant.session);
    if let Ok(session) = told {
        meta.close_session(session);
    }
    let opened = server.opened.lock().clone();
    (told, opened)
}

#[test]
fn only_a_mount_that_it_cannot_keep_its_promise_to_is_refused() {
    assert_eq!(open(false, Durability::Sync), (Err(Errno::EOPNOTSUPP), vec![]));
    assert_eq!(open(false, Durability::Async), (Ok(SessionId(7)), vec![SessionId(7)]));
    let (told, opened) = open(true, Durability::Sync);
    assert_eq!(told.unwrap().durability(), Durability::Sync);
    assert_eq!(opened, [told.unwrap()]);
}
