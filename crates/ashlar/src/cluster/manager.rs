//! `ashlar manager`: keeps the map and the certificate authority.

use super::announce;
use super::background::Background;
use super::member::{listen, stop_flag, until_told_to_stop};
use super::node_directory::NodeDirectory;
use super::renewal::{Renewal, require_current};
use super::store::{self, EtcdStore};
use crate::cli::ManagerArgs;
use crate::metrics::Metrics;
use crate::node::MetaLock;
use crate::terminal::say;
use anyhow::{Context, Result, bail};
use ashlar_env::os::OsDisk;
use ashlar_env::{Disk, Env};
use ashlar_manager::{Manager, ManagerEndpoint, ManagerService};
use ashlar_rpc::net::{Epochs, KnowsToken, Server, ServerConfig, Service, TlsIdentity};
use ashlar_types::Role;
use ashlar_types::message::{ManagerReply, ManagerRequest};
use parking_lot::RwLock;
use std::sync::Arc;
use std::time::Duration;

/// Time between two looks at what other managers have changed.
const LOOK_EVERY: Duration = Duration::from_millis(500);

pub fn run(args: &ManagerArgs) -> Result<()> {
    let is_told = stop_flag()?;
    let directory = NodeDirectory::new(&args.node.node);
    let name = directory.load()?;
    let disk: Arc<dyn Disk> = Arc::new(OsDisk::new(&args.state.state));
    let holder = format!("ashlar manager, process {}", std::process::id());
    let _lock = MetaLock::take(&disk, &args.state.state, &holder)?;
    let env = Env::os();
    if let Some(store) = EtcdStore::given(&args.etcd, name.cluster)? {
        if !args.move_to_etcd {
            bail!("where the state is was said when the file system was made; --move-to-etcd moves it");
        }
        if EtcdStore::load(&disk)?.is_none() {
            store.take_over(&disk, &env).context("cannot move the state to etcd")?;
            say(format_args!("the state is in etcd now"));
        }
    }
    let (coord, store) = store::open(&disk, &env)?;
    if !Manager::exists(&*coord)? {
        bail!(
            "there is no file system at {}: `ashlar init` makes one, or name its directory with --state",
            args.state.state.display()
        );
    }
    let manager = Manager::open(&disk, "", coord)
        .with_context(|| format!("cannot open the state at {}", args.state.state.display()))?;
    if manager.identity().cluster != name.cluster {
        bail!(
            "{} is of file system {}, and this machine belongs to {}",
            args.state.state.display(),
            manager.identity().cluster,
            name.cluster
        );
    }
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
    let service = Arc::new(ManagerService::new(manager, env.clone(), store)?);
    let epochs = Arc::new(Epochs::default());
    let metrics = Metrics::new("manager");
    metrics.add_manager(&service);
    let endpoint = ManagerEndpoint::new(service.clone(), epochs.clone()).observed_by(metrics.manager_calls());
    let endpoint = Arc::new(endpoint);
    let _shown = metrics.serve(&args.metrics)?;
    let (asked, admitting) = (endpoint.clone(), endpoint.clone());
    let tokens: Arc<KnowsToken> = Arc::new(move |info| asked.token(info));
    let identity = directory.identity(Some(tokens.clone()))?;
    require_current(&identity, &directory)?;
    let own = identity.peer();
    let identity = Arc::new(RwLock::new(Arc::new(identity)));
    let config = ServerConfig {
        identity: identity.clone(),
        admit: Box::new(move |peer| admitting.admit(peer)),
        tokens: Some(tokens.clone()),
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
    let _looks = keep_certificate(&directory, identity, tokens, &service, &env)?;
    let _watch = watch(&service, &env)?;
    let mut epoch = service.map().read().epoch;
    directory.keep_map(&service.map().read().clone());
    until_told_to_stop(&is_told, || {
        endpoint.tidy();
        let now = service.map().read().epoch;
        if now != epoch {
            epoch = now;
            directory.keep_map(&service.map().read().clone());
            server.review();
        }
        true
    });
    announce::notify("STOPPING=1");
    server.stop();
    Ok(())
}

/// Has this manager's own certificate renewed in time.
fn keep_certificate(
    directory: &NodeDirectory,
    identity: Arc<RwLock<Arc<TlsIdentity>>>,
    tokens: Arc<KnowsToken>,
    service: &Arc<ManagerService>,
    env: &Env,
) -> Result<Background> {
    let (service, peer, own) = (service.clone(), identity.read().peer(), directory.clone());
    let renewal = Renewal {
        directory: directory.clone(),
        identity,
        load: Box::new(move || own.identity(Some(tokens.clone()))),
        certify: Box::new(move |public_key| Ok(service.renewed(peer, &public_key)?)),
    };
    renewal.start(&*env.tasks)
}

/// Sees what other managers change, in a thread of its own, so that nobody waits for the store.
fn watch(service: &Arc<ManagerService>, env: &Env) -> Result<Option<Background>> {
    if !service.manager().is_shared() {
        return Ok(None);
    }
    let (service, mut is_away) = (service.clone(), false);
    let look = move || {
        match service.manager().refresh() {
            Ok(()) if is_away => {
                is_away = false;
                tracing::info!("the state of the file system can be reached again");
            }
            Err(error) if !is_away => {
                is_away = true;
                tracing::error!(%error, "the state of the file system cannot be reached: serving goes on, nothing can be changed");
            }
            _ => {}
        }
        LOOK_EVERY
    };
    Background::start(&*env.tasks, "ashlar-state", look).map(Some)
}
