//! The copies of a chain are compared, by whoever is at its head: for a scrub. What each has is checked against its checksums beside that; here is found what is sound and yet not the same.
//!
//! The head asks the target behind alone. Of a chunk that those further behind have otherwise, that one says something that is nowhere: so the head alone decides what counts, and what it sends
//! goes to all of them.

use super::group::State;
use super::{AtTarget, COMPARE_MAX, Copies, Group, PASS_ON_MAX};
use crate::answer::answer;
use ashlar_chunkstore::Digest;
use ashlar_rpc::Payload;
use ashlar_rpc::wire::CopyUnder;
use ashlar_types::map::Chain;
use ashlar_types::message::{StorageReply, StorageRequest};
use ashlar_types::{ChainId, ChunkId, ClusterMap, Errno, InodeId, TargetId};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Where a comparison goes on: at a chain, and a chunk of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ComparePlace {
    pub chain: ChainId,
    /// `None`: from the first one on.
    pub from: Option<ChunkId>,
}

/// For how long the target behind may take for a page, and for one chunk that is locked, as somebody waits for that of the target in front of it ([`COMPARE_MAX`], [`PASS_ON_MAX`]).
const PAGE_MAX: Duration = Duration::from_secs(5);
const ONE_MAX: Duration = Duration::from_secs(2);
/// Tells it from the place of a scrub.
const TAG: u8 = 2;
const PLACE_BYTES: usize = 26;

impl ComparePlace {
    /// For whoever is elsewhere.
    pub fn encode(self) -> Vec<u8> {
        let mut out = vec![TAG];
        out.extend_from_slice(&self.chain.0.to_le_bytes());
        out.push(u8::from(self.from.is_some()));
        let ChunkId { inode, generation, index } =
            self.from.unwrap_or(ChunkId { inode: InodeId(0), generation: 0, index: 0 });
        out.extend_from_slice(&inode.0.to_le_bytes());
        out.extend_from_slice(&generation.to_le_bytes());
        out.extend_from_slice(&index.to_le_bytes());
        out
    }

    /// What [`ComparePlace::encode`] gave; `None` for anything else.
    pub fn decode(bytes: &[u8]) -> Option<ComparePlace> {
        let bytes: &[u8; PLACE_BYTES] = bytes.try_into().ok()?;
        if bytes[0] != TAG || bytes[5] > 1 {
            return None;
        }
        let chain = ChainId(u32::from_le_bytes(bytes[1..5].try_into().ok()?));
        let chunk = ChunkId {
            inode: InodeId(u64::from_le_bytes(bytes[6..14].try_into().ok()?)),
            generation: u32::from_le_bytes(bytes[14..18].try_into().ok()?),
            index: u64::from_le_bytes(bytes[18..].try_into().ok()?),
        };
        Some(ComparePlace { chain, from: (bytes[5] == 1).then_some(chunk) })
    }
}

/// What was not the same, or could not be compared, in words, and where to go on.
pub(crate) type Compared = (Vec<(Option<ChunkId>, String)>, Option<ComparePlace>);

impl Copies {
    /// The first chain behind `after` with several copies whose head is `target`.
    pub(crate) fn next_compared(&self, target: TargetId, after: Option<ChainId>) -> Option<ComparePlace> {
        let map = self.map();
        let further = headed_by(&map, target).map(|chain| chain.id);
        let further = further.filter(|chain| after.is_none_or(|after| *chain > after));
        further.min().map(|chain| ComparePlace { chain, from: None })
    }

    /// Chains whose head is `target` and that lack a copy: of those nothing is compared that is not there, or not in sync.
    pub(crate) fn short_chains(&self, target: TargetId) -> usize {
        headed_by(&self.map(), target).filter(|chain| chain.is_short()).count()
    }

