//! Carries out a storage request on its target.

use crate::answer::answer;
use crate::copies::{ComparePlace, Copies, Mended};
use crate::{InUse, StorageService};
use ashlar_chunkstore::{ChunkError, ChunkStore, Finding, ScrubCursor};
use ashlar_rpc::{Payload, StorageCalls};
use ashlar_types::block_sum::BLOCK_BYTES;
use ashlar_types::message::{ChunkWritten, StorageReply, StorageRequest};
use ashlar_types::{ChainId, ChunkId, Errno, OfChains, TargetId};
use std::collections::BTreeSet;

impl StorageCalls for StorageService {
    fn call(&self, request: &StorageRequest, payload: Payload<'_>) -> Result<StorageReply, Errno> {
        let id = request.target();
        let InUse { store, is_durable, _call } =
            self.target_for_call(id).ok_or_else(|| self.why_not_here(request))?;
        let run = |payload: Payload<'_>, is_here: &IsHere<'_>| {
            carry_out(self, &store, request, payload, is_here).map_err(|error| {
                self.report(id, &error);
                answer(id, &error)
            })
        };
        let reply = match &self.moves {
            None => run(payload, &|_| true),
            Some(moves) => moves.guard(request, payload, run),
        };
        let is_change =
            changed_chunk(request).is_some() || matches!(request, StorageRequest::DeleteGeneration { .. });
        let reply = match reply {
            Ok(reply) if is_change && is_durable => {
                store.sync().map(|()| reply).map_err(|error| answer(id, &error))
            }
            other => other,
        };
        // Durable here is not durable where a copy is, and that may be the one that goes on.
        let is_passed_on = |chain| self.moves.as_ref().is_some_and(|moves| moves.is_passed_on(id, chain));
        let is_durable_everywhere = is_durable && !request.chain().is_some_and(is_passed_on);
        let reply = reply.map(|reply| marked(reply, request, &store, is_durable_everywhere));
        match reply {
            // Another server may reach the disk that fails here, and has it in a moment.
            Err(Errno::EIO) if is_durable && (store.stopped().is_some() || self.target(id).is_none()) => {
                Err(Errno::EBUSY)
            }
            other => other,
        }
    }
}

impl StorageService {
    /// What to answer about a target that is not in service here. Who asks for chains that have gone elsewhere goes by an older map: the target was taken out of
    /// the file system since. One that may be on its way here, or to a server that the caller has not heard of yet, is to be asked for again (`EBUSY`).
    fn why_not_here(&self, request: &StorageRequest) -> Errno {
        let awaited = self.awaited.read();
        if awaited.are_unknown || awaited.targets.contains(&request.target()) {
            return Errno::EBUSY;
        }
        let is_elsewhere = self.moves.as_ref().is_some_and(|moves| moves.is_elsewhere(request));
        if is_elsewhere { Errno::EREMCHG } else { Errno::ENODEV }
    }
}

/// Whether a chunk of this chain is the target's to show; asked with `None` for one whose chain is not known.
pub(crate) type IsHere<'a> = dyn Fn(Option<ChainId>) -> bool + 'a;

/// The chunk whose content is another one afterwards, if there is one.
pub(crate) fn changed_chunk(request: &StorageRequest) -> Option<ChunkId> {
    match request {
        StorageRequest::Write { chunk, .. }
        | StorageRequest::Truncate { chunk, .. }
        | StorageRequest::Punch { chunk, .. }
        | StorageRequest::Allocate { chunk, .. }
        | StorageRequest::CopyLost { chunk, .. } => Some(*chunk),
        _ => None,
    }
}

fn changed(blocks_delta: i64) -> StorageReply {
    StorageReply::Written(ChunkWritten { blocks_delta, ..ChunkWritten::default() })
}

