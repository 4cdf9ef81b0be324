//! A record of what was committed, and the question whether a recovered lane holds a prefix of it.
#![allow(dead_code, reason = "each test uses a part")]

use ashlar_env::sim::{SimDisk, SimEntropy};
use ashlar_env::{Entropy, Env};
use ashlar_kv::{
    Background, Frame, Key, KvError, Lane, LaneConfig, MemoryEngine, Position, Snapshot, Urgency, WriteSet,
};
use ashlar_types::{ClusterId, Epoch, OpId, SessionId, ShardId, Timespec};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

pub const CLUSTER: ClusterId = ClusterId([0xA5; 16]);
pub const SHARDS: u16 = 3;

/// Small files and limits, so that every edge is met often.
pub fn small_config() -> LaneConfig {
    LaneConfig {
        lane: 7,
        segment_bytes: 16 << 10,
        overlay_bytes_max: 24 << 10,
        log_bytes_max: 64 << 10,
        reserve_bytes: 0,
        background: Background::Manual,
        ..LaneConfig::default()
    }
}

pub fn sim_env(seed: u64) -> Env {
    Env::simulated(seed, Timespec::new(1_700_000_000, 0)).0
}

pub fn open_sim(
    disk: &SimDisk,
    engine: &MemoryEngine,
    config: LaneConfig,
    seed: u64,
) -> Result<Lane, KvError> {
    let engine = Box::new(engine.clone());
    Lane::open(Arc::new(disk.clone()), "lane", engine, &sim_env(seed), CLUSTER, config)
}

pub fn key(shard: u16, name: &str) -> Key {
    let mut key = Key::from_slice(&shard.to_be_bytes());
    key.extend_from_slice(name.as_bytes());
    key
}

pub fn frame(shard: u16, number: u64, writes: Vec<(Key, Option<Bytes>)>) -> Frame {
    Frame {
        shard: ShardId(shard),
        epoch: Epoch(1),
        op: OpId { session: SessionId(1), sequence: number },
        verb: 3,
        writes: WriteSet(writes),
        reply: Bytes::from(format!("reply {number}")),
    }
}

pub fn put(name: &str, value: impl Into<Bytes>) -> Frame {
    frame(0, 1, vec![(key(0, name), Some(value.into()))])
}

pub fn commit(lane: &Lane, frames: Vec<Frame>) -> Result<Position, KvError> {
    lane.write().commit(frames, Urgency::Normal)
}

pub fn get(lane: &Lane, name: &str) -> Option<Bytes> {
    lane.read().get(&key(0, name)).unwrap()
}

pub type Pairs = BTreeMap<Vec<u8>, Bytes>;

pub fn scan_all(lane: &Lane) -> Result<Pairs, KvError> {
    let mut pairs = Pairs::new();
    let mut previous = Vec::new();
    lane.read().scan(&[], &[0xFF; 600], &mut |key, value| {
        assert!(previous.as_slice() < key, "scan is out of order");
        previous = key.to_vec();
        pairs.insert(key.to_vec(), bytes::Bytes::copy_from_slice(value));
        ControlFlow::Continue(())
    })?;
    Ok(pairs)
}

/// Every group tried so far, in order.
#[derive(Default)]
pub struct Ledger {
    groups: Vec<Vec<Frame>>,
    /// Groups that must be there after any crash.
    pub durable: usize,
    /// Groups that must be there if only the process died since: it loses nothing that it was told is committed.
    pub committed: usize,
}

const COUNTER: &str = "!count";

impl Ledger {
    pub fn len(&self) -> usize {
        self.groups.len()
    }

    /// A random group that also writes the number of groups so far, which tells prefixes apart.
    pub fn draw_group(&mut self, random: &SimEntropy) -> Vec<Frame> {
        let number = self.groups.len() as u64 + 1;
        let mut group = Vec::new();
        for shard in 0..SHARDS {
            if shard > 0 && random.below(3) > 0 {
                continue;
            }
            let mut writes = BTreeMap::new();
            for _ in 0..random.below(5) {
                let value = (random.below(4) > 0).then(|| draw_value(random));
                writes.insert(key(shard, &format!("k{:03}", random.below(60))), value);
            }
            if shard == 0 {
                writes.insert(key(0, COUNTER), Some(Bytes::from(number.to_string())));
            }
            group.push(frame(shard, number, writes.into_iter().collect()));
        }
        self.groups.push(group.clone());
        group
    }

    /// The last group drawn was refused without a trace.
    pub fn take_back(&mut self) {
        self.groups.pop();
    }

    fn pairs_after(&self, count: usize) -> Pairs {
        let mut pairs = Pairs::new();
        for (key, value) in self.groups[..count].iter().flatten().flat_map(|frame| &frame.writes.0) {
            match value {
                Some(value) => pairs.insert(key.to_vec(), value.clone()),
                None => pairs.remove(key.as_slice()),
            };
        }
        pairs
    }

    /// The lane holds exactly the first n groups, with `durable <= n`; forgets the rest.
    pub fn require_prefix(&mut self, lane: &Lane, context: &str) {
        let pairs = scan_all(lane).unwrap();
        let count = pairs
            .get(key(0, COUNTER).as_slice())
            .map_or(0, |count| std::str::from_utf8(count).unwrap().parse::<usize>().unwrap());
        assert!(count >= self.durable, "{count} groups are left, {} were durable; {context}", self.durable);
        assert!(
            count >= self.committed,
            "{count} groups are left, {} were committed; {context}",
            self.committed
        );
        assert!(count <= self.len(), "{count} groups are there, {} were tried; {context}", self.len());
        let expected = self.pairs_after(count);
        assert!(pairs == expected, "the state is not that after group {count}; {context}");
        for (key, value) in &expected {
            assert_eq!(
                lane.read().get(key).unwrap().as_ref(),
                Some(value),
                "get differs from scan; {context}"
            );
        }
        for shard in 0..SHARDS {
            let frames = self.groups[..count].iter().flatten().filter(|frame| frame.shard.0 == shard).count();
            assert_eq!(lane.shard_sequence(ShardId(shard)), frames as u64, "{context}");
        }
        self.groups.truncate(count);
        self.durable = count;
    }
}

fn draw_value(random: &SimEntropy) -> Bytes {
    let len = match random.below(10) {
        0 => 4000 + random.below(3000),
        1 => 0,
        _ => random.below(200),
    };
    let mut value = vec![0; len as usize];
    random.fill(&mut value);
    value.into()
}
