//! A run of the check: the stages in order, and what came of them.

use super::files::{Stores, Targets, check_files};
use super::journal::put_back_journal;
use super::problem::{Class, Ledger, Problem, State};
use super::remote::Remote;
use super::servers::{Damaged, Servers};
use super::whole::Whole;
use super::{chunks, settle, targets, tree};
use crate::cli::DataArgs;
use crate::node::state::ENGINE_DIR;
use crate::node::{self, Directories};
use crate::terminal::say;
use anyhow::{Context, Result, bail};
use ashlar_kv::{KvError, Position, Snapshot};
use ashlar_namespace::key;
use ashlar_types::InodeId;
use std::path::{Path, PathBuf};

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
    /// Metadata servers, of a file system of many.
    servers: usize,
}

/// What to check.
pub enum Place {
    /// A file system of a single machine.
    One(DataArgs),
    /// One of many servers.
    Servers {
        /// The directory of a manager.
        state: PathBuf,
        /// The metadata of all servers.
        metas: Vec<PathBuf>,
        /// Targets; with none, and without an identity, they are not looked at.
        data: Vec<PathBuf>,
        /// A metadata server, as which targets are asked that others serve.
        identity: Option<PathBuf>,
    },
    /// A backup of the metadata of many servers.
    Backup(PathBuf),
}

/// Checks the file system at `place`. Tells the exit status as fsck(8) has it: 0 clean, 1 repaired, 4 damage left.
///
/// # Errors
/// When the check could not be done: the file system runs, is not there, or its state cannot be opened.
pub fn run(place: &Place, options: &Options) -> Result<u8> {
    let holder = format!("ashlar fsck, process {}", std::process::id());
    let mut ledger =
        Ledger { is_repairing: options.is_repairing, is_json: options.is_json, ..Ledger::default() };
    match place {
        Place::One(place) => run_one(place, options, &holder, &mut ledger),
        Place::Servers { state, metas, data, identity } => {
            let how = (options.is_repairing, options.give_up_log_from.map(Position));
            let (servers, damaged) = Servers::open((state, metas), data, how, &holder, &mut ledger)?;
            let with_targets = (!data.is_empty()).then_some(damaged);
            let targets = (with_targets, identity.as_deref());
            run_servers(servers, targets, (options.is_quick, &holder), &mut ledger)
        }
        Place::Backup(dir) => {
            run_servers(Servers::open_backup(dir)?, (None, None), (options.is_quick, &holder), &mut ledger)
        }
    }
}

fn run_one(place: &DataArgs, options: &Options, holder: &str, ledger: &mut Ledger) -> Result<u8> {
    let (directories, damaged) = Directories::find_stopped(place)?;
    // Without --repair nothing changes, not even what a start would do.
    let state = match options.is_repairing {
        true => node::State::open(directories, holder)?,
        false => node::State::look_at(directories, holder)?,
    };
    put_back_journal(&state.directories.meta.join(ENGINE_DIR), Class::Metadata, ledger)?;
    let lane = state.open_lane(options.give_up_log_from.map(Position))?;
    if let Err(error) = lane.verify() {
        return unreadable(error, ledger);
    }
    // What was given up may be newer than the last start, and targets newer than what is left.
    if options.accepts_older_metadata || options.give_up_log_from.is_some() {
        node::state::note_restored(&state.disk, &state.directories.meta)?;
    }
    let Some(checked) =
        targets::check_targets(&state, Some(&lane), damaged, (options.is_quick, holder, false), ledger)?
    else {
        ledger.print(None)?;
        return Ok(4);
    };
    let (stores, joined) = checked;
    let is_unsettled = {
        let whole = Whole::of_one(&state, &lane);
        ledger.print(Some((&whole.snapshot()?, &whole.shards())))?;
        settle::is_unsettled(&whole)?
    };
    let lane = match is_unsettled {
        true if options.is_repairing => settle::settle(&state, lane, &stores)?,
        true => {
            tell_unsettled();
            lane
        }
        false => lane,
    };
    let seen =
        check_content(&Whole::of_one(&state, &lane), &Targets { stores: &stores, remote: None }, ledger)?;
    if options.is_repairing {
        node::starts::confirm(&state, &lane, &joined)?;
    }
    lane.close().context("cannot close the metadata")?;
    close(&stores)?;
    summarize(&seen, ledger);
    Ok(status(ledger))
}

fn tell_unsettled() {
    eprintln!(
        "ashlar: mounts had not ended cleanly; sizes of files they wrote are not compared (a start or --repair settles them)"
    );
}

fn status(ledger: &Ledger) -> u8 {
    match (ledger.left, ledger.repaired) {
        (0, 0) => 0,
        (0, _) => 1,
        _ => 4,
    }
}

