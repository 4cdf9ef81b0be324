//! What every process of a cluster has: its certificate, the managers, a map that is kept current.

use super::background::Background;
use super::doors::{Serving, Wicket};
use super::newcomers::Newcomers;
use super::node_directory::{NodeDirectory, NodeName};
use super::renewal::{Renewal, require_current};
use anyhow::{Context, Result, bail};
use ashlar_env::Env;
use ashlar_rpc::Reports;
use ashlar_rpc::net::{Caller, Endpoint, Epochs, NetError, ServerConfig, Service, TlsIdentity};
use ashlar_rpc::remote::{ManagerCalls, MapWatcher, Reporter, Routes, tell_managers};
use ashlar_types::message::{ManagerReply, ManagerRequest};
use ashlar_types::{ClusterMap, Epoch, EventKind, KeySet, Role};
use parking_lot::RwLock;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// How often the end is looked for.
const TURN: Duration = Duration::from_millis(50);
/// Time between two questions of a manager that is behind.
const OLDER_PAUSE: Duration = Duration::from_millis(200);
/// For how long a manager may take what has happened.
const REPORT_MAX: Duration = Duration::from_secs(10);
/// The same for a server that stops.
const LAST_REPORT_MAX: Duration = Duration::from_secs(2);
/// Time between two looks whether something has happened.
const REPORT_EVERY: Duration = Duration::from_millis(500);
/// Time between two words of a server that it is there.
const PRESENT_EVERY: Duration = Duration::from_secs(2);
/// For how long each manager may take to hear it: others are not to wait for long for one that is away.
const PRESENT_MAX: Duration = Duration::from_secs(1);
/// For how long a manager is told what it knows.
pub(super) const KNOWN_MAX: Duration = Duration::from_secs(2);
/// For how long a command waits for the map with what it has changed.
const CHANGED_MAX: Duration = Duration::from_secs(5);
/// For how long a start waits for a manager.
pub(super) const START_MAX: Duration = Duration::from_secs(60);

/// See the module.
pub struct Member {
    pub name: NodeName,
    pub env: Env,
    pub identity: Arc<RwLock<Arc<TlsIdentity>>>,
    pub epochs: Arc<Epochs>,
    pub managers: Arc<ManagerCalls>,
    routes: Arc<Routes>,
    /// Who this process is for servers.
    pub caller: Arc<Caller>,
    /// Where this process tells the event log what happens to it.
    pub reporter: Arc<Reporter>,
    watcher: MapWatcher,
    directory: NodeDirectory,
}

impl Member {
    /// Reads who this machine is, and gets the map: from a manager, or the last one if none answers.
    pub fn start(directory: NodeDirectory, role: Role) -> Result<Member> {
        Member::start_as(directory, role, None)
    }

    /// The same for a process that is the same instance for servers as one that has ended, and makes channels from this number on.
    pub fn start_as(
        directory: NodeDirectory,
        role: Role,
        successor: Option<([u8; 16], u32)>,
    ) -> Result<Member> {
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
        let (caller, epochs) = caller(&env, identity.clone(), role, successor);
        let managers = Arc::new(ManagerCalls::new(caller.clone(), managers_known(&directory, &name, role)));
        let map = first_map(&directory, &managers)?;
        if map.cluster != name.cluster {
            bail!(
                "the managers are of file system {}, and this machine belongs to {}",
                map.cluster,
                name.cluster
            );
        }
        let reporter = Arc::new(Reporter::new(env.clock.clone()));
        let keep = Box::new(keeper_of_maps(&directory, &name, &reporter));
        managers.follow(&map);
        let watcher =
            MapWatcher::start(managers.clone(), map, &*env.tasks, keep).context("cannot start a thread")?;
        let routes = Arc::new(Routes::new(caller.clone(), watcher.map()));
        Ok(Member { name, env, identity, epochs, managers, routes, caller, reporter, watcher, directory })
    }

