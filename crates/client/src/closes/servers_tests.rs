//! A client with two metadata servers that are played: shard 0 is at the first, shard 1 at the second.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use super::*;
use crate::call::ResolveCredentials;
use crate::client::ClientConfig;
use crate::file::{File, FileState, FileTable, OpenFlags};
use ashlar_env::Env;
use ashlar_rpc::{Caller, MetaCalls, Payload, SessionEvents, SessionGrant, StorageCalls};
use ashlar_types::map::Shard;
use ashlar_types::message::{StorageReply, StorageRequest};
use ashlar_types::{ClusterId, Credentials, Epoch, SessionId};
use std::sync::atomic::AtomicBool;
use std::time::Instant;

/// Much more than a close waits for others, and less than a pause between two tries.
const SOON: Duration = Duration::from_millis(700);
/// An inode of the second server.
const ELSEWHERE: u64 = 1 << 48 | 5;

#[derive(Default)]
struct Servers {
    /// The second one answers nothing.
    is_away: AtomicBool,
    /// So many calls of closes fail.
    failing: AtomicUsize,
    /// Nothing else finds room before a close was told.
    is_full: AtomicBool,
    told: Mutex<Vec<u64>>,
    /// Whether closes were told when the session ended.
    told_at_end: Mutex<Option<usize>>,
}

impl Servers {
    fn has(&self, inode: u64) -> bool {
        self.told.lock().contains(&inode)
    }

