//! `ashlar promote`: the file system of a single machine becomes one of many servers, data in place, with this machine as its first node.
//!
//! Nothing is copied but its identity. What the steps write is not looked at by anybody before the switch, which is the renaming of one file, and
//! after the switch only the identity of this machine is left to be made; so it may be interrupted at any point, and begun anew.

use super::init::require_reachable;
use super::join::name_of;
use super::meta::{read_uuid, write_uuid};
use super::node_directory::{NodeDirectory, NodeName, Papers};
use super::store::EtcdStore;
use crate::cli::PromoteArgs;
use crate::node::state::make_private_directory;
use crate::node::{Directories, PROMOTED_FILE, State};
use crate::terminal::say;
use anyhow::{Context, Result, bail};
use ashlar_coord::Coord;
use ashlar_coord::local_file::{LocalFile, STATE_FILE};
use ashlar_env::os::OsDisk;
use ashlar_env::{Disk, Env};
use ashlar_manager::{ClusterState, Manager, MetadataRecord, SECRETS_FILE, draw_key, take_secrets};
use ashlar_types::node::Listening;
use ashlar_types::{ClusterId, Epoch, Node, NodeId, PeerId, Role, Roles};
use std::path::Path;
use std::sync::Arc;

/// The first node: the one that a single machine is in its own map.
const FIRST: NodeId = NodeId(1);

pub fn promote(args: &PromoteArgs) -> Result<()> {
    let env = Env::os();
    let directory = NodeDirectory::new(&args.node.node);
    directory.require_unused()?;
    require_reachable(&args.listen)?;
    let name = name_of(args.name.as_deref())?;
    let disk: Arc<dyn Disk> = Arc::new(OsDisk::new(&args.state.state));
    let cluster = match Directories::find_promoted(&args.place)? {
        // Begun before, and interrupted after the switch.
        Some(_) => read_cluster(&disk, &env)
            .with_context(|| format!("the state is not at {}", args.state.state.display()))?,
        None => switch(args, &env, &disk, &name)?,
    };
    become_first(args, &env, &disk, &directory, (cluster, name))?;
    let data: Vec<String> = args.place.data.iter().map(|dir| format!("--data {}", dir.display())).collect();
    say(format_args!("this machine is the first node of file system {cluster}; it is served by"));
    say(format_args!("  ashlar manager --state {}", args.state.state.display()));
    let meta = Directories::find_promoted(&args.place)?;
    if let Some(meta) = meta {
        say(format_args!("  ashlar meta --meta {} --listen ADDRESS", meta.display()));
    }
    say(format_args!("  ashlar storage {} --listen ADDRESS", data.join(" ")));
    Ok(())
}

/// Moves the state to where managers keep it.
fn switch(args: &PromoteArgs, env: &Env, disk: &Arc<dyn Disk>, name: &str) -> Result<ClusterId> {
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
    let cluster = state.cluster();
    require_own(disk, env, cluster, &args.state.state)?;
    make_private_directory(&args.state.state)?;
    take_secrets(disk, "", cluster, &state.manager.secrets())?;
    let uuid = match read_uuid(&state.disk, &state.directories.meta)? {
        Some(uuid) => uuid,
        None => {
            let mut uuid = [0; 16];
            env.entropy.fill(&mut uuid);
            write_uuid(&state.disk, &state.directories.meta, uuid)?;
            uuid
        }
    };
    let path = state.directories.meta.display().to_string();
    let metadata = MetadataRecord { uuid, node: FIRST, path };
    let value = promoted(state.manager.state(), name, args, metadata).encode();
    store(args, env, disk, cluster, &value)?;
    // ORDER: the switch. Before it `ashlar up` serves the file system, and after it the roles do.
    state
        .disk
        .rename(STATE_FILE, PROMOTED_FILE)
        .and_then(|()| state.disk.remove(SECRETS_FILE))
        .and_then(|()| state.disk.sync_dir(""))
        .with_context(|| format!("cannot rename {}", state.disk.describe(STATE_FILE)))?;
    Ok(cluster)
}

/// Refuses a directory that has the state of another file system.
fn require_own(disk: &Arc<dyn Disk>, env: &Env, cluster: ClusterId, shown: &Path) -> Result<()> {
    let is_used = EtcdStore::load(disk)?.is_some() || Manager::exists(&LocalFile::new(disk.clone(), ""))?;
    if shown.exists() && is_used && read_cluster(disk, env)? != cluster {
        bail!(
            "{} has the state of another file system: name another directory with --state",
            shown.display()
        );
    }
    Ok(())
}

fn read_cluster(disk: &Arc<dyn Disk>, env: &Env) -> Result<ClusterId> {
    let (coord, _) = super::store::open(disk, env)?;
    Ok(Manager::open(disk, "", coord)?.identity().cluster)
}

fn promoted(
    mut state: ClusterState,
    name: &str,
    args: &PromoteArgs,
    metadata: MetadataRecord,
) -> ClusterState {
    let listening = vec![Listening { role: Role::Manager, addresses: args.listen.clone() }];
    let roles: Roles = Role::ALL.into_iter().collect();
    state.map.nodes = vec![Node { id: FIRST, name: name.to_owned(), roles, listening }];
    state.map.epoch = Epoch(state.map.epoch.0 + 1);
    state.last_node = state.last_node.max(FIRST);
    state.metadata = Some(metadata);
    state
}

/// Stores the state where managers keep it, over what an attempt before has left.
fn store(
    args: &PromoteArgs,
    env: &Env,
    disk: &Arc<dyn Disk>,
    cluster: ClusterId,
    value: &[u8],
) -> Result<()> {
    let etcd = EtcdStore::given(&args.etcd, cluster)?;
    let coord: Box<dyn Coord> = match &etcd {
        None => Box::new(LocalFile::new(disk.clone(), "")),
        Some(store) => Box::new(store.open(env)?),
    };
    let (revision, there) = coord.load()?;
    if there != value {
        coord.compare_and_set(revision, value)?;
    }
    etcd.iter().try_for_each(|store| store.save(disk))
}

/// Makes the identity of this machine.
fn become_first(
    args: &PromoteArgs,
    env: &Env,
    disk: &Arc<dyn Disk>,
    directory: &NodeDirectory,
    (cluster, name): (ClusterId, String),
) -> Result<()> {
    let (coord, _) = super::store::open(disk, env)?;
    let manager = Manager::open(disk, "", coord)?;
    let roles: Roles = Role::ALL.into_iter().collect();
    let (authority, (key, public_key)) = (manager.authority()?, draw_key()?);
    let certificate =
        authority.issue(PeerId { cluster, node: FIRST, roles }, &public_key, env.clock.now())?;
    let papers = Papers { certificate, key, authority: authority.certificate().to_owned() };
    directory.store(&NodeName { cluster, node: FIRST, name, roles, managers: args.listen.clone() }, &papers)
}
