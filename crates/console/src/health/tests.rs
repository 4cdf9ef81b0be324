//! Each thing that can be wrong is found, and a file system that is well has no finding.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use super::*;
use ashlar_types::map::{Chain, Pool, Shard, Target};
use ashlar_types::node::Listening;
use ashlar_types::{
    ChainId, ClusterId, Epoch, Happening, Node, NodePolicy, PoolId, Roles, ShardId, Timespec,
};

const NOW_S: i64 = 1_800_000_000;

fn node(id: u32, name: &str, role: Role) -> Node {
    let listening = vec![Listening { role, addresses: vec!["10.0.0.1:1".parse().unwrap()] }];
    let policy = NodePolicy::default();
    Node {
        id: NodeId(id),
        name: name.into(),
        roles: Roles::default().with(role),
        listening,
        policy,
        domain: String::new(),
    }
}

fn map() -> ClusterMap {
    ClusterMap {
        cluster: ClusterId([1; 16]),
        epoch: Epoch(100),
        pools: vec![Pool { id: PoolId(0), name: "default".into() }],
        targets: vec![Target {
            id: TargetId(1),
            uuid: [1; 16],
            node: NodeId(3),
            pool: PoolId(0),
            state: TargetState::Online,
            path: "/disk".into(),
            is_draining: false,
        }],
        chains: vec![Chain {
            id: ChainId(0),
            pool: PoolId(0),
            targets: [TargetId(1)].into_iter().collect(),
            moving: None,
            copies: None,
        }],
        shards: vec![Shard { id: ShardId(0), primary: NodeId(2) }],
        nodes: vec![
            node(1, "first", Role::Manager),
            node(2, "mds", Role::Meta),
            node(3, "oss", Role::Storage),
        ],
        moves: Default::default(),
        filesets: Vec::new(),
    }
}

fn sample() -> Sample {
    let target = crate::watch::TargetState { size: 100.0, free: 50.0, is_stopped: false };
    Sample {
        version: "1".into(),
        epoch: 100,
        certificate_end_s: Some(NOW_S as f64 + 80.0 * 86_400.0),
        targets: [(1, target)].into_iter().collect(),
        ..Sample::default()
    }
}

fn servers(change: impl Fn(&mut ServerState, &mut Sample)) -> Vec<ServerState> {
    [(1, Role::Manager), (2, Role::Meta), (3, Role::Storage)]
        .into_iter()
        .map(|(node, role)| {
            let mut sample = sample();
            let mut server = ServerState {
                node: NodeId(node),
                role,
                away: None,
                was_never_heard: false,
                trouble: String::new(),
                sample: None,
                moves: Vec::new(),
                progress: Vec::new(),
            };
            change(&mut server, &mut sample);
            server.sample = Some(Arc::new(sample));
            server
        })
        .collect()
}

fn found(map: &ClusterMap, servers: &[ServerState], events: &[Event]) -> Vec<Finding> {
    findings(&Situation { map, servers, events, events_trouble: "", version: "1", now_s: NOW_S })
}

/// There is one finding, it is that bad, and it says that.
#[track_caller]
fn is_found(found: &[Finding], severity: Severity, subject: &str, what: &str) {
    let is_it = |finding: &&Finding| finding.subject == subject && finding.what.contains(what);
    let finding = found.iter().find(is_it).unwrap_or_else(|| panic!("no {subject} {what} in {found:#?}"));
    assert_eq!(finding.severity, severity, "{finding:?}");
    assert!(!finding.remedy.is_empty());
}

#[test]
fn a_file_system_that_is_well_has_no_finding() {
    assert_eq!(found(&map(), &servers(|_, _| {}), &[]), []);
}

#[test]
fn servers_that_are_away_are_told_with_what_comes_of_it() {
    let away = |role: Role| {
        servers(move |server, _| {
            if server.role == role {
                (server.away, server.trouble) = (Some(Duration::from_secs(75)), "it does not answer".into());
            }
        })
    };
    let all = found(&map(), &away(Role::Storage), &[]);
    is_found(
        &all,
        Severity::Error,
        "oss",
        "has not answered for 75 s (it does not answer): programs that use files",
    );
    is_found(&found(&map(), &away(Role::Meta), &[]), Severity::Error, "mds", "shards wait");
    let all = found(&map(), &away(Role::Manager), &[]);
    is_found(&all, Severity::Error, "managers", "no manager has answered for 75 s");
    is_found(&all, Severity::Warning, "first", "has not answered");
}

