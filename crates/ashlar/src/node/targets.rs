//! The targets of a file system on this machine: finding, making and opening them.

use super::scratch::Scratch;
use super::starts;
use super::state::{State, make_private_directory, note_restored};
use super::trouble;
use anyhow::{Context, Result, bail};
use ashlar_chunkstore::{
    ChunkError, ChunkStore, Config, RebuildReport, TargetHeader, TargetIdentity, TargetLock, TargetUuid,
};
use ashlar_env::os::{OsDisk, ViewDisk};
use ashlar_env::{Disk, Env};
use ashlar_kv::{Engine, FjallEngine, FjallOptions, KvError, Lane, LaneConfig};
use ashlar_manager::FoundTarget;
use ashlar_types::map::TargetState;
use ashlar_types::{ClusterId, ClusterMap, NodeId, Start, TargetId};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Directory of a target that holds its slab files.
const SLABS_DIR: &str = "slabs";

/// Opens known targets, makes new ones, and brings the map up to date; missing ones are named.
///
/// # Errors
/// The first target that cannot be used, with its directory and the way out.
pub fn open_all(state: &State, lane: &Lane, holder: &str) -> Result<Vec<(TargetId, Arc<ChunkStore>)>> {
    let known = state.manager.map().read().clone();
    let listed = &state.directories.targets;
    for (path, header) in listed {
        match header {
            Some(TargetHeader { identity, .. }) if identity.cluster != state.cluster() => bail!(
                "{} belongs to file system {}, not to {} at {}",
                path.display(),
                identity.cluster,
                state.cluster(),
                state.directories.meta.display()
            ),
            Some(_) => {}
            None => refuse_vanished(&known, listed, path)?,
        }
    }
    let headers = || listed.iter().filter_map(|(path, header)| Some((path.as_path(), header.as_ref()?)));
    starts::require(state, lane, headers())?;
    let seen = starts::load(state, lane)?;
    let mut strangers = headers().filter(|(_, header)| {
        let is_seen = seen.targets.iter().any(|target| target.uuid == header.identity.uuid.0);
        header.start != Start::default() && !is_seen
    });
    if strangers.next().is_some() {
        // It was used with metadata that is lost. ORDER: noted before the metadata knows it, like everything that is newer than a backup.
        note_restored(&state.disk, &state.directories.meta)?;
    }
    let found = with_new(state, &known)?;
    // ORDER: the start is durable in the metadata before any target notes it, and every target has noted it before it changes. A
    // target that is ahead of its metadata has been used with a newer copy of it.
    let start = starts::begin(state, lane, found.iter().map(|(_, header)| header))?;
    // ORDER: opened, and so locked and sound, before the map says that they serve.
    let stores = found
        .iter()
        .map(|(path, TargetHeader { identity, .. })| {
            let opened = open_beside(path, identity, state, (holder, start));
            let store = opened.map_err(|error| {
                let way_out = trouble::way_out(&error).unwrap_or(
                    "`ashlar fsck --repair` may put it right, or leave its --data out to start without it",
                );
                anyhow::Error::new(error)
                    .context(format!("cannot open the target at {}; {way_out}", path.display()))
            })?;
            Ok((identity.target, store))
        })
        .collect::<Result<Vec<_>>>()?;
    let joined: Vec<[u8; 16]> = found.iter().map(|(_, header)| header.identity.uuid.0).collect();
    starts::confirm(state, lane, &joined)?;
    take_into_map(state, &found)?;
    for (path, header) in &found {
        if header.start == Start::default() {
            eprintln!("ashlar: made {} at {}", header.identity.target, path.display());
        }
    }
    Ok(stores)
}

