//! Processor time of the calls behind one file of metadata: made, looked at, read and removed, without the kernel.
//!
//! `cargo run --release -p ashlar-client --example call_cost -- DIRECTORY [FILES] [THREADS] [BYTES]`, with the directory on the file
//! system to measure. The calls are those the kernel makes for `create`, `open` and `unlink` of a benchmark like mdtest, a GETATTR of the
//! directory by each for its permissions included. Processor time of the measuring threads is printed, which a busy machine blurs least.

#![allow(clippy::unwrap_used)] // a measurement stops at the first error

use ashlar_client::{Client, ClientConfig, OpenFlags, ResolveCredentials, Who, WriteFlags};
use ashlar_env::Env;
use ashlar_env::os::OsDisk;
use ashlar_kv::{FjallEngine, FjallOptions, Lane, LaneConfig};
use ashlar_meta::{MetaConfig, MetaService};
use ashlar_namespace::bootstrap::RootSettings;
use ashlar_storage::StorageService;
use ashlar_types::map::Shard;
use ashlar_types::{ClusterId, ClusterMap, Credentials, Epoch, InodeId, Name, NodeId, ShardId};
use parking_lot::RwLock;
use std::path::Path;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

const CLUSTER: ClusterId = ClusterId(*b"cluster-of-costs");

struct Nobody;

impl ResolveCredentials for Nobody {
    fn resolve(&self, _: u32, _: &Credentials) -> Option<Credentials> {
        None
    }
}

fn client(directory: &Path) -> Arc<Client> {
    let env = Env::os();
    let engine = FjallEngine::open(directory.join("engine"), FjallOptions::default()).unwrap();
    let disk = Arc::new(OsDisk::new(directory));
    let lane = Lane::open(disk, "lane", Box::new(engine), &env, CLUSTER, LaneConfig::default()).unwrap();
    let map = ClusterMap {
        cluster: CLUSTER,
        epoch: Epoch(1),
        pools: Vec::new(),
        targets: Vec::new(),
        chains: Vec::new(),
        shards: (0..64).map(|id| Shard { id: ShardId(id), primary: NodeId(1) }).collect(),
        nodes: Vec::new(),
        moves: Default::default(),
        filesets: Vec::new(),
    };
    let map = Arc::new(RwLock::new(Arc::new(map)));
    let storage = Arc::new(StorageService::new());
    let meta = MetaConfig {
        has_lost: false,
        keeps_sessions: false,
        lane: Arc::new(lane),
        env: env.clone(),
        name_hash_key: [7; 16],
        map: map.clone(),
        storage: storage.clone(),
        peers: None,
    };
    let (meta, _) = MetaService::start(meta, RootSettings::default()).unwrap();
    let credentials = Arc::new(Nobody);
    Client::connect(ClientConfig {
        meta,
        storage,
        map,
        env,
        credentials,
        checks_payload: true,
        comes_back: false,
        wait_max: ashlar_client::WAIT_MIN,
    })
    .unwrap()
}

fn thread_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid timespec to write to; the clock exists on every Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn create(client: &Client, parent: InodeId, name: Name<'_>, content: &[u8]) {
    let who = Who::system();
    let flags = OpenFlags { write: true, ..OpenFlags::default() };
    client.lookup(&who, parent, name).unwrap().unwrap_err();
    let opened = client.create(&who, (parent, name), (0o644, 0), true, flags).unwrap();
    if !content.is_empty() {
        client.write_as(&who, &opened.handle, 0, content, WriteFlags::default()).unwrap();
    }
    client.flush(&opened.handle).unwrap();
    client.getattr(&who, parent).unwrap();
    client.release(&opened.handle);
}

fn read(client: &Client, parent: InodeId, name: Name<'_>, content: &[u8]) {
    let who = Who::system();
    let found = client.lookup(&who, parent, name).unwrap().unwrap();
    let flags = OpenFlags { read: true, ..OpenFlags::default() };
    let opened = client.open(&who, found.attr.inode, flags).unwrap();
    if !content.is_empty() {
        let mut buffer = vec![0; content.len()];
        assert_eq!(client.read(&opened.handle, 0, &mut buffer).unwrap(), content.len());
    }
    client.flush(&opened.handle).unwrap();
    client.release(&opened.handle);
}

fn remove(client: &Client, parent: InodeId, name: Name<'_>, _: &[u8]) {
    let who = Who::system();
    client.unlink(&who, parent, name).unwrap();
    client.getattr(&who, parent).unwrap();
}

type Act = fn(&Client, InodeId, Name<'_>, &[u8]);

/// Wall time of the slowest and processor time of all threads.
fn run(
    client: &Arc<Client>,
    parents: &[InodeId],
    files: usize,
    content: &[u8],
    act: Act,
) -> (Duration, Duration) {
    let barrier = Arc::new(Barrier::new(parents.len()));
    let threads: Vec<_> = parents
        .iter()
        .map(|&parent| {
            let (client, content, barrier) = (Arc::clone(client), content.to_vec(), Arc::clone(&barrier));
            std::thread::spawn(move || {
                barrier.wait();
                let (clock, cpu) = (Instant::now(), thread_time());
                for file in 0..files {
                    let name = format!("f0.{file}");
                    act(&client, parent, Name::new(name.as_bytes()).unwrap(), &content);
                }
                (clock.elapsed(), thread_time() - cpu)
            })
        })
        .collect();
    let each: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    (each.iter().map(|(clock, _)| *clock).max().unwrap_or_default(), each.iter().map(|(_, cpu)| *cpu).sum())
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let directory = arguments.next().expect("a directory is needed");
    let mut number = |default: usize| arguments.next().map_or(default, |word| word.parse().unwrap());
    let (files, threads, bytes, rounds) = (number(20_000), number(1), number(0), number(3));
    let client = client(Path::new(&directory));
    let content = vec![7; bytes];
    for round in 0..rounds {
        let parents: Vec<InodeId> = (0..threads)
            .map(|thread| {
                let name = format!("d{round}.{thread}");
                let name = Name::new(name.as_bytes()).unwrap();
                client.mkdir(&Who::system(), InodeId::ROOT, name, 0o755, 0).unwrap().attr.inode
            })
            .collect();
        for (what, act) in [("create", create as Act), ("read", read), ("remove", remove)] {
            let (clock, cpu) = run(&client, &parents, files, &content, act);
            let each = |time: Duration| time.as_secs_f64() * 1e6 / (files * threads) as f64;
            println!("{what:8} {:7.2} us of processor, {:7.2} us on the clock", each(cpu), each(clock));
        }
    }
}
