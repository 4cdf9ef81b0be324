//! The example files of docs/formats/cluster-state.md are opened by the manager and are what the document says; and the code writes
//! these very bytes.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use ashlar_coord::Coord;
use ashlar_coord::local_file::{self, LocalFile};
use ashlar_env::sim::SimDisk;
use ashlar_env::{Disk, OpenMode};
use ashlar_manager::{ClusterState, Manager, ManagerError, Secrets};
use ashlar_types::codec;
use ashlar_types::map::{Chain, MovePolicy, Pool, Shard, Target, TargetState};
use ashlar_types::{
    ChainId, ClusterId, ClusterMap, Epoch, Node, NodeId, NodePolicy, PoolId, Role, ShardId, TargetId,
};
use smallvec::smallvec;
use std::sync::Arc;

const DOCUMENT: &str = include_str!("../../../docs/formats/cluster-state.md");

/// The bytes of the hex dump under the heading `title`: lines of an offset, a colon, and bytes.
fn dump(title: &str) -> Vec<u8> {
    let section = DOCUMENT.split_once(&format!("### {title}")).expect("the heading is there").1;
    let block = section.split("```").nth(1).expect("a dump is there");
    let mut bytes = Vec::new();
    for line in block.lines().filter(|line| line.contains(": ")) {
        let (offset, rest) = line.split_once(": ").unwrap();
        assert_eq!(usize::from_str_radix(offset.trim(), 16).unwrap(), bytes.len(), "offset of {line:?}");
        let digits = rest.split('|').next().unwrap_or_default();
        bytes.extend(digits.split_whitespace().map(|digits| u8::from_str_radix(digits, 16).unwrap()));
    }
    bytes
}

fn counting_from(first: u8) -> [u8; 16] {
    std::array::from_fn(|at| first + at as u8)
}

/// The map as the document describes it in words.
fn described_map() -> ClusterMap {
    let pool = PoolId(0);
    let target = Target {
        id: TargetId(1),
        uuid: counting_from(0xa0),
        node: NodeId(1),
        pool,
        state: TargetState::Online,
        path: "/disk1/ashlar/target".into(),
        is_draining: false,
    };
    ClusterMap {
        cluster: ClusterId(counting_from(0x10)),
        epoch: Epoch(2),
        pools: vec![Pool { id: pool, name: "default".into() }],
        targets: vec![target],
        chains: (0..2)
            .map(|id| Chain {
                id: ChainId(id),
                pool,
                targets: smallvec![TargetId(1)],
                moving: None,
                copies: None,
            })
            .collect(),
        moves: MovePolicy::default(),
        filesets: Vec::new(),
        shards: (0..2).map(|id| Shard { id: ShardId(id), primary: NodeId(1) }).collect(),
        nodes: vec![Node {
            id: NodeId(1),
            name: "first".into(),
            roles: Role::OF_FIRST_NODE.into_iter().collect(),
            listening: Vec::new(),
            policy: NodePolicy::trusting(),
            domain: String::new(),
        }],
    }
}

fn described_secrets() -> Secrets {
    Secrets {
        cluster: ClusterId(counting_from(0x10)),
        name_hash_key: counting_from(0x40),
        ca_certificate_pem: "CERT".into(),
        ca_key_pem: "KEY".into(),
    }
}

/// A metadata directory with these two files.
fn directory(cluster_state: &[u8], secrets: &[u8]) -> Arc<dyn Disk> {
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::default());
    for (name, bytes) in [("cluster-state", cluster_state), ("secrets", secrets)] {
        disk.open(name, OpenMode::CreateNew).unwrap().write_at(0, bytes).unwrap();
    }
    disk
}

fn open(disk: &Arc<dyn Disk>) -> Result<Manager, ManagerError> {
    Manager::open(disk, "", Box::new(LocalFile::new(disk.clone(), "")))
}

#[test]
fn the_manager_opens_the_examples_and_finds_what_the_document_says() {
    let disk = directory(&dump("Example: cluster-state"), &dump("Example: secrets"));
    let (revision, _) = LocalFile::new(disk.clone(), "").load().unwrap();
    assert_eq!(revision, 2);
    let manager = open(&disk).unwrap();
    assert_eq!(manager.state(), ClusterState::new(described_map()));
    for (earlier, what) in [
        ("Example: format 5", "as it was before starts were counted"),
        ("Example: format 4", "as it was before there were filesets"),
        ("Example: format 3", "as it was before there were keys"),
        ("Example: format 1", "as it was before there were nodes"),
        ("Example: format 2", "as it was before nodes had policies"),
    ] {
        let disk = directory(&dump(earlier), &dump("Example: secrets"));
        assert_eq!(open(&disk).unwrap().state(), ClusterState::new(described_map()), "{what}");
    }
    assert_eq!(manager.identity().cluster, ClusterId(counting_from(0x10)));
    assert_eq!(manager.identity().name_hash_key, counting_from(0x40));
}

