//! Callers: what they do, and what they may be answered.

use super::{BLOCK, BLOCKS, CHUNK_BYTES, CHUNKS, Life, Place, Site, chunk_of};
use ashlar_rpc::{Payload, StorageCalls};
use ashlar_types::block_sum::BLOCK_BYTES;
use ashlar_types::message::{StorageReply, StorageRequest};
use ashlar_types::{ChainId, ChunkId, ClusterMap, Errno, OfChains, TargetId};
use parking_lot::Mutex;
use smallvec::smallvec;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

fn content(value: u64) -> Vec<u8> {
    value.to_le_bytes().repeat(BLOCK_BYTES / 8)
}

/// Has the head carry a request out, however often that takes; nothing when the caller is to end.
fn ask_head(site: &Arc<Site>, chain: u32, request: &StorageRequest, data: &[u8]) -> StorageReply {
    loop {
        let map = site.map();
        let to = map.head(ChainId(chain)).unwrap();
        let (asked, request, data) = (request, request.clone().at(to), data.to_vec());
        let run = move |life: &Life| {
            let is_write = matches!(request, StorageRequest::Write { .. });
            let payload = if is_write { Payload::Write(&data) } else { Payload::None };
            life.service.call(&request, payload)
        };
        // A caller never gives up what a process that lives may be at yet.
        let answer = site.have((None, to.0 as usize), Duration::from_secs(3600), run);
        site.scheduler.note(&|| {
            let told = answer.as_ref().map(|(answer, _)| answer.as_ref().map(|_| ()));
            format!("{to}: {told:?} to {asked:?}")
        });
        match answer {
            Some((Ok(reply), _)) => return reply,
            Some((Err(Errno::EREMCHG | Errno::ETIMEDOUT), _)) | None => site.sleep(10_000),
            // While those that have it whole are away.
            Some((Err(Errno::EIO), _)) if site.is_rotten.load(SeqCst) => site.sleep(1_000_000),
            Some((Err(errno), _)) => {
                site.fail(format!("chain {chain}: {errno}"));
                site.sleep(1_000_000);
            }
        }
    }
}

fn write(site: &Arc<Site>, place @ (chain, index, block): Place) {
    if !site.writers.lock().insert((chain, index)) {
        return;
    }
    let value = {
        let mut registers = site.registers.lock();
        let register = registers.entry(place).or_default();
        register.issued += 1;
        register.issued
    };
    let request = StorageRequest::Write {
        target: TargetId(0),
        chunk: chunk_of(place),
        chain: ChainId(chain),
        chunk_bytes: CHUNK_BYTES,
        offset: block * BLOCK,
        sums: Vec::new(),
    };
    ask_head(site, chain, &request, &content(value));
    let mut registers = site.registers.lock();
    let register = registers.entry(place).or_default();
    register.known = register.known.max(value);
    site.count("written");
    site.writers.lock().remove(&(chain, index));
}

/// Deletes chunks of a file from one on.
fn delete(site: &Arc<Site>, chain: u32, from_index: u64) {
    let chunks: Vec<(u32, u64)> = (from_index..CHUNKS).map(|index| (chain, index)).collect();
    {
        let mut writers = site.writers.lock();
        if chunks.iter().any(|chunk| writers.contains(chunk)) {
            return;
        }
        writers.extend(&chunks);
    }
    let ChunkId { inode, generation, .. } = chunk_of((chain, 0, 0));
    let places: Vec<Place> =
        chunks.iter().flat_map(|(chain, index)| BLOCKS.map(|block| (*chain, *index, block))).collect();
    // From here on either may be read.
    places.iter().for_each(|place| site.registers.lock().entry(*place).or_default().known = 0);
    loop {
        let chains = OfChains::Only(smallvec![ChainId(chain)]);
        let request =
            StorageRequest::DeleteGeneration { target: TargetId(0), inode, generation, chains, from_index };
        if let StorageReply::Deleted { is_done: true, .. } = ask_head(site, chain, &request, &[]) {
            break;
        }
    }
    for place in places {
        let mut registers = site.registers.lock();
        let register = registers.entry(place).or_default();
        (register.known, register.deleted) = (0, register.issued);
    }
    site.count("deletions");
    site.writers.lock().retain(|writer| !chunks.contains(writer));
}

/// Reads at any of the targets that are in sync by a map that may be old.
fn read(site: &Arc<Site>, place @ (chain, index, block): Place, map: &ClusterMap) {
    let targets = &map.chains[chain as usize].targets;
    let at = site.dice.below(targets.len() as u64) as usize;
    let target = targets[at];
    let before = site.registers.lock().get(&place).copied().unwrap_or_default();
    let is_deleting = || site.writers.lock().contains(&(chain, index));
    let was_changing = is_deleting();
    let request = StorageRequest::Read {
        target,
        chunk: chunk_of(place),
        chain: ChainId(chain),
        chunk_bytes: CHUNK_BYTES,
        offset: block * BLOCK,
        len: BLOCK,
        want_sums: false,
    };
    let found: Arc<Mutex<Vec<u8>>> = Arc::default();
    let read = found.clone();
    let run = move |life: &Life| {
        let mut out = vec![0; BLOCK_BYTES];
        let reply = life.service.call(&request, Payload::Read(&mut out));
        *read.lock() = out;
        reply
    };
    let Some((Ok(_), _)) = site.have((None, target.0 as usize), Duration::from_secs(20), run) else { return };
    let found = found.lock().clone();
    let value = u64::from_le_bytes(found[..8].try_into().unwrap());
    if found != content(value) {
        site.fail(format!("{place:?}: half of one write and half of another"));
    }
    let mut registers = site.registers.lock();
    let register = registers.entry(place).or_default();
    // Also one that has begun, and may have been made at this target and not at others.
    let is_deleted_since = register.deleted != before.deleted
        || register.known < before.known
        || (was_changing && before.known == 0);
    let is_old = value < before.known || (value != 0 && value <= before.deleted);
    if !is_deleted_since && is_old || value > register.issued {
        let told = format!("{place:?} at {target} is {value}, with {before:?} before and {register:?} now");
        drop(registers);
        return site.fail(told);
    }
    if !is_deleted_since && register.deleted == before.deleted && register.known > 0 {
        register.known = register.known.max(value);
    }
    site.count("read");
    if at > 0 {
        site.count("read behind the head");
    }
}

pub(super) fn start(site: &Arc<Site>, number: usize) {
    let site = site.clone();
    let scheduler = site.scheduler.clone();
    let work = move || {
        let mut map = site.map();
        while !site.is_over.load(SeqCst) {
            site.sleep(site.dice.below(20_000));
            if site.dice.below(4) == 0 {
                map = site.map();
            }
            let chain = site.dice.below(map.chains.len() as u64) as u32;
            let block = BLOCKS[site.dice.below(BLOCKS.len() as u64) as usize];
            let place = (chain, site.dice.below(CHUNKS), block);
            match site.dice.below(40) {
                0 => delete(&site, chain, place.1),
                1..20 => write(&site, place),
                _ => read(&site, place, &map),
            }
        }
    };
    scheduler.start_detached(&format!("c{number}"), Box::new(work));
}
