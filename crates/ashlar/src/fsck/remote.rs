//! Targets that storage servers on other machines serve meanwhile, against files: what [`super::chunks`] does chunk by chunk is asked here file by file. Their
//! blocks are not read: that is `ashlar scrub`'s.

use super::chunks::{Data, has_writer, look_up};
use super::problem::{Class, Ledger, Problem, State};
use super::whole::Whole;
use crate::cluster::{Member, NodeDirectory};
use anyhow::{Context, Result, bail};
use ashlar_kv::Snapshot;
use ashlar_namespace::key;
use ashlar_rpc::remote::{Patience, RemoteStorage};
use ashlar_rpc::{Payload, StorageCalls};
use ashlar_types::message::{StorageReply, StorageRequest};
use ashlar_types::{
    ChainId, ChunkId, ClusterId, ClusterMap, Errno, FileLayout, InodeId, OfChains, Role, ShardSet, TargetId,
};
use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

/// For how long a storage server that does not answer is waited for.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// Files asked for at a time.
const PAGE: u32 = 256;
/// LIMIT: for how long a sync is asked for again while copies change, and the time between.
const SYNC_AGAIN_MAX: Duration = Duration::from_secs(60);
const SYNC_AGAIN_PAUSE: Duration = Duration::from_millis(20);

/// See the module.
pub struct Remote {
    storage: RemoteStorage,
    /// Those that answer.
    targets: BTreeSet<TargetId>,
    member: Member,
}

/// What is wrong with what a target has of a file's generation.
enum Wrong {
    /// It is of no content of a file.
    Orphan,
    /// These chains are not the file's.
    Misplaced(OfChains),
    /// It goes on behind the end.
    BeyondEnd(FileLayout, u64),
}

impl Remote {
    /// Those of `wanted` that are served, asked as the node whose identity is at `identity`, a metadata server. The others are told.
    ///
    /// # Errors
    /// When this machine is none, or of another file system.
    pub fn find(
        identity: &Path,
        (map, cluster): (&ClusterMap, ClusterId),
        wanted: impl Iterator<Item = TargetId>,
        ledger: &mut Ledger,
    ) -> Result<Remote> {
        let member = Member::start(NodeDirectory::new(identity), Role::Meta)?;
        if member.name.cluster != cluster {
            bail!(
                "the machine of {} belongs to file system {}, not to {cluster}",
                identity.display(),
                member.name.cluster
            );
        }
        let storage = RemoteStorage::new(member.routes(), Patience::new(ANSWER_MAX)).giving_up();
        let mut targets = BTreeSet::new();
        for target in wanted {
            match storage.call(&StorageRequest::Space { target }, Payload::None) {
                Ok(_) => drop(targets.insert(target)),
                Err(errno) => {
                    let place = map.target(target).map(|known| (map.node(known.node), known.path.as_str()));
                    let (node, path) = place.unwrap_or_default();
                    let node = node.map_or("?", |node| node.name.as_str());
                    ledger.add(Problem {
                        class: Class::TargetMissing,
                        inode: None,
                        name: None,
                        what: format!("{target}, at {path} on {node}, does not answer ({errno})"),
                        remedy: "start its storage server; files with data on it follow".into(),
                        state: State::Left,
                    });
                }
            }
        }
        Ok(Remote { storage, targets, member })
    }

    /// Targets that are asked.
    pub fn targets(&self) -> &BTreeSet<TargetId> {
        &self.targets
    }

