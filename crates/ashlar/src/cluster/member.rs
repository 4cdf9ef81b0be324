//! What every process of a cluster has: its certificate, the managers, a map that is kept current.

use super::background::Background;
use super::node_directory::{NodeDirectory, NodeName};
use super::renewal::{Renewal, require_current};
use anyhow::{Context, Result, bail};
use ashlar_env::Env;
use ashlar_rpc::net::{Caller, Endpoint, Epochs, Listener, Peer, Server, ServerConfig, Service, TlsIdentity};
use ashlar_rpc::remote::{ManagerCalls, MapWatcher, Routes};
use ashlar_types::message::{ManagerReply, ManagerRequest};
use ashlar_types::{ClusterMap, Epoch, Role};
use parking_lot::RwLock;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// How often the end is looked for.
const TURN: Duration = Duration::from_millis(50);
/// For how long a node that is not known is taken for one that has just joined.
const NEWCOMER_MAX: Duration = Duration::from_secs(1);
/// Time between two questions of a manager that is behind.
const OLDER_PAUSE: Duration = Duration::from_millis(200);
/// For how long a start waits for a manager.
const START_MAX: Duration = Duration::from_secs(60);

/// See the module.
pub struct Member {
    pub name: NodeName,
    pub env: Env,
    pub identity: Arc<RwLock<Arc<TlsIdentity>>>,
    pub epochs: Arc<Epochs>,
    pub managers: Arc<ManagerCalls>,
    pub caller: Arc<Caller>,
    watcher: MapWatcher,
    directory: NodeDirectory,
}

impl Member {
    /// Reads who this machine is, and gets the map: from a manager, or the last one if none answers.
    pub fn start(directory: NodeDirectory, role: Role) -> Result<Member> {
        let name = directory.load()?;
        if !name.roles.has(role) {
            bail!(
                "the certificate of {} is for {}, not for {role}; `ashlar token --role {role}` on a manager makes a token that allows it",
                name.name,
                name.roles
            );
        }
        let env = Env::os();
        let identity = directory.identity(None)?;
        require_current(&identity, &directory)?;
        let identity = Arc::new(RwLock::new(Arc::new(identity)));
        let (caller, epochs) = caller(&env, identity.clone(), role);
        let managers = Arc::new(ManagerCalls::new(caller.clone(), managers_known(&directory, &name)));
        let map = first_map(&directory, &managers)?;
        if map.cluster != name.cluster {
            bail!(
                "the managers are of file system {}, and this machine belongs to {}",
                map.cluster,
                name.cluster
            );
        }
        let kept = directory.clone();
        let changed = Box::new(move |map: &ClusterMap| kept.keep_map(map));
        managers.set_addresses(&map.addresses(Role::Manager));
        let watcher = MapWatcher::start(managers.clone(), map, &*env.tasks, changed)
            .context("cannot start a thread")?;
        Ok(Member { name, env, identity, epochs, managers, caller, watcher, directory })
    }

    /// Has the certificate renewed in time, for as long as what it returns lives.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn keep_certificate(&self) -> Result<Background> {
        let (managers, directory) = (self.managers.clone(), self.directory.clone());
        let certify = move |public_key| match managers
            .call(&ManagerRequest::Renew { public_key }, Instant::now() + START_MAX)
            .context("the manager")?
        {
            ManagerReply::Certificate(certificate) => Ok(certificate),
            _ => bail!("the manager gave an answer of the wrong kind"),
        };
        let renewal = Renewal {
            directory: self.directory.clone(),
            identity: self.identity.clone(),
            load: Box::new(move || directory.identity(None)),
            certify: Box::new(certify),
        };
        renewal.start(&*self.env.tasks)
    }

    /// The map, kept current.
    pub fn map(&self) -> Arc<RwLock<Arc<ClusterMap>>> {
        self.watcher.map()
    }

    /// Waits until this process has the map of `epoch` or a newer one.
    ///
    /// # Errors
    /// When it does not come.
    pub fn wait_for_epoch(&self, epoch: Epoch) -> Result<()> {
        let (map, deadline) = (self.map(), Instant::now() + START_MAX);
        while map.read().epoch < epoch {
            if Instant::now() >= deadline {
                bail!("the managers do not give the map of {epoch} out, which they have made");
            }
            std::thread::sleep(TURN);
        }
        Ok(())
    }

    /// Routes to other servers.
    pub fn routes(&self) -> Arc<Routes> {
        Arc::new(Routes::new(self.caller.clone(), self.map()))
    }

    /// A call to the managers, with patience for a start.
    pub fn ask(&self, request: &ManagerRequest) -> Result<ManagerReply> {
        self.managers.call(request, Instant::now() + START_MAX).context("the manager")
    }

    /// Serves `endpoint` at `listeners`.
    pub fn serve(
        &self,
        service: Service,
        endpoint: Arc<dyn Endpoint>,
        listeners: Vec<Listener>,
    ) -> Result<Server> {
        let map = self.map();
        let config = ServerConfig {
            identity: self.identity.clone(),
            admit: Box::new(move |peer| admit(&map, peer)),
            tokens: None,
            endpoints: vec![(service, endpoint)],
            epochs: self.epochs.clone(),
            tasks: self.env.tasks.clone(),
        };
        Server::start(config, listeners).context("cannot serve")
    }
}

