//! `ashlar init`: a new cluster, with this machine as its first node.

use super::first_node::FirstNode;
use super::store;
use crate::cli::InitArgs;
use crate::node::state::make_private_directory;
use crate::terminal::say;
use anyhow::{Context, Result, bail};
use ashlar_env::os::OsDisk;
use ashlar_env::{Disk, Env};
use ashlar_manager::Manager;
use std::sync::Arc;

pub fn init(InitArgs { first: args }: &InitArgs) -> Result<()> {
    let first = FirstNode::new(args)?;
    make_private_directory(&args.state.state)?;
    let disk: Arc<dyn Disk> = Arc::new(OsDisk::new(&args.state.state));
    let env = Env::os();
    if store::is_used(&disk)? {
        bail!("there is a file system at {} already; `ashlar manager` serves it", args.state.state.display());
    }
    let mut draft = Manager::draft(&disk, "", &env).context("cannot make a file system")?;
    draft.map.nodes = vec![first.node().clone()];
    let (etcd, coord) = store::given(&args.etcd, draft.identity.cluster, &disk, &env)?;
    let manager = Manager::create(draft, coord).context("cannot store the new file system")?;
    // ORDER: when it is there, or the next attempt would take this directory for that of a file system.
    etcd.iter().try_for_each(|store| store.save(&disk))?;
    first.store_identity(&manager, &env)?;
    say(format_args!(
        "made file system {}; this machine is its first node, {}",
        manager.identity().cluster,
        first.node().name
    ));
    say(format_args!(
        "start the manager with `ashlar manager`, then metadata and targets with `ashlar meta` and `ashlar storage`"
    ));
    say(format_args!("let other machines join with tokens of `ashlar token`"));
    Ok(())
}
