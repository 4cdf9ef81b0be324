//! The metadata of a file system of many servers, all of it at hand: the stores of its servers, or a backup.

use super::journal::put_back_journal;
use super::problem::{Class, Ledger};
use super::whole::Whole;
use crate::backup::{PartSet, restore_parts, shown_set};
use crate::cluster::{RestoredNote, copies_in, has_only_copies, lane_of_copy, read_uuid, store};
use crate::node::state::{ENGINE_DIR, State};
use crate::node::{Directories, MetaLock, Scratch};
use anyhow::{Context, Result, bail};
use ashlar_chunkstore::ChunkStore;
use ashlar_env::os::{OsDisk, ViewDisk};
use ashlar_env::{Disk, Env};
use ashlar_kv::{Lane, Position};
use ashlar_manager::{Manager, MetadataRecord};
use ashlar_types::{ClusterMap, CopyNotes, Epoch, NodeId, ShardSet, TargetId};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What is wrong with headers of targets.
pub type Damaged = Vec<(PathBuf, anyhow::Error)>;

/// The metadata of one server.
pub struct Store {
    /// Which server.
    pub node: NodeId,
    /// Its name.
    pub name: String,
    /// Its directory.
    pub path: PathBuf,
    /// The shards that are here.
    pub shards: ShardSet,
    /// What is in it.
    pub lane: Lane,
    disk: Arc<dyn Disk>,
}

/// See the module.
pub struct Servers {
    /// Map and identity; the targets that are listed.
    pub state: Option<State>,
    /// All metadata servers that have shards.
    pub stores: Vec<Store>,
    map: Arc<ClusterMap>,
    hash_key: [u8; 16],
    env: Env,
    /// A backup is looked at in it.
    _scratch: Option<Scratch>,
}

impl Servers {
    /// Opens the stores in the directories `metas`, by the state of the managers in `state_dir`, with the targets in `data`.
    ///
    /// # Errors
    /// When one is missing, in use, damaged or another file system's; the text names it and the way out.
    pub fn open(
        (state_dir, metas): (&Path, &[PathBuf]),
        data: &[PathBuf],
        (is_repairing, give_up_from): (bool, Option<Position>),
        holder: &str,
        ledger: &mut Ledger,
    ) -> Result<(Servers, Damaged)> {
        let state_dir = state_dir
            .canonicalize()
            .with_context(|| format!("there is no state of a file system at {}", state_dir.display()))?;
        let (directories, damaged) = Directories::of_servers(&state_dir, data)?;
        let env = Env::os();
        let disk: Arc<dyn Disk> = match is_repairing {
            true => Arc::new(OsDisk::new(&state_dir)),
            false => Arc::new(ViewDisk::new(&state_dir)),
        };
        let manager = Manager::open(&disk, "", store::state_in(&disk, &env)?).with_context(|| {
            format!("cannot read the state of the file system at {}", state_dir.display())
        })?;
        let cluster = manager.state();
        let map = manager.map().read().clone();
        // ORDER: locked before it is looked at.
        let mut locks = Vec::new();
        let mut found: Vec<(NodeId, PathBuf, Arc<dyn Disk>)> = Vec::new();
        let mut copies: Vec<FoundCopy> = Vec::new();
        for path in metas {
            let path =
                path.canonicalize().with_context(|| format!("there is no metadata at {}", path.display()))?;
            let real: Arc<dyn Disk> = Arc::new(OsDisk::new(&path));
            let node = node_of(&real, &path, &cluster.metadata)?;
            for server in copies_in(&path)? {
                copies.push(FoundCopy { server, machine: node, path: path.clone() });
            }
            if let Some((_, other, _)) = found.iter().find(|(known, ..)| *known == node) {
                bail!(
                    "{} and {} are both the metadata of {}: one is a copy of the other; list only the one that was used last",
                    other.display(),
                    path.display(),
                    name_of(&map, node)
                );
            }
            locks.push(match is_repairing {
                true => MetaLock::take(&real, &path, holder)?,
                false => MetaLock::take_to_look(&real, &path, holder)?,
            });
            if has_only_copies(&path) {
                continue;
            }
            let disk: Arc<dyn Disk> = if is_repairing { real } else { Arc::new(ViewDisk::new(&path)) };
            found.push((node, path, disk));
        }
        let notes = &cluster.copies;
        for (node, path) in choose_copies(&map, notes, &copies, is_repairing)? {
            let disk: Arc<dyn Disk> = match is_repairing {
                true => Arc::new(OsDisk::new(&path)),
                false => Arc::new(ViewDisk::new(&path)),
            };
            found.push((node, path, disk));
        }
        require_all(&map, &cluster.metadata, &found)?;
        let hash_key = manager.identity().name_hash_key;
        let state = State::of_servers(env.clone(), directories, disk, manager, (locks, !is_repairing))?;
        let mut stores = Vec::new();
        for (node, path, disk) in found {
            put_back_journal(&path.join(ENGINE_DIR), Class::Metadata, ledger)?;
            let lane = state.open_lane_in(&disk, &path, give_up_from)?;
            let shards = shards_of(&map, node);
            stores.push(Store { node, name: name_of(&map, node), path, shards, lane, disk });
        }
        let servers = Servers { state: Some(state), stores, map, hash_key, env, _scratch: None };
        Ok((servers, damaged))
    }