/// A caller of this process.
pub fn caller(env: &Env, identity: Arc<RwLock<Arc<TlsIdentity>>>, role: Role) -> (Arc<Caller>, Arc<Epochs>) {
    let mut instance = [0; 16];
    env.entropy.fill(&mut instance);
    let epochs = Arc::new(Epochs::default());
    (Arc::new(Caller { identity, role, instance, epochs: epochs.clone() }), epochs)
}

/// Where managers were when this machine joined, and when it last heard of them.
fn managers_known(directory: &NodeDirectory, name: &NodeName) -> Vec<SocketAddr> {
    let newer = directory.load_map().filter(|map| map.cluster == name.cluster);
    let mut known = newer.map(|map| map.addresses(Role::Manager)).unwrap_or_default();
    known
        .extend(name.managers.iter().filter(|address| !known.contains(address)).copied().collect::<Vec<_>>());
    known
}

/// Whether a node may connect. One that has just joined may be known to its manager and not here yet: the map is on its way.
fn admit(map: &RwLock<Arc<ClusterMap>>, peer: &Peer) -> Result<(), String> {
    let deadline = Instant::now() + NEWCOMER_MAX;
    loop {
        let outcome = ashlar_manager::admit(&map.read(), peer);
        // Numbers of nodes are not used again: one that is lower than others was removed.
        let may_be_new = map.read().nodes.last().is_none_or(|newest| newest.id < peer.id.node);
        if outcome.is_ok() || !may_be_new || Instant::now() >= deadline {
            return outcome;
        }
        std::thread::sleep(TURN);
    }
}

fn first_map(directory: &NodeDirectory, managers: &ManagerCalls) -> Result<ClusterMap> {
    let known = directory.load_map();
    let patience = if known.is_some() { Duration::from_secs(5) } else { START_MAX };
    let is_older = |map: &ClusterMap| {
        known.as_ref().is_some_and(|known| known.cluster == map.cluster && known.epoch > map.epoch)
    };
    let deadline = Instant::now() + patience;
    let mut told = managers.map(Epoch(0), deadline);
    // Another manager may have made the newer one a moment ago.
    while told.as_ref().is_ok_and(is_older) && Instant::now() + OLDER_PAUSE < deadline {
        std::thread::sleep(OLDER_PAUSE);
        told = managers.map(Epoch(0), deadline);
    }
    match told {
        // ORDER: an older map than the last one comes from a manager that has lost something, and is not believed.
        Ok(map) if is_older(&map) => {
            bail!(
                "the managers have the map of {}, and this machine has seen {}: their state is an older copy; put the newer one back",
                map.epoch,
                known.map(|known| known.epoch).unwrap_or_default()
            )
        }
        Ok(map) => {
            directory.store_map(&map)?;
            Ok(map)
        }
        Err(error) => match known {
            Some(known) => {
                tracing::warn!(%error, epoch = %known.epoch, "no manager answers; going by the last map");
                Ok(known)
            }
            None => Err(error).context("cannot get the map from a manager"),
        },
    }
}

/// Listens at `addresses`; tells where.
pub fn listen(addresses: &[SocketAddr]) -> Result<(Vec<Listener>, Vec<SocketAddr>)> {
    let listeners =
        addresses.iter().map(|address| Listener::bind(*address)).collect::<Result<Vec<_>, _>>()?;
    let bound = listeners.iter().map(Listener::address).collect::<Result<Vec<_>, _>>()?;
    Ok((listeners, bound))
}

/// Runs `turn` until this process is told to stop.
pub fn until_told_to_stop(is_told: &AtomicBool, mut turn: impl FnMut() -> bool) {
    while !is_told.load(Relaxed) && turn() {
        std::thread::sleep(TURN);
    }
}

/// A flag that Ctrl-C, SIGTERM and the end of the terminal raise.
pub fn stop_flag() -> Result<Arc<AtomicBool>> {
    let is_told = Arc::new(AtomicBool::new(false));
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, is_told.clone()).context("cannot take signals")?;
    }
    Ok(is_told)
}
