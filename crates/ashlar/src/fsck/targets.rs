//! Targets: header, index, and the slots and blocks themselves.

use super::files::Stores;
use super::journal::put_back_journal;
use super::problem::{Class, Ledger, Problem, State};
use crate::node;
use crate::node::targets as opening;
use anyhow::{Context, Result, bail};
use ashlar_chunkstore::{
    ChunkError, ChunkStore, Finding, RebuildReport, TargetHeader, TargetIdentity, TargetUuid,
};
use ashlar_env::os::OsDisk;
use ashlar_env::replace_file;
use ashlar_kv::Lane;
use ashlar_manager::StartRecord;
use ashlar_types::{ClusterMap, InodeId, Start, Starts, TargetId, TargetStarts};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Bytes read by one call of the scrub.
const PORTION_BYTES: u64 = 16 << 20;
/// What a person can do about bytes that are lost.
const LOST: &str =
    "restore the file from a copy, or delete it; reads of the damaged part fail with EIO until then";

/// The targets that are open, and the uuids of those that take part in the start that a repair is.
type Checked = (Stores, Vec<[u8; 16]>);

/// Opens all targets that can be opened, and checks them; those that are not listed are told, unless others are to be asked for them. `lane` is that of a single machine, which has seen them start, unless managers have; what servers use takes part in no start here. `None` when the metadata is older than they are: then nothing can be compared.
///
/// # Errors
/// When a target is in use or of another file system, or cannot be read.
pub fn check_targets(
    state: &node::State,
    lane: Option<&Lane>,
    damaged: Vec<(PathBuf, anyhow::Error)>,
    (is_quick, holder, others_follow): (bool, &str, bool),
    ledger: &mut Ledger,
) -> Result<Option<Checked>> {
    let map = state.manager.map().read().clone();
    // Servers note starts that managers count, and the lane knows nothing of: also if all directories of a file system are looked at as those of one machine.
    let lane = lane.filter(|_| state.manager.state().starts.is_empty());
    let starts = match lane {
        Some(lane) => node::starts::load(state, lane)?,
        None => starts_of_servers(state),
    };
    let mut found: Vec<(PathBuf, TargetHeader)> = Vec::new();
    for (path, error) in damaged {
        let what = format!("{error:#}");
        found.extend(restore_header(state, (&map, &starts), path, what, ledger)?);
    }
    for (path, header) in &state.directories.targets {
        match header {
            Some(header) => found.push((path.clone(), *header)),
            None if opening::has_slabs(path) => {
                let what = format!("{} is gone", path.join("target").display());
                found.extend(restore_header(state, (&map, &starts), path.clone(), what, ledger)?);
            }
            None => {}
        }
    }
    let Some(found) = those_that_belong(state, (&map, &starts, lane.is_some()), found, ledger)? else {
        return Ok(None);
    };
    // A repair changes targets and metadata: copies from before it are older ones.
    let start = match lane {
        Some(lane) if ledger.is_repairing => {
            Some(node::starts::begin(state, lane, found.iter().map(|(_, header)| header))?)
        }
        _ => None,
    };
    let (mut stores, mut joined) = (Stores::new(), Vec::new());
    for (path, TargetHeader { identity, .. }) in found {
        if let Some(store) = check_one(state, (&path, &identity), (is_quick, holder, start), ledger)? {
            stores.insert(identity.target, store);
            joined.extend(lane.map(|_| identity.uuid.0));
        }
    }
    let is_missing = |id: TargetId| !others_follow && !stores.contains_key(&id);
    for target in map.targets.iter().filter(|target| is_missing(target.id)) {
        let what = format!("{}, last seen at {}, is not here", target.id, target.path);
        let remedy = "list its data directory with --data; files with data on it follow";
        ledger.add(about_target(Class::TargetMissing, what, remedy, State::Left));
    }
    Ok(Some((stores, joined)))
}

/// What managers of many servers know of the starts of targets.
fn starts_of_servers(state: &node::State) -> Starts {
    let of = |known: StartRecord| TargetStarts { uuid: known.uuid, last: known.last, joining: None };
    Starts { last: Start::default(), targets: state.manager.state().starts.into_iter().map(of).collect() }
}

