//! The budget of calls per operation (`design.md` section 5): how often a client asks metadata and storage. A change that needs one call
//! more is seen here, not in a benchmark.

#![allow(clippy::unwrap_used)] // A test fails by panicking.

mod support;

use ashlar_client::{Client, ClientConfig, OpenFlags, ResolveCredentials, Who, WriteFlags};
use ashlar_rpc::{Caller, MetaCalls, Payload, SessionEvents, SessionGrant, StorageCalls};
use ashlar_types::message::{MetaReply, MetaRequest, RenameFlags, SetAttr, StorageReply, StorageRequest};
use ashlar_types::{Credentials, Errno, InodeId, Name, SessionId};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use support::{CHUNK_BYTES, Services};

#[derive(Default)]
struct Counts {
    meta: AtomicU64,
    storage: AtomicU64,
}

struct CountedMeta(Arc<dyn MetaCalls>, Arc<Counts>);
struct CountedStorage(Arc<dyn StorageCalls>, Arc<Counts>);

impl MetaCalls for CountedMeta {
    fn open_session(&self, events: Arc<dyn SessionEvents>) -> Result<SessionGrant, Errno> {
        self.0.open_session(events)
    }

    fn close_session(&self, session: SessionId) {
        self.0.close_session(session);
    }

    fn call(&self, caller: Caller<'_>, request: MetaRequest<'_>) -> Result<MetaReply, Errno> {
        self.1.meta.fetch_add(1, Relaxed);
        self.0.call(caller, request)
    }
}

impl StorageCalls for CountedStorage {
    fn call(&self, request: &StorageRequest, payload: Payload<'_>) -> Result<StorageReply, Errno> {
        self.1.storage.fetch_add(1, Relaxed);
        self.0.call(request, payload)
    }
}

struct NobodyToAsk;

impl ResolveCredentials for NobodyToAsk {
    fn resolve(&self, _pid: u32, _known: &Credentials) -> Option<Credentials> {
        None
    }

    fn is_passing(&self, pid: u32) -> bool {
        pid == PASSING
    }
}

/// A thread that is about to open something.
const PASSING: u32 = 7;

struct System {
    client: Arc<Client>,
    counts: Arc<Counts>,
    who: Who,
}

impl System {
    fn start() -> System {
        let services = Services::start();
        let counts = Arc::new(Counts::default());
        let client = Client::connect(ClientConfig {
            meta: Arc::new(CountedMeta(services.meta.clone(), counts.clone())),
            storage: Arc::new(CountedStorage(services.storage.clone(), counts.clone())),
            map: services.map(),
            env: services.env.clone(),
            credentials: Arc::new(NobodyToAsk),
            checks_payload: false,
            comes_back: false,
            wait_max: ashlar_client::WAIT_MIN,
        });
        System { client: client.unwrap(), counts, who: Who::system() }
    }

    /// What `work` answers, after checking that it made so many calls to metadata and to storage.
    fn costs<T>(&self, what: &str, (meta, storage): (u64, u64), work: impl FnOnce() -> T) -> T {
        let before = (self.counts.meta.load(Relaxed), self.counts.storage.load(Relaxed));
        let answer = work();
        let after = (self.counts.meta.load(Relaxed), self.counts.storage.load(Relaxed));
        assert_eq!(
            (after.0 - before.0, after.1 - before.1),
            (meta, storage),
            "{what}: (metadata, storage) calls"
        );
        answer
    }

    fn create(&self, name: &[u8]) -> ashlar_client::Opened {
        let place = (InodeId::ROOT, Name::new(name).unwrap());
        let flags = OpenFlags { read: true, write: true, ..OpenFlags::default() };
        self.client.create(&self.who, place, (0o644, 0), true, flags).unwrap()
    }

    fn open(&self, inode: InodeId) -> ashlar_client::Opened {
        let flags = OpenFlags { read: true, no_atime: true, ..OpenFlags::default() };
        self.client.open(&self.who, inode, flags).unwrap()
    }

    fn close(&self, opened: &ashlar_client::Opened) {
        self.client.flush(&opened.handle).unwrap();
        self.client.release(&opened.handle);
    }
}

#[test]
fn names_and_attributes_cost_one_call() {
    let system = System::start();
    let name = |text: &'static [u8]| Name::new(text).unwrap();
    let (client, who) = (&system.client, &system.who);
    system.costs("lookup of a name that is not there", (1, 0), || {
        client.lookup(who, InodeId::ROOT, name(b"d")).unwrap().unwrap_err()
    });
    let directory = system.costs("mkdir", (1, 0), || client.mkdir(who, InodeId::ROOT, name(b"d"), 0o755, 0));
    let directory = directory.unwrap().attr.inode;
    system.costs("stat without a lease", (1, 0), || client.getattr(who, directory).unwrap());
    system.costs("rmdir", (1, 0), || client.rmdir(who, InodeId::ROOT, name(b"d")).unwrap());
}

#[test]
fn a_small_file_costs_metadata_alone() {
    let system = System::start();
    // The close of an open file is reported, without anybody waiting for it.
    let opened = system.costs("create", (1, 0), || system.create(b"empty"));
    system.costs("close", (1, 0), || system.close(&opened));
    let opened = system.create(b"small");
    let write = || system.client.write(&opened.handle, 0, &[7; 4096], WriteFlags::default()).unwrap();
    system.costs("write of 4 KiB with the inode", (1, 0), write);
    system.costs("close", (1, 0), || system.close(&opened));
    let opened = system.costs("open", (1, 0), || system.open(opened.found.attr.inode));
    let mut out = [0; 4096];
    system.costs("read of what came with the open", (0, 0), || {
        assert_eq!(system.client.read(&opened.handle, 0, &mut out).unwrap(), 4096);
    });
    assert_eq!(out, [7; 4096]);
    system.costs("close", (1, 0), || system.close(&opened));
    system.costs("unlink", (1, 0), || {
        system.client.unlink(&system.who, InodeId::ROOT, Name::new(b"small").unwrap()).unwrap()
    });
}