#[test]
fn the_code_writes_the_bytes_of_the_examples() {
    let state = local_file::encode(2, &ClusterState::new(described_map()).encode());
    assert_eq!(state, dump("Example: cluster-state"));
    let body = codec::encode(&described_secrets());
    let mut secrets = b"ASHLSEC1".to_vec();
    secrets.extend(codec::crc32c(0, &body).to_le_bytes());
    secrets.extend(body);
    assert_eq!(secrets, dump("Example: secrets"));
}

#[test]
fn a_change_of_any_byte_of_either_file_keeps_the_manager_from_opening_it() {
    let (state, secrets) = (dump("Example: cluster-state"), dump("Example: secrets"));
    for at in 0..state.len() {
        let mut damaged = state.clone();
        damaged[at] ^= 1;
        assert!(open(&directory(&damaged, &secrets)).is_err(), "byte {at} of the cluster state");
    }
    for at in 0..secrets.len() {
        let mut damaged = secrets.clone();
        damaged[at] ^= 1;
        assert!(open(&directory(&state, &damaged)).is_err(), "byte {at} of the secrets");
    }
}

#[test]
fn state_and_secrets_of_two_file_systems_are_refused_together() {
    let mut other = described_map();
    other.cluster = ClusterId([7; 16]);
    let state = local_file::encode(2, &ClusterState::new(other).encode());
    let error = open(&directory(&state, &dump("Example: secrets"))).err().unwrap();
    assert!(error.to_string().contains("restore both from one backup"), "{error}");
}

#[test]
fn the_event_log_is_what_the_document_says() {
    let bytes = dump("Example: events/01");
    let (revision, value) = local_file::decode(&bytes).unwrap();
    assert_eq!(revision, 7);
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::default());
    disk.create_dir("events").unwrap();
    let file = |number: usize| LocalFile::named(disk.clone(), "events", &format!("{number:02}"), "");
    let raw = disk.open("events/01", OpenMode::CreateOrOpen).unwrap();
    raw.write_at(0, &bytes).unwrap();
    let segments =
        (0..ashlar_manager::events::SEGMENTS).map(|number| Box::new(file(number)) as Box<dyn Coord>);
    let (env, _) = ashlar_env::Env::simulated(1, ashlar_types::Timespec { secs: 1_795_339_490, nanos: 500 });
    let log = ashlar_manager::events::EventLog::new(segments.collect(), env.clock.clone());
    log.write().unwrap();
    let what =
        ashlar_types::Happening::new(env.clock.now(), ashlar_types::EventKind::DamageFound, "target-1", "x");
    let described = ashlar_types::Event { number: 65, node: NodeId(2), what };
    assert_eq!(log.after(0), std::slice::from_ref(&described));
    // What it writes begins with the same bytes.
    log.note(NodeId(2), described.what.kind, "target-1", "x");
    log.write().unwrap();
    let (_, written) = file(1).load().unwrap();
    assert_eq!((&written[..9], written[9]), (&value[..9], 2), "two events now");
    assert!(written[10..].starts_with(&value[10..]));
    for kind in ashlar_types::EventKind::ALL {
        assert!(DOCUMENT.contains(&format!("{} {kind}", u16::from(*kind))), "{kind}");
    }
}

#[test]
fn a_state_that_a_newer_software_has_stored_is_told_as_that() {
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::default());
    let bytes = dump("Example: cluster-state");
    let (_, value) = local_file::decode(&bytes).unwrap();
    let mut newer = value.to_vec();
    newer[7] = b'B';
    LocalFile::new(disk.clone(), "").compare_and_set(0, &newer).unwrap();
    let refused =
        Manager::open(&disk, "", Box::new(LocalFile::new(disk.clone(), ""))).err().unwrap().to_string();
    assert!(refused.contains("newer format") && refused.contains("use a newer ashlar"), "{refused}");
    assert!(!refused.contains("is damaged: "), "{refused}");
}