/// The targets that belong to this metadata as they are; `None` when it is older than one of them.
fn those_that_belong(
    state: &node::State,
    (map, starts, has_starts): (&ClusterMap, &Starts, bool),
    found: Vec<(PathBuf, TargetHeader)>,
    ledger: &mut Ledger,
) -> Result<Option<Vec<(PathBuf, TargetHeader)>>> {
    let is_restored = has_starts && state.is_restored()?;
    let mut ours = Vec::new();
    for (path, header) in found {
        let (shown, identity) = (path.display(), &header.identity);
        if identity.cluster != state.cluster() {
            bail!("{shown} belongs to file system {}, not to {}", identity.cluster, state.cluster());
        }
        let compared =
            has_starts.then(|| node::starts::compare(state, starts, (&path, &header), is_restored));
        if let Some(mismatch) = compared.flatten() {
            let class = match mismatch.is_metadata_older {
                true => Class::MetadataOlder,
                false => Class::TargetOlder,
            };
            ledger.add(about_target(class, mismatch.what, mismatch.remedy, State::Left));
            if mismatch.is_metadata_older {
                return Ok(None);
            }
        } else if map.targets.iter().all(|known| known.uuid != identity.uuid.0) {
            let what = format!("{shown} is {}, which the cluster map does not have", identity.target);
            let remedy = "start the file system with its --data once, which adds it; then check again";
            ledger.add(about_target(Class::TargetUnknown, what, remedy, State::Left));
        } else {
            ours.push((path, header));
        }
    }
    Ok(Some(ours))
}

fn about_target(class: Class, what: String, remedy: impl Into<String>, state: State) -> Problem {
    Problem { class, inode: None, name: None, what, remedy: remedy.into(), state }
}

/// Writes the header of the target at `path` anew from what the cluster map says was there.
fn restore_header(
    state: &node::State,
    (map, starts): (&ClusterMap, &Starts),
    path: PathBuf,
    what: String,
    ledger: &mut Ledger,
) -> Result<Option<(PathBuf, TargetHeader)>> {
    let shown = path.display().to_string();
    // A newer format is no damage.
    let is_newer = what.contains("has format");
    let is_found = |uuid: [u8; 16]| {
        let found = state.directories.targets.iter().filter_map(|(_, header)| header.as_ref());
        found.into_iter().any(|header| header.identity.uuid.0 == uuid)
    };
    // The target that was here, or, should the directory have moved, the only one that was not found.
    let missing: Vec<_> = map.targets.iter().filter(|target| !is_found(target.uuid)).collect();
    let at_path = missing.iter().find(|target| target.path == shown);
    let known = match (at_path, missing.as_slice()) {
        _ if is_newer => None,
        (Some(known), _) | (None, [known]) => Some(*known),
        _ => None,
    };
    let Some(known) = known else {
        let remedy = if is_newer {
            format!("use a newer ashlar, or leave the --data of {shown} out to start without it")
        } else {
            format!(
                "the cluster map does not know a target at {shown}; leave its --data out to start without it"
            )
        };
        ledger.add(about_target(Class::TargetHeader, what, remedy, State::Left));
        return Ok(None);
    };
    let identity =
        TargetIdentity { cluster: state.cluster(), target: known.id, uuid: TargetUuid(known.uuid) };
    // The index has a note of its own, and is made anew if it is of another start.
    let start = starts.targets.iter().find(|seen| seen.uuid == known.uuid).map(|seen| seen.last);
    let header = TargetHeader { identity, start: start.unwrap_or_default() };
    let remedy = format!("write the header of {} anew from the cluster map", known.id);
    ledger.add(about_target(Class::TargetHeader, what, remedy, ledger.state_after(true)));
    if !ledger.is_repairing {
        return Ok(None);
    }
    replace_file(&OsDisk::new(&path), "target", &header.encode())
        .with_context(|| format!("cannot write {}", path.join("target").display()))?;
    Ok(Some((path, header)))
}

fn check_one(
    state: &node::State,
    (path, identity): (&Path, &TargetIdentity),
    (is_quick, holder, start): (bool, &str, Option<Start>),
    ledger: &mut Ledger,
) -> Result<Option<Arc<ChunkStore>>> {
    let shown = path.display();
    put_back_journal(&opening::engine_path(path), Class::TargetIndex, ledger)?;
    let store = match opening::open(path, identity, state, (holder, start)) {
        Ok(store) => store,
        Err(
            error @ (ChunkError::Corrupt { .. } | ChunkError::Stopped { .. } | ChunkError::Foreign { .. }),
        ) => {
            let what = format!("the index of {} at {shown} cannot be opened: {error}", identity.target);
            if !rebuild(state, (path, identity), holder, what, ledger)? {
                return Ok(None);
            }
            open_again(state, (path, identity), (holder, start))?
        }
        Err(error) => return Err(error).with_context(|| format!("cannot open the target at {shown}")),
    };
    if is_quick {
        return Ok(Some(store));
    }
    let (mut problems, wants_rebuild) = scrub(&store, identity)?;
    if !wants_rebuild {
        problems.into_iter().for_each(|problem| ledger.add(problem));
        return Ok(Some(store));
    }
    let first =
        problems.iter().find(|problem| problem.class == Class::Slot).map(|problem| problem.what.clone());
    let what = format!(
        "the index of {} at {shown} is not what its slots say: {}",
        identity.target,
        first.unwrap_or_default()
    );
    problems.retain(|problem| problem.class != Class::Slot);
    problems.into_iter().for_each(|problem| ledger.add(problem));
    if !ledger.is_repairing {
        ledger.add(about_target(Class::TargetIndex, what, REBUILD, State::Repairable));
        return Ok(Some(store));
    }
    store.close().with_context(|| format!("cannot close the target at {shown}"))?;
    drop(store);
    rebuild(state, (path, identity), holder, what, ledger)?;
    open_again(state, (path, identity), (holder, start)).map(Some)
}