/// The targets that are listed; those that are none yet are made.
fn with_new(state: &State, known: &ClusterMap) -> Result<Vec<(PathBuf, TargetHeader)>> {
    let listed = &state.directories.targets;
    let found_ids =
        listed.iter().filter_map(|(_, header)| header.as_ref().map(|found| found.identity.target.0));
    let mut next_id =
        known.targets.iter().map(|target| target.id.0).chain(found_ids).max().map_or(1, |last| last + 1);
    let mut found = Vec::new();
    for (path, header) in listed {
        let header = match header {
            Some(header) => *header,
            None if state.scratch.is_some() => bail!(
                "there is no target at {}, and none is made while the file system is only looked at; leave this --data out",
                path.display()
            ),
            None => {
                let identity = new_identity(state.cluster(), TargetId(next_id), &state.env);
                next_id += 1;
                make_private_directory(path)?;
                ChunkStore::format(&OsDisk::new(path), &identity)
                    .with_context(|| format!("cannot make a target at {}", path.display()))?;
                TargetHeader { identity, start: Start::default() }
            }
        };
        found.push((path.clone(), header));
    }
    Ok(found)
}

fn take_into_map(state: &State, found: &[(PathBuf, TargetHeader)]) -> Result<()> {
    let entries: Vec<FoundTarget> = found
        .iter()
        .map(|(path, TargetHeader { identity, .. })| FoundTarget {
            id: identity.target,
            uuid: identity.uuid.0,
            path: path.display().to_string(),
        })
        .collect();
    let map = state.manager.take_targets(NodeId(1), &entries).context("cannot change the cluster map")?;
    for missing in map.targets.iter().filter(|target| target.state == TargetState::Offline) {
        tracing::warn!(target_id = %missing.id, path = missing.path, "a target is missing; its data cannot be read until it is listed with --data");
        eprintln!(
            "ashlar: {} is missing (last seen at {}); files with data on it give ENODEV until it is back",
            missing.id, missing.path
        );
    }
    Ok(())
}

/// An empty directory where a target used to be is a disk that is not mounted, not a place for a new target; unless the target is
/// `listed` at another place now.
pub fn refuse_vanished(
    known: &ClusterMap,
    listed: &[(PathBuf, Option<TargetHeader>)],
    path: &Path,
) -> Result<()> {
    let shown = path.display().to_string();
    let is_listed = |uuid: [u8; 16]| {
        listed.iter().filter_map(|(_, header)| header.as_ref()).any(|header| header.identity.uuid.0 == uuid)
    };
    let mut vanished = known.targets.iter().filter(|target| !is_listed(target.uuid));
    if let Some(target) = vanished.find(|target| target.path == shown) {
        bail!(
            "{} was at {shown}, but nothing is there: is its disk mounted? To start without it, leave this --data out (`--without` for one that `ashlar target add` has added)",
            target.id
        );
    }
    if has_slabs(path) {
        bail!(
            "{shown} holds the slabs of a target, but not its header: `ashlar fsck --repair` may put it right"
        );
    }
    // A mistyped path must not become a target for good.
    let data = path.parent().unwrap_or(path);
    if !known.targets.is_empty() && !data.is_dir() {
        bail!(
            "there is no directory {}: to add a target there, make it first (`mkdir {}`)",
            data.display(),
            data.display()
        );
    }
    Ok(())
}

/// Whether the target directory `path` holds a slab file.
pub fn has_slabs(path: &Path) -> bool {
    let classes = std::fs::read_dir(path.join(SLABS_DIR)).into_iter().flatten().flatten();
    classes
        .into_iter()
        .any(|class| std::fs::read_dir(class.path()).is_ok_and(|mut slabs| slabs.next().is_some()))
}

fn new_identity(cluster: ClusterId, target: TargetId, env: &Env) -> TargetIdentity {
    let mut uuid = [0; 16];
    env.entropy.fill(&mut uuid);
    TargetIdentity { cluster, target, uuid: TargetUuid(uuid) }
}

/// Opens the target at `path`, as part of `start` if there is one; if `state` is only looked at, so is the target.
///
/// # Errors
/// As [`ChunkStore::open`]. An index that is not there although there are slabs is [`ChunkError::Corrupt`]: a fresh one in its place
/// would make all data read as zeros.
pub fn open(
    path: &Path,
    identity: &TargetIdentity,
    state: &State,
    (holder, start): (&str, Option<Start>),
) -> Result<Arc<ChunkStore>, ChunkError> {
    open_with(path, identity, state, Config { start, ..config(holder) })
}

