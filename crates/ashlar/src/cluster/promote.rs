//! `ashlar promote`: the file system of a single machine becomes one of many servers, data in place, with this machine as its first node.
//!
//! Nothing is copied but its identity. What the steps write is not looked at by anybody before the switch, which is the renaming of one file, and
//! after the switch only the identity of this machine is left to be made; so it may be interrupted at any point, and begun anew.

mod again;
mod running;

use super::first_node::{FIRST, FirstNode};
use super::meta_directory::{read_uuid, write_uuid};
use super::node_directory::{NodeDirectory, NodeName};
use super::store;
use crate::cli::PromoteArgs;
use crate::node::state::make_private_directory;
use crate::node::{Directories, PROMOTED_FILE, State};
use crate::terminal::say;
use anyhow::{Context, Result, bail};
use ashlar_chunkstore::TargetHeader;
use ashlar_coord::local_file::STATE_FILE;
use ashlar_env::os::OsDisk;
use ashlar_env::{Disk, Env};
use ashlar_manager::{ClusterState, Manager, MetadataRecord, SECRETS_FILE, take_secrets};
use ashlar_types::{ClusterId, Epoch, Node, TargetId};
use running::Roles;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Said at the end.
const RUN_ON: &str = "they run until they are told to stop; have them started with the machine (units in the guide on clusters)";

pub fn promote(args: &PromoteArgs) -> Result<()> {
    let env = Env::os();
    let place = &args.first.state.state;
    let disk: Arc<dyn Disk> = Arc::new(OsDisk::new(place));
    let promoted = Directories::find_promoted(&args.place)?;
    if let Some(meta) = promoted.as_deref().filter(|_| args.start)
        && let Ok(own) = NodeDirectory::new(&args.first.node.node).load()
    {
        return go_on(args, meta, (&own, &disk), &env);
    }
    let first = FirstNode::new(&args.first)?;
    let roles = if args.start { Some(Roles::find(args, Vec::new())?) } else { None };
    let (manager, served) = match promoted {
        // Begun before, and interrupted after the switch.
        Some(meta) => {
            let manager = open_manager(&disk, &env);
            let manager = manager.with_context(|| format!("the state is not at {}", place.display()))?;
            (manager, Served::of_promoted(args, &meta)?)
        }
        None => {
            let served = Served::find(args)?;
            let running = stop_running(args, &served, &disk)?;
            let manager = switch(args, &env, &disk, first.node());
            let manager = manager.with_context(|| match running {
                true => {
                    "the server was stopped, and the file system is what it was: `ashlar up` serves it again"
                }
                false => "cannot promote",
            })?;
            (manager, served)
        }
    };
    first.store_identity(&manager, &env)?;
    let cluster = manager.identity().cluster;
    drop(manager);
    match roles {
        Some(roles) => {
            say(format_args!("this machine is the first node of file system {cluster}"));
            roles.start(args, &served, &disk)?;
            say(RUN_ON);
        }
        None => {
            let data: Vec<String> =
                served.data.iter().map(|dir| format!("--data {}", dir.display())).collect();
            say(format_args!("this machine is the first node of file system {cluster}; it is served by"));
            say(format_args!("  ashlar manager --state {}", place.display()));
            say(format_args!("  ashlar meta --meta {} --listen ADDRESS", served.meta.display()));
            say(format_args!("  ashlar storage {} --listen ADDRESS", data.join(" ")));
        }
    }
    Ok(())
}

/// Starts what does not run of a machine that is the first node already: something did not start, or the command was interrupted.
fn go_on(args: &PromoteArgs, meta: &Path, (own, disk): (&NodeName, &Arc<dyn Disk>), env: &Env) -> Result<()> {
    let manager = open_manager(disk, env);
    let manager = manager.with_context(|| format!("the state is not at {}", disk.describe("")))?;
    if own.node != FIRST || own.cluster != manager.identity().cluster {
        // With the reason.
        NodeDirectory::new(&args.first.node.node).require_unused()?;
    }
    drop(manager);
    let served = Served::of_promoted(args, meta)?;
    let roles = Roles::find(args, running::running_roles(disk, &served)?)?;
    say(format_args!("this machine is the first node of file system {} already", own.cluster));
    roles.start(args, &served, disk)?;
    say(RUN_ON);
    Ok(())
}

/// Where what the roles serve is.
struct Served {
    meta: PathBuf,
    data: Vec<PathBuf>,
    /// The directory of each target, and its number.
    targets: Vec<(PathBuf, TargetId)>,
}

impl Served {
    fn find(args: &PromoteArgs) -> Result<Served> {
        let (directories, damaged) = Directories::find_stopped(&args.place)?;
        if let Some((_, error)) = damaged.into_iter().next() {
            return Err(error);
        }
        Ok(Served::of(&directories.targets, directories.meta))
    }