    fn is_told_soon(&self, inode: u64) -> bool {
        let end = Instant::now() + SOON;
        while Instant::now() < end {
            if self.has(inode) {
                return true;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        false
    }
}

impl MetaCalls for Servers {
    fn open_session(&self, _: Arc<dyn SessionEvents>) -> Result<SessionGrant, Errno> {
        let lease_term = Duration::from_secs(10);
        Ok(SessionGrant { session: SessionId(1), lease_term, server: NodeId(1), incarnation: 1 })
    }

    fn close_session(&self, _: SessionId) {
        *self.told_at_end.lock() = Some(self.told.lock().len());
    }

    fn call(&self, _: Caller<'_>, request: MetaRequest<'_>) -> Result<MetaReply, Errno> {
        let MetaRequest::Closes { of } = request else {
            let is_full = self.is_full.load(SeqCst) && self.told.lock().is_empty();
            return if is_full { Err(Errno::EDQUOT) } else { Ok(MetaReply::Done) };
        };
        while self.is_away.load(SeqCst) && of.iter().any(|close| close.inode.home() == ShardId(1)) {
            std::thread::sleep(Duration::from_millis(1));
        }
        if self.failing.load(SeqCst) > 0 {
            self.failing.fetch_sub(1, SeqCst);
            return Err(Errno::EIO);
        }
        self.told.lock().extend(of.iter().map(|close| close.inode.0));
        Ok(MetaReply::Closed { gone: Vec::new() })
    }
}

impl StorageCalls for Servers {
    fn call(&self, _: &StorageRequest, _: Payload<'_>) -> Result<StorageReply, Errno> {
        Err(Errno::ENODEV)
    }
}

impl ResolveCredentials for Servers {
    fn resolve(&self, _: u32, _: &Credentials) -> Option<Credentials> {
        None
    }
}

fn client() -> (Arc<Servers>, Arc<Client>) {
    let servers = Arc::<Servers>::default();
    let shards = [1, 2].map(|node| Shard { id: ShardId(node - 1), primary: NodeId(u32::from(node)) });
    let map = ClusterMap {
        cluster: ClusterId(*b"cluster-of-tests"),
        epoch: Epoch(1),
        pools: Vec::new(),
        targets: Vec::new(),
        chains: Vec::new(),
        shards: shards.to_vec(),
        nodes: Vec::new(),
        moves: Default::default(),
        filesets: Vec::new(),
    };
    let client = Client::connect(ClientConfig {
        meta: servers.clone(),
        storage: servers.clone(),
        map: Arc::new(RwLock::new(Arc::new(map))),
        env: Env::os(),
        credentials: servers.clone(),
        checks_payload: true,
        comes_back: true,
        wait_max: crate::WAIT_MIN,
    });
    (servers, client.unwrap())
}

fn close(client: &Client, inode: u64) {
    assert!(client.close_later(InodeId(inode), inode, None));
}

#[test]
fn a_server_that_is_away_delays_no_closes_at_another_one() {
    let (servers, client) = client();
    servers.is_away.store(true, SeqCst);
    close(&client, ELSEWHERE);
    for inode in 5..8 {
        close(&client, inode);
        assert!(servers.is_told_soon(inode), "{inode}");
    }
    assert!(!servers.has(ELSEWHERE));
    // What the end of the session closes anyway is not waited for without end; and it is back in time for what comes next.
    let begun = Instant::now();
    client.end_closes();
    assert!(begun.elapsed() >= END_WAIT && begun.elapsed() < 2 * END_WAIT, "{:?}", begun.elapsed());
    servers.is_away.store(false, SeqCst);
    client.disconnect().unwrap();
}

#[test]
fn closes_that_could_not_be_told_are_told_again() {
    let (servers, client) = client();
    servers.failing.store(1, SeqCst);
    let begun = Instant::now();
    let read = Timespec { secs: 7, nanos: 0 };
    assert!(client.close_later(InodeId(5), 5, Some(read)));
    while !servers.has(5) {
        assert!(begun.elapsed() < Duration::from_secs(20), "it is never told");
        assert_eq!(client.closes.read_of(InodeId(5)), Some(read));
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(begun.elapsed() >= TRY_PAUSE, "{:?}", begun.elapsed());
    while client.closes.read_of(InodeId(5)).is_some() {
        assert!(begun.elapsed() < Duration::from_secs(20), "it is known for ever");
    }
    assert_eq!(*servers.told.lock(), [5]);
    client.disconnect().unwrap();
}

fn file(inode: u64) -> Arc<File> {
    let handle = (DescriptionId(1), OpenFlags::default(), false);
    FileTable::new(Signal::default(), crate::WAIT_MIN)
        .open(InodeId(inode), handle, None, FileState::unknown, |_| {})
        .0
}

#[test]
fn a_file_of_which_its_server_does_not_know_that_it_is_open_holds_up_no_other_one() {
    let (servers, client) = client();
    client.untold.begin(SessionId(1), vec![file(5)]);
    close(&client, 5);
    close(&client, 6);
    assert!(servers.is_told_soon(6) && !servers.has(5));
    // Nor one that is closed while that waits.
    std::thread::sleep(Duration::from_millis(50));
    close(&client, 7);
    assert!(servers.is_told_soon(7) && !servers.has(5));
    client.untold.begin(SessionId(1), Vec::new());
    let end = Instant::now() + Duration::from_secs(20);
    while !servers.has(5) {
        assert!(Instant::now() < end, "it is never told");
    }
    client.disconnect().unwrap();
}

#[test]
fn who_finds_no_room_waits_for_closes_that_make_some() {
    let (servers, client) = client();
    servers.is_full.store(true, SeqCst);
    let ask = || client.call_done(&Who::system(), MetaRequest::Access { inode: InodeId(9), mask: 4 });
    assert_eq!(ask(), Err(Errno::EDQUOT), "there is nothing to wait for");
    close(&client, 5);
    assert_eq!(ask(), Ok(()));
    client.disconnect().unwrap();
}

#[test]
fn the_session_ends_after_closes_that_are_on_the_way() {
    let (servers, client) = client();
    servers.is_away.store(true, SeqCst);
    close(&client, ELSEWHERE);
    while client.closes.state.lock().on_the_way.is_empty() {
        std::thread::sleep(Duration::from_millis(1));
    }
    close(&client, 5);
    std::thread::scope(|threads| {
        let ending = threads.spawn(|| client.disconnect());
        std::thread::sleep(Duration::from_millis(300));
        servers.is_away.store(false, SeqCst);
        ending.join().unwrap().unwrap();
    });
    assert_eq!(*servers.told_at_end.lock(), Some(2));
}