/// The answer to `request`, with what tells its caller later whether it may have been lost.
fn marked(
    reply: StorageReply,
    request: &StorageRequest,
    store: &ChunkStore,
    is_durable: bool,
) -> StorageReply {
    match (reply, request, request.chain()) {
        // What is durable is not lost; but what was changed elsewhere, before the chain came here, may be.
        (StorageReply::Written(written), _, Some(chain)) if !is_durable => {
            StorageReply::Written(ChunkWritten { mark: store.loss_mark(chain), ..written })
        }
        (StorageReply::Done, StorageRequest::Sync { chains: OfChains::Only(chains), .. }, _) => {
            StorageReply::Synced(chains.iter().map(|chain| (*chain, store.loss_mark(*chain))).collect())
        }
        (other, ..) => other,
    }
}

/// Leaves the checksums of the blocks that `[offset, offset + len)` covers whole, of those of all blocks it touches: the reader has
/// only a part of the others, and cannot check that.
pub(crate) fn keep_whole_blocks(sums: &mut Vec<u32>, offset: usize, len: usize) {
    let touched = offset / BLOCK_BYTES;
    let (first, end) = (offset.div_ceil(BLOCK_BYTES), (offset + len) / BLOCK_BYTES);
    sums.truncate(end.saturating_sub(touched));
    sums.drain(..(first - touched).min(sums.len()));
}

/// Does what a request asks for, whoever asked.
pub(crate) fn carry_out(
    service: &StorageService,
    store: &ChunkStore,
    request: &StorageRequest,
    payload: Payload<'_>,
    is_here: &IsHere<'_>,
) -> Result<StorageReply, ChunkError> {
    match (request, payload) {
        (StorageRequest::Write { chunk, chain, chunk_bytes, offset, sums, .. }, Payload::Write(data)) => {
            let sums = (!sums.is_empty()).then_some(sums.as_slice());
            Ok(changed(store.write(*chunk, (*chunk_bytes, *chain), *offset, data, sums)?.blocks_delta))
        }
        (StorageRequest::Read { chunk, chunk_bytes, offset, want_sums, .. }, Payload::Read(out)) => {
            read(store, *chunk, (*chunk_bytes, *offset, out), *want_sums)
        }
        (StorageRequest::Write { .. } | StorageRequest::Read { .. }, _) => {
            Err(ChunkError::BadRequest("a read or write came without its payload"))
        }
        (StorageRequest::Truncate { chunk, chunk_bytes, len, .. }, _) => {
            Ok(changed(store.truncate(*chunk, *chunk_bytes, *len)?))
        }
        (StorageRequest::Punch { chunk, chunk_bytes, offset, len, .. }, _) => {
            Ok(changed(store.punch(*chunk, *chunk_bytes, *offset, *len)?))
        }
        (StorageRequest::Allocate { chunk, chain, chunk_bytes, offset, len, .. }, _) => {
            Ok(changed(store.allocate(*chunk, (*chunk_bytes, *chain), *offset, *len)?))
        }
        (StorageRequest::CopyLost { chunk, chain, chunk_bytes, len, blocks, .. }, _) => {
            store.lose_blocks(*chunk, (*chunk_bytes, *chain), *len, blocks)?;
            Ok(changed(0))
        }
        (StorageRequest::DeleteGeneration { inode, generation, chains, from_index, .. }, _) => {
            let is_meant = |chain| chains.has(chain) && is_here(chain);
            let deleted = store.delete_generation_of(*inode, *generation, *from_index, &is_meant)?;
            Ok(StorageReply::Deleted {
                blocks: deleted.blocks,
                is_done: deleted.next.is_none(),
                may_be_second: false,
            })
        }
        (StorageRequest::Seek { chunk, offset, data, .. }, _) => Ok(StorageReply::Found(if *data {
            store.seek_data(*chunk, *offset)?
        } else {
            Some(store.seek_hole(*chunk, *offset)?)
        })),
        (StorageRequest::Extent { inode, generation, chains, .. }, _) => {
            let is_meant = |chain| chains.has(chain) && is_here(chain);
            let extent = store.extent_of(*inode, *generation, &is_meant)?;
            Ok(StorageReply::Extent(extent.map(|extent| (extent.last_index, extent.last_len, extent.blocks))))
        }
        (StorageRequest::NextChunk { inode, generation, chains, from_index, .. }, _) => {
            let is_meant = |chain| chains.has(chain) && is_here(chain);
            Ok(StorageReply::NextChunk(store.next_chunk(*inode, *generation, *from_index, &is_meant)?))
        }
        (StorageRequest::Sync { .. }, _) => {
            store.sync()?;
            Ok(StorageReply::Done)
        }
        (StorageRequest::GiveBack { .. }, _) => store.give_back().map(|_| StorageReply::Done),
        (StorageRequest::Suspects { after, limit, shards, .. }, _) => {
            let page = store.suspects(*after, *limit as usize, shards)?;
            Ok(StorageReply::Suspects { found: page.found, mark: page.mark })
        }
        (StorageRequest::Files { after, limit, shards, .. }, _) => {
            let found = store.files(*after, *limit as usize, shards)?;
            Ok(StorageReply::Suspects { found, mark: 0 })
        }
        (StorageRequest::Confirm { mark, shards, .. }, _) => {
            store.confirm(*mark, shards)?;
            Ok(StorageReply::Done)
        }
        (StorageRequest::Scrub { target, from }, _) => scrub(service, *target, store, from),
        (StorageRequest::Moves { target }, _) => Ok(StorageReply::Moves(
            service.moves.as_ref().map(|moves| moves.progress(*target)).unwrap_or_default(),
        )),
        (StorageRequest::MoveRate { target }, _) => {
            let rate = service.moves.as_ref().map(|moves| moves.bytes_per_s(*target));
            Ok(StorageReply::MoveRate(rate.unwrap_or_default()))
        }
        (StorageRequest::GoOnWithout { target, lost }, _) => go_on_without(service, store, (*target, *lost)),
        (StorageRequest::Space { .. }, _) => space(service, store),
        (
            StorageRequest::MoveBegin { .. }
            | StorageRequest::MoveSeal { .. }
            | StorageRequest::CopyBeacon { .. }
            | StorageRequest::CopyCompare { .. }
            | StorageRequest::CopyEmpty { .. }
            | StorageRequest::CopySettled { .. }
            | StorageRequest::CopyBlocks { .. }
            | StorageRequest::CopyAgain { .. }
            | StorageRequest::CopyDigests { .. }
            | StorageRequest::TakeLossMark { .. },
            _,
        ) => Err(ChunkError::BadRequest("that is between storage servers")),
    }
}

