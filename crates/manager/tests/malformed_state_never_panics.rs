//! Goal: state files that say something nobody would say, under good checksums, are refused or taken up, and make nothing panic.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use ashlar_coord::Coord;
use ashlar_coord::local_file::{self, LocalFile, STATE_FILE};
use ashlar_env::sim::{SimDisk, SimEntropy};
use ashlar_env::{Disk, Env, OpenMode};
use ashlar_manager::{
    ClusterState, FoundTarget, Joining, Manager, MoveNotes, SECRETS_FILE, Secrets, StartRecord, TokenRecord,
    WorkRecord,
};
use ashlar_types::codec::{self, crc32c};
use ashlar_types::testing::mutated;
use ashlar_types::{
    Fileset, FilesetId, InodeId, NodeId, NodePolicy, PoolId, Roles, Start, StartPlace, TargetId, Timespec,
};
use std::sync::Arc;

const ROUNDS: u64 = 10_000;

fn store(disk: &Arc<dyn Disk>, name: &str, bytes: &[u8]) {
    let file = disk.open(name, OpenMode::CreateOrOpen).unwrap();
    file.set_len(0).unwrap();
    file.write_at(0, bytes).unwrap();
}

fn load(disk: &Arc<dyn Disk>, name: &str) -> Vec<u8> {
    let file = disk.open(name, OpenMode::Read).unwrap();
    let mut bytes = vec![0; file.len().unwrap() as usize];
    file.read_at(0, &mut bytes).unwrap();
    bytes
}

fn found(number: u8) -> FoundTarget {
    FoundTarget { id: TargetId(u32::from(number)), uuid: [number; 16], path: format!("/{number}") }
}

fn open(disk: &Arc<dyn Disk>) -> Option<Manager> {
    let opened = Manager::open(disk, "", Box::new(LocalFile::new(disk.clone(), "")));
    // Whoever is refused is told something.
    opened.map_err(|error| assert!(!error.to_string().is_empty())).ok()
}

/// A file system with two targets, and its state.
fn sample() -> (Arc<dyn Disk>, ClusterState) {
    let (env, _) = Env::simulated(1, Timespec::new(1, 0));
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::new());
    let draft = Manager::draft(&disk, "", &env).unwrap();
    let manager = Manager::create(draft, Box::new(LocalFile::new(disk.clone(), ""))).unwrap();
    manager.take_targets(NodeId(1), &[found(1), found(2)]).unwrap();
    let (_, bytes) = LocalFile::new(disk.clone(), "").load().unwrap();
    (disk, ClusterState::decode(&bytes).unwrap())
}

/// What everybody asks a map.
fn use_it(manager: &Manager) {
    let map = manager.map().read().clone();
    for pool in [PoolId(0), PoolId(1)] {
        let heads: Vec<_> = map.chains_of(pool, 1).map(|chain| map.head(chain.id)).collect();
        assert!(heads.iter().all(Option::is_some), "a chain that is offered has a target");
    }
    assert!(map.targets.iter().all(|target| map.target(target.id) == Some(target)));
    let _ = manager.take_targets(NodeId(1), &[found(1), found(2), found(3)]);
    let _ = manager.take_targets(NodeId(1), &[found(2)]);
}

#[test]
fn ten_thousand_cluster_maps_with_other_fields_are_refused_or_served() {
    let (disk, mut state) = sample();
    // Fewer chains and shards, so that other fields have their turn.
    state.map.chains.truncate(6);
    state.map.shards.truncate(4);
    state.tokens.push(TokenRecord {
        public_key: [3; 32],
        roles: Roles(4),
        expires_s: 5,
        used_by: Some((NodeId(1), vec![4; 65])),
        policy: NodePolicy::default(),
    });
    state.map.filesets = vec![Fileset { id: FilesetId(1), parent: FilesetId(0), root: InodeId(9) }];
    state.starts.push(StartRecord {
        uuid: [1; 16],
        last: Start { number: 3, tag: 4 },
        joining: vec![Joining {
            start: Start { number: 4, tag: 5 },
            node: NodeId(2),
            path: "/disk2".to_owned(),
            place: StartPlace::default(),
            since_s: 7,
        }],
        earlier: vec![Start { number: 2, tag: 1 }],
        node: NodeId(1),
        path: "/disk1".to_owned(),
        place: StartPlace::default(),
        since_s: 6,
    });
    let work = WorkRecord {
        target: Some(TargetId(1)),
        pool: PoolId(0),
        since_s: 1,
        chains_done: u64::MAX,
        bytes_done: u64::MAX,
    };
    let notes = MoveNotes { are_shards_paused: true, works: vec![work, WorkRecord { target: None, ..work }] };
    let random = SimEntropy::new(5);
    let mut opened = 0;
    for round in 0..ROUNDS {
        // With what is noted of moves behind it every other time.
        let has_notes = round % 2 == 1;
        let mut bytes = if has_notes { b"ASHLSTA7".to_vec() } else { b"ASHLSTA6".to_vec() };
        let below = |below| random.below(below);
        bytes.extend(if has_notes { mutated(&(&state, &notes), below) } else { mutated(&state, below) });
        store(&disk, STATE_FILE, &local_file::encode(round, &bytes));
        if let Some(manager) = open(&disk) {
            opened += 1;
            use_it(&manager);
        }
    }
    assert!(opened > ROUNDS / 20 && opened < ROUNDS, "{opened} opened");
}

#[test]
fn ten_thousand_secrets_with_other_fields_are_refused_or_taken() {
    let (disk, _) = sample();
    let good = load(&disk, SECRETS_FILE);
    let secrets: Secrets = codec::decode(&good[12..], "secrets").unwrap();
    let random = SimEntropy::new(6);
    let mut opened = 0;
    for _ in 0..ROUNDS {
        let body = mutated(&secrets, |below| random.below(below));
        let bytes = [&good[..8], &crc32c(0, &body).to_le_bytes(), &body].concat();
        store(&disk, SECRETS_FILE, &bytes);
        opened += u64::from(open(&disk).is_some());
    }
    assert!(opened > ROUNDS / 20 && opened < ROUNDS, "{opened} opened");
}
