//! What fails in a round, when, and for how long: as a seed and the number of the round have it.
//!
//! - Of one node one thing fails in a round, so that each can be put right by itself.
//! - What takes away what was not synced (a disk that fails, power) happens to one storage server, and to the others nothing meanwhile: with two copies more is not promised. Everything else may happen to
//!   all servers at once; programs wait.
//! - Nothing happens to clients: what becomes of one that is cut off for longer than its lease is known, and no failure of the file system.

use super::fault::Fault;
use crate::drill::disk;
use crate::lab::{Lab, LabRole, manager_beside};
use std::time::Duration;

/// Things that fail in a round, at the most.
const FAULTS_MAX: u64 = 5;
/// In which time they begin, ms.
const BEGIN_MS: u64 = 20_000;

/// One of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Planned {
    /// After the beginning of the round.
    pub at: Duration,
    pub lasts: Duration,
    pub node: String,
    pub fault: Fault,
}

/// What there is that can fail.
#[derive(Clone, Debug)]
pub struct Shape {
    nodes: Vec<(String, LabRole)>,
    has_disks: bool,
    can_be_slow: bool,
}

impl Shape {
    pub fn of(lab: &Lab) -> Shape {
        let is_server =
            |role| matches!(role, LabRole::Manager | LabRole::Etcd | LabRole::Meta | LabRole::Storage);
        let nodes = lab.record.nodes.iter().filter(|node| is_server(node.role));
        Shape {
            nodes: nodes.map(|node| (node.name.clone(), node.role)).collect(),
            has_disks: lab.record.made_with.disks > 0,
            can_be_slow: disk::why_not_slow().is_none(),
        }
    }

    /// What can happen to a node, without what loses something.
    fn faults(&self, role: LabRole) -> Vec<Fault> {
        match role {
            LabRole::Storage => {
                let mut faults = vec![
                    Fault::Kill,
                    Fault::Restart,
                    Fault::Pause,
                    Fault::Link,
                    Fault::OneWay,
                    Fault::NoManager,
                ];
                if self.has_disks {
                    faults.extend([Fault::Hang, Fault::HangAll]);
                    faults.extend(self.can_be_slow.then_some(Fault::Slow));
                }
                faults
            }
            LabRole::Meta => {
                vec![Fault::Kill, Fault::Restart, Fault::Pause, Fault::Link, Fault::OneWay, Fault::NoManager]
            }
            LabRole::Manager => vec![Fault::Kill, Fault::Restart, Fault::Pause, Fault::Link],
            LabRole::Etcd => vec![Fault::Kill, Fault::Pause, Fault::Link],
            LabRole::Client | LabRole::Console | LabRole::Gateway => Vec::new(),
        }
    }
}

/// SplitMix64 (Steele, Lea, Flood: "Fast Splittable Pseudorandom Number Generators", 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    fn pick<T: Clone>(&mut self, of: &[T]) -> Option<T> {
        of.get(self.below(of.len() as u64) as usize).cloned()
    }

    /// For how long something lasts: mostly short, now and then longer than every lease.
    fn lasts(&mut self) -> Duration {
        let (least, most) = match self.below(10) {
            0..4 => (200, 5_000),
            4..8 => (5_000, 20_000),
            _ => (22_000, 40_000),
        };
        Duration::from_millis(least + self.below(most - least))
    }
}

/// What fails in a round, in the order in which it begins.
pub fn round(seed: u64, number: u32, shape: &Shape) -> Vec<Planned> {
    let mut random = Random(seed);
    let mut random = Random(random.next() ^ u64::from(number));
    let mut left = shape.nodes.clone();
    let mut planned = Vec::new();
    let mut add = |random: &mut Random, node: String, fault| {
        let at = Duration::from_millis(random.below(BEGIN_MS));
        planned.push(Planned { at, lasts: random.lasts(), node, fault });
    };
    let is_storage = |node: &(String, LabRole)| node.1 == LabRole::Storage;
    if shape.has_disks && random.below(3) == 0 {
        let storage: Vec<_> = left.iter().filter(|node| is_storage(node)).cloned().collect();
        if let Some((node, _)) = random.pick(&storage) {
            let fault = if random.below(2) == 0 { Fault::Fail } else { Fault::Power };
            add(&mut random, node, fault);
            left.retain(|node| !is_storage(node));
        }
    }
    for _ in 0..=random.below(FAULTS_MAX) {
        let Some(node) = random.pick(&left) else { break };
        left.retain(|other| *other != node);
        // A member of etcd dies with the manager beside it.
        let is_beside = |(name, role): &(String, LabRole)| {
            node.1 == LabRole::Manager && *role == LabRole::Etcd && manager_beside(name) == node.0
        };
        let can_die = !shape.nodes.iter().any(|other| is_beside(other) && !left.contains(other));
        let faults = shape.faults(node.1).into_iter().filter(|fault| can_die || *fault != Fault::Kill);
        let Some(fault) = random.pick(&faults.collect::<Vec<_>>()) else { break };
        if fault == Fault::Kill {
            left.retain(|other| !is_beside(other));
        }
        add(&mut random, node.0, fault);
    }
    planned.sort_by_key(|one| one.at);
    planned
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use std::collections::{BTreeMap, BTreeSet};

    fn shape() -> Shape {
        let node = |name: &str, role| (name.to_owned(), role);
        let mut nodes = vec![node("manager", LabRole::Manager), node("etcd1", LabRole::Etcd)];
        nodes.extend((1..=2).map(|at| (format!("meta{at}"), LabRole::Meta)));
        nodes.extend((1..=3).map(|at| (format!("storage{at}"), LabRole::Storage)));
        Shape { nodes, has_disks: true, can_be_slow: true }
    }

    #[test]
    fn a_round_follows_from_its_seed_and_number() {
        let shape = shape();
        assert_eq!(round(7, 3, &shape), round(7, 3, &shape));
        let all: BTreeSet<String> = (0..50).map(|number| format!("{:?}", round(7, number, &shape))).collect();
        assert_eq!(all.len(), 50);
        assert!(round(7, 3, &shape) != round(8, 3, &shape));
    }

    #[test]
    fn nothing_is_lost_that_is_kept_twice_and_everything_happens() {
        let shape = shape();
        let mut seen: BTreeMap<(LabRoleName, Fault), u32> = BTreeMap::new();
        for number in 0..3000 {
            let planned = round(1, number, &shape);
            assert!(!planned.is_empty() && planned.len() <= FAULTS_MAX as usize + 1);
            let nodes: BTreeSet<&str> = planned.iter().map(|one| one.node.as_str()).collect();
            assert_eq!(nodes.len(), planned.len(), "{planned:?}");
            let loses = |one: &&Planned| matches!(one.fault, Fault::Fail | Fault::Power);
            if planned.iter().any(|one| loses(&one)) {
                let storage = planned.iter().filter(|one| one.node.starts_with("storage")).count();
                assert_eq!(storage, 1, "{planned:?}");
            }
            if planned.iter().any(|one| one.node == "manager" && one.fault == Fault::Kill) {
                assert!(!nodes.contains("etcd1"), "{planned:?}");
            }
            assert!(planned.is_sorted_by_key(|one| one.at));
            for one in planned {
                let role = one.node.trim_end_matches(|digit: char| digit.is_ascii_digit()).to_owned();
                *seen.entry((role, one.fault)).or_default() += 1;
            }
        }
        // Of storage servers eleven, of metadata servers six, of managers four, of members of etcd three.
        assert_eq!(seen.len(), 24, "{seen:?}");
        assert!(seen.values().all(|count| *count > 20), "{seen:?}");
    }

    type LabRoleName = String;
}