fn read(
    store: &ChunkStore,
    chunk: ChunkId,
    (chunk_bytes, offset, out): (u32, u32, &mut [u8]),
    want_sums: bool,
) -> Result<StorageReply, ChunkError> {
    let mut sums = Vec::new();
    if want_sums {
        let len = out.len();
        store.read_with_sums(chunk, chunk_bytes, offset, out, &mut sums)?;
        keep_whole_blocks(&mut sums, offset as usize, len);
    } else {
        store.read(chunk, chunk_bytes, offset, out)?;
    }
    Ok(StorageReply::Read { sums })
}

fn space(service: &StorageService, store: &ChunkStore) -> Result<StorageReply, ChunkError> {
    // Nobody can use what a target has that has stopped.
    if let Some(what) = store.stopped() {
        return Err(ChunkError::Stopped { what });
    }
    let space = service.share_of(store.space()?);
    Ok(StorageReply::Space { bytes_total: space.bytes_total, bytes_free: space.bytes_free })
}

fn go_on_without(
    service: &StorageService,
    store: &ChunkStore,
    (target, lost): (TargetId, TargetId),
) -> Result<StorageReply, ChunkError> {
    if let Some(what) = store.stopped() {
        return Err(ChunkError::Stopped { what });
    }
    match &service.moves {
        Some(moves) if moves.go_on_without(target, lost) => Ok(StorageReply::Done),
        _ => Err(ChunkError::Busy { what: "the disk does not answer just now".to_owned() }),
    }
}

