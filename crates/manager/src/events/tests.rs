//! The event log over a store in memory that several managers share.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use super::*;
use crate::ClusterState;
use crate::map_change::{FoundTarget, first_map, with_targets};
use ashlar_env::Env;
use ashlar_types::{ClusterId, Node, NodePolicy, Role, TargetId, Timespec};
use std::sync::atomic::{AtomicBool, Ordering};

/// One value, as etcd would keep it.
#[derive(Clone, Default)]
struct Shared {
    value: Arc<Mutex<(u64, Vec<u8>)>>,
    is_away: Arc<AtomicBool>,
}

impl Shared {
    fn ask(&self) -> Result<(), CoordError> {
        match self.is_away.load(Ordering::SeqCst) {
            true => Err(CoordError::Io { what: "asking".into(), source: std::io::Error::other("away") }),
            false => Ok(()),
        }
    }
}

impl Coord for Shared {
    fn load(&self) -> Result<(u64, Vec<u8>), CoordError> {
        self.ask()?;
        Ok(self.value.lock().clone())
    }

    fn compare_and_set(&self, expected: u64, value: &[u8]) -> Result<u64, CoordError> {
        self.ask()?;
        let mut held = self.value.lock();
        if held.0 != expected {
            return Err(CoordError::Conflict { expected, found: held.0 });
        }
        *held = (expected + 1, value.to_vec());
        Ok(held.0)
    }

    fn is_shared(&self) -> bool {
        true
    }
}

fn log(store: &[Shared]) -> EventLog {
    let (env, _) = Env::simulated(1, Timespec::default());
    let segments = store.iter().map(|one| Box::new(one.clone()) as Box<dyn Coord>).collect();
    EventLog::new(segments, env.clock.clone())
}

fn store() -> Vec<Shared> {
    let is_away = Arc::new(AtomicBool::new(false));
    (0..4).map(|_| Shared { is_away: is_away.clone(), ..Shared::default() }).collect()
}

fn texts(events: &[Event]) -> Vec<&str> {
    events.iter().map(|event| event.what.text.as_str()).collect()
}

#[test]
fn of_two_managers_that_write_at_the_same_time_nothing_is_lost_and_both_see_the_same() {
    let store = store();
    let (one, two) = (log(&store), log(&store));
    std::thread::scope(|scope| {
        for (node, log) in [(1, &one), (2, &two)] {
            scope.spawn(move || {
                for turn in 0..100 {
                    log.note(NodeId(node), EventKind::TokenMade, "x", &format!("{node}/{turn}"));
                    // Of a store in memory the other one may be faster any number of times in a row.
                    while let Err(error) = log.write() {
                        assert!(matches!(error, ManagerError::Coord(CoordError::Conflict { .. })), "{error}");
                    }
                }
            });
        }
    });
    one.write().unwrap();
    two.write().unwrap();
    let (all, same) = (one.after(0), two.after(0));
    assert_eq!(all, same);
    assert_eq!(all.len(), 200);
    assert!(all.iter().map(|event| event.number).eq(1..=200));
    for node in [1u32, 2] {
        let own: Vec<Event> = all.iter().filter(|event| event.node == NodeId(node)).cloned().collect();
        let expected: Vec<String> = (0..100).map(|turn| format!("{node}/{turn}")).collect();
        assert_eq!(texts(&own), expected, "in the order in which they happened");
    }
    assert_eq!(one.after(198).len(), 2);
}

#[test]
fn the_newest_stay_and_a_log_that_is_opened_again_goes_on_behind_them() {
    let store = store();
    let room = 4 * segment::EVENTS_MAX as u64;
    let first = log(&store);
    let behind = log(&store);
    behind.write().unwrap();
    for turn in 1..=room + 100 {
        first.note(NodeId(1), EventKind::TokenMade, "x", &turn.to_string());
        if turn % 7 == 0 {
            first.write().unwrap();
        }
    }
    first.write().unwrap();
    let kept = first.after(0);
    assert!(kept.len() as u64 > room - segment::EVENTS_MAX as u64 && kept.len() as u64 <= room);
    assert_eq!(kept.last().unwrap().number, room + 100);
    assert!(kept.iter().all(|event| event.what.text == event.number.to_string()));
    // One that saw nothing while the ring went round.
    behind.write().unwrap();
    assert_eq!(behind.after(0), kept);
    let again = log(&store);
    again.note(NodeId(1), EventKind::TokenMade, "x", "next");
    again.write().unwrap();
    assert_eq!(again.after(0).last().unwrap().number, room + 101);
}

#[test]
fn while_the_store_is_away_events_wait_and_those_that_do_not_fit_are_counted() {
    let store = store();
    let log = log(&store);
    log.note(NodeId(1), EventKind::TokenMade, "x", "before");
    log.write().unwrap();
    store[0].is_away.store(true, Ordering::SeqCst);
    for turn in 0..WAITING_MAX + 5 {
        log.note(NodeId(1), EventKind::TokenMade, "x", &turn.to_string());
    }
    assert!(log.write().is_err());
    assert_eq!(texts(&log.after(0)), ["before"], "what there was can be seen");
    store[0].is_away.store(false, Ordering::SeqCst);
    log.write().unwrap();
    log.note(NodeId(1), EventKind::TokenMade, "x", "after");
    log.write().unwrap();
    let kept = log.after(0);
    let end = &kept[kept.len() - 2..];
    assert_eq!((end[0].what.kind, end[1].what.text.as_str()), (EventKind::EventsLost, "after"));
    assert!(end[0].what.text.starts_with("5 "), "{}", end[0].what.text);
}

