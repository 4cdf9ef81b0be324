//! A run of the check: the stages in order, and what came of them.

use super::files::{Stores, check_files};
use super::journal::put_back_journal;
use super::problem::{Class, Ledger, Problem, State};
use super::{chunks, settle, targets, tree};
use crate::cli::DataArgs;
use crate::node::state::ENGINE_DIR;
use crate::node::{self, Directories};
use crate::terminal::say;
use anyhow::{Context, Result};
use ashlar_kv::{KvError, Lane, Position};
use ashlar_types::ShardId;

/// How to check.
pub struct Options {
    /// Put right what can be put right without a person.
    pub is_repairing: bool,
    /// Do not read data.
    pub is_quick: bool,
    /// Print lines of JSON.
    pub is_json: bool,
    /// Position of the metadata log at which damage is taken for its end.
    pub give_up_log_from: Option<u64>,
    /// Take metadata that is older than the targets for what it is.
    pub accepts_older_metadata: bool,
}

/// What a run saw.
#[derive(Default)]
struct Seen {
    inodes: u64,
    entries: u64,
    chunks: u64,
    files: u64,
    targets: usize,
}

/// Checks the file system at `place`. Tells the exit status as fsck(8) has it: 0 clean, 1 repaired, 4 damage left.
///
/// # Errors
/// When the check could not be done: the file system runs, is not there, or its state cannot be opened.
pub fn run(place: &DataArgs, options: &Options) -> Result<u8> {
    let (directories, damaged) = Directories::find_stopped(place)?;
    let holder = format!("ashlar fsck, process {}", std::process::id());
    // Without --repair nothing changes, not even what a start would do.
    let state = match options.is_repairing {
        true => node::State::open(directories, &holder)?,
        false => node::State::look_at(directories, &holder)?,
    };
    let mut ledger =
        Ledger { is_repairing: options.is_repairing, is_json: options.is_json, ..Ledger::default() };
    put_back_journal(&state.directories.meta.join(ENGINE_DIR), Class::Metadata, &mut ledger)?;
    let lane = state.open_lane(options.give_up_log_from.map(Position))?;
    if let Err(error) = lane.verify() {
        return unreadable(error, &mut ledger);
    }
    // What was given up may be newer than the last start, and targets newer than what is left.
    if options.accepts_older_metadata || options.give_up_log_from.is_some() {
        node::state::note_restored(&state.disk, &state.directories.meta)?;
    }
    let Some(checked) =
        targets::check_targets(&state, &lane, damaged, (options.is_quick, &holder), &mut ledger)?
    else {
        ledger.print(None)?;
        return Ok(4);
    };
    let (stores, joined) = checked;
    let shards: Vec<ShardId> = state.manager.map().read().shards.iter().map(|shard| shard.id).collect();
    ledger.print(Some((&lane.read(), &shards)))?;
    let lane = match settle::is_unsettled(&state, &lane)? {
        true if options.is_repairing => settle::settle(&state, lane, &stores)?,
        true => {
            eprintln!(
                "ashlar: mounts had not ended cleanly; sizes of files they wrote are not compared (a start or --repair settles them)"
            );
            lane
        }
        false => lane,
    };
    let seen = check_content(&state, &lane, &stores, &mut ledger)?;
    if options.is_repairing {
        node::starts::confirm(&state, &lane, &joined)?;
    }
    close(&lane, &stores)?;
    summarize(&seen, &ledger);
    Ok(match (ledger.left, ledger.repaired) {
        (0, 0) => 0,
        (0, _) => 1,
        _ => 4,
    })
}

/// The engine of the metadata is damaged: nothing can be compared with it.
fn unreadable(error: KvError, ledger: &mut Ledger) -> Result<u8> {
    if !matches!(error, KvError::Corrupt { .. }) {
        return Err(error).context("cannot read the metadata");
    }
    ledger.add(Problem {
        class: Class::Metadata,
        inode: None,
        name: None,
        what: error.to_string(),
        remedy: "restore the metadata from a backup with `ashlar restore`".into(),
        state: State::Left,
    });
    ledger.print(None)?;
    Ok(4)
}

fn check_content(state: &node::State, lane: &Lane, stores: &Stores, ledger: &mut Ledger) -> Result<Seen> {
    let map = state.manager.map().read().clone();
    let shards: Vec<ShardId> = map.shards.iter().map(|shard| shard.id).collect();
    let report = tree::check_tree(state, lane, ledger)?;
    let mut seen =
        Seen { inodes: report.inodes, entries: report.entries, targets: stores.len(), ..Seen::default() };
    for (id, store) in stores {
        seen.chunks += chunks::check_target(&lane.read(), &map, (*id, store), ledger)?;
        ledger.print(Some((&lane.read(), &shards)))?;
    }
    seen.files = check_files(state, lane, stores, ledger)?;
    ledger.print(Some((&lane.read(), &shards)))?;
    Ok(seen)
}

fn close(lane: &Lane, stores: &Stores) -> Result<()> {
    lane.close().context("cannot close the metadata")?;
    for (id, store) in stores {
        store.close().with_context(|| format!("cannot close {id}"))?;
    }
    Ok(())
}

fn summarize(seen: &Seen, ledger: &Ledger) {
    let Seen { inodes, entries, chunks, files, targets } = seen;
    let (repaired, left) = (ledger.repaired, ledger.left);
    if ledger.is_json {
        let summary = serde_json::json!({
            "summary": {
                "inodes": inodes, "entries": entries, "chunks": chunks, "files_in_chunks": files, "targets": targets,
                "repaired": repaired, "left": left,
            }
        });
        say(summary);
        return;
    }
    say(format_args!(
        "{inodes} inodes, {entries} entries, {files} files with {chunks} chunks on {targets} targets"
    ));
    say(match (left, repaired) {
        (0, 0) => "clean".to_owned(),
        (0, _) => format!("{repaired} problems repaired, none left"),
        (_, 0) => format!("{left} problems found"),
        _ => format!("{repaired} problems repaired, {left} left"),
    });
}