#[test]
fn a_large_file_costs_one_storage_call_per_chunk_piece() {
    let system = System::start();
    let opened = system.create(b"large");
    let inode = opened.found.attr.inode;
    let piece = vec![9; CHUNK_BYTES];
    let write = |at: usize| {
        system.client.write(&opened.handle, (at * CHUNK_BYTES) as u64, &piece, WriteFlags::default()).unwrap()
    };
    // WRITE, and a layout that is bound at once, as there is nothing to copy.
    system.costs("the first write", (2, 1), || write(0));
    for at in 1..4 {
        system.costs("a write of the sole opener", (0, 1), || write(at));
    }
    system.costs("fsync", (2, 2), || system.client.fsync(&opened.handle).unwrap());
    system.costs("close after fsync", (2, 0), || system.close(&opened));
    let opened = system.costs("open", (1, 0), || system.open(inode));
    let mut out = vec![0; 4 * CHUNK_BYTES];
    system.costs("read of four chunks", (0, 4), || {
        assert_eq!(system.client.read(&opened.handle, 0, &mut out).unwrap(), out.len());
    });
    assert!(out.iter().all(|&byte| byte == 9));
    system.costs("close", (1, 0), || system.close(&opened));
}

#[test]
fn names_in_a_split_directory_cost_what_others_do() {
    let system = System::start();
    let (client, who) = (&system.client, &system.who);
    let directory = client.mkdir(who, InodeId::ROOT, Name::new(b"d").unwrap(), 0o755, 0).unwrap().attr.inode;
    system.costs("split", (1, 0), || client.split(who, directory, 4, false).unwrap());
    let texts: Vec<String> = (0..33).map(|number| format!("f{number}")).collect();
    let name = |at: usize| Name::new(texts[at].as_bytes()).unwrap();
    let create = |at: usize| {
        let flags = OpenFlags { write: true, ..OpenFlags::default() };
        client.create(who, (directory, name(at)), (0o644, 0), true, flags).unwrap()
    };
    // Once per directory: it is split, and how.
    let first = system.costs("the first name in it", (3, 0), || create(0));
    let mut shards = vec![first.found.attr.inode.home()];
    for at in 1..32 {
        let opened = system.costs("create", (1, 0), || create(at));
        system.costs("close", (1, 0), || system.close(&opened));
        system.costs("lookup", (1, 0), || client.lookup(who, directory, name(at)).unwrap().unwrap());
        shards.push(opened.found.attr.inode.home());
    }
    shards.sort_unstable();
    shards.dedup();
    assert_eq!(shards.len(), 4, "files are in the shards of all slices");
    let seen = system.costs("stat of the directory: it and each slice", (5, 0), || {
        client.getattr(who, directory).unwrap().attr
    });
    assert_eq!(seen.size, 32);
    // The kernel looks at the directory before it lets anybody through, and does so anew after each change.
    let passing = Who { pid: PASSING, ..Who::system() };
    let pass = || client.getattr(&passing, directory).unwrap();
    let (passed, opened) = (system.costs("a look on the way through", (0, 0), pass), create(32));
    assert!(!passed.is_whole && passed.attr_valid.is_zero() && passed.attr.rdev == 0);
    system.close(&opened);
    system.costs("and after a change in it", (0, 0), pass);
    let stat = || client.getattr(who, directory).unwrap().attr.size;
    assert_eq!(system.costs("stat after a change of one's own: that slice", (1, 0), stat), 33);
    assert_eq!(system.costs("and once more", (0, 0), stat), 33);
    let changes = SetAttr { mode: Some(0o700), ..SetAttr::default() };
    client.setattr(who, directory, None, changes).unwrap();
    let passed = system.costs("after a change of it", (1, 0), pass);
    assert_eq!(passed.attr.mode & 0o777, 0o700);
    system.costs("the next one", (0, 0), pass);
    let rename = || {
        let (from, to) = ((directory, name(1)), (directory, Name::new(b"g").unwrap()));
        client.rename(who, from, to, RenameFlags::Replace).unwrap()
    };
    system.costs("rename", (1, 0), rename);
    assert_eq!(stat(), 33);
    system.costs("unlink", (1, 0), || client.unlink(who, directory, name(2)).unwrap());
    assert_eq!(system.costs("stat after that: that slice", (1, 0), stat), 32);
    let named = client.lookup(who, InodeId::ROOT, Name::new(b"d").unwrap());
    assert!(!named.unwrap().unwrap().is_whole);
    system.costs("lookup of the directory", (1, 0), || {
        client.lookup(who, InodeId::ROOT, Name::new(b"d").unwrap()).unwrap().unwrap()
    });
    let dots = system.costs("the begin of a listing", (1, 0), || {
        client.readdir(who, directory, 0, 64 << 10, false).unwrap()
    });
    assert_eq!((dots.entries.len(), dots.is_end), (2, false));
    let rest = system.costs("a listing: each slice", (4, 0), || {
        client.readdir(who, directory, 2, 64 << 10, false).unwrap()
    });
    assert_eq!((rest.entries.len(), rest.is_end), (texts.len() - 1, true));
}
