//! Two lanes, one the copy of the other: groups go from the leader to the follower, either dies or loses what it had not synced, the follower takes
//! over, and the old leader takes back what the new one does not have. What all copies have had is never lost, and each lane always holds what
//! its last group says.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod ledger;

use ashlar_env::sim::{SimDisk, SimEntropy};
use ashlar_env::{Disk, Entropy};
use ashlar_kv::{
    Copies, Frame, Group, GroupCursor, GroupNumber, Import, Key, KvError, Lane, LaneConfig, MemoryEngine,
    Urgency,
};
use ashlar_types::{Epoch, ShardId};
use bytes::Bytes;
use ledger::{CLUSTER, Pairs, SHARDS, commit, frame, key, open_sim, put, scan_all, sim_env, small_config};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

/// Copies that the test keeps itself.
#[derive(Default)]
struct Noted {
    /// `None`: somebody else decides.
    epoch: Mutex<Option<Epoch>>,
    appended: Mutex<Vec<Group>>,
    committed: Mutex<u64>,
    flushes: Mutex<Vec<(&'static str, u64)>>,
    /// What was found to be damaged.
    damage: Mutex<Vec<String>>,
    is_elsewhere: AtomicBool,
}

impl Copies for Noted {
    fn await_turn(&self) {}

    fn is_undecided(&self) -> bool {
        false
    }

    fn epoch(&self) -> Result<Epoch, KvError> {
        self.epoch.lock().ok_or_else(|| KvError::NotPrimary { what: "another one leads".to_owned() })
    }

    fn appended(&self, group: Group) {
        self.appended.lock().push(group);
    }

    fn committed(&self) -> u64 {
        *self.committed.lock()
    }

    fn begin_flush(&self, sequence: u64) {
        self.flushes.lock().push(("begin", sequence));
    }

    fn end_flush(&self, sequence: u64) -> Result<(), KvError> {
        self.flushes.lock().push(("end", sequence));
        Ok(())
    }

    fn give_up_damaged(&self, what: &str) -> bool {
        self.damage.lock().push(what.to_owned());
        self.is_elsewhere.load(SeqCst)
    }
}

fn replicated() -> LaneConfig {
    LaneConfig { keeps_log: true, retained_log_bytes: 48 << 10, ..small_config() }
}

struct Side {
    disk: SimDisk,
    engine: MemoryEngine,
    lane: Lane,
    copies: Arc<Noted>,
    /// Groups that a power cut cannot take.
    durable: u64,
}

impl Side {
    fn open(disk: SimDisk, engine: MemoryEngine, committed: u64, seed: u64) -> Side {
        let lane = open_sim(&disk, &engine, replicated(), seed).unwrap();
        let copies = Arc::new(Noted::default());
        *copies.committed.lock() = committed;
        lane.replicate_with(copies.clone()).unwrap();
        let durable = lane.last_group().sequence;
        Side { disk, engine, lane, copies, durable }
    }

    fn last(&self) -> u64 {
        self.lane.last_group().sequence
    }
}

/// What was committed, in order, by whoever led.
struct Pair {
    sides: [Side; 2],
    leader: usize,
    epoch: u64,
    committed: u64,
    history: Vec<(GroupNumber, Vec<Frame>)>,
    cursor: GroupCursor,
}

impl Pair {
    fn new(seed: u64) -> Pair {
        let side = |at| Side::open(SimDisk::new(), MemoryEngine::new(), 0, seed + at);
        let mut pair = Pair {
            sides: [side(0), side(1)],
            leader: 0,
            epoch: 0,
            committed: 0,
            history: Vec::new(),
            cursor: GroupCursor::default(),
        };
        pair.lead(0);
        pair
    }

    fn lead(&mut self, at: usize) {
        (self.leader, self.epoch) = (at, self.epoch + 1);
        *self.sides[at].copies.epoch.lock() = Some(Epoch(self.epoch));
        *self.sides[1 - at].copies.epoch.lock() = None;
        self.history.truncate(self.sides[at].last() as usize);
        let common = self.sides[0].last().min(self.sides[1].last());
        let follower = &mut self.sides[1 - at];
        follower.lane.truncate_after(common).unwrap();
        follower.durable = follower.durable.min(common);
    }

