//! The starts of a file system, in its metadata: which targets belong to it as they are.
//!
//! The record is in the metadata lane and not beside it, so that an older copy of the metadata is one of the record too, and so that a
//! full disk does not keep the file system closed.

use super::state::State;
use anyhow::{Context, Result, bail};
use ashlar_chunkstore::TargetHeader;
use ashlar_kv::{Frame, Lane, Snapshot, Urgency, WriteSet};
use ashlar_manager::starts::{self, Standing};
use ashlar_namespace::key;
use ashlar_types::{OpId, ShardId, Start, Starts, codec};
use bytes::Bytes;
use std::path::Path;

/// Verb number of what a start commits, for people who read logs.
const VERB_START: u8 = 102;
/// What takes metadata for what it is although targets are newer.
pub const ACCEPT: &str = "ashlar fsck --repair --accept-older-metadata";

/// What the metadata says of starts.
///
/// # Errors
/// When it cannot be read, or the record is damaged.
pub fn load(state: &State, lane: &Lane) -> Result<Starts> {
    let stored = lane.read().get(&key::starts()).context("cannot read the record of starts")?;
    let Some(bytes) = stored else { return Ok(Starts::default()) };
    codec::decode(&bytes, "record of starts").with_context(|| {
        format!(
            "the metadata in {} is damaged; restore it with `ashlar restore`",
            state.directories.meta.display()
        )
    })
}

/// What is wrong with a target that is listed, and what to do; nothing if it belongs to the metadata as it is.
pub struct Mismatch {
    /// The two, and what each says.
    pub what: String,
    /// The way out.
    pub remedy: String,
    /// Whether it is the metadata that is older.
    pub is_metadata_older: bool,
}

/// Compares the target at `path` with what the metadata says.
pub fn compare(
    state: &State,
    starts: &Starts,
    (path, header): (&Path, &TargetHeader),
    is_restored: bool,
) -> Option<Mismatch> {
    let TargetHeader { identity, start: seen } = header;
    let (target, path, meta) = (identity.target, path.display(), state.directories.meta.display());
    let leave_out = "put back what belongs to this metadata, or leave its --data out to start without it";
    let (what, remedy, is_metadata_older) = match starts::standing(
        starts,
        identity.uuid.0,
        *seen,
        is_restored,
    ) {
        Standing::Current | Standing::New => return None,
        Standing::MetadataOlder { known } => {
            let what = format!(
                "the metadata at {meta} is an older copy: {target} at {path} has been in {seen}, and it knows of none after {known}"
            );
            let remedy = format!(
                "put the newer metadata back; if it is lost, `{ACCEPT}` with every directory takes this one for what it is, as after a \
                 restore: what is newer is deleted"
            );
            (what, remedy, true)
        }
        Standing::TargetOlder { known } => {
            let what = format!(
                "{target} at {path} is an older copy: it was last used in {seen}, and the metadata at {meta} has seen it in {known}"
            );
            (what, leave_out.to_owned(), false)
        }
        Standing::Parted { known } => {
            let what = format!(
                "{target} at {path} was last used in {seen} with another copy of the metadata; that at {meta} has seen it last in {known}"
            );
            (what, leave_out.to_owned(), false)
        }
    };
    Some(Mismatch { what, remedy, is_metadata_older })
}

/// Refuses targets that do not belong to the metadata as it is. Changes nothing.
///
/// # Errors
/// With both directories, and the way out.
pub fn require<'a>(
    state: &State,
    lane: &Lane,
    found: impl Iterator<Item = (&'a Path, &'a TargetHeader)>,
) -> Result<()> {
    let (starts, is_restored) = (load(state, lane)?, state.is_restored()?);
    for target in found {
        if let Some(Mismatch { what, remedy, .. }) = compare(state, &starts, target, is_restored) {
            bail!("{what}; {remedy}");
        }
    }
    Ok(())
}

/// Begins a new start with the targets `found`; it is durable on return, before any of them has changed.
///
/// # Errors
/// When the metadata cannot be read or written.
pub fn begin<'a>(state: &State, lane: &Lane, found: impl Iterator<Item = &'a TargetHeader>) -> Result<Start> {
    let found: Vec<_> = found.map(|header| (header.identity.uuid.0, header.start)).collect();
    let next = starts::begun(&load(state, lane)?, &found, state.env.entropy.next_u64());
    store(state, lane, &next)?;
    // ORDER: durable before any target notes it, so that no target is ever ahead of its own metadata.
    lane.flush_all().context("cannot store the record of starts")?;
    Ok(next.last)
}

/// Notes that the targets `joined` took part in the start that began last.
///
/// # Errors
/// When the metadata cannot be read or written.
pub fn confirm(state: &State, lane: &Lane, joined: &[[u8; 16]]) -> Result<()> {
    // ORDER: not flushed. What is lost with the end of the log leaves them as they were when it began: both are accepted.
    store(state, lane, &starts::confirmed(&load(state, lane)?, joined))
}

fn store(state: &State, lane: &Lane, starts: &Starts) -> Result<()> {
    let epoch = state.manager.map().read().epoch;
    let frame = Frame {
        shard: ShardId(0),
        epoch,
        op: OpId::default(),
        verb: VERB_START,
        writes: WriteSet(vec![(key::starts(), Some(Bytes::from(codec::encode(starts))))]),
        reply: Bytes::new(),
    };
    // One small record in place of another: a full disk must not keep the file system closed.
    lane.write().commit(vec![frame], Urgency::FreesSpace).context("cannot store the record of starts")?;
    Ok(())
}
