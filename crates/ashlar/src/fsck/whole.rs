//! The metadata of a whole file system: in one lane on a single machine, in one of each metadata server where there are many.

use super::VERB_REPAIR;
use crate::node;
use anyhow::{Context, Result};
use ashlar_env::Env;
use ashlar_kv::{Frame, KvError, Lane, LaneWriter, LastingSnapshot, Snapshot, Urgency, Visit};
use ashlar_namespace::{NsError, OpContext, Placement, Txn, key};
use ashlar_types::{
    ChainId, ClusterMap, Credentials, InodeId, LayoutPolicy, OpId, SessionId, ShardId, ShardSet,
};
use bytes::Bytes;
use smallvec::SmallVec;
use std::ops::ControlFlow;
use std::sync::Arc;

/// See the module.
pub struct Whole<'a> {
    lanes: Vec<&'a Lane>,
    /// By shard, the lane that has it.
    home: Vec<usize>,
    /// The map.
    pub map: Arc<ClusterMap>,
    /// The key by which names are hashed.
    pub hash_key: [u8; 16],
    env: Env,
}

impl<'a> Whole<'a> {
    /// Of a single machine.
    pub fn of_one(state: &node::State, lane: &'a Lane) -> Whole<'a> {
        let (map, hash_key) = (state.manager.map().read().clone(), state.manager.identity().name_hash_key);
        Whole { lanes: vec![lane], home: vec![0; map.shards.len()], map, hash_key, env: state.env.clone() }
    }

    /// Of many servers, each with its shards.
    ///
    /// # Errors
    /// When a shard is at none of them.
    pub fn of_many(
        servers: &[(&'a Lane, ShardSet)],
        (map, hash_key): (Arc<ClusterMap>, [u8; 16]),
        env: &Env,
    ) -> Result<Whole<'a>> {
        let home = map.shards.iter().map(|shard| {
            let at = servers.iter().position(|(_, shards)| shards.has(shard.id));
            at.with_context(|| format!("{} is not here", shard.id))
        });
        let home = home.collect::<Result<_>>()?;
        Ok(Whole {
            lanes: servers.iter().map(|(lane, _)| *lane).collect(),
            home,
            map,
            hash_key,
            env: env.clone(),
        })
    }

    /// All shards.
    pub fn shards(&self) -> Vec<ShardId> {
        self.map.shards.iter().map(|shard| shard.id).collect()
    }

    /// What there is now.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn snapshot(&self) -> Result<WholeSnapshot> {
        let parts = self.lanes.iter().map(|lane| lane.snapshot()).collect::<Result<_, _>>();
        Ok(WholeSnapshot { parts: parts.context("cannot read the metadata")?, home: self.home.clone() })
    }

    /// Decides and commits one change of a repair; it may be written on a full disk too. Tells what `decide` told.
    ///
    /// # Errors
    /// What `decide` answers, with nothing changed, and what the log answers.
    pub fn change(
        &self,
        decide: impl FnOnce(&mut Txn<'_>, &OpContext<'_>) -> Result<bool, NsError>,
    ) -> Result<bool> {
        let creds = Credentials::root();
        let context = OpContext {
            now: self.env.clock.now(),
            creds: &creds,
            session: SessionId(0),
            hash_key: &self.hash_key,
            placement: &NoPlacement,
            open_in: &|_| SmallVec::new(),
        };
        let mut writers: Vec<LaneWriter<'_>> = self.lanes.iter().map(|lane| lane.write()).collect();
        let (is_changed, outcome) = {
            let parts = Parts { parts: &writers, home: &self.home };
            let mut txn = Txn::new(&parts);
            let is_changed = decide(&mut txn, &context)?;
            (is_changed, txn.finish()?)
        };
        let mut frames: Vec<Vec<Frame>> = writers.iter().map(|_| Vec::new()).collect();
        for (shard, writes) in outcome.writes {
            let at = self.home.get(usize::from(shard.0)).copied().unwrap_or(0);
            let (epoch, reply) = (self.map.epoch, Bytes::new());
            frames[at].push(Frame { shard, epoch, op: OpId::default(), verb: VERB_REPAIR, writes, reply });
        }
        // Of a repair in several lanes that is cut short the next check finds the rest.
        for (writer, frames) in writers.iter_mut().zip(frames) {
            writer.commit(frames, Urgency::FreesSpace).context("cannot write the metadata log")?;
        }
        Ok(is_changed)
    }
}

/// What there was at one moment.
pub struct WholeSnapshot {
    parts: Vec<LastingSnapshot>,
    home: Vec<usize>,
}

impl Snapshot for WholeSnapshot {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, KvError> {
        let parts: Vec<&dyn Snapshot> = self.parts.iter().map(|part| &**part as &dyn Snapshot).collect();
        get(&parts, &self.home, key)
    }

    fn scan(&self, from: &[u8], to: &[u8], visit: &mut Visit<'_>) -> Result<(), KvError> {
        let parts: Vec<&dyn Snapshot> = self.parts.iter().map(|part| &**part as &dyn Snapshot).collect();
        scan(&parts, &self.home, (from, to), visit)
    }
}

/// The same, where something is about to change.
struct Parts<'p, 'w> {
    parts: &'p [LaneWriter<'w>],
    home: &'p [usize],
}

impl Snapshot for Parts<'_, '_> {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, KvError> {
        let parts: Vec<&dyn Snapshot> = self.parts.iter().map(|part| part as &dyn Snapshot).collect();
        get(&parts, self.home, key)
    }

    fn scan(&self, from: &[u8], to: &[u8], visit: &mut Visit<'_>) -> Result<(), KvError> {
        let parts: Vec<&dyn Snapshot> = self.parts.iter().map(|part| part as &dyn Snapshot).collect();
        scan(&parts, self.home, (from, to), visit)
    }
}

fn get(parts: &[&dyn Snapshot], home: &[usize], key: &[u8]) -> Result<Option<Bytes>, KvError> {
    if let [one] = parts {
        return one.get(key);
    }
    let at = home.get(usize::from(key::shard_of(key).0)).and_then(|at| parts.get(*at));
    at.map_or(Ok(None), |part| part.get(key))
}

/// A range may be of several shards, each with the lane that has it.
fn scan(
    parts: &[&dyn Snapshot],
    home: &[usize],
    (from, to): (&[u8], &[u8]),
    visit: &mut Visit<'_>,
) -> Result<(), KvError> {
    if let [one] = parts {
        return one.scan(from, to, visit);
    }
    let mut is_done = false;
    for (shard, at) in (0u16..).map(ShardId).zip(home) {
        let prefix = key::shard_prefix(shard);
        let end = key::after_prefix(&prefix);
        let (from, to) = (from.max(&prefix), to.min(&end));
        if from >= to {
            continue;
        }
        let Some(part) = parts.get(*at) else { continue };
        part.scan(from, to, &mut |key, value| {
            is_done = visit(key, value).is_break();
            if is_done { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        if is_done {
            break;
        }
    }
    Ok(())
}

/// Where repairs put what they make: in the shard of the parent, and nothing into chunks.
struct NoPlacement;

impl Placement for NoPlacement {
    fn shard_for_directory(&self, parent: InodeId) -> ShardId {
        parent.home()
    }

    fn chains_for_file(&self, _policy: &LayoutPolicy) -> SmallVec<[ChainId; 4]> {
        SmallVec::new()
    }
}