    fn commit(&mut self, random: &SimEntropy) {
        let number = self.history.len() as u64 + 1;
        let mut frames = Vec::new();
        for shard in 0..SHARDS {
            if shard > 0 && random.below(3) > 0 {
                continue;
            }
            let mut writes = BTreeMap::new();
            for _ in 0..random.below(4) {
                let len = if random.below(9) == 0 { 4500 } else { random.below(150) };
                let mut value = vec![0; len as usize];
                random.fill(&mut value);
                let value = (random.below(4) > 0).then(|| Bytes::from(value));
                writes.insert(key(shard, &format!("k{:02}", random.below(40))), value);
            }
            frames.push(frame(shard, number, writes.into_iter().collect()));
        }
        let leader = &self.sides[self.leader];
        match leader.lane.write().commit(frames.clone(), Urgency::Normal) {
            // The follower lacks too much for the leader to go on.
            Err(KvError::Stalled { .. }) => return,
            committed => committed.map(drop).unwrap(),
        }
        let group = leader.copies.appended.lock().pop().unwrap();
        assert_eq!(group.number, GroupNumber { sequence: number, epoch: Epoch(self.epoch) });
        assert_eq!(group.number, leader.lane.last_group());
        self.history.push((group.number, frames));
    }

    /// Sends some of what the follower lacks.
    fn send(&mut self, random: &SimEntropy) {
        let [follower, leader] = match self.leader {
            0 => [&self.sides[1], &self.sides[0]],
            _ => [&self.sides[0], &self.sides[1]],
        };
        let behind = follower.last();
        let bytes_max = 1 + random.below(20_000) as usize;
        let groups = leader.lane.groups_behind(behind, &mut self.cursor, bytes_max).unwrap();
        let groups = groups.expect("all that one side lacks is in the log of the other");
        for (at, group) in groups.iter().enumerate() {
            assert_eq!(group.number, self.history[behind as usize + at].0);
        }
        match follower.lane.append_groups(&groups) {
            Err(KvError::Stalled { .. }) | Ok(()) => {}
            other => other.unwrap(),
        }
    }

    fn flush(&mut self, at: usize) {
        self.sides[at].lane.flush_here().unwrap();
        self.sides[at].durable = self.sides[at].last();
        self.committed = self.committed.max(self.sides[0].durable.min(self.sides[1].durable));
        for side in &self.sides {
            *side.copies.committed.lock() = self.committed;
        }
    }

    /// One side dies, with power or without, and comes back; either leads then.
    fn crash(&mut self, at: usize, random: &SimEntropy) {
        let side = &self.sides[at];
        let (disk, engine) = (side.disk.clone(), side.engine.clone());
        let least = if random.below(2) == 0 { side.durable } else { side.last() };
        let other = Side::open(SimDisk::new(), MemoryEngine::new(), 0, 1);
        let dead = std::mem::replace(&mut self.sides[at], other);
        let is_power = least == dead.durable;
        drop(dead);
        if is_power {
            disk.crash(random.next_u64());
        }
        self.sides[at] = Side::open(disk, engine, self.committed, random.next_u64());
        let side = &self.sides[at];
        assert!(side.last() >= least, "{} groups are left of {least}", side.last());
        let runs = side.lane.runs_at_open();
        let count: u64 = runs.runs.iter().map(|(_, count)| count).sum();
        assert_eq!(runs.floor.sequence + count, side.last());
        for at in runs.floor.sequence + 1..=side.last() {
            let mut behind = at - runs.floor.sequence;
            let epoch = runs.runs.iter().find(|(_, count)| {
                let is_here = behind <= *count;
                behind -= if is_here { 0 } else { *count };
                is_here
            });
            assert_eq!(epoch.unwrap().0, self.history[at as usize - 1].0.epoch, "group {at}");
        }
        self.cursor = GroupCursor::default();
        // Whoever has what is committed may lead.
        self.lead(random.below(2) as usize);
    }

    fn pairs_after(&self, count: u64) -> Pairs {
        let mut pairs = Pairs::new();
        let frames = self.history[..count as usize].iter().flat_map(|(_, frames)| frames);
        for (key, value) in frames.flat_map(|frame| &frame.writes.0) {
            match value {
                Some(value) => pairs.insert(key.to_vec(), value.clone()),
                None => pairs.remove(key.as_slice()),
            };
        }
        pairs
    }

