//! Chunks against files: every chunk on a target belongs to a file's current content or to a garbage record.

use super::problem::{Class, Ledger, Problem};
use anyhow::{Context, Result};
use ashlar_chunkstore::{ChunkError, ChunkStore, ListedChunk};
use ashlar_kv::Snapshot;
use ashlar_namespace::{FileData, Inode, Kind, key};
use ashlar_types::{ChunkId, ClusterMap, FileLayout, InodeId, TargetId, codec};
use std::ops::ControlFlow;

/// Chunks listed at a time.
const PAGE: usize = 512;

/// What is known of the inode of the last chunk; chunks come by inode.
struct Owner {
    inode: InodeId,
    data: Data,
    /// A session that has not ended writes it: the length may be old.
    has_writer: bool,
}

/// The content of an inode, as its record says.
pub enum Data {
    /// The record is there and does not decode: nothing of it is touched.
    Unknown,
    /// No such inode, or one without chunks.
    None,
    /// It is in chunks.
    Chunks {
        /// Where.
        layout: FileLayout,
        /// The length of the file.
        size: u64,
    },
}

enum Verdict {
    Sound,
    Orphan,
    Misplaced(String),
    /// Bytes from this length of the chunk on are behind the end of the file.
    BeyondEnd(u32),
}

struct Comparison<'a> {
    snapshot: &'a dyn Snapshot,
    map: &'a ClusterMap,
    target: TargetId,
    owner: Option<Owner>,
}

/// Compares the chunks of `store`, which is target `target` of `map`, with the namespace. With repair, what belongs to no file is
/// deleted.
///
/// # Errors
/// When target or metadata cannot be read, or the target not written.
pub fn check_target(
    snapshot: &dyn Snapshot,
    map: &ClusterMap,
    (target, store): (TargetId, &ChunkStore),
    ledger: &mut Ledger,
) -> Result<u64> {
    let mut comparison = Comparison { snapshot, map, target, owner: None };
    let (mut from, mut count) = (Some(ChunkId { inode: InodeId(0), generation: 0, index: 0 }), 0);
    while let Some(start) = from {
        let page = store.list(start, PAGE).with_context(|| format!("cannot list the chunks of {target}"))?;
        for chunk in &page.chunks {
            count += 1;
            let verdict = comparison.judge(chunk).context("cannot read the metadata")?;
            carry_out(store, target, chunk, &verdict, ledger)
                .with_context(|| format!("cannot change chunk {} of {target}", chunk.id))?;
        }
        from = page.next;
    }
    if ledger.is_repairing {
        store.sync().with_context(|| format!("cannot sync {target}"))?;
    }
    Ok(count)
}

impl Comparison<'_> {
    fn judge(&mut self, chunk: &ListedChunk) -> Result<Verdict> {
        let ChunkId { inode, generation, index } = chunk.id;
        if self.owner.as_ref().is_none_or(|owner| owner.inode != inode) {
            let has_writer = has_writer(self.snapshot, inode)?;
            self.owner = Some(Owner { inode, data: look_up(self.snapshot, inode)?, has_writer });
        }
        let Some(owner) = &self.owner else { return Ok(Verdict::Sound) };
        let is_garbage =
            || Ok::<_, anyhow::Error>(self.snapshot.get(&key::garbage(inode, generation))?.is_some());
        match &owner.data {
            Data::Unknown => Ok(Verdict::Sound),
            Data::Chunks { layout, size } if layout.generation == generation => {
                match place_of(self.map, self.target, chunk, layout) {
                    Place::Here => {}
                    Place::Behind => return Ok(Verdict::Sound),
                    Place::Elsewhere(what) => return Ok(Verdict::Misplaced(what)),
                }
                let end =
                    index.saturating_mul(u64::from(layout.chunk_bytes)) + u64::from(chunk.len.unwrap_or(0));
                // Space reserved behind the end has no length. A cut that is still to be carried out explains bytes there.
                if end <= *size || chunk.len.unwrap_or(0) == 0 || owner.has_writer || is_garbage()? {
                    return Ok(Verdict::Sound);
                }
                let start = end - u64::from(chunk.len.unwrap_or(0));
                Ok(Verdict::BeyondEnd(u32::try_from(size.saturating_sub(start)).unwrap_or(0)))
            }
            Data::None | Data::Chunks { .. } => {
                Ok(if is_garbage()? { Verdict::Sound } else { Verdict::Orphan })
            }
        }
    }
}

/// What a target is to a chunk of a file that is on it.
#[derive(Debug, PartialEq, Eq)]
enum Place {
    /// It is where it belongs.
    Here,
    /// The target has not all of the chain: those that have bring it up to date.
    Behind,
    /// It belongs elsewhere, as said here.
    Elsewhere(String),
}

