//! `ashlar init`: a new cluster, with this machine as its first node.

use super::etcd;
use super::first_node::FirstNode;
use super::store;
use crate::cli::{EtcdInitArgs, EtcdListen, InitArgs};
use crate::node::state::make_private_directory;
use crate::terminal::say;
use anyhow::{Context, Result, bail};
use ashlar_env::os::OsDisk;
use ashlar_env::{Disk, Env};
use ashlar_manager::Manager;
use std::sync::Arc;

pub fn init(InitArgs { first: args, with_etcd, etcd_program }: &InitArgs) -> Result<()> {
    let first = FirstNode::new(args)?;
    if with_etcd.is_some() {
        // Before anything is made.
        etcd::find_program(etcd_program.as_deref())?;
    }
    make_private_directory(&args.state.state)?;
    let disk: Arc<dyn Disk> = Arc::new(OsDisk::new(&args.state.state));
    let env = Env::os();
    if store::is_used(&disk)? {
        bail!("there is a file system at {} already; `ashlar manager` serves it", args.state.state.display());
    }
    let mut draft = Manager::draft(&disk, "", &env).context("cannot make a file system")?;
    draft.map.nodes = vec![first.node().clone()];
    let (store, coord) = store::given(&args.etcd, draft.identity.cluster, &disk, &env)?;
    let manager = Manager::create(draft, coord).context("cannot store the new file system")?;
    // ORDER: when it is there, or the next attempt would take this directory for that of a file system.
    store.iter().try_for_each(|store| store.save(&disk))?;
    first.store_identity(&manager, &env)?;
    say(format_args!(
        "made file system {}; this machine is its first node, {}",
        manager.identity().cluster,
        first.node().name
    ));
    drop(manager);
    if let Some(listen) = *with_etcd {
        let args = EtcdInitArgs {
            at: EtcdListen { listen },
            program: etcd_program.clone(),
            state: args.state.clone(),
            node: args.node.clone(),
        };
        etcd::init(&args).context(
            "the file system was made, with its state in a file; `ashlar etcd init` moves that to etcd once it works",
        )?;
    }
    say(format_args!(
        "start the manager with `ashlar manager`, then metadata and targets with `ashlar meta` and `ashlar storage`"
    ));
    say(format_args!("let other machines join with tokens of `ashlar token`"));
    Ok(())
}