    fn check(&self, context: &str) {
        for side in &self.sides {
            let last = side.last();
            assert!(
                last >= self.committed,
                "{last} groups are left of {} committed; {context}",
                self.committed
            );
            assert!(last as usize <= self.history.len(), "{context}");
            assert!(
                scan_all(&side.lane).unwrap() == self.pairs_after(last),
                "not what group {last} left; {context}"
            );
            for shard in 0..SHARDS {
                let frames = self.history[..last as usize].iter().flat_map(|(_, frames)| frames);
                let count = frames.filter(|frame| frame.shard.0 == shard).count() as u64;
                assert_eq!(side.lane.shard_sequence(ShardId(shard)), count, "{context}");
            }
        }
    }
}

fn run_seed(seed: u64) -> (u64, u64) {
    let random = SimEntropy::new(seed);
    let mut pair = Pair::new(seed);
    let mut takeovers = 0;
    // Some flush and send rarely, so that much is taken back.
    let kinds = [24, 24, 15][seed as usize % 3];
    for step in 0..300 {
        let kind = random.below(kinds);
        let kind = if kinds == 15 && random.below(40) == 0 { 22 } else { kind };
        match kind {
            0..=11 => pair.commit(&random),
            12..=16 => pair.send(&random),
            17..=18 => pair.flush(random.below(2) as usize),
            19..=20 => pair.sides[random.below(2) as usize].lane.tick().unwrap(),
            21 => pair.sides[random.below(2) as usize].lane.checkpoint_now().unwrap(),
            22 => {
                let before = pair.leader;
                pair.crash(random.below(2) as usize, &random);
                takeovers += u64::from(before != pair.leader);
            }
            _ => pair.check(&format!("seed {seed}, step {step}")),
        }
    }
    pair.check(&format!("seed {seed}, end"));
    (takeovers, pair.committed)
}

#[test]
fn copies_of_a_lane_follow_it() {
    let (mut takeovers, mut committed) = (0, 0);
    for seed in 0..60 {
        let (more, count) = run_seed(seed);
        (takeovers, committed) = (takeovers + more, committed + count);
    }
    assert!(takeovers > 30 && committed > 500, "{takeovers} take-overs, {committed} groups committed");
}

#[test]
fn what_copies_do_not_have_enters_no_checkpoint() {
    let side = Side::open(SimDisk::new(), MemoryEngine::new(), 0, 1);
    *side.copies.epoch.lock() = Some(Epoch(3));
    commit(&side.lane, vec![put("a", "1")]).unwrap();
    side.lane.checkpoint_now().unwrap();
    commit(&side.lane, vec![put("b", "2")]).unwrap();
    assert_eq!(side.lane.stats().checkpoint_count, 0, "nobody else has it");
    *side.copies.committed.lock() = 1;
    side.lane.checkpoint_now().unwrap();
    assert_eq!(side.lane.stats().checkpoint_count, 1);
    side.lane.checkpoint_now().unwrap();
    assert_eq!(side.lane.stats().checkpoint_count, 1, "the second group is only here");
    side.lane.truncate_after(1).unwrap();
    assert_eq!((ledger::get(&side.lane, "a"), ledger::get(&side.lane, "b")), (Some("1".into()), None));
    let refused = side.lane.truncate_after(0).unwrap_err();
    assert!(matches!(refused, KvError::Corrupt { .. }), "{refused}");
    assert!(side.lane.stopped().is_some(), "what is in a checkpoint cannot be taken back");
}

#[test]
fn what_others_do_not_have_is_taken_back_on_a_full_disk() {
    // Length of a segment, what is kept back, what is left besides, groups to be taken back, and whether there is a spare segment. There is no room for a whole segment but in a spare, in the
    // reserve, in one that is taken back, or in a short one.
    let (short, long) = (16 << 10, 4 << 20);
    let cases = [
        (short, 0, 0, 1, true),
        (short, 64 << 10, 0, 1, false),
        (short, 0, 0, 6, false),
        (long, 0, 3 << 19, 1, false),
    ];
    for (segment_bytes, reserve_bytes, left, groups, has_spare) in cases {
        let (disk, engine) = (SimDisk::new(), MemoryEngine::new());
        let config = LaneConfig { segment_bytes, reserve_bytes, ..replicated() };
        let lane = open_sim(&disk, &engine, config.clone(), 1).unwrap();
        let copies = Arc::new(Noted::default());
        *copies.epoch.lock() = Some(Epoch(3));
        lane.replicate_with(copies).unwrap();
        commit(&lane, vec![put("a", "1")]).unwrap();
        for _ in 0..groups {
            commit(&lane, vec![put("b", "x".repeat(9 << 10))]).unwrap();
        }
        if has_spare {
            lane.tick().unwrap();
        }
        let used = |disk: &SimDisk| disk.space().unwrap().bytes_total - disk.space().unwrap().bytes_free;
        disk.set_capacity(used(&disk) + left);
        lane.truncate_after(1).unwrap();
        assert_eq!((ledger::get(&lane, "a"), ledger::get(&lane, "b")), (Some("1".into()), None));
        // It goes on, and finds it like that.
        lane.write().commit(vec![put("c", "3")], Urgency::FreesSpace).unwrap();
        lane.flush_here().unwrap();
        drop(lane);
        disk.crash(5);
        disk.set_capacity(1 << 30);
        let lane = open_sim(&disk, &engine, config, 2).unwrap();
        let found = ["a", "b", "c"].map(|name| ledger::get(&lane, name));
        assert_eq!(found, [Some("1".into()), None, Some("3".into())]);
    }
}

#[test]
fn who_does_not_lead_commits_nothing_and_a_flush_asks_copies() {
    let side = Side::open(SimDisk::new(), MemoryEngine::new(), 0, 1);
    let refused = commit(&side.lane, vec![put("a", "1")]).unwrap_err();
    assert!(matches!(refused, KvError::NotPrimary { .. }), "{refused}");
    assert_eq!((side.last(), ledger::get(&side.lane, "a")), (0, None));
    *side.copies.epoch.lock() = Some(Epoch(3));
    let position = commit(&side.lane, vec![put("a", "1")]).unwrap();
    side.lane.flush(position).unwrap();
    assert_eq!(*side.copies.flushes.lock(), [("begin", 1), ("end", 1)]);
    side.lane.flush_here().unwrap();
    side.lane.tick().unwrap();
    assert_eq!(side.copies.flushes.lock().len(), 2, "the background keeps to itself");
}

#[test]
fn groups_that_do_not_follow_or_are_malformed_are_refused() {
    let (leader, follower) = (
        Side::open(SimDisk::new(), MemoryEngine::new(), 0, 1),
        Side::open(SimDisk::new(), MemoryEngine::new(), 0, 2),
    );
    *leader.copies.epoch.lock() = Some(Epoch(3));
    for number in 0..3 {
        commit(&leader.lane, vec![put("a", number.to_string()), frame(1, 1, vec![])]).unwrap();
    }
    let groups = leader.copies.appended.lock().clone();
    let refused = |groups: &[Group]| follower.lane.append_groups(groups).unwrap_err();
    assert!(matches!(refused(&groups[1..]), KvError::Invalid { .. }));
    follower.lane.append_groups(&groups[..1]).unwrap();
    assert!(matches!(refused(&groups[..1]), KvError::Invalid { .. }), "twice");
    let older = GroupNumber { sequence: 2, epoch: Epoch(2) };
    assert!(matches!(refused(&[Group { number: older, ..groups[1].clone() }]), KvError::Invalid { .. }));
    // The second group under the number of the second, with the frames of the third.
    let mixed = Group { number: groups[1].number, ..groups[2].clone() };
    assert!(matches!(refused(&[mixed]), KvError::Corrupt { .. }));
    let random = SimEntropy::new(5);
    for _ in 0..3000 {
        let mut body = groups[1].body.to_vec();
        for _ in 0..=random.below(3) {
            let at = random.below(body.len() as u64) as usize;
            body[at] = random.next_u64() as u8;
        }
        body.truncate(body.len() - random.below(2) as usize * random.below(40) as usize);
        let frames = if random.below(4) == 0 { random.below(5) as u32 } else { 2 };
        let group = Group { number: groups[1].number, frames, body: body.into() };
        // What differs in a value or a name alone cannot be told.
        if follower.lane.append_groups(&[group]).is_ok() {
            follower.lane.truncate_after(1).unwrap();
        }
        assert_eq!(follower.last(), 1);
    }
    follower.lane.append_groups(&groups[1..]).unwrap();
    assert_eq!(scan_all(&follower.lane).unwrap(), scan_all(&leader.lane).unwrap());
}

/// Makes of what `leader` holds the engine of a copy.
fn import(leader: &Lane, engine: &MemoryEngine) -> Import {
    let export = leader.export().unwrap();
    let mut pairs: Vec<(Key, Bytes)> = Vec::new();
    export
        .content
        .scan(&[], &[0xFF; 600], &mut |key, value| {
            pairs.push((Key::from_slice(key), Bytes::copy_from_slice(value)));
            ControlFlow::Continue(())
        })
        .unwrap();
    for some in pairs.chunks(7) {
        Import::add(engine, some).unwrap();
    }
    Import { last: export.last, sequences: export.sequences }
}

#[test]
fn a_copy_made_of_all_that_a_lane_holds_follows_it_from_there() {
    let random = SimEntropy::new(11);
    let mut pair = Pair::new(11);
    for _ in 0..30 {
        pair.commit(&random);
    }
    *pair.sides[0].copies.committed.lock() = 30;
    pair.sides[0].lane.checkpoint_now().unwrap();
    for _ in 0..10 {
        pair.commit(&random);
    }
    // What may still be taken back is not in it.
    let engine = MemoryEngine::new();
    let import = import(&pair.sides[0].lane, &engine);
    let disk = SimDisk::new();
    let opened = open_sim(&disk, &engine, replicated(), 3);
    assert!(matches!(opened, Err(KvError::Foreign { .. })), "it is not complete yet");
    import.finish(&engine, CLUSTER, small_config().lane).unwrap();
    disk.create_dir("lane").unwrap();
    let last = import.last.sequence;
    assert!((20..=30).contains(&last), "{last}");
    pair.sides[1] = Side::open(disk, engine, last, 3);
    assert_eq!(pair.sides[1].last(), last);
    assert_eq!(pair.sides[1].lane.runs_at_open().floor, import.last);
    pair.check("imported");
    for _ in 0..10 {
        pair.commit(&random);
        pair.send(&random);
    }
    while pair.sides[1].last() < pair.sides[0].last() {
        pair.send(&random);
    }
    pair.check("followed");
}

#[test]
fn a_lane_of_one_copy_that_gets_a_second_one_has_its_groups_counted() {
    let (disk, engine) = (SimDisk::new(), MemoryEngine::new());
    let lane = open_sim(&disk, &engine, small_config(), 1).unwrap();
    for number in 0..5u32 {
        commit(&lane, vec![put("a", number.to_string())]).unwrap();
    }
    assert_eq!(lane.last_group(), GroupNumber { sequence: 5, epoch: Epoch(1) });
    drop(lane);
    let lane = open_sim(&disk, &engine, small_config(), 2).unwrap();
    assert_eq!(lane.last_group(), GroupNumber { sequence: 5, epoch: Epoch(1) });
    assert_eq!(lane.runs_at_open().floor.sequence, 5, "what was in the log is in the engine");
    let copies = Arc::new(Noted::default());
    *copies.epoch.lock() = Some(Epoch(9));
    lane.replicate_with(copies.clone()).unwrap();
    assert!(lane.replicate_with(copies.clone()).is_err());
    commit(&lane, vec![put("a", "6")]).unwrap();
    assert_eq!(copies.appended.lock()[0].number, GroupNumber { sequence: 6, epoch: Epoch(9) });
    let _ = sim_env(1);
}

#[test]
fn a_lane_that_is_closed_before_its_copies_were_heard_is_durable() {
    for seed in 0..10 {
        let (disk, engine) = (SimDisk::new(), MemoryEngine::new());
        let lane = open_sim(&disk, &engine, replicated(), seed).unwrap();
        for number in 0..5 {
            commit(&lane, vec![put(&format!("k{number}"), vec![7; 100])]).unwrap();
        }
        lane.close().unwrap();
        drop(lane);
        disk.crash(seed);
        let lane = open_sim(&disk, &engine, replicated(), seed).unwrap();
        assert_eq!(lane.last_group().sequence, 5, "seed {seed}");
    }
}
