//! What a check found, and the list of it.

use super::names::paths_of;
use crate::terminal::{say, shown_bytes};
use anyhow::Result;
use ashlar_kv::Snapshot;
use ashlar_types::{InodeId, ShardId};
use serde::Serialize;
use std::collections::BTreeMap;

/// Problems that are kept to be named.
// LIMIT: about 300 bytes each; more are only counted.
pub const NAMED_MAX: usize = 10_000;

/// Kinds of damage; `docs/guides/fsck.md` has a line for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// The store of the metadata itself.
    Metadata,
    /// Metadata that is older than the targets.
    MetadataOlder,
    /// Names, links, inodes.
    Tree,
    /// Counters of inodes, bytes and blocks.
    Accounting,
    /// The file that names a target.
    TargetHeader,
    /// The index of a target.
    TargetIndex,
    /// A target that is not there.
    TargetMissing,
    /// A target that is older than the metadata, or was used with a copy of it.
    TargetOlder,
    /// A target the cluster map does not know.
    TargetUnknown,
    /// A block that is not what was written.
    Block,
    /// The header of a chunk.
    ChunkHeader,
    /// A slot that the index does not know as the header says.
    Slot,
    /// A chunk of no file.
    ChunkOrphan,
    /// A chunk on a target or of a size that is not its file's.
    ChunkMisplaced,
    /// Bytes behind the end of their file.
    ChunkBeyondEnd,
    /// A file with data on a target that is missing or unknown.
    FileUnreadable,
    /// The space a file says it has.
    FileBlocks,
}

impl Class {
    /// As it is printed.
    pub fn name(self) -> String {
        serde_json::to_value(self).ok().and_then(|name| Some(name.as_str()?.to_owned())).unwrap_or_default()
    }
}

/// What has become of a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// Found, and repair would do something about it.
    Repairable,
    /// Repaired.
    Repaired,
    /// Found, and a person has to decide.
    Left,
}

/// Something that is wrong.
#[derive(Clone, Debug)]
pub struct Problem {
    /// Its kind.
    pub class: Class,
    /// The inode it is about.
    pub inode: Option<InodeId>,
    /// A name in that directory that it is about.
    pub name: Option<Vec<u8>>,
    /// What does not hold.
    pub what: String,
    /// What repair does, or what a person can do.
    pub remedy: String,
    /// Whether it was repaired.
    pub state: State,
}

/// The problems of a run.
#[derive(Default)]
pub struct Ledger {
    /// Whether problems are to be repaired.
    pub is_repairing: bool,
    /// Whether lines are JSON.
    pub is_json: bool,
    /// Whether nothing is printed.
    pub is_silent: bool,
    /// What has not been printed yet.
    pub pending: Vec<Problem>,
    /// Problems that were repaired.
    pub repaired: u64,
    /// Problems that were found and are still there.
    pub left: u64,
}

impl Ledger {
    /// Takes a problem note of.
    pub fn add(&mut self, problem: Problem) {
        match problem.state {
            State::Repaired => self.repaired += 1,
            State::Repairable | State::Left => self.left += 1,
        }
        if self.pending.len() < NAMED_MAX {
            self.pending.push(problem);
        }
    }

    /// The state of a problem that repair can do something about, given what it did: `None` when it is not repairing.
    pub fn state_after(&self, repaired: bool) -> State {
        match (self.is_repairing, repaired) {
            (false, _) => State::Repairable,
            (true, true) => State::Repaired,
            (true, false) => State::Left,
        }
    }

    /// Prints what has been added since the last time, with paths as `snapshot` knows them.
    ///
    /// # Errors
    /// When the snapshot cannot be read.
    pub fn print(&mut self, snapshot: Option<(&dyn Snapshot, &[ShardId])>) -> Result<()> {
        let pending = std::mem::take(&mut self.pending);
        if self.is_silent || pending.is_empty() {
            return Ok(());
        }
        let wanted = pending.iter().filter_map(|problem| problem.inode);
        let paths = match snapshot {
            Some((snapshot, shards)) => paths_of(snapshot, shards, wanted)?,
            None => BTreeMap::new(),
        };
        for problem in &pending {
            let path = problem.inode.and_then(|inode| path_of(problem, inode, &paths));
            say(if self.is_json { json(problem, path.as_deref()) } else { text(problem, path.as_deref()) });
        }
        if pending.len() == NAMED_MAX && !self.is_json {
            say(format_args!("only {NAMED_MAX} problems are named at a time; repair them and check again"));
        }
        Ok(())
    }
}

fn path_of(problem: &Problem, inode: InodeId, paths: &BTreeMap<InodeId, String>) -> Option<String> {
    let path = paths.get(&inode)?;
    Some(match &problem.name {
        Some(name) => format!("{}/{}", path.trim_end_matches('/'), shown_bytes(name)),
        None => path.clone(),
    })
}

fn text(problem: &Problem, path: Option<&str>) -> String {
    let Problem { class, what, remedy, .. } = problem;
    let subject = path.map(|path| format!("{path}: ")).unwrap_or_default();
    let remedy = match problem.state {
        State::Repairable => format!("repair would {remedy}"),
        State::Repaired => format!("repaired: {remedy}"),
        State::Left => format!("not repaired: {remedy}"),
    };
    format!("[{}] {subject}{what}; {remedy}", class.name())
}

fn json(problem: &Problem, path: Option<&str>) -> String {
    let inode = problem.inode.map(|inode| inode.0);
    let Problem { class, what, remedy, state, .. } = problem;
    serde_json::json!({ "class": class, "path": path, "inode": inode, "what": what, "remedy": remedy, "state": state })
        .to_string()
}