    /// Opens the backup in directory `dir`, in a temporary directory.
    ///
    /// # Errors
    /// When it is damaged, or there is no room.
    pub fn open_backup(dir: &Path) -> Result<Servers> {
        let set = PartSet::open(dir)?;
        let (scratch, env) = (Scratch::new()?, Env::os());
        let mut stores = Vec::new();
        for server in &set.head.servers {
            let path = scratch.place();
            let note = RestoredNote {
                set: set.head.set,
                node: server.node,
                shards: server.shards.clone(),
                seen: Epoch(0),
                instead_of: None,
            };
            restore_parts(&set, &note, &path).with_context(|| {
                format!("cannot look at the part of {} in a temporary directory (TMPDIR)", server.name)
            })?;
            let disk: Arc<dyn Disk> = Arc::new(OsDisk::new(&path));
            let lane = crate::node::state::open_lane(
                &disk,
                &path,
                &env,
                set.header.cluster,
                ashlar_kv::LaneConfig::default(),
            )?;
            let (name, shards) =
                (format!("{} in backup {}", server.name, shown_set(set.head.set)), server.shards.clone());
            stores.push(Store { node: server.node, name, path, shards, lane, disk });
        }
        let (map, hash_key) = (Arc::new(set.head.map.clone()), set.head.name_hash_key);
        Ok(Servers { state: None, stores, map, hash_key, env, _scratch: Some(scratch) })
    }

    /// All of it.
    ///
    /// # Errors
    /// When a shard is nowhere.
    pub fn whole(&self) -> Result<Whole<'_>> {
        let lanes: Vec<(&Lane, ShardSet)> =
            self.stores.iter().map(|store| (&store.lane, store.shards.clone())).collect();
        Whole::of_many(&lanes, (self.map.clone(), self.hash_key), &self.env)
    }

    /// Puts right what a start of each server would, and ends all sessions: what their mounts have cached may be another thing after a repair.
    ///
    /// # Errors
    /// When a lane cannot be opened again.
    pub fn settle(&mut self, targets: &[(TargetId, Arc<ChunkStore>)]) -> Result<()> {
        let Some(state) = &self.state else { return Ok(()) };
        let stores = std::mem::take(&mut self.stores);
        for Store { node, name, path, shards, lane, disk } in stores {
            super::settle::settle_lane(state, lane, targets, Some(node));
            let lane = state.open_lane_in(&disk, &path, None)?;
            self.stores.push(Store { node, name, path, shards, lane, disk });
        }
        Ok(())
    }

    /// Closes all.
    ///
    /// # Errors
    /// What a lane answers.
    pub fn close(&self) -> Result<()> {
        self.stores.iter().try_for_each(|store| {
            store
                .lane
                .close()
                .with_context(|| format!("cannot close the metadata in {}", store.path.display()))
        })
    }
}