    /// Has the event log told that this server has started, and of everything that is reported, for as long as what it returns lives.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn keep_reporting(&self, role: Role) -> Result<Background> {
        let text = format!("{role}, version {}, process {}", env!("CARGO_PKG_VERSION"), std::process::id());
        self.reporter.report(EventKind::ServerStarted, &self.name.name, &text);
        let (reporter, managers) = (self.reporter.clone(), self.managers.clone());
        let send = move || {
            if let Err(error) = reporter.send(&managers, Instant::now() + REPORT_MAX) {
                tracing::debug!(%error, "no manager takes what has happened here; trying again");
            }
            REPORT_EVERY
        };
        Background::start(&*self.env.tasks, "ashlar-reports", send)
    }

    /// Tells managers that this server is there, for as long as what it returns lives.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn keep_present(&self, role: Role) -> Result<Background> {
        keep_present(self.routes(), role, &self.env)
    }

    /// Tells the event log that this server stops. A manager that does not answer is not waited for long.
    pub fn report_stop(&self, role: Role, reporting: Background) {
        drop(reporting);
        self.reporter.report(EventKind::ServerStopped, &self.name.name, &role.to_string());
        let deadline = Instant::now() + LAST_REPORT_MAX;
        // A manager that was started anew meanwhile does not take a call on the connection it had, but on the next one.
        while let Err(error) = self.reporter.send(&self.managers, deadline) {
            if Instant::now() >= deadline {
                tracing::warn!(%error, "no manager could be told that this server stops");
                break;
            }
            std::thread::sleep(TURN);
        }
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

    /// The keys of capabilities that were kept, if there are any.
    pub fn kept_keys(&self) -> Option<KeySet> {
        self.directory.load_keys(self.name.cluster)
    }

    /// Keeps keys of capabilities for the time in which no manager answers.
    pub fn keep_keys(&self, keys: &KeySet) {
        self.keeper_of_keys()(keys);
    }

    /// As [`Member::keep_keys`], for a thread.
    pub fn keeper_of_keys(&self) -> impl Fn(&KeySet) + Send + 'static {
        let (directory, cluster) = (self.directory.clone(), self.name.cluster);
        move |keys| {
            if let Err(error) = directory.store_keys(cluster, keys) {
                tracing::warn!(error = format!("{error:#}"), "the keys could not be kept");
            }
        }
    }

    /// What this machine keeps of the file system.
    pub fn directory(&self) -> &NodeDirectory {
        &self.directory
    }

    /// The map, kept current.
    pub fn map(&self) -> Arc<RwLock<Arc<ClusterMap>>> {
        self.watcher.map()
    }

    /// Tells whether the map of an epoch, or a newer one, is kept for the next start.
    pub fn is_kept(&self) -> impl Fn(Epoch) -> bool + Send + Sync + use<> {
        self.watcher.is_kept()
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

    /// The map once it tells what this process has just changed. Somebody else may change that again, so it is not waited for long.
    pub fn map_after(&self, is_told: impl Fn(&ClusterMap) -> bool) -> Arc<ClusterMap> {
        let (map, deadline) = (self.map(), Instant::now() + CHANGED_MAX);
        while !is_told(&map.read()) && Instant::now() < deadline {
            std::thread::sleep(TURN);
        }
        map.read().clone()
    }

    /// Ends the connections of nodes that are none any more, whenever it is called and there is another map than before.
    pub fn reviews(&self) -> impl FnMut(&Serving) + use<> {
        let map = self.map();
        let mut epoch = map.read().epoch;
        move |server| {
            let now = map.read().epoch;
            if now != epoch {
                epoch = now;
                server.review();
            }
        }
    }

    /// The map as a manager tells it now.
    ///
    /// # Errors
    /// When none answers in a moment, or one that is behind.
    pub fn map_told_now(&self) -> Result<ClusterMap> {
        let map = self.managers.map(Epoch(0), Instant::now() + KNOWN_MAX).context("the manager")?;
        let known = self.map().read().epoch;
        if map.epoch < known {
            bail!("a manager is behind: it has the map of {}, and this machine that of {known}", map.epoch);
        }
        Ok(map)
    }

    /// Routes to other servers.
    pub fn routes(&self) -> Arc<Routes> {
        self.routes.clone()
    }

    /// A call to the managers, with patience for a start.
    pub fn ask(&self, request: &ManagerRequest) -> Result<ManagerReply> {
        self.managers.call(request, Instant::now() + START_MAX).context("the manager")
    }

    /// As [`Member::ask`], for something that the managers may know already, as the map says: then nobody is waited for who does not answer.
    pub fn tell(&self, request: &ManagerRequest, is_known: bool) -> Result<()> {
        if !is_known {
            return self.ask(request).map(drop);
        }
        match self.managers.call(request, Instant::now() + KNOWN_MAX) {
            Ok(_) => Ok(()),
            Err(NetError::Refused(text)) => bail!("{text}"),
            Err(error) => {
                tracing::warn!(%error, "no manager answers; it knows already what it would be told");
                Ok(())
            }
        }
    }

    /// What a server goes by that serves `endpoints`.
    pub fn server_config(&self, endpoints: &[(Service, Arc<dyn Endpoint>)], wicket: Wicket) -> ServerConfig {
        let (map, newcomers) = (self.map(), Newcomers::default());
        ServerConfig {
            identity: self.identity.clone(),
            admit: Box::new(move |peer| wicket.admit(peer).and_then(|()| newcomers.admit(&map, peer))),
            tokens: None,
            endpoints: endpoints.to_vec(),
            epochs: self.epochs.clone(),
            tasks: self.env.tasks.clone(),
        }
    }
}

