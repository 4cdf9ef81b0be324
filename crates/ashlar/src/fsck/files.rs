//! Files against chunks: the space a file says it has against what the targets hold, and files whose targets are not here.

use super::chunks::has_writer;
use super::problem::{Class, Ledger, NAMED_MAX, Problem, State};
use super::remote::{Remote, in_front};
use super::whole::Whole;
use anyhow::{Context, Result};
use ashlar_chunkstore::{ChunkError, ChunkStore};
use ashlar_kv::Snapshot;
use ashlar_namespace::check::{ChunkedFile, for_each_chunked_file};
use ashlar_namespace::key;
use ashlar_types::{ClusterMap, InodeId, OfChains, ShardId, TargetId};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;

/// The targets that are open.
pub type Stores = BTreeMap<TargetId, Arc<ChunkStore>>;

/// All targets that can be asked.
pub struct Targets<'a> {
    /// Those that are open.
    pub stores: &'a Stores,
    /// Those that others serve.
    pub remote: Option<&'a Remote>,
}

impl Targets<'_> {
    fn has(&self, target: TargetId) -> bool {
        self.stores.contains_key(&target)
            || self.remote.is_some_and(|remote| remote.targets().contains(&target))
    }

    /// Units of 512 bytes that `target` has of a file's generation, in those of its chains; `None` when something of it is damaged: that is told by its target's stage.
    fn blocks(
        &self,
        target: TargetId,
        (inode, generation): (InodeId, u32),
        chains: OfChains,
    ) -> Result<Option<u64>> {
        match (self.stores.get(&target), self.remote) {
            (Some(store), _) => match store.extent_of(inode, generation, &|chain| chains.has(chain)) {
                Ok(extent) => Ok(Some(extent.map_or(0, |extent| extent.blocks))),
                Err(ChunkError::Corrupt { .. }) => Ok(None),
                Err(error) => Err(error).with_context(|| format!("cannot read the index of {target}")),
            },
            (None, Some(remote)) => remote.blocks(target, (inode, generation), chains),
            (None, None) => Ok(Some(0)),
        }
    }
}

/// What was found out about a file.
enum Verdict {
    Sound,
    /// It has data on what is named here.
    Unreadable(String),
    /// The targets hold this many units of 512 bytes.
    Holds(u64),
}

/// A wrong number of blocks: the file, what it says, and what the targets hold.
type Correction = (InodeId, u64, u64);

/// Checks all files in chunks. With repair, the space they say they have is set to what the targets hold.
///
/// # Errors
/// When target or metadata cannot be read, or the metadata not written.
pub fn check_files(whole: &Whole<'_>, targets: &Targets<'_>, ledger: &mut Ledger) -> Result<u64> {
    let map = &whole.map;
    let mut count = 0;
    for shard in map.shards.iter().map(|shard| shard.id) {
        loop {
            let (seen, corrections) = check_shard(&whole.snapshot()?, map, shard, targets, ledger)?;
            for (inode, stored, held) in &corrections {
                if ledger.is_repairing {
                    correct(whole, *inode, *held)?;
                }
                add_correction((*inode, *stored, *held), ledger);
            }
            // A cut short pass begins anew; what it has corrected is right then.
            if corrections.len() < NAMED_MAX || !ledger.is_repairing {
                count += seen;
                break;
            }
        }
    }
    Ok(count)
}

fn check_shard(
    snapshot: &dyn Snapshot,
    map: &ClusterMap,
    shard: ShardId,
    all: &Targets<'_>,
    ledger: &mut Ledger,
) -> Result<(u64, Vec<Correction>)> {
    let (mut seen, mut corrections, mut failed) = (0, Vec::new(), None);
    for_each_chunked_file(snapshot, shard, &mut |file| {
        seen += 1;
        match judge(snapshot, map, &file, all) {
            Ok(Verdict::Sound) => {}
            Ok(Verdict::Unreadable(what)) => ledger.add(Problem {
                class: Class::FileUnreadable,
                inode: Some(file.inode),
                name: None,
                what: format!("has data on {what}"),
                remedy: "list the data directory of that target with --data (or have it served), or delete the file".into(),
                state: State::Left,
            }),
            Ok(Verdict::Holds(held)) => corrections.push((file.inode, file.blocks, held)),
            Err(error) => failed = Some(error),
        }
        if failed.is_some() || corrections.len() >= NAMED_MAX {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    })
    .context("cannot read the metadata")?;
    failed.map_or(Ok((seen, corrections)), Err)
}

fn judge(
    snapshot: &dyn Snapshot,
    map: &ClusterMap,
    file: &ChunkedFile,
    all: &Targets<'_>,
) -> Result<Verdict> {
    let layout = &file.layout;
    if layout.check().is_err() {
        return Ok(Verdict::Sound);
    }
    let mut targets = BTreeSet::new();
    let chunks_used = file.size.div_ceil(u64::from(layout.chunk_bytes));
    let mut is_whole = true;
    for (position, chain) in (0u64..).zip(&layout.chains) {
        let target = map.head(*chain);
        match target {
            Some(target) if all.has(target) => {
                targets.insert(target);
            }
            // A chain the file has not come to yet holds nothing of it.
            _ if position >= chunks_used => is_whole = false,
            Some(target) => return Ok(Verdict::Unreadable(format!("{target}, which is not here"))),
            None => return Ok(Verdict::Unreadable(format!("{chain}, which the cluster map does not have"))),
        }
    }
    let is_unsettled = has_writer(snapshot, file.inode)?
        || snapshot.get(&key::garbage(file.inode, layout.generation))?.is_some();
    if !is_whole || is_unsettled {
        return Ok(Verdict::Sound);
    }
    let mut held = 0;
    for target in targets {
        // Copies that it keeps for others do not count.
        match all.blocks(target, (file.inode, layout.generation), in_front(map, layout, target))? {
            Some(blocks) => held += blocks,
            // What a damaged chunk holds is not known.
            None => return Ok(Verdict::Sound),
        }
    }
    Ok(if held == file.blocks { Verdict::Sound } else { Verdict::Holds(held) })
}

fn correct(whole: &Whole<'_>, inode: InodeId, held: u64) -> Result<()> {
    whole
        .change(|txn, _| {
            txn.inode_mut(inode)?.blocks = held;
            Ok(true)
        })
        .map(|_| ())
}

fn add_correction((inode, stored, held): Correction, ledger: &mut Ledger) {
    let lost = if held < stored { ", so some of its content is lost and reads as zeros" } else { "" };
    ledger.add(Problem {
        class: Class::FileBlocks,
        inode: Some(inode),
        name: None,
        what: format!("says it has {stored} units of 512 bytes, the targets hold {held}{lost}"),
        remedy: "set it to what the targets hold".into(),
        state: ledger.state_after(true),
    });
}