    /// Units of 512 bytes that `target` has of a file's generation; `None` when something of it is damaged.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn blocks(
        &self,
        target: TargetId,
        (inode, generation): (InodeId, u32),
        chains: OfChains,
    ) -> Result<Option<u64>> {
        match self.extent(target, (inode, generation), chains) {
            Ok(extent) => Ok(Some(extent.map_or(0, |(_, _, blocks)| blocks))),
            Err(Errno::EIO) => Ok(None),
            Err(errno) => Err(errno).with_context(|| format!("{target} does not answer")),
        }
    }

    fn extent(
        &self,
        target: TargetId,
        (inode, generation): (InodeId, u32),
        chains: OfChains,
    ) -> Result<Option<(u64, u32, u64)>, Errno> {
        let request = StorageRequest::Extent { target, inode, generation, chains };
        match self.storage.call(&request, Payload::None)? {
            StorageReply::Extent(extent) => Ok(extent),
            _ => Err(Errno::EPROTO),
        }
    }

    /// Compares all targets with the namespace. With repair, what belongs to no file is deleted. Tells how many files have something there.
    ///
    /// # Errors
    /// When a target or the metadata cannot be read, or a target not written.
    pub fn check(&self, whole: &Whole<'_>, ledger: &mut Ledger) -> Result<u64> {
        let (snapshot, mut count) = (whole.snapshot()?, 0);
        let shards: ShardSet = whole.shards().into_iter().collect();
        for &target in &self.targets {
            let mut after = None;
            loop {
                let request = StorageRequest::Files { target, after, limit: PAGE, shards: shards.clone() };
                let told = self.storage.call(&request, Payload::None);
                let found = match told.with_context(|| format!("cannot list the files of {target}"))? {
                    StorageReply::Suspects { found, .. } => found,
                    _ => bail!("{target} gave an answer of the wrong kind"),
                };
                let Some(last) = found.last() else { break };
                after = Some(*last);
                for file in found {
                    count += 1;
                    self.check_file((&snapshot, &whole.map), target, file, ledger)
                        .with_context(|| format!("cannot compare {}/{} on {target}", file.0, file.1))?;
                }
            }
            if ledger.is_repairing {
                self.sync(target).with_context(|| format!("cannot sync {target}"))?;
            }
        }
        Ok(count)
    }

    /// Has what was repaired on a target made durable. While copies of one of its chains come or go it is asked again.
    fn sync(&self, target: TargetId) -> Result<(), Errno> {
        let end = Instant::now() + SYNC_AGAIN_MAX;
        let request = StorageRequest::Sync { target, chains: OfChains::All };
        loop {
            match self.storage.call(&request, Payload::None) {
                Err(Errno::EREMCHG) if Instant::now() < end => std::thread::sleep(SYNC_AGAIN_PAUSE),
                done => return done.map(drop),
            }
        }
    }

    fn check_file(
        &self,
        (snapshot, map): (&dyn Snapshot, &ClusterMap),
        target: TargetId,
        file: (InodeId, u32),
        ledger: &mut Ledger,
    ) -> Result<()> {
        let Some(wrong) = judge(snapshot, map, target, file)? else { return Ok(()) };
        let (inode, generation) = file;
        let chains = match &wrong {
            Wrong::Misplaced(chains) => chains.clone(),
            Wrong::BeyondEnd(layout, _) => in_front(map, layout, target),
            Wrong::Orphan => OfChains::All,
        };
        let extent = match self.extent(target, file, chains.clone()) {
            Ok(Some(extent)) => extent,
            Ok(None) => return Ok(()),
            // What is damaged is told by a scrub.
            Err(Errno::EIO) => return Ok(()),
            Err(errno) => return Err(errno.into()),
        };
        let (class, what, remedy) = match &wrong {
            Wrong::Orphan => (Class::ChunkOrphan, "belong to no content of a file".to_owned(), "delete them"),
            Wrong::Misplaced(_) => (
                Class::ChunkMisplaced,
                "are on a target that their file does not have them on".to_owned(),
                "delete them",
            ),
            Wrong::BeyondEnd(layout, size) => {
                let end = extent.0 * u64::from(layout.chunk_bytes) + u64::from(extent.1);
                if end <= *size {
                    return Ok(());
                }
                (
                    Class::ChunkBeyondEnd,
                    format!("go on to {end}, behind the end of their file at {size}"),
                    "cut them off",
                )
            }
        };
        if ledger.is_repairing {
            self.repair(target, file, &wrong, chains)?;
        }
        ledger.add(Problem {
            class,
            inode: Some(inode),
            name: None,
            what: format!("chunks {inode}/{generation} on {target} ({} KiB) {what}", extent.2 / 2),
            remedy: remedy.to_owned(),
            state: ledger.state_after(true),
        });
        Ok(())
    }

    fn repair(
        &self,
        target: TargetId,
        (inode, generation): (InodeId, u32),
        wrong: &Wrong,
        chains: OfChains,
    ) -> Result<(), Errno> {
        let mut from_index = 0;
        if let Wrong::BeyondEnd(layout, size) = wrong {
            let chunk_bytes = u64::from(layout.chunk_bytes);
            from_index = size.div_ceil(chunk_bytes);
            let (index, len) = (layout.chunk_index(*size), (size % chunk_bytes) as u32);
            let chain = layout.chain(index);
            if len > 0 && self.has(target, chain) {
                let chunk = ChunkId { inode, generation, index };
                let chunk_bytes = layout.chunk_bytes;
                let request = StorageRequest::Truncate { target, chunk, chain, chunk_bytes, len };
                self.storage.call(&request, Payload::None)?;
            }
        }
        loop {
            let request = StorageRequest::DeleteGeneration {
                target,
                inode,
                generation,
                chains: chains.clone(),
                from_index,
            };
            match self.storage.call(&request, Payload::None)? {
                StorageReply::Deleted { is_done: true, .. } => return Ok(()),
                StorageReply::Deleted { .. } => {}
                _ => return Err(Errno::EPROTO),
            }
        }
    }

    /// Whether `target` answers for `chain`.
    fn has(&self, target: TargetId, chain: ChainId) -> bool {
        self.member.map().read().head(chain) == Some(target)
    }
}

/// The chains of a file that `target` is in front in: what it keeps of others are copies, which go by those in front.
pub fn in_front(map: &ClusterMap, layout: &FileLayout, target: TargetId) -> OfChains {
    let places = map.places_of(layout);
    OfChains::Only(places.into_iter().find(|(known, _)| *known == target).unwrap_or_default().1)
}

fn judge(
    snapshot: &dyn Snapshot,
    map: &ClusterMap,
    target: TargetId,
    (inode, generation): (InodeId, u32),
) -> Result<Option<Wrong>> {
    let is_garbage = || Ok::<_, anyhow::Error>(snapshot.get(&key::garbage(inode, generation))?.is_some());
    Ok(match look_up(snapshot, inode)? {
        Data::Unknown => None,
        Data::Chunks { layout, .. } if layout.generation == generation && layout.check().is_err() => None,
        Data::Chunks { layout, size } if layout.generation == generation => {
            if !map.targets_of(&layout).contains(&target) {
                return Ok(Some(Wrong::Misplaced(OfChains::Except(layout.chains))));
            }
            let is_unsettled = has_writer(snapshot, inode)? || is_garbage()?;
            (!is_unsettled).then_some(Wrong::BeyondEnd(layout, size))
        }
        Data::None | Data::Chunks { .. } => (!is_garbage()?).then_some(Wrong::Orphan),
    })
}
