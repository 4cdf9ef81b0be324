//! `ashlar manager`: keeps the map and the certificate authority.

use super::announce;
use super::member::{listen, stop_flag, until_told_to_stop};
use super::node_directory::NodeDirectory;
use crate::cli::ManagerArgs;
use crate::node::MetaLock;
use anyhow::{Context, Result, bail};
use ashlar_coord::local_file::LocalFile;
use ashlar_env::os::OsDisk;
use ashlar_env::{Disk, Env};
use ashlar_manager::{Manager, ManagerEndpoint, ManagerService};
use ashlar_rpc::net::{Epochs, Server, ServerConfig, Service};
use ashlar_types::Role;
use ashlar_types::message::{ManagerReply, ManagerRequest};
use parking_lot::RwLock;
use std::sync::Arc;

pub fn run(args: &ManagerArgs) -> Result<()> {
    let is_told = stop_flag()?;
    let directory = NodeDirectory::new(&args.node.node);
    let name = directory.load()?;
    let disk: Arc<dyn Disk> = Arc::new(OsDisk::new(&args.state.state));
    let holder = format!("ashlar manager, process {}", std::process::id());
    let _lock = MetaLock::take(&disk, &args.state.state, &holder)?;
    let coord = LocalFile::new(disk.clone(), "");
    if !Manager::exists(&coord)? {
        bail!(
            "there is no file system at {}: `ashlar init` makes one, or name its directory with --state",
            args.state.state.display()
        );
    }
    let manager = Manager::open(&disk, "", Box::new(coord))
        .with_context(|| format!("cannot open the state at {}", args.state.state.display()))?;
    if manager.identity().cluster != name.cluster {
        bail!(
            "{} is of file system {}, and this machine belongs to {}",
            args.state.state.display(),
            manager.identity().cluster,
            name.cluster
        );
    }
    let env = Env::os();
    let addresses = if args.listen.is_empty() {
        let map = manager.map().read().clone();
        map.node(name.node).map(|node| node.addresses(Role::Manager).to_vec()).unwrap_or_default()
    } else {
        args.listen.clone()
    };
    if addresses.is_empty() {
        bail!("where should the manager listen? Say so with --listen ADDRESS:PORT");
    }
    let (listeners, bound) = listen(&addresses)?;
    let service = Arc::new(ManagerService::new(manager, env.clone())?);
    let epochs = Arc::new(Epochs::default());
    let endpoint = Arc::new(ManagerEndpoint::new(service.clone(), epochs.clone()));
    let (asked, admitting) = (endpoint.clone(), endpoint.clone());
    let tokens: Arc<ashlar_rpc::net::KnowsToken> = Arc::new(move |info| asked.token(info));
    let identity = directory.identity(Some(tokens.clone()))?;
    let own = identity.peer();
    let config = ServerConfig {
        identity: Arc::new(RwLock::new(Arc::new(identity))),
        admit: Box::new(move |peer| admitting.admit(peer)),
        tokens: Some(tokens),
        endpoints: vec![(Service::Manager, endpoint.clone())],
        epochs,
        tasks: env.tasks.clone(),
    };
    let server = Server::start(config, listeners).context("cannot serve")?;
    let listening = ManagerRequest::Listen { role: Role::Manager, addresses: bound.clone() };
    if let ManagerReply::Refused(text) = service.call(own, None, listening) {
        bail!("{text}");
    }
    announce::serving(Role::Manager, &bound);
    let mut epoch = service.map().read().epoch;
    until_told_to_stop(&is_told, || {
        endpoint.tidy();
        let now = service.map().read().epoch;
        if now != epoch {
            epoch = now;
            server.review();
        }
        true
    });
    announce::notify("STOPPING=1");
    server.stop();
    Ok(())
}