/// The same for many servers; `with_targets`: what is wrong with headers of those that are listed, if any are, and as which node the others are asked, if they are.
fn run_servers(
    mut servers: Servers,
    (with_targets, identity): (Option<Damaged>, Option<&Path>),
    (is_quick, holder): (bool, &str),
    ledger: &mut Ledger,
) -> Result<u8> {
    for store in &servers.stores {
        if let Err(error) = store.lane.verify() {
            eprintln!("ashlar: {} ({}):", store.name, store.path.display());
            return unreadable(error, ledger);
        }
    }
    let whole = servers.whole()?;
    if whole.snapshot()?.get(&key::inode(InodeId::ROOT)).context("cannot read the root directory")?.is_none()
    {
        bail!(
            "the metadata has no root directory, which every file system has from its first moment on: restore it with `ashlar restore`"
        );
    }
    let stores = match (&servers.state, with_targets) {
        (Some(state), Some(damaged)) => {
            let how = (is_quick, holder, identity.is_some());
            let checked = targets::check_targets(state, None, damaged, how, ledger)?;
            checked.map(|(stores, _)| stores).unwrap_or_default()
        }
        _ => Stores::new(),
    };
    let remote = match (&servers.state, identity) {
        (Some(state), Some(identity)) => {
            let others = whole.map.targets.iter().map(|target| target.id);
            let others = others.filter(|target| !stores.contains_key(target));
            Some(Remote::find(identity, (&whole.map, state.cluster()), others, ledger)?)
        }
        _ => None,
    };
    ledger.print(Some((&whole.snapshot()?, &whole.shards())))?;
    let (done, dropped) = settle::finish_operations(&whole)?;
    if done + dropped > 0 {
        eprintln!(
            "ashlar: operations across servers were under way: {done} parts of them happen, {dropped} do not, as after a start"
        );
    }
    let is_unsettled = settle::is_unsettled(&whole)?;
    drop(whole);
    if ledger.is_repairing && servers.state.is_some() {
        let targets: Vec<_> = stores.iter().map(|(id, store)| (*id, store.clone())).collect();
        servers.settle(&targets)?;
    } else if is_unsettled {
        tell_unsettled();
    }
    let whole = servers.whole()?;
    let mut seen = check_content(&whole, &Targets { stores: &stores, remote: remote.as_ref() }, ledger)?;
    drop(whole);
    seen.servers = servers.stores.len();
    servers.close()?;
    close(&stores)?;
    summarize(&seen, ledger);
    if stores.is_empty() && remote.is_none() && !ledger.is_json {
        say("targets were not looked at");
    }
    Ok(status(ledger))
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

fn check_content(whole: &Whole<'_>, targets: &Targets<'_>, ledger: &mut Ledger) -> Result<Seen> {
    let shards = whole.shards();
    let report = tree::check_tree(whole, ledger)?;
    let mut seen = Seen { inodes: report.inodes, entries: report.entries, ..Seen::default() };
    seen.targets = targets.stores.len();
    for (id, store) in targets.stores {
        seen.chunks += chunks::check_target(&whole.snapshot()?, &whole.map, (*id, store), ledger)?;
        ledger.print(Some((&whole.snapshot()?, &shards)))?;
    }
    if let Some(remote) = targets.remote {
        seen.targets += remote.targets().len();
        remote.check(whole, ledger)?;
        ledger.print(Some((&whole.snapshot()?, &shards)))?;
    }
    if seen.targets > 0 {
        seen.files = check_files(whole, targets, ledger)?;
        ledger.print(Some((&whole.snapshot()?, &shards)))?;
    }
    Ok(seen)
}

fn close(stores: &Stores) -> Result<()> {
    stores.iter().try_for_each(|(id, store)| store.close().with_context(|| format!("cannot close {id}")))
}

fn summarize(seen: &Seen, ledger: &Ledger) {
    let Seen { inodes, entries, chunks, files, targets, servers } = seen;
    let (repaired, left) = (ledger.repaired, ledger.left);
    if ledger.is_json {
        let summary = serde_json::json!({
            "summary": {
                "inodes": inodes, "entries": entries, "chunks": chunks, "files_in_chunks": files, "targets": targets,
                "metadata_servers": servers.max(&1), "repaired": repaired, "left": left,
            }
        });
        say(summary);
        return;
    }
    let of_servers = if *servers > 0 { format!(" of {servers} metadata servers") } else { String::new() };
    say(format_args!(
        "{inodes} inodes, {entries} entries{of_servers}, {files} files with {chunks} chunks on {targets} targets"
    ));
    say(match (left, repaired) {
        (0, 0) => "clean".to_owned(),
        (0, _) => format!("{repaired} problems repaired, none left"),
        (_, 0) => format!("{left} problems found"),
        _ => format!("{repaired} problems repaired, {left} left"),
    });
}