const REBUILD: &str = "make it anew from the slots";

fn open_again(
    state: &node::State,
    (path, identity): (&Path, &TargetIdentity),
    opened: (&str, Option<Start>),
) -> Result<Arc<ChunkStore>> {
    opening::open(path, identity, state, opened)
        .with_context(|| format!("cannot open the target at {} with its new index", path.display()))
}

/// With repair, moves the index away and makes it anew; tells whether there is a new one.
fn rebuild(
    state: &node::State,
    (path, identity): (&Path, &TargetIdentity),
    holder: &str,
    what: String,
    ledger: &mut Ledger,
) -> Result<bool> {
    if !ledger.is_repairing {
        ledger.add(about_target(Class::TargetIndex, what, REBUILD, State::Repairable));
        return Ok(false);
    }
    let (index, aside) = (path.join(ashlar_chunkstore::INDEX_DIR), path.join("index.damaged"));
    match std::fs::remove_dir_all(&aside) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(error).with_context(|| format!("cannot remove {}", aside.display()));
        }
        _ => {}
    }
    match std::fs::rename(&index, &aside) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(error).with_context(|| format!("cannot move {} away", index.display()));
        }
        _ => {}
    }
    std::fs::create_dir(&index).with_context(|| format!("cannot make {}", index.display()))?;
    let report = opening::rebuild(path, identity, &state.env, holder)
        .with_context(|| format!("cannot make the index of {} anew", path.display()))?;
    let RebuildReport { chunks, damaged, .. } = report;
    let remedy = format!("made anew from the slots: {chunks} chunks; the old one is in {}", aside.display());
    ledger.add(about_target(Class::TargetIndex, what, remedy, State::Repaired));
    for place in report.damaged_places {
        let what = format!("{place}: what was in this slot is lost");
        ledger.add(about_target(
            Class::ChunkHeader,
            what,
            "files that miss content are told below",
            State::Left,
        ));
    }
    if damaged > 0 {
        tracing::error!(target_id = %identity.target, damaged, "slots with damaged headers");
    }
    Ok(true)
}

/// Reads everything. Tells the problems, and whether a new index would be right where this one is not. It would not while the
/// header of an indexed chunk is damaged: the chunk would leave the index, and read as zeros instead of failing.
fn scrub(store: &ChunkStore, identity: &TargetIdentity) -> Result<(Vec<Problem>, bool)> {
    let (mut problems, mut from) = (Vec::new(), None);
    let (mut has_slots, mut has_headers) = (false, false);
    loop {
        let scrubbed = store
            .scrub(from, PORTION_BYTES)
            .with_context(|| format!("cannot read the index of {}", identity.target))?;
        for finding in scrubbed.findings {
            has_slots |= matches!(finding, Finding::Slot { .. });
            has_headers |= matches!(finding, Finding::Header { .. });
            // LIMIT: as many as are named; the rest of a target this bad is not worth the memory.
            if problems.len() < super::problem::NAMED_MAX {
                problems.push(problem(finding, identity));
            }
        }
        from = scrubbed.next;
        if from.is_none() {
            return Ok((problems, has_slots && !has_headers));
        }
    }
}

fn problem(finding: Finding, identity: &TargetIdentity) -> Problem {
    let target = identity.target;
    let (class, inode, what): (Class, Option<InodeId>, String) = match finding {
        Finding::Data { chunk, block, expected, got } => {
            let what = format!(
                "chunk {chunk} on {target}: block {block} has checksum {got:#010x}, {expected:#010x} was written"
            );
            (Class::Block, Some(chunk.inode), what)
        }
        Finding::Header { chunk, what } => {
            (Class::ChunkHeader, Some(chunk.inode), format!("chunk {chunk} on {target}: {what}"))
        }
        Finding::Slot { place, what } => (Class::Slot, None, format!("{target}: {place}: {what}")),
    };
    Problem { class, inode, name: None, what, remedy: LOST.to_owned(), state: State::Left }
}