#[test]
fn targets_and_pools_are_told_that_stop_or_fill() {
    let with = |free: f64, is_stopped: bool| {
        servers(move |_, sample| {
            sample.targets.insert(1, crate::watch::TargetState { size: 100.0, free, is_stopped });
        })
    };
    is_found(&found(&map(), &with(9.0, false), &[]), Severity::Warning, "pool default", "9.0 %");
    is_found(&found(&map(), &with(1.0, false), &[]), Severity::Error, "pool default", "1.0 %");
    is_found(&found(&map(), &with(50.0, true), &[]), Severity::Error, "target 1", "takes no more changes");
    let mut offline = map();
    offline.targets[0].state = TargetState::Offline;
    is_found(
        &found(&offline, &servers(|_, _| {}), &[]),
        Severity::Error,
        "target 1",
        "oss does not serve /disk",
    );
    let stopped = servers(|server, sample| sample.is_metadata_stopped = server.role == Role::Meta);
    is_found(&found(&map(), &stopped, &[]), Severity::Error, "mds", "takes no more changes");
}

#[test]
fn certificates_versions_and_maps_that_fall_behind_are_told() {
    let ends = |left: f64| servers(move |_, sample| sample.certificate_end_s = Some(NOW_S as f64 + left));
    is_found(&found(&map(), &ends(5.0 * 86_400.0), &[]), Severity::Warning, "oss", "ends in 5 days");
    is_found(&found(&map(), &ends(-1.0), &[]), Severity::Error, "mds", "has ended");
    let older = servers(|server, sample| {
        if server.role == Role::Meta {
            (sample.version, sample.epoch) = ("0.9".into(), 3);
        }
    });
    let all = found(&map(), &older, &[]);
    is_found(&all, Severity::Notice, "versions", "mds 0.9");
    is_found(&all, Severity::Warning, "mds", "map of epoch 3");
    let unreached = servers(|_, sample| sample.store = Some(("etcd".into(), false)));
    is_found(&found(&map(), &unreached, &[]), Severity::Error, "first", "does not reach the state");
}

#[test]
fn moves_that_do_not_go_on_are_told() {
    let stuck = servers(|server, _| {
        if server.role == Role::Storage {
            let (chain, to) = (ChainId(0), TargetId(2));
            let obstacle = "target-2 is full".into();
            server.progress =
                vec![MoveProgress { chain, to, chunks_done: 0, bytes_done: 0, bytes_total: 0, obstacle }];
        }
        if server.role == Role::Meta {
            let state = MoveState::Failed("no room".into());
            server.moves = vec![MoveInfo { shard: ShardId(0), to: NodeId(1), state, sent: 0, total: 0 }];
        }
    });
    let mut paused = map();
    (paused.moves.is_paused, paused.targets[0].is_draining) = (true, true);
    let all = found(&paused, &stuck, &[]);
    is_found(&all, Severity::Notice, "moves", "paused");
    is_found(&all, Severity::Warning, "chain-0", "target-2 is full");
    is_found(&all, Severity::Warning, "shard-0", "no room");
}

#[test]
fn what_happened_is_told_for_a_day_and_what_is_missing_as_long_as_it_is() {
    let event = |age_s: i64| {
        let at = Timespec { secs: NOW_S - age_s, nanos: 0 };
        Event { number: 1, node: NodeId(3), what: Happening::new(at, EventKind::DamageFound, "target-1", "") }
    };
    let well = servers(|_, _| {});
    is_found(&found(&map(), &well, &[event(60)]), Severity::Error, "target-1", "damage was found");
    assert_eq!(found(&map(), &well, &[event(EVENT_AGE_S + 1)]), []);
    let mut empty = map();
    (empty.targets, empty.chains) = (Vec::new(), Vec::new());
    empty.nodes.retain(|node| node.name == "first");
    let all = found(&empty, &[], &[]);
    is_found(&all, Severity::Error, "metadata", "no metadata server");
    is_found(&all, Severity::Error, "targets", "no target");
    assert!(all.windows(2).all(|pair| pair[0].severity >= pair[1].severity));
}