/// Keeps maps for the time in which no manager answers. That one cannot be kept is told once, until one can.
fn keeper_of_maps(
    directory: &NodeDirectory,
    name: &NodeName,
    reporter: &Arc<Reporter>,
) -> impl Fn(&ClusterMap) -> bool + Send + use<> {
    let (directory, node, reporter) = (directory.clone(), name.name.clone(), reporter.clone());
    let is_told = AtomicBool::new(false);
    move |map| match directory.store_map(map) {
        Ok(()) => {
            if is_told.swap(false, Relaxed) {
                tracing::warn!(epoch = %map.epoch, "the map can be kept again");
            }
            true
        }
        Err(error) => {
            if !is_told.swap(true, Relaxed) {
                let why = format!("{error:#}");
                tracing::error!(
                    why,
                    "the map cannot be kept for the next start; chunks of chains that have gone stay until it can"
                );
                reporter.report(EventKind::MapNotKept, &node, &why);
            }
            false
        }
    }
}

/// A caller of this process: a new instance, or the `successor` of one, which makes channels from that number on.
pub fn caller(
    env: &Env,
    identity: Arc<RwLock<Arc<TlsIdentity>>>,
    role: Role,
    successor: Option<([u8; 16], u32)>,
) -> (Arc<Caller>, Arc<Epochs>) {
    let (instance, first_channel) = successor.unwrap_or_else(|| {
        let mut instance = [0; 16];
        env.entropy.fill(&mut instance);
        (instance, 0)
    });
    let epochs = Arc::new(Epochs::default());
    let caller = Caller::new(identity, role, instance, epochs.clone()).with_channels_from(first_channel);
    (Arc::new(caller), epochs)
}

/// Tells every manager of `routes` every few seconds that this server is there.
pub fn keep_present(routes: Arc<Routes>, role: Role, env: &Env) -> Result<Background> {
    let say = move || {
        tell_managers(&routes, &ManagerRequest::Present { role }, PRESENT_MAX);
        PRESENT_EVERY
    };
    Background::start(&*env.tasks, "ashlar-present", say)
}

/// Where managers were when this machine joined, and when it last heard of them.
fn managers_known(directory: &NodeDirectory, name: &NodeName, role: Role) -> Vec<SocketAddr> {
    let newer = directory.load_map().filter(|map| map.cluster == name.cluster);
    let (mut known, then) = newer.map(|map| map.managers_of(role)).unwrap_or_default();
    known.extend(then);
    known
        .extend(name.managers.iter().filter(|address| !known.contains(address)).copied().collect::<Vec<_>>());
    known
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