    /// As it is after the switch.
    fn of_promoted(args: &PromoteArgs, meta: &Path) -> Result<Served> {
        let meta = std::path::absolute(meta)?;
        let data = match (args.place.data.as_slice(), meta.parent()) {
            // The directory of a user who names none.
            ([], Some(data)) => vec![data.to_owned()],
            (data, _) => data.to_vec(),
        };
        Ok(Served::of(&Directories::find_targets(&data)?, meta))
    }

    fn of(targets: &[(PathBuf, Option<TargetHeader>)], meta: PathBuf) -> Served {
        let data = targets.iter().filter_map(|(target, _)| Some(target.parent()?.to_owned())).collect();
        let known = |(path, header): &(PathBuf, Option<TargetHeader>)| {
            Some((path.clone(), header.as_ref()?.identity.target))
        };
        Served { data, meta, targets: targets.iter().filter_map(known).collect() }
    }
}

/// Stops the server of this file system, if one runs and that is wanted; tells whether one did. What can be refused is refused before.
fn stop_running(args: &PromoteArgs, served: &Served, disk: &Arc<dyn Disk>) -> Result<bool> {
    let Some(running) = running::find(&served.meta)? else { return Ok(false) };
    if !args.start {
        bail!("{}", running.refusal(&served.meta));
    }
    require_place(args, running.cluster)?;
    running.require_listed(served)?;
    running.stop(args.cut_off, disk)?;
    Ok(true)
}

/// Refuses a place for the state, or an etcd, that cannot be used.
fn require_place(args: &PromoteArgs, cluster: ClusterId) -> Result<()> {
    let (place, env) = (&args.first.state.state, Env::os());
    make_private_directory(place)?;
    let disk: Arc<dyn Disk> = Arc::new(OsDisk::new(place));
    require_own(&disk, &env, cluster, args)?;
    store::given(&args.first.etcd, cluster, &disk, &env)?.1.load()?;
    Ok(())
}

fn open_manager(disk: &Arc<dyn Disk>, env: &Env) -> Result<Manager> {
    Ok(Manager::open(disk, "", store::open(disk, env)?.coord)?)
}

/// Moves the state to where managers keep it.
fn switch(args: &PromoteArgs, env: &Env, disk: &Arc<dyn Disk>, first: &Node) -> Result<Manager> {
    let (directories, damaged) = Directories::find_stopped(&args.place)?;
    if let Some((_, error)) = damaged.into_iter().next() {
        return Err(error);
    }
    let holder = format!("ashlar promote, process {}", std::process::id());
    let state = State::open(directories, &holder)?;
    if state.is_restored()? {
        bail!(
            "the metadata comes from a backup and has not been compared with its targets yet: start it once with `ashlar up`"
        );
    }
    let (cluster, place, meta) = (state.cluster(), &args.first.state.state, &state.directories.meta);
    require_own(disk, env, cluster, args)?;
    make_private_directory(place)?;
    take_secrets(disk, "", cluster, &state.manager.secrets())?;
    let uuid = match read_uuid(&state.disk, meta)? {
        Some(uuid) => uuid,
        None => {
            let mut uuid = [0; 16];
            env.entropy.fill(&mut uuid);
            write_uuid(&state.disk, meta, uuid)?;
            uuid
        }
    };
    let metadata = MetadataRecord { uuid, node: FIRST, path: meta.display().to_string() };
    let value = promoted(state.manager.state(), first, metadata).encode();
    let (etcd, coord) = store::given(&args.first.etcd, cluster, disk, env)?;
    let (revision, there) = coord.load()?;
    // An attempt before may have left an older one.
    if there != value {
        coord.compare_and_set(revision, &value)?;
    }
    etcd.iter().try_for_each(|store| store.save(disk))?;
    // ORDER: the switch. Before it `ashlar up` serves the file system, and after it the roles do.
    state
        .disk
        .rename(STATE_FILE, PROMOTED_FILE)
        .and_then(|()| state.disk.remove(SECRETS_FILE))
        .and_then(|()| state.disk.sync_dir(""))
        .with_context(|| format!("cannot rename {}", state.disk.describe(STATE_FILE)))?;
    Ok(Manager::open(disk, "", coord)?)
}

/// Refuses a directory that has the state of another file system.
fn require_own(disk: &Arc<dyn Disk>, env: &Env, cluster: ClusterId, args: &PromoteArgs) -> Result<()> {
    if store::is_used(disk)? && open_manager(disk, env)?.identity().cluster != cluster {
        bail!(
            "{} has the state of another file system: name another directory with --state",
            args.first.state.state.display()
        );
    }
    Ok(())
}

fn promoted(mut state: ClusterState, first: &Node, metadata: MetadataRecord) -> ClusterState {
    state.map.nodes = vec![first.clone()];
    state.map.epoch = Epoch(state.map.epoch.0 + 1);
    state.last_node = state.last_node.max(first.id);
    state.metadata = vec![metadata];
    state
}