#[test]
fn a_damaged_part_costs_what_is_in_it_and_one_of_a_newer_software_is_left_alone() {
    let store = store();
    let first = log(&store);
    for turn in 0..segment::EVENTS_MAX + 3 {
        first.note(NodeId(1), EventKind::TokenMade, "x", &turn.to_string());
    }
    first.write().unwrap();
    store[0].value.lock().1[20] ^= 0xff;
    store[0].value.lock().1.truncate(900);
    let again = log(&store);
    again.note(NodeId(1), EventKind::TokenMade, "x", "next");
    again.write().unwrap();
    assert_eq!(texts(&again.after(0)), ["64", "65", "66", "next"]);
    store[2].value.lock().0 = 1;
    store[2].value.lock().1 = b"ASHLEVT2something".to_vec();
    let refused = log(&store).write().unwrap_err().to_string();
    assert!(refused.contains("newer"), "{refused}");
}

#[test]
fn every_change_of_the_state_is_told_as_what_it_is() {
    let before = ClusterState::new(first_map(ClusterId([9; 16]), NodeId(1)));
    let told = |before: &ClusterState, after: &ClusterState| -> Vec<(EventKind, String)> {
        let told = events_of(before, after).into_iter();
        told.map(|change| (change.kind, format!("{}: {}", change.subject, change.text))).collect()
    };
    assert_eq!(told(&before, &before), []);
    let mut joined = before.clone();
    let roles = [Role::Storage].into_iter().collect();
    let policy = NodePolicy::default();
    let (name, listening, domain) = ("oss".into(), Vec::new(), String::new());
    joined.map.nodes.push(Node { id: NodeId(2), name, roles, listening, policy, domain });
    assert_eq!(told(&before, &joined), [(EventKind::NodeJoined, "oss: node-2, for storage".to_owned())]);
    assert_eq!(told(&joined, &before)[0].0, EventKind::NodeRemoved);
    let found = FoundTarget { id: TargetId(1), uuid: [1; 16], path: "/data".into() };
    let mut served = joined.clone();
    served.map = with_targets(&joined.map, std::slice::from_ref(&found), NodeId(2)).unwrap();
    assert_eq!(told(&joined, &served), [(EventKind::TargetAdded, "target-1: on oss at /data".to_owned())]);
    let mut away = served.clone();
    away.map = with_targets(&served.map, &[], NodeId(2)).unwrap();
    assert_eq!(told(&served, &away)[0].0, EventKind::TargetOffline);
    assert_eq!(told(&away, &served)[0].0, EventKind::TargetOnline);
    let mut moved = away.clone();
    moved.map = with_targets(&away.map, &[found], NodeId(1)).unwrap();
    let online = (EventKind::TargetOnline, "target-1: on first at /data; it was on oss".to_owned());
    assert_eq!(told(&away, &moved), [online]);
    let mut shards = joined.clone();
    shards.map.shards.iter_mut().take(2).for_each(|shard| shard.primary = NodeId(2));
    let shards_moved = (EventKind::ShardsMoved, "oss: shards 0, 1 from first".to_owned());
    assert_eq!(told(&joined, &shards), [shards_moved]);
    let mut policy = joined.clone();
    policy.map.nodes[1].policy = NodePolicy::trusting();
    assert_eq!(told(&joined, &policy)[0].0, EventKind::PolicyChanged);
}

#[test]
fn that_many_chains_lose_a_copy_is_one_event() {
    use ashlar_types::map::{Chain, ChainCopies};
    let mut map = ashlar_types::testing::map_in_domains(&[0, 1, 2], &[""; 3]);
    let chain = |id: u32| {
        let (changed, catching_up, former) = Default::default();
        let copies = Some(ChainCopies { wanted: 2, changed, catching_up, former });
        let targets = [TargetId(0), TargetId(1)].into_iter().collect();
        Chain { id: ashlar_types::ChainId(id), pool: Default::default(), targets, moving: None, copies }
    };
    map.chains = (0..5).map(chain).collect();
    let whole = ClusterState::new(map);
    let mut short = whole.clone();
    short.map.chains.iter_mut().take(3).for_each(|chain| chain.targets.truncate(1));
    short.map.chains[3].targets.remove(0);
    let told = |before: &ClusterState, after: &ClusterState| -> Vec<(EventKind, NodeId, String)> {
        let told = events_of(before, after).into_iter();
        told.map(|change| (change.kind, change.node, format!("{}: {}", change.subject, change.text)))
            .collect()
    };
    let text = |what: &str| format!("{what}; of all, 4 have fewer copies than they are to have");
    let expected = [(0, "target-0: 1 chain"), (1, "target-1: 3 chains")].map(|(node, what)| {
        (EventKind::ChainsShort, NodeId(node), text(&format!("{what} without the copy on it from now on")))
    });
    assert_eq!(told(&whole, &short), expected);
    let mut better = short.clone();
    better.map.chains[..2].iter_mut().for_each(|chain| chain.targets.push(TargetId(2)));
    let whole_again = "target-2: 2 chains with all copies again, by the one on it; of all, 2 have fewer";
    assert_eq!(told(&short, &better), [(EventKind::ChainsWhole, NodeId(2), whole_again.to_owned())]);
    // Of a chain of three that gets its second copy, and a member that is being brought up to date, nobody is told.
    let mut three = short.clone();
    let copies = three.map.chains[0].copies.as_mut().unwrap();
    copies.wanted = 3;
    copies.catching_up.push(TargetId(2));
    let mut second = three.clone();
    second.map.chains[0].targets.push(TargetId(1));
    assert_eq!(told(&three, &second), []);
}
