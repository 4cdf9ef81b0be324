//! What must be so once nothing fails any more.

use super::ledger::{CELLS, ChunkPlace};
use super::trouble::{admit_missing, findings, is_sound, scrub};
use super::{BLOCK, CHUNK_BYTES, CHUNKS, NODES, Site, chunk_of};
use crate::copies::{HEAL_MAX, require};
use ashlar_chunkstore::ChunkError;
use ashlar_types::TargetId;
use ashlar_types::map::Chain;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

/// Nothing fails any more, until all copies are there again, and everybody has got further since.
pub(super) fn heal(site: &Arc<Site>) -> Result<(), String> {
    site.is_troubled.store(false, SeqCst);
    site.cut.lock().clear();
    let healed = site.now();
    let is_whole = || {
        let map = site.map();
        let are_all = |chain: &Chain| {
            chain.targets.len() >= usize::from(chain.copies_wanted())
                && chain.copies.as_ref().is_some_and(|copies| copies.catching_up.is_empty())
        };
        map.chains.iter().all(are_all) && site.nodes.iter().all(|node| *node.frozen_until.lock() < site.now())
    };
    while !is_whole() && !site.is_failed() {
        site.step_until(site.now() + Duration::from_millis(500))?;
        let told = || format!("the copies are not whole again: {:?}", site.map().chains);
        require(site.now() - healed < HEAL_MAX, told)?;
        admit_missing(site);
    }
    for _ in 0..2 {
        (0..NODES).for_each(|at| scrub(site, at));
        site.step_until(site.now() + Duration::from_secs(2))?;
    }
    let written = || site.counts.lock().get("written").copied().unwrap_or(0);
    let before = written();
    let whole = site.now();
    while written() < before + 40 && !site.is_failed() {
        site.step_until(site.now() + Duration::from_millis(500))?;
        let told = || format!("nobody gets further: {:?}", site.map().chains);
        require(site.now() - whole < Duration::from_secs(60), told)?;
    }
    Ok(())
}

/// All copies are equal, and have what was acknowledged.
pub(super) fn at_rest(site: &Site) -> Result<(), String> {
    let map = site.map();
    for (chain, index) in map.chains.iter().flat_map(|chain| (0..CHUNKS).map(move |index| (chain, index))) {
        let place = (chain.id.0, index);
        let copies: Vec<(TargetId, Found)> =
            chain.targets.iter().map(|target| (*target, look(site, place, *target))).collect();
        let (first, rest) = copies.split_first().unwrap();
        for (target, found) in rest {
            let is_same = found.len == first.1.len && found.blocks == first.1.blocks;
            // An error counts for nothing where it may be one.
            let is_like = site.ledger.lock().is_lost(place) && found.may_be(&first.1);
            require(is_same || is_like, || {
                format!("{place:?} differs: {:?} at {}, {:?} at {target}", first.1.len, first.0, found.len)
            })?;
        }
        for (target, found) in &copies {
            for cell in 0..CELLS.len() {
                let checked = found
                    .cell(cell)
                    .map_or(Ok(()), |bytes| site.ledger.lock().check((place.0, index, cell), &bytes));
                checked.map_err(|what| format!("at {target}: {what}"))?;
            }
        }
    }
    let told = || format!("{:?}", (0..NODES).map(|at| findings(site, at)).collect::<Vec<_>>());
    require(is_sound(site), told)
}

/// What there is of a chunk at one target: its length, and its blocks if they can be read.
struct Found {
    len: Option<u32>,
    blocks: Vec<Option<Vec<u8>>>,
}

impl Found {
    /// Whether it is the same where both can be read.
    fn may_be(&self, other: &Found) -> bool {
        let both = self.blocks.iter().zip(&other.blocks);
        both.into_iter().all(|(ours, theirs)| ours.is_none() || theirs.is_none() || ours == theirs)
    }

    /// What is in a cell, if all of it can be read.
    fn cell(&self, cell: usize) -> Option<Vec<u8>> {
        let (offset, len) = CELLS[cell];
        let (mut bytes, first) = (Vec::new(), offset / BLOCK);
        for block in first..(offset + len).div_ceil(BLOCK) {
            bytes.extend_from_slice(self.blocks[block as usize].as_ref()?);
        }
        let from = (offset - first * BLOCK) as usize;
        Some(bytes[from..from + len as usize].to_vec())
    }
}

fn look(site: &Site, (chain, index): ChunkPlace, target: TargetId) -> Found {
    let life = site.life(target.0 as usize).unwrap();
    let chunk = chunk_of((chain, index));
    let len = life.store.map(chunk).ok().flatten().map(|map| map.len);
    let read = |block: u32| {
        let mut out = vec![0; BLOCK as usize];
        let read = life.store.read(chunk, CHUNK_BYTES, block * BLOCK, &mut out);
        match read {
            Ok(_) | Err(ChunkError::NotFound(_)) => Some(out),
            Err(_) => None,
        }
    };
    Found { len, blocks: (0..CHUNK_BYTES / BLOCK).map(read).collect() }
}