fn chunk_of(finding: &Finding) -> Option<ChunkId> {
    match finding {
        Finding::Data { chunk, .. } | Finding::Header { chunk, .. } => Some(*chunk),
        Finding::Slot { .. } => None,
    }
}

fn in_words(mended: Result<Mended, Errno>) -> String {
    match mended {
        Ok(Mended::Whole) => "it is whole again".to_owned(),
        Ok(Mended::ByOthers) => "the target that has it whole is to bring it back".to_owned(),
        Ok(Mended::Lost) => "no copy that is there has what is damaged here".to_owned(),
        Err(errno) => format!("it is not brought back for now: {errno}"),
    }
}

/// The next part of a comparison of copies. What differs is told to administrators besides.
fn compare(service: &StorageService, target: TargetId, copies: &Copies, place: ComparePlace) -> StorageReply {
    let (found, next) = copies.compare_copies(target, place).unwrap_or_else(|errno| {
        tracing::warn!(%target, chain = %place.chain, %errno, "copies of a chain are not compared");
        (Vec::new(), copies.next_compared(target, Some(place.chain)))
    });
    for (_, what) in found.iter().filter(|(chunk, _)| chunk.is_some()) {
        service.report_damage(target, what);
    }
    let findings = found.into_iter().map(|(chunk, what)| (chunk.map(|chunk| chunk.inode), what)).collect();
    StorageReply::Scrubbed {
        findings,
        next: next.map(ComparePlace::encode).unwrap_or_default(),
        bytes_read: 0,
    }
}

/// Bytes read by one call of a scrub.
const SCRUB_BYTES: u64 = 4 << 20;

/// The next part of a scrub. What is damaged is told to administrators besides.
fn scrub(
    service: &StorageService,
    target: TargetId,
    store: &ChunkStore,
    from: &[u8],
) -> Result<StorageReply, ChunkError> {
    let copies = service.moves.as_ref().map(|moves| &moves.copies);
    if let (Some(place), Some(copies)) = (ComparePlace::decode(from), copies) {
        return Ok(compare(service, target, copies, place));
    }
    let from = match from {
        [] => None,
        from => Some(
            ScrubCursor::decode(from)
                .ok_or(ChunkError::BadRequest("that is no place to go on with a scrub"))?,
        ),
    };
    let scrubbed = store.scrub(from, SCRUB_BYTES)?;
    let tell = |finding: Finding| match finding {
        Finding::Data { chunk, block, expected, got } => (
            Some(chunk.inode),
            format!("chunk {chunk}: block {block} has checksum {got:#010x}, {expected:#010x} was written"),
        ),
        Finding::Header { chunk, what } => (Some(chunk.inode), format!("chunk {chunk}: {what}")),
        Finding::Slot { place, what } => (None, format!("{place}: {what}")),
    };
    let damaged: BTreeSet<ChunkId> = scrubbed.findings.iter().filter_map(chunk_of).collect();
    let mut findings: Vec<_> = scrubbed.findings.into_iter().map(tell).collect();
    for (_, what) in &findings {
        service.report_damage(target, what);
    }
    for chunk in damaged {
        let mended = copies.and_then(|copies| copies.mend_named(target, chunk));
        findings
            .extend(mended.map(|mended| (Some(chunk.inode), format!("chunk {chunk}: {}", in_words(mended)))));
    }
    let short = copies.filter(|_| scrubbed.next.is_none()).map_or(0, |copies| copies.short_chains(target));
    if short > 0 {
        findings.push((
            None,
            format!("{short} chains lack a copy: what is not there, or not in sync, is not compared"),
        ));
    }
    let compared_next =
        || copies.and_then(|copies| copies.next_compared(target, None)).map(ComparePlace::encode);
    let next = scrubbed.next.map(ScrubCursor::encode).or_else(compared_next).unwrap_or_default();
    Ok(StorageReply::Scrubbed { findings, next, bytes_read: scrubbed.bytes_read })
}