    /// Compares some of a chain with what the targets behind have, and has that brought into line with what is here. What is being changed, or copied anyway, is left out, and so is a
    /// chain whose head is another target by now.
    ///
    /// # Errors
    /// Those of the disk here.
    pub(crate) fn compare_copies(&self, target: TargetId, place: ComparePlace) -> Result<Compared, Errno> {
        let next_chain = || self.next_compared(target, Some(place.chain));
        let Some(at) = self.at(target) else { return Ok((Vec::new(), None)) };
        let Some(group) = at.group(place.chain) else { return Ok((Vec::new(), next_chain())) };
        let (ours, next) =
            at.store.digests(place.chain, place.from, None).map_err(|error| answer(at.id, &error))?;
        let Some(asked) = required_behind_head(&at, &group) else {
            return Ok((Vec::new(), next_chain()));
        };
        let Some(theirs) = self.digests_behind(asked, &group, (place.from, next), COMPARE_MAX) else {
            let what = format!("{}: its copies could not be compared just now", place.chain);
            return Ok((vec![(None, what)], next_chain()));
        };
        let mut found = Vec::new();
        for chunk in differing(&ours, &theirs) {
            found.extend(self.bring_into_line(&at, &group, chunk)?);
        }
        let next = next.map(|next| ComparePlace { from: Some(next), ..place });
        Ok((found, next.or_else(next_chain)))
    }

    /// What the target behind, which is asked as [`required_behind`] says, has of chunks in a range; nothing where it does not tell.
    fn digests_behind(
        &self,
        (target, under): (TargetId, CopyUnder),
        group: &Group,
        (from, to): (Option<ChunkId>, Option<ChunkId>),
        wait: Duration,
    ) -> Option<BTreeMap<ChunkId, Option<u64>>> {
        let mut all = BTreeMap::new();
        let mut next = from;
        loop {
            let request = StorageRequest::CopyDigests { target, chain: group.chain, from: next, to };
            match self.outside.peers.call_of_copy(under, &request, Payload::None, wait) {
                Ok(StorageReply::CopyDigests { digests, next: further }) => {
                    all.extend(digests);
                    if further.is_none() || further <= next {
                        return Some(all);
                    }
                    next = further;
                }
                Ok(_) => return None,
                Err(errno) => {
                    tracing::debug!(chain = %group.chain, %target, %errno, "copies are not compared for now");
                    return None;
                }
            }
        }
    }

    /// What is here of chunks in a range, for the target in front, and where to go on. Where those behind are meant, too, chunks that are not the same there have a sum that is nowhere.
    ///
    /// # Errors
    /// `EREMCHG` when those behind do not tell, and those of the disk here.
    pub(super) fn tell_digests(
        &self,
        (at, group): (&AtTarget, &Group),
        under: CopyUnder,
        (from, to): (Option<ChunkId>, Option<ChunkId>),
    ) -> Result<(Digests, Option<ChunkId>), Errno> {
        let (ours, next) = at.store.digests(group.chain, from, to).map_err(|error| answer(at.id, &error))?;
        let asked = required_behind(at, group).filter(|_| !under.is_piece);
        let Some((target, behind)) = asked else {
            return Ok((ours.into_iter().map(|digest| (digest.chunk, digest.sum)).collect(), next));
        };
        let behind = CopyUnder { place: under.place.saturating_add(1), ..behind };
        let request = StorageRequest::CopyDigests { target, chain: group.chain, from, to: next.or(to) };
        let wait = if is_one(from, to) { ONE_MAX } else { PAGE_MAX };
        let told = self.outside.peers.call_of_copy(behind, &request, Payload::None, wait);
        let Ok(StorageReply::CopyDigests { digests, next: further }) = told else {
            return Err(Errno::EREMCHG);
        };
        // Both have a page; where the shorter one ends is gone on.
        let next = further.or(next);
        let is_meant = |chunk: ChunkId| next.is_none_or(|next| chunk < next);
        let ours: Vec<Digest> = ours.into_iter().filter(|digest| is_meant(digest.chunk)).collect();
        let theirs = digests.into_iter().filter(|(chunk, _)| is_meant(*chunk)).collect();
        Ok((of_all(&ours, &theirs), next))
    }

