//! Making metadata of a backup of many servers, for one of them.

use super::part::PartSet;
use super::read::require_empty;
use super::write::Summary;
use crate::cluster::{RestoredNote, write_uuid};
use crate::node::state::{make_private_directory, open_lane};
use crate::node::{MetaLock, require_owner};
use anyhow::{Context, Result, bail};
use ashlar_env::os::OsDisk;
use ashlar_env::{Disk, Env};
use ashlar_kv::{Frame, Key, Lane, LaneConfig, Snapshot, Urgency, WriteSet};
use ashlar_meta::Unfinished;
use ashlar_namespace::{OpContext, Placement, Txn, key};
use ashlar_types::{
    ChainId, Credentials, Epoch, InodeId, LayoutPolicy, OpId, SessionId, ShardId, ShardSet, codec,
};
use bytes::Bytes;
use smallvec::SmallVec;
use std::path::Path;
use std::sync::Arc;

/// Verb number of what a restore commits, for people who read logs.
const VERB_RESTORE: u8 = 101;
/// Pairs and bytes that are committed together.
const GROUP_PAIRS: usize = 4096;
const GROUP_BYTES: usize = 1 << 20;
/// By how much numbers of starts go on: whatever was numbered by starts since the backup is not met again.
// LIMIT: a start's number has 23 bits: of two thousand restores.
const STARTS_SKIPPED: u64 = 1 << 12;

/// Makes the metadata directory `meta`, which must be empty or not there, with the shards that `note` says, of the backup `set`.
///
/// # Errors
/// When a shard is in no part, or the directory cannot be written: what was made of it cannot be started then.
pub fn restore_parts(set: &PartSet, note: &RestoredNote, meta: &Path) -> Result<Summary> {
    let of_set: ShardSet = set.shards().into_iter().collect();
    if let Some(missing) = note.shards.iter().find(|shard| !of_set.has(*shard)) {
        bail!("{missing} is in no part of the backup");
    }
    make_private_directory(meta)?;
    require_empty(meta)?;
    require_owner(meta)?;
    let disk: Arc<dyn Disk> = Arc::new(OsDisk::new(meta));
    let _lock = MetaLock::take(&disk, meta, &format!("ashlar restore, process {}", std::process::id()))?;
    let env = Env::os();
    let lane = open_lane(&disk, meta, &env, set.header.cluster, LaneConfig::default())?;
    let stored = store(set, &note.shards, &lane);
    let closed = lane.close().context("cannot store the metadata");
    let pairs = stored.and_then(|pairs| closed.map(|()| pairs))?;
    note.store(&disk)?;
    // ORDER: last, because it is what makes the directory one of metadata.
    let mut uuid = [0; 16];
    env.entropy.fill(&mut uuid);
    write_uuid(&disk, meta, uuid)?;
    Ok(Summary { pairs, bytes: 0 })
}

fn store(set: &PartSet, shards: &ShardSet, lane: &Lane) -> Result<u64> {
    let (mut pairs, mut bytes, mut group): (u64, usize, Vec<(Key, Option<Bytes>)>) = (0, 0, Vec::new());
    set.for_each_pair(shards, &mut |record_key, value| {
        bytes += record_key.len() + value.len();
        pairs += 1;
        group.push((Key::from_slice(record_key), Some(Bytes::copy_from_slice(value))));
        if group.len() >= GROUP_PAIRS || bytes >= GROUP_BYTES {
            bytes = 0;
            commit(lane, std::mem::take(&mut group))?;
        }
        Ok(())
    })?;
    // Of the server's own: it counts on, and takes no shards by itself.
    let starts = set.head.servers.iter().map(|server| server.incarnation).max().unwrap_or(0) + STARTS_SKIPPED;
    group.push((key::joined(), Some(Bytes::new())));
    group.push((key::incarnation(), Some(Bytes::from(codec::encode(&starts)))));
    commit(lane, group)?;
    finish(set, shards, lane)?;
    Ok(pairs)
}

fn commit(lane: &Lane, mut pairs: Vec<(Key, Option<Bytes>)>) -> Result<()> {
    pairs.sort();
    let mut frames: Vec<Frame> = Vec::new();
    for pair in pairs {
        let shard = key::shard_of(&pair.0);
        match frames.last_mut() {
            Some(frame) if frame.shard == shard => frame.writes.0.push(pair),
            _ => frames.push(frame(shard, WriteSet(vec![pair]))),
        }
    }
    lane.write().commit(frames, Urgency::Normal).context("cannot write the metadata log")?;
    Ok(())
}

fn frame(shard: ShardId, writes: WriteSet) -> Frame {
    Frame { shard, epoch: Epoch(0), op: OpId::default(), verb: VERB_RESTORE, writes, reply: Bytes::new() }
}

/// Finishes operations across servers that were under way: each server knows by itself what became of them, because all parts are here.
fn finish(set: &PartSet, shards: &ShardSet, lane: &Lane) -> Result<()> {
    let here: Vec<ShardId> = shards.iter().collect();
    let unfinished = Unfinished::find(&set.under_way, &here).context("operations that were under way")?;
    let creds = Credentials::root();
    for one in unfinished.iter().filter(|one| one.happens().is_some()) {
        let context = OpContext {
            // Of what happens, the time is in it.
            now: Env::os().clock.now(),
            creds: &creds,
            session: SessionId(0),
            hash_key: &set.head.name_hash_key,
            placement: &NoPlacement,
            open_in: &|_| SmallVec::new(),
        };
        let mut writer = lane.write();
        let mut txn = Txn::new(&writer as &dyn Snapshot);
        one.finish(&mut txn, &context).context("an operation that was under way")?;
        let outcome = txn.finish().context("an operation that was under way")?;
        let frames = outcome.writes.into_iter().map(|(shard, writes)| frame(shard, writes)).collect();
        writer.commit(frames, Urgency::Normal).context("cannot write the metadata log")?;
    }
    Ok(())
}

/// Nothing is made.
struct NoPlacement;

impl Placement for NoPlacement {
    fn shard_for_directory(&self, parent: InodeId) -> ShardId {
        parent.home()
    }

    fn chains_for_file(&self, _policy: &LayoutPolicy) -> SmallVec<[ChainId; 4]> {
        SmallVec::new()
    }
}
