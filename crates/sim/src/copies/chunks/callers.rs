//! Callers: what they do, and what they may be answered.

use super::ledger::{CELLS, ChunkPlace, Place, content};
use super::{BUSY_CHUNKS, CHUNK_BYTES, CHUNKS, Life, Site, chunk_of};
use ashlar_rpc::{Payload, StorageCalls};
use ashlar_types::message::{ChunkWritten, LossMark, StorageReply, StorageRequest};
use ashlar_types::{ChainId, ChunkId, ClusterMap, Errno, OfChains, TargetId};
use parking_lot::Mutex;
use smallvec::smallvec;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

/// Has the head carry a request out that is about `chunks`, however often that takes; nothing where one of them is lost, or the caller gives up.
fn ask_head(
    site: &Arc<Site>,
    chunks: &[ChunkPlace],
    chain: u32,
    (request, data): (&StorageRequest, &[u8]),
) -> Option<StorageReply> {
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
        let is_lost = || chunks.iter().any(|chunk| site.ledger.lock().is_lost(*chunk));
        match answer {
            Some((Ok(reply), _)) => return Some(reply),
            // It has died: some callers ask again, and some are never heard of any more.
            None if !chunks.is_empty() && site.dice.below(3) == 0 => {
                site.count("calls given up");
                return None;
            }
            Some((Err(Errno::EREMCHG | Errno::ETIMEDOUT), _)) | None => site.sleep(10_000),
            // Another server would have it in a moment; here another copy has, or this one.
            Some((Err(Errno::EBUSY), _)) if site.durable == Some(to.0 as usize) => site.sleep(10_000),
            Some((Err(Errno::EIO), _)) if is_lost() => {
                site.count("errors of what is lost");
                return None;
            }
            // While those that have it whole are away.
            Some((Err(Errno::EIO), _)) if site.is_rotten.load(SeqCst) && is_alone(site, chain) => {
                site.sleep(1_000_000);
            }
            Some((Err(errno), _)) => {
                site.fail(format!("chain {chain}: {errno} to {asked:?}"));
                site.sleep(1_000_000);
            }
        }
    }
}

/// Whether one target alone has all of a chain.
fn is_alone(site: &Site, chain: u32) -> bool {
    site.map().chain(ChainId(chain)).is_some_and(|chain| chain.targets.len() == 1)
}

/// Writes a cell, or that and the next one if they are beside each other.
fn write(site: &Arc<Site>, place @ (chain, index, cell): Place) {
    let chunk = (chain, index);
    if !site.ledger.lock().begin(&[chunk]) {
        return;
    }
    let (offset, len) = CELLS[cell];
    let is_next = |next: &usize| CELLS.get(*next).is_some_and(|(begin, _)| *begin == offset + len);
    let next = Some(cell + 1).filter(is_next).filter(|_| site.dice.below(3) == 0);
    let places: Vec<Place> =
        [Some(cell), next].into_iter().flatten().map(|cell| (chain, index, cell)).collect();
    let (mut data, mut values) = (Vec::new(), Vec::new());
    let cuts = site.ledger.lock().cuts(chain);
    for place in &places {
        let value = site.ledger.lock().issue(*place);
        data.extend(content(value, place.2));
        values.push(value);
    }
    let request = StorageRequest::Write {
        target: TargetId(0),
        chunk: chunk_of((chain, index)),
        chain: ChainId(place.0),
        chunk_bytes: CHUNK_BYTES,
        offset,
        sums: Vec::new(),
    };
    let answer = ask_head(site, &[chunk], chain, (&request, &data));
    let mut ledger = site.ledger.lock();
    if let Some(answer) = answer {
        // Nothing to be remembered: it is durable wherever it counts.
        let mut is_durable = false;
        if let StorageReply::Written(ChunkWritten { mark, .. }) = answer {
            is_durable = mark == LossMark::NONE;
            ledger.marked(chain, mark, cuts);
        }
        for (place, value) in places.iter().zip(values) {
            ledger.written(*place, value, (cuts, is_durable));
        }
        site.count("written");
    }
    ledger.end(&[chunk]);
}

/// Has cells be zeros, by a request about their chunks.
fn clear(
    site: &Arc<Site>,
    chunks: &[ChunkPlace],
    places: &[Place],
    request: &StorageRequest,
    what: &'static str,
) {
    if !site.ledger.lock().begin(chunks) {
        return;
    }
    let cuts = {
        let mut ledger = site.ledger.lock();
        ledger.clear(places);
        ledger.cuts(chunks[0].0)
    };
    let is_done = loop {
        match ask_head(site, chunks, chunks[0].0, (request, &[])) {
            Some(StorageReply::Deleted { is_done: false, .. }) => {}
            done => break done.is_some(),
        }
    };
    let mut ledger = site.ledger.lock();
    if is_done {
        ledger.cleared(places, cuts);
        site.count(what);
    }
    ledger.end(chunks);
}

