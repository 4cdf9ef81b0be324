//! What must hold of stores at rest: the checks of the namespace and of the targets, and those that need both.

use crate::oracle::Pairs;
use ashlar_chunkstore::ChunkStore;
use ashlar_kv::{Lane, Snapshot};
use ashlar_namespace::check::{self, CheckArgs, for_each_chunked_file};
use ashlar_namespace::{FileData, Inode, Kind, key};
use ashlar_types::ShardSet;
use ashlar_types::{ChunkId, ClusterMap, InodeId, TargetId, codec};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;

/// All pairs of a lane.
///
/// # Errors
/// In words.
pub fn pairs(lane: &Lane) -> Result<Pairs, String> {
    let mut all = Pairs::new();
    let scanned = lane.read().scan(&[], &[0xFF; 64], &mut |key, value| {
        all.insert(key.to_vec(), Bytes::copy_from_slice(value));
        ControlFlow::Continue(())
    });
    scanned.map_err(|error| format!("the lane cannot be read: {error}"))?;
    Ok(all)
}

/// The check of the namespace finds nothing.
///
/// # Errors
/// The findings.
pub fn namespace(lane: &Lane, shards: u16, hash_key: &[u8; 16]) -> Result<(), String> {
    let args =
        CheckArgs { inodes_per_pass: 1024, accounts_per_pass: 1024, ..CheckArgs::new(shards, hash_key) };
    let mut findings = Vec::new();
    let reader = lane.read();
    let mut tell = |finding: check::Finding| {
        findings.push(format!("{finding:?}"));
        ControlFlow::Continue(())
    };
    check::check(&reader, &args, &mut tell)
        .map_err(|error| format!("the namespace cannot be checked: {error}"))?;
    if findings.is_empty() {
        Ok(())
    } else {
        Err(format!("the namespace is not sound: {}", findings.join("; ")))
    }
}

/// The files that have data, or may have, on `target`.
pub fn files_on(pairs: &Pairs, map: &ClusterMap, target: TargetId) -> BTreeSet<u64> {
    let layout_of = |value: &Bytes| match codec::decode::<Inode>(value, "inode record").ok()?.kind {
        Kind::Regular(FileData::Chunks { layout, .. }) => Some(layout),
        _ => None,
    };
    let records = pairs.iter().filter(|(key, _)| key.get(2) == Some(&b'I'));
    let on_target = records.filter(|(_, value)| {
        layout_of(value).is_some_and(|layout| map.targets_of(&layout).contains(&target))
    });
    on_target.filter_map(|(key, _)| ashlar_namespace::key::inode_of(key)).map(|inode| inode.0).collect()
}

/// No session, no garbage and no orphan has left a record.
///
/// # Errors
/// The records.
pub fn nothing_left_behind(lane: &Lane) -> Result<(), String> {
    let left: Vec<String> = pairs(lane)?
        .keys()
        .filter(|key| matches!(key.get(2), Some(b'G' | b'O' | b'W')))
        .map(|key| format!("{} {:?}", char::from(key[2]), key::inode_of(key)))
        .collect();
    if left.is_empty() { Ok(()) } else { Err(format!("left behind by a clean stop: {}", left.join(", "))) }
}

/// A clean stop leaves nothing to compare.
///
/// # Errors
/// In words.
pub fn no_suspects(stores: &[(TargetId, Arc<ChunkStore>)]) -> Result<(), String> {
    for (target, store) in stores {
        let page = store
            .suspects(None, 10, &ShardSet::below(64))
            .map_err(|error| format!("{target} cannot be asked: {error}"))?;
        if !page.found.is_empty() {
            return Err(format!("a clean stop leaves suspects on {target}: {:?}", page.found));
        }
    }
    Ok(())
}

/// Every chunk belongs to a file, where the map says, not behind its end; every file has as many blocks as its chunks (unless a power cut took
/// chunks that were counted already, together with the target's record of them: `may_miscount`).
///
/// # Errors
/// The first that does not.
pub fn chunks(
    lane: &Lane,
    map: &ClusterMap,
    stores: &[(TargetId, Arc<ChunkStore>)],
    may_miscount: bool,
) -> Result<(), String> {
    let mut files = BTreeMap::new();
    for shard in &map.shards {
        let visited = for_each_chunked_file(&lane.read(), shard.id, &mut |file| {
            files.insert(file.inode, (file, 0));
            ControlFlow::Continue(())
        });
        visited.map_err(|error| format!("files cannot be listed: {error}"))?;
    }
    for (target, store) in stores {
        let mut from = Some(ChunkId { inode: InodeId(0), generation: 0, index: 0 });
        while let Some(start) = from {
            let page =
                store.list(start, 512).map_err(|error| format!("{target} cannot be listed: {error}"))?;
            for chunk in page.chunks {
                let Some((file, blocks)) = files.get_mut(&chunk.id.inode) else {
                    return Err(format!("chunk {} on {target} belongs to no file: leaked", chunk.id));
                };
                if file.layout.generation != chunk.id.generation {
                    let now = file.layout.generation;
                    return Err(format!(
                        "chunk {} on {target} is of an old generation, now {now}: leaked",
                        chunk.id
                    ));
                }
                if map.head(file.layout.chain(chunk.id.index)) != Some(*target) {
                    return Err(format!("chunk {} is on {target}, where its file does not look", chunk.id));
                }
                let len = chunk.len.ok_or_else(|| format!("chunk {} on {target} is damaged", chunk.id))?;
                let end = chunk.id.index * u64::from(file.layout.chunk_bytes) + u64::from(len);
                if len > 0 && end > file.size {
                    return Err(format!("chunk {} ends at {end}, its file at {}", chunk.id, file.size));
                }
                *blocks += chunk.blocks;
            }
            from = page.next;
        }
    }
    // Blocks that were reported and lost with unsynced data are counted until `ashlar fsck` looks.
    match files.values().find(|(file, blocks)| file.blocks != *blocks && !may_miscount) {
        Some((file, blocks)) => {
            Err(format!("{} accounts for {} blocks and its chunks have {blocks}", file.inode, file.blocks))
        }
        None => Ok(()),
    }
}

/// A scrub finds nothing.
///
/// # Errors
/// The findings.
pub fn scrub(target: TargetId, store: &ChunkStore) -> Result<(), String> {
    let scrubbed =
        store.scrub(None, u64::MAX).map_err(|error| format!("{target} cannot be scrubbed: {error}"))?;
    if scrubbed.findings.is_empty() {
        Ok(())
    } else {
        Err(format!("scrub of {target} finds {:?}", scrubbed.findings))
    }
}