fn place_of(map: &ClusterMap, target: TargetId, chunk: &ListedChunk, layout: &FileLayout) -> Place {
    if layout.check().is_err() {
        return Place::Here;
    }
    if chunk.chunk_bytes != layout.chunk_bytes {
        let (its, of_file) = (chunk.chunk_bytes, layout.chunk_bytes);
        return Place::Elsewhere(format!("it has {its} bytes, the file's have {of_file}"));
    }
    let Some(chain) = map.chain(layout.chain(chunk.id.index)) else { return Place::Here };
    if chain.targets.contains(&target) {
        Place::Here
    } else if chain.is_kept_at(target) {
        Place::Behind
    } else {
        Place::Elsewhere(format!("the file has it on {:?}", chain.targets))
    }
}

/// What the content of `inode` is.
///
/// # Errors
/// When the snapshot cannot be read.
pub fn look_up(snapshot: &dyn Snapshot, inode: InodeId) -> Result<Data> {
    let Some(bytes) = snapshot.get(&key::inode(inode))? else { return Ok(Data::None) };
    Ok(match codec::decode::<Inode>(&bytes, "inode record") {
        Err(_) => Data::Unknown,
        Ok(Inode { kind: Kind::Regular(FileData::Chunks { layout, .. }), size, .. }) => {
            Data::Chunks { layout, size }
        }
        Ok(_) => Data::None,
    })
}

/// Whether a session that has not ended writes `inode`.
///
/// # Errors
/// When the snapshot cannot be read.
pub fn has_writer(snapshot: &dyn Snapshot, inode: InodeId) -> Result<bool> {
    let (from, mut is_there) = (key::writer(inode), false);
    snapshot.scan(&from, &key::after_prefix(&from), &mut |_, _| {
        is_there = true;
        ControlFlow::Break(())
    })?;
    Ok(is_there)
}

fn carry_out(
    store: &ChunkStore,
    target: TargetId,
    chunk: &ListedChunk,
    verdict: &Verdict,
    ledger: &mut Ledger,
) -> Result<(), ChunkError> {
    let (class, what, remedy, keep) = match verdict {
        Verdict::Sound => return Ok(()),
        Verdict::Orphan => (Class::ChunkOrphan, "belongs to no content of a file".to_owned(), "delete it", 0),
        Verdict::Misplaced(what) => {
            (Class::ChunkMisplaced, format!("is not where it belongs: {what}"), "delete it", 0)
        }
        Verdict::BeyondEnd(keep) => {
            let what = format!("has bytes behind the end of its file, from {keep} on");
            (Class::ChunkBeyondEnd, what, "cut them off", *keep)
        }
    };
    if ledger.is_repairing {
        if keep > 0 {
            store.truncate(chunk.id, chunk.chunk_bytes, keep)?;
        } else {
            store.delete(chunk.id)?;
        }
    }
    ledger.add(Problem {
        class,
        inode: Some(chunk.id.inode),
        name: None,
        what: format!("chunk {} on {target} ({} KiB) {what}", chunk.id, chunk.blocks / 2),
        remedy: remedy.to_owned(),
        state: ledger.state_after(true),
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use ashlar_types::map::{Chain, ChainCopies};
    use ashlar_types::testing::map_in_domains;
    use ashlar_types::{ChainId, PoolId};

    #[test]
    fn a_copy_belongs_where_its_chain_is_kept_or_was_a_while_ago() {
        let mut map = map_in_domains(&[0, 1, 2, 3, 4], &[""; 5]);
        let (changed, catching_up) = (Default::default(), [TargetId(2)].into_iter().collect());
        let former = [TargetId(3)].into_iter().collect();
        let copies = Some(ChainCopies { wanted: 3, changed, catching_up, former });
        let targets = [TargetId(0), TargetId(1)].into_iter().collect();
        map.chains.push(Chain { id: ChainId(0), pool: PoolId(0), targets, moving: None, copies });
        let chunk_bytes = 65_536;
        let chains = [ChainId(0)].into_iter().collect();
        let layout = FileLayout { generation: 1, chunk_bytes, chains };
        let id = ChunkId { inode: InodeId(9), generation: 1, index: 0 };
        let chunk = ListedChunk { id, chunk_bytes, len: Some(1), blocks: 8 };
        let place = |target: u32| place_of(&map, TargetId(target), &chunk, &layout);
        assert_eq!([place(0), place(1)], [Place::Here, Place::Here]);
        assert_eq!([place(2), place(3)], [Place::Behind, Place::Behind]);
        assert!(matches!(place(4), Place::Elsewhere(_)));
        let odd = ListedChunk { chunk_bytes: 4096, ..chunk };
        assert!(matches!(place_of(&map, TargetId(0), &odd, &layout), Place::Elsewhere(_)));
    }
}
