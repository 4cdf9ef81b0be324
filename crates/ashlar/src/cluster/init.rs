//! `ashlar init`: a new cluster, with this machine as its first node.

use super::node_directory::{NodeDirectory, NodeName, Papers};
use super::store::EtcdStore;
use crate::cli::InitArgs;
use crate::node::state::make_private_directory;
use crate::terminal::say;
use anyhow::{Context, Result, bail};
use ashlar_coord::Coord;
use ashlar_coord::local_file::LocalFile;
use ashlar_env::os::OsDisk;
use ashlar_env::{Disk, Env};
use ashlar_manager::{Manager, draw_key};
use ashlar_types::node::Listening;
use ashlar_types::{Node, NodeId, PeerId, Role, Roles};
use std::net::SocketAddr;
use std::sync::Arc;

pub fn init(args: &InitArgs) -> Result<()> {
    let directory = NodeDirectory::new(&args.node.node);
    directory.require_unused()?;
    let name = super::join::name_of(args.name.as_deref())?;
    require_reachable(&args.listen)?;
    make_private_directory(&args.state.state)?;
    let disk: Arc<dyn Disk> = Arc::new(OsDisk::new(&args.state.state));
    let env = Env::os();
    if EtcdStore::load(&disk)?.is_some() || Manager::exists(&LocalFile::new(disk.clone(), ""))? {
        bail!("there is a file system at {} already; `ashlar manager` serves it", args.state.state.display());
    }
    let mut draft = Manager::draft(&disk, "", &env).context("cannot make a file system")?;
    let roles: Roles = Role::ALL.into_iter().collect();
    let listening = vec![Listening { role: Role::Manager, addresses: args.listen.clone() }];
    draft.map.nodes = vec![Node { id: NodeId(1), name: name.clone(), roles, listening }];
    let store = EtcdStore::given(&args.etcd, draft.identity.cluster)?;
    let coord: Box<dyn Coord> = match &store {
        None => Box::new(LocalFile::new(disk.clone(), "")),
        Some(store) => {
            let coord = store.open(&env)?;
            store.warn_of_versions(&coord);
            Box::new(coord)
        }
    };
    let manager = Manager::create(draft, coord).context("cannot store the new file system")?;
    // ORDER: when it is there, or the next attempt would take this directory for that of a file system.
    store.iter().try_for_each(|store| store.save(&disk))?;
    let cluster = manager.identity().cluster;
    let (authority, (key, public_key)) = (manager.authority()?, draw_key()?);
    let peer = PeerId { cluster, node: NodeId(1), roles };
    let certificate = authority.issue(peer, &public_key, env.clock.now())?;
    let papers = Papers { certificate, key, authority: authority.certificate().to_owned() };
    let known = NodeName { cluster, node: NodeId(1), name, roles, managers: args.listen.clone() };
    directory.store(&known, &papers)?;
    say(format_args!("made file system {cluster}; this machine is its first node, {}", known.name));
    say(format_args!(
        "start the manager with `ashlar manager`, then metadata and targets with `ashlar meta` and `ashlar storage`"
    ));
    say(format_args!("let other machines join with tokens of `ashlar token`"));
    Ok(())
}

/// Refuses addresses that others cannot connect to.
pub fn require_reachable(listen: &[SocketAddr]) -> Result<()> {
    match listen.iter().find(|address| address.ip().is_unspecified() || address.port() == 0) {
        Some(address) => {
            bail!("others cannot connect to {address}: name an address of this machine, and a port")
        }
        None => Ok(()),
    }
}
