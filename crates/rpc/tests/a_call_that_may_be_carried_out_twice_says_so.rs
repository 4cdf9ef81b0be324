//! Goal: who changes chunks knows when nobody can tell any more what a change has done to their space: a server that was killed may have carried it out, and the one that was asked then
//! found nothing left to do. The blocks of a file were counted wrong until `ashlar fsck --repair`. Method: servers over TLS of which the first takes calls and answers none.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use ashlar_rpc::net::frame::Frame;
use ashlar_rpc::net::{Endpoint, Peer, Replier};
use ashlar_rpc::remote::{Patience, RemoteStorage, Routes};
use ashlar_rpc::{Payload, StorageCalls};
use ashlar_types::codec::encode;
use ashlar_types::message::{StorageReply, StorageRequest};
use ashlar_types::{ChainId, ChunkId, ClusterMap, Epoch, Errno, InodeId, OfChains, Role, TargetId};
use parking_lot::{Mutex, RwLock};
use smallvec::smallvec;
use std::sync::Arc;
use std::time::{Duration, Instant};
use support::two_servers::{Hung, map};
use support::{Authority, any_port, caller, serve};

const PATIENCE: Duration = Duration::from_secs(60);

fn await_call(hung: &Hung) {
    let late = Instant::now() + PATIENCE;
    while hung.0.lock().is_empty() {
        assert!(Instant::now() < late, "it is asked first");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Says of everything that there was nothing left to do, after it has refused the first calls.
struct Finds {
    reply: StorageReply,
    refusals: Mutex<Vec<Errno>>,
}

impl Endpoint for Finds {
    fn serve(&self, _: &Peer, _: Frame, replier: Replier) {
        let answer = self.refusals.lock().pop().map_or(Ok(self.reply.clone()), Err);
        replier.reply(&encode(&answer), &[]);
    }
}

fn finds(reply: &StorageReply, refusals: &[Errno]) -> Arc<Finds> {
    Arc::new(Finds { reply: reply.clone(), refusals: Mutex::new(refusals.to_vec()) })
}

type SharedMap = Arc<RwLock<Arc<ClusterMap>>>;

fn storage(authority: &Authority, map: &SharedMap) -> RemoteStorage {
    let routes = Routes::new(caller(authority.issue(7, &[Role::Meta]), Role::Meta), map.clone());
    RemoteStorage::new(Arc::new(routes), Patience::new(PATIENCE))
}

fn truncate() -> StorageRequest {
    let (target, chain, chunk_bytes, len) = (TargetId(1), ChainId(0), 65536, 0);
    let chunk = ChunkId { inode: InodeId(5), generation: 1, index: 0 };
    StorageRequest::Truncate { target, chunk, chain, chunk_bytes, len }
}

fn delete() -> StorageRequest {
    let (target, inode, generation) = (TargetId(1), InodeId(5), 1);
    let chains = OfChains::Only(smallvec![ChainId(0)]);
    StorageRequest::DeleteGeneration { target, inode, generation, chains, from_index: 0 }
}

fn may_be_second(reply: Result<StorageReply, Errno>) -> bool {
    match reply {
        Ok(StorageReply::Written(written)) => written.may_be_second,
        Ok(StorageReply::Deleted { may_be_second, .. }) => may_be_second,
        other => panic!("{other:?}"),
    }
}

#[test]
fn when_the_server_was_killed_and_started_again() {
    let authority = Authority::new(1);
    let deleted = StorageReply::Deleted { blocks: 0, is_done: true, may_be_second: false };
    let written = StorageReply::Written(Default::default());
    // A server that was started again has too much to do at first.
    for (request, reply, refusals) in [
        (truncate(), &written, &[][..]),
        (truncate(), &written, &[Errno::EBUSY][..]),
        (delete(), &deleted, &[]),
    ] {
        let hung = Arc::new(Hung::default());
        let (first, address) = serve(authority.issue(1, &[Role::Storage]), hung.clone(), any_port());
        let map = Arc::new(RwLock::new(Arc::new(map(&authority, [address, address]))));
        let storage = storage(&authority, &map);
        std::thread::scope(|scope| {
            let call = scope.spawn(|| storage.call(&request, Payload::None));
            await_call(&hung);
            drop(first);
            let again = serve(authority.issue(1, &[Role::Storage]), finds(reply, refusals), address);
            assert!(may_be_second(call.join().unwrap()), "{request:?}");
            // It is the call that was made twice, and not the server that was started twice.
            assert!(!may_be_second(storage.call(&request, Payload::None)));
            drop(again);
        });
    }
}

#[test]
fn when_the_server_was_killed_again_and_again_meanwhile() {
    let authority = Authority::new(1);
    let credentials = || authority.issue(1, &[Role::Storage]);
    let hung = Arc::new(Hung::default());
    let (mut killed, address) = serve(credentials(), hung.clone(), any_port());
    let map = Arc::new(RwLock::new(Arc::new(map(&authority, [address, address]))));
    let storage = storage(&authority, &map);
    std::thread::scope(|scope| {
        let call = scope.spawn(|| storage.call(&truncate(), Payload::None));
        await_call(&hung);
        for _ in 0..3 {
            drop(killed);
            let hung = Arc::new(Hung::default());
            killed = serve(credentials(), hung.clone(), address).0;
            await_call(&hung);
        }
        drop(killed);
        let finds = finds(&StorageReply::Written(Default::default()), &[]);
        let last = serve(credentials(), finds, address);
        assert!(may_be_second(call.join().unwrap()));
        drop(last);
    });
}

#[test]
fn when_the_chain_went_elsewhere_while_the_server_did_not_answer() {
    let authority = Authority::new(1);
    let written = StorageReply::Written(Default::default());
    for was_there in [true, false] {
        let hung = Arc::new(Hung::default());
        let (first, address) = serve(authority.issue(1, &[Role::Storage]), hung.clone(), any_port());
        let first = was_there.then_some(first);
        let (_second, other) = serve(authority.issue(2, &[Role::Storage]), finds(&written, &[]), any_port());
        let before = map(&authority, [address, other]);
        let mut after = before.clone();
        (after.epoch, after.chains[0].targets) = (Epoch(2), smallvec![TargetId(2)]);
        let map = Arc::new(RwLock::new(Arc::new(before)));
        let storage = storage(&authority, &map);
        std::thread::scope(|scope| {
            let call = scope.spawn(|| storage.call(&truncate(), Payload::None));
            if was_there {
                await_call(&hung);
            } else {
                // Until it has tried: nobody gets the call, whenever that is.
                std::thread::sleep(Duration::from_millis(100));
            }
            *map.write() = Arc::new(after);
            assert_eq!(may_be_second(call.join().unwrap()), was_there, "nobody was there to carry it out");
        });
        drop(first);
    }
}
