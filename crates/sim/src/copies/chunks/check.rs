//! What must be so once nothing fails any more.

use super::trouble::{admit_missing, findings, is_sound, scrub};
use super::{BLOCK, BLOCKS, CHUNK_BYTES, CHUNKS, NODES, Site, chunk_of};
use crate::copies::{HEAL_MAX, require};
use ashlar_types::TargetId;
use ashlar_types::map::Chain;
use ashlar_types::membership::Membership;
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
    for chain in &site.map().chains {
        let group: Membership<TargetId> = chain.group().unwrap();
        for index in 0..CHUNKS {
            let place = (chain.id.0, index, 0);
            let of = |target: &TargetId| {
                let life = site.life(target.0 as usize).unwrap();
                let mut out = vec![0; CHUNK_BYTES as usize];
                let is_there = life.store.map(chunk_of(place)).unwrap().map(|map| map.len);
                if is_there.is_some() {
                    life.store.read(chunk_of(place), CHUNK_BYTES, 0, &mut out).unwrap();
                }
                (is_there, out)
            };
            let all: Vec<_> = group.in_sync.iter().map(of).collect();
            let lens: Vec<_> = all.iter().map(|(len, _)| *len).collect();
            let is_same = all.iter().all(|one| *one == all[0]);
            require(is_same, || format!("{place:?} differs: {lens:?}"))?;
            for block in BLOCKS {
                let register =
                    site.registers.lock().get(&(place.0, index, block)).copied().unwrap_or_default();
                let from = (block * BLOCK) as usize;
                let value = u64::from_le_bytes(all[0].1[from..from + 8].try_into().unwrap());
                let is_right = value >= register.known && (value == 0 || value > register.deleted);
                let told = || format!("block {block} of {place:?} is {value}, not {register:?}");
                require(is_right, told)?;
            }
        }
    }
    let told = || format!("{:?}", (0..NODES).map(|at| findings(site, at)).collect::<Vec<_>>());
    require(is_sound(site), told)
}