/// Opens the target at `path`, which is locked, to serve it in `start`, without the metadata beside it.
///
/// # Errors
/// As [`open`].
pub fn open_alone(
    path: &Path,
    identity: &TargetIdentity,
    env: &Env,
    (lock, holder, start): (TargetLock, &str, Option<Start>),
) -> Result<Arc<ChunkStore>, ChunkError> {
    refuse_lost_index(path)?;
    let (disk, config) = (Arc::new(OsDisk::new(path)), Config { start, ..config(holder) });
    let (store, report) = ChunkStore::open_locked(lock, disk, || engine(path), env, identity, config)?;
    tracing::info!(target_id = %identity.target, ?report, "target opened");
    Ok(Arc::new(store))
}

/// A fresh index in place of one that is lost would make all data read as zeros.
fn refuse_lost_index(path: &Path) -> Result<(), ChunkError> {
    let engine_path = engine_path(path);
    let is_empty = std::fs::read_dir(&engine_path).map_or(true, |mut entries| entries.next().is_none());
    if is_empty && has_slabs(path) {
        let file = engine_path.display().to_string();
        return Err(ChunkError::Corrupt { file, what: "the index of the target is not there".into() });
    }
    Ok(())
}

fn open_with(
    path: &Path,
    identity: &TargetIdentity,
    state: &State,
    config: Config,
) -> Result<Arc<ChunkStore>, ChunkError> {
    refuse_lost_index(path)?;
    let env = &state.env;
    let (store, report) = match &state.scratch {
        None => ChunkStore::open(Arc::new(OsDisk::new(path)), || engine(path), env, identity, config)?,
        Some(scratch) => {
            let disk = Arc::new(ViewDisk::new(path));
            ChunkStore::open(disk, || engine_view(path, scratch), env, identity, config)?
        }
    };
    tracing::info!(target_id = %identity.target, ?report, "target opened");
    Ok(Arc::new(store))
}

/// Makes the index of the target at `path` anew from its slabs, in place of the one that is there. Nobody has the target open.
///
/// # Errors
/// As [`ChunkStore::rebuild_index`].
pub fn rebuild(
    path: &Path,
    identity: &TargetIdentity,
    env: &Env,
    holder: &str,
) -> Result<RebuildReport, ChunkError> {
    let disk: Arc<dyn Disk> = Arc::new(OsDisk::new(path));
    ChunkStore::rebuild_index(disk, || engine(path), env, identity, &config(holder))
}

/// As [`open`], for serving: where the metadata is on the same local file system, enough stays free that it never runs short before
/// the target does. One roll of its log and what it wants free below that.
fn open_beside(
    path: &Path,
    identity: &TargetIdentity,
    state: &State,
    (holder, start): (&str, Start),
) -> Result<Arc<ChunkStore>, ChunkError> {
    let lane = LaneConfig::default();
    let is_shared = state.directories.are_on_one_disk(path);
    let reserve_for_others_bytes = if is_shared { lane.segment_bytes + lane.reserve_bytes } else { 0 };
    open_with(
        path,
        identity,
        state,
        Config { reserve_for_others_bytes, start: Some(start), ..config(holder) },
    )
}

fn config(holder: &str) -> Config {
    Config { holder: holder.to_owned(), ..Config::default() }
}

/// Where the engine of the target at `path` is.
pub fn engine_path(path: &Path) -> PathBuf {
    path.join(ashlar_chunkstore::ENGINE_DIR)
}

fn engine(path: &Path) -> Result<Box<dyn Engine>, KvError> {
    let engine = FjallEngine::open(engine_path(path), FjallOptions::default())?;
    Ok(Box::new(engine) as Box<dyn Engine>)
}

fn engine_view(path: &Path, scratch: &Scratch) -> Result<Box<dyn Engine>, KvError> {
    let engine = FjallEngine::open_view(engine_path(path), scratch.place(), FjallOptions::default())?;
    Ok(Box::new(engine) as Box<dyn Engine>)
}