/// Deletes chunks of a file from one on.
fn delete(site: &Arc<Site>, chain: u32, from_index: u64) {
    let chunks: Vec<ChunkPlace> = (from_index..CHUNKS).map(|index| (chain, index)).collect();
    let cells =
        |(chain, index): &ChunkPlace| (0..CELLS.len()).map(|cell| (*chain, *index, cell)).collect::<Vec<_>>();
    let places: Vec<Place> = chunks.iter().flat_map(cells).collect();
    let ChunkId { inode, generation, .. } = chunk_of((chain, 0));
    let chains = OfChains::Only(smallvec![ChainId(chain)]);
    let request =
        StorageRequest::DeleteGeneration { target: TargetId(0), inode, generation, chains, from_index };
    clear(site, &chunks, &places, &request, "deletions");
}

/// Cuts a chunk where a cell begins.
fn truncate(site: &Arc<Site>, (chain, index, cell): Place) {
    let places: Vec<Place> = (cell..CELLS.len()).map(|cell| (chain, index, cell)).collect();
    let request = StorageRequest::Truncate {
        target: TargetId(0),
        chunk: chunk_of((chain, index)),
        chain: ChainId(chain),
        chunk_bytes: CHUNK_BYTES,
        len: CELLS[cell].0,
    };
    clear(site, &[(chain, index)], &places, &request, "truncations");
}

/// Has a cell be a hole.
fn punch(site: &Arc<Site>, place @ (chain, index, cell): Place) {
    let (offset, len) = CELLS[cell];
    let request = StorageRequest::Punch {
        target: TargetId(0),
        chunk: chunk_of((chain, index)),
        chain: ChainId(chain),
        chunk_bytes: CHUNK_BYTES,
        offset,
        len,
    };
    clear(site, &[(chain, index)], &[place], &request, "holes");
}

/// Has all of a chain be durable.
fn sync(site: &Arc<Site>, chain: u32) {
    let (synced, marked, cuts) = {
        let mut ledger = site.ledger.lock();
        (ledger.begin_sync(chain), ledger.take_mark(chain), ledger.cuts(chain))
    };
    let request =
        StorageRequest::Sync { target: TargetId(0), chains: OfChains::Only(smallvec![ChainId(chain)]) };
    let Some(answer) = ask_head(site, &[], chain, (&request, &[])) else {
        return site.ledger.lock().put_mark_back(chain, marked);
    };
    let StorageReply::Synced(marks) = answer else { return site.fail(format!("{answer:?} to a sync")) };
    let checked = marked.map(|marked| site.ledger.lock().check_mark(chain, marked, marks[0].1, cuts));
    match checked {
        Some(Err(what)) => site.fail(format!("chain {chain}: {what}")),
        Some(Ok(what)) => site.count(what),
        None => {}
    }
    site.ledger.lock().synced(synced);
    site.count("syncs");
}

/// Reads at any of the targets that are in sync by a map that may be old.
fn read(site: &Arc<Site>, place @ (chain, index, cell): Place, map: &ClusterMap) {
    let targets = &map.chains[chain as usize].targets;
    let at = site.dice.below(targets.len() as u64) as usize;
    let target = targets[at];
    let before = {
        let ledger = site.ledger.lock();
        (ledger.get(place), ledger.is_changing((chain, index)))
    };
    let (offset, len) = CELLS[cell];
    let request = StorageRequest::Read {
        target,
        chunk: chunk_of((chain, index)),
        chain: ChainId(chain),
        chunk_bytes: CHUNK_BYTES,
        offset,
        len,
        want_sums: false,
    };
    let found: Arc<Mutex<Vec<u8>>> = Arc::default();
    let read = found.clone();
    let run = move |life: &Life| {
        let mut out = vec![0; len as usize];
        let reply = life.service.call(&request, Payload::Read(&mut out));
        *read.lock() = out;
        reply
    };
    let Some((Ok(_), _)) = site.have((None, target.0 as usize), Duration::from_secs(20), run) else { return };
    if let Err(what) = site.ledger.lock().see(place, before, &found.lock()) {
        return site.fail(format!("read at {target}: {what}"));
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
            let cell = site.dice.below(CELLS.len() as u64) as usize;
            let is_busy = site.dice.below(12) > 0;
            let place = (chain, site.dice.below(if is_busy { BUSY_CHUNKS } else { CHUNKS }), cell);
            match site.dice.below(40) {
                0 => delete(&site, chain, site.dice.below(CHUNKS)),
                1 => truncate(&site, place),
                2 => punch(&site, place),
                3 => sync(&site, chain),
                4..20 => write(&site, place),
                _ => read(&site, (chain, site.dice.below(CHUNKS), cell), &map),
            }
        }
    };
    scheduler.start_detached(&format!("c{number}"), Box::new(work));
}