    /// Whether the target behind, which takes part at this epoch, has something else of a chunk than this one, and has it in a form that can be used; or has none.
    /// The caller has the chunk locked.
    ///
    /// # Errors
    /// `EREMCHG` when it does not tell, and those of the disk here.
    pub(super) fn has_another_behind(
        &self,
        at: &AtTarget,
        group: &Group,
        chunk: ChunkId,
    ) -> Result<bool, Errno> {
        let (from, to) = range_of(chunk);
        let (ours, _) = at.store.digests(group.chain, from, to).map_err(|error| answer(at.id, &error))?;
        let (target, under) = required_behind_head(at, group).ok_or(Errno::EREMCHG)?;
        // That one alone.
        let asked = (target, CopyUnder { is_piece: true, ..under });
        let theirs = self.digests_behind(asked, group, (from, to), PASS_ON_MAX).ok_or(Errno::EREMCHG)?;
        // ORDER: afterwards. Who was started anew, and may have lost what was there, answers this at another epoch alone.
        let request = StorageRequest::CopyCompare { target, chain: group.chain, after: Some(chunk) };
        self.outside.peers.call_of_copy(under, &request, Payload::None, PASS_ON_MAX)?;
        let own = ours.first().map(|digest| digest.sum);
        let found = theirs.get(&chunk).copied();
        Ok(found != Some(None) && found != own)
    }

    /// Looks at a chunk once more while nobody changes it, and sends it whole if it is not the same behind. Tells what it found.
    fn bring_into_line(
        &self,
        at: &Arc<AtTarget>,
        group: &Arc<Group>,
        chunk: ChunkId,
    ) -> Result<Option<(Option<ChunkId>, String)>, Errno> {
        let _deletions = self.read_lock(group.file(chunk.inode));
        let _alone = self.write_lock(group.chunk(chunk));
        if group.state.lock().replica.is_unsettled(chunk) {
            return Ok(None);
        }
        let range = range_of(chunk);
        let failed = |error| answer(at.id, &error);
        let (ours, _) = at.store.digests(group.chain, range.0, range.1).map_err(failed)?;
        let Some(asked) = required_behind_head(at, group) else { return Ok(None) };
        let Some(theirs) = self.digests_behind(asked, group, range, PASS_ON_MAX) else {
            // That is no damage yet.
            return Ok(Some((None, format!("chunk {chunk}: its copies could not be compared just now"))));
        };
        if differing(&ours, &theirs).is_empty() {
            return Ok(None);
        }
        let (to, epoch) = {
            let state = group.state.lock();
            let Some(to) = state.replica.successor() else { return Ok(None) };
            (to, state.replica.member().epoch())
        };
        if !group.state.lock().replica.wanted_again(chunk, to, epoch) {
            return Ok(None);
        }
        // Otherwise the next turn sends it.
        let sent = self.settle_locked((at, group), chunk);
        let outcome = match sent {
            Ok(true) => "it was sent there again".to_owned(),
            Ok(false) => "it is sent there again".to_owned(),
            Err(errno) => format!("it could not be sent there again: {errno}"),
        };
        let what = format!(
            "chunk {chunk}: the copy on {to}, or one behind it, is not the same as the one on {}: {outcome}",
            at.id
        );
        Ok(Some((Some(chunk), what)))
    }
}

/// Chunks with the sums of what they are.
type Digests = Vec<(ChunkId, Option<u64>)>;

/// Chunks of which something is here or behind. One that is not the same at both has a sum that neither has; what one of both cannot read, its own checksums tell.
fn of_all(ours: &[Digest], theirs: &BTreeMap<ChunkId, Option<u64>>) -> Digests {
    let mut all: BTreeMap<ChunkId, Option<u64>> =
        ours.iter().map(|digest| (digest.chunk, digest.sum)).collect();
    for chunk in differing(ours, theirs) {
        let own = all.get(&chunk).copied().flatten();
        let behind = theirs.get(&chunk).copied().flatten();
        let neither = (0..).find(|sum| Some(*sum) != own && Some(*sum) != behind);
        all.insert(chunk, neither);
    }
    all.into_iter().collect()
}

/// Chains of several copies whose head is `target`.
fn headed_by(map: &ClusterMap, target: TargetId) -> impl Iterator<Item = &Chain> {
    map.chains_of_copies().map(|(chain, _)| chain).filter(move |chain| chain.targets.first() == Some(&target))
}