fn name_of(map: &ClusterMap, node: NodeId) -> String {
    map.node(node).map_or_else(|| node.to_string(), |known| known.name.clone())
}

fn shards_of(map: &ClusterMap, node: NodeId) -> ShardSet {
    map.shards.iter().filter(|shard| shard.primary == node).map(|shard| shard.id).collect()
}

/// Whose metadata is in `disk`, the directory `path`.
fn node_of(disk: &Arc<dyn Disk>, path: &Path, known: &[MetadataRecord]) -> Result<NodeId> {
    if let Some(note) = RestoredNote::load(disk)? {
        return Ok(note.node);
    }
    let Some(uuid) = read_uuid(disk, path)? else {
        bail!("{} is not the metadata of a server of a file system of many", path.display());
    };
    let record = known.iter().find(|record| record.uuid == uuid);
    record.map(|record| record.node).with_context(|| {
        format!(
            "{} is none of the metadata that this file system has now: it is another file system's, or was replaced by a backup",
            path.display()
        )
    })
}

/// A copy of the metadata of a server, in the directory of a machine.
struct FoundCopy {
    server: NodeId,
    machine: NodeId,
    path: PathBuf,
}

/// Of each metadata server that has copies the one to look at: of those that have all of it, the one that comes first. Which these are say managers.
fn choose_copies(
    map: &ClusterMap,
    notes: &CopyNotes,
    copies: &[FoundCopy],
    is_repairing: bool,
) -> Result<Vec<(NodeId, PathBuf)>> {
    let mut chosen = Vec::new();
    for group in &notes.groups {
        let Some(membership) = &group.membership else { continue };
        let of = |machine: &NodeId| {
            copies.iter().find(|copy| copy.server == group.server && copy.machine == *machine)
        };
        // Which of them is missing is told by who requires all.
        let Some(copy) = membership.in_sync.iter().find_map(of) else { continue };
        if is_repairing && !membership.is_alone(copy.machine) {
            bail!(
                "there are several copies of the metadata of {0}, and a repair would make them different ones: start the servers, have one copy be enough (`ashlar copies set {0} 1`), and stop them again",
                name_of(map, group.server)
            );
        }
        chosen.push((group.server, lane_of_copy(&copy.path, group.server)?));
    }
    Ok(chosen)
}

/// Refuses to look at a part of the metadata: of what is in the rest, everything would seem lost.
fn require_all(
    map: &ClusterMap,
    known: &[MetadataRecord],
    found: &[(NodeId, PathBuf, Arc<dyn Disk>)],
) -> Result<()> {
    let mut missing: Vec<NodeId> = map.shards.iter().map(|shard| shard.primary).collect();
    missing.sort();
    missing.dedup();
    missing.retain(|node| !found.iter().any(|(there, ..)| there == node));
    if missing.is_empty() {
        return Ok(());
    }
    let told: Vec<String> = missing
        .iter()
        .map(|node| {
            let path = known.iter().find(|record| record.node == *node).map(|record| record.path.as_str());
            let shards = shards_of(map, *node).iter().count();
            format!(
                "{} ({shards} of {} shards, in {} there)",
                name_of(map, *node),
                map.shards.len(),
                path.unwrap_or("?")
            )
        })
        .collect();
    bail!(
        "the metadata of {} is missing: a check needs that of all metadata servers at once. Name all directories with --meta (of other machines, copies that \
         were made while the server is stopped), or check a backup with --backup",
        told.join(" and ")
    )
}