/// As [`required_behind`], of the head of a chain; nothing where this is another target.
fn required_behind_head(at: &AtTarget, group: &Group) -> Option<(TargetId, CopyUnder)> {
    let state = group.state.lock();
    state.replica.member().is_primary().then(|| behind_if_required(at, &state)).flatten()
}

/// The target behind, if it is required, and how it is asked.
fn required_behind(at: &AtTarget, group: &Group) -> Option<(TargetId, CopyUnder)> {
    behind_if_required(at, &group.state.lock())
}

fn behind_if_required(at: &AtTarget, state: &State) -> Option<(TargetId, CopyUnder)> {
    if !state.replica.is_behind_required() {
        return None;
    }
    let epoch = state.replica.member().epoch();
    Some((state.replica.successor()?, CopyUnder { epoch, ..CopyUnder::between_servers(at.id, 1) }))
}

/// Whether a range has one chunk at the most.
fn is_one(from: Option<ChunkId>, to: Option<ChunkId>) -> bool {
    from.is_some_and(|from| range_of(from).1 == to)
}

/// One chunk alone.
fn range_of(chunk: ChunkId) -> (Option<ChunkId>, Option<ChunkId>) {
    (Some(chunk), Some(ChunkId { index: chunk.index.saturating_add(1), ..chunk }))
}

/// Chunks that are not the same, or at one of both alone. Of those that cannot be read the checksums tell.
fn differing(ours: &[Digest], theirs: &BTreeMap<ChunkId, Option<u64>>) -> Vec<ChunkId> {
    let own: BTreeMap<ChunkId, Option<u64>> = ours.iter().map(|digest| (digest.chunk, digest.sum)).collect();
    let mut all: Vec<ChunkId> = own.keys().chain(theirs.keys()).copied().collect();
    all.sort_unstable();
    all.dedup();
    let is_unreadable =
        |chunk: &ChunkId| [&own, theirs].into_iter().any(|side| matches!(side.get(chunk), Some(None)));
    all.retain(|chunk| !is_unreadable(chunk) && own.get(chunk) != theirs.get(chunk));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn chunk(index: u64) -> ChunkId {
        ChunkId { inode: InodeId(7), generation: 1, index }
    }

    #[test]
    fn a_place_comes_back_and_nothing_else_is_one() {
        for from in [None, Some(chunk(u64::MAX))] {
            let place = ComparePlace { chain: ChainId(77), from };
            assert_eq!(ComparePlace::decode(&place.encode()), Some(place));
            assert_eq!(ComparePlace::decode(&place.encode()[1..]), None);
        }
        assert_eq!(ComparePlace::decode(&[9; PLACE_BYTES]), None);
    }

    #[test]
    fn what_is_at_one_alone_differs_and_what_cannot_be_read_is_left_out() {
        let ours: Vec<Digest> = [(1, Some(10)), (2, Some(20)), (3, None), (4, Some(40))]
            .map(|(index, sum)| Digest { chunk: chunk(index), sum })
            .into();
        let theirs = [(1, Some(10)), (2, Some(21)), (3, Some(30)), (5, Some(50))]
            .map(|(index, sum)| (chunk(index), sum));
        let theirs = theirs.into();
        assert_eq!(differing(&ours, &theirs), [chunk(2), chunk(4), chunk(5)]);
        // Who is in front is told so.
        let told: BTreeMap<ChunkId, Option<u64>> = of_all(&ours, &theirs).into_iter().collect();
        let in_front = [(1, 10), (2, 20), (3, 30), (4, 40)]
            .map(|(index, sum)| Digest { chunk: chunk(index), sum: Some(sum) });
        assert_eq!(differing(&in_front, &told), [chunk(2), chunk(4), chunk(5)]);
        let in_front = [(1, 10), (2, 21), (3, 30), (5, 50)]
            .map(|(index, sum)| Digest { chunk: chunk(index), sum: Some(sum) });
        assert_eq!(differing(&in_front, &told), [chunk(2), chunk(4), chunk(5)]);
    }
}
