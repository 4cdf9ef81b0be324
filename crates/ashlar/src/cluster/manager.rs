//! `ashlar manager`: keeps the map and the certificate authority.

use super::announce;
use super::background::Background;
use super::doors::Doors;
use super::member::{keep_present, stop_flag, until_told_to_stop};
use super::node_directory::{NodeDirectory, NodeName};
use super::renewal::{Renewal, require_current};
use super::store::{self, EtcdStore, Opened};
use crate::cli::ManagerArgs;
use crate::metrics::Metrics;
use crate::node::MetaLock;
use crate::terminal::say;
use anyhow::{Context, Result, bail};
use ashlar_coord::Coord;
use ashlar_coord::etcd::{EtcdMember, EtcdMembership};
use ashlar_env::os::OsDisk;
use ashlar_env::{Disk, Env};
use ashlar_manager::events::EventLog;
use ashlar_manager::{KnownMember, Manager, ManagerEndpoint, ManagerService};
use ashlar_rpc::net::{Caller, Epochs, KnowsToken, ServerConfig, Service, TlsIdentity};
use ashlar_rpc::remote::{Routes, ask_managers};
use ashlar_types::message::{ManagerReply, ManagerRequest};
use ashlar_types::{Epoch, EventKind, Node, Role};
use parking_lot::RwLock;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Time between two looks whether it is time for new keys.
const KEYS_EVERY: Duration = Duration::from_secs(30);
/// Time between two looks at what other managers have changed.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Time between two looks at which members etcd has.
const MEMBERS_EVERY: Duration = Duration::from_secs(3);

/// Time between two looks at which chains are to be moved.
const PLAN_EVERY: Duration = Duration::from_secs(1);
/// Time between two looks which servers are silent.
const SILENCE_EVERY: Duration = Duration::from_secs(1);
// LIMIT: of the time that a start waits for other managers to know of this one, and of that for one of them, which may be away.
/// For how long they may go by an older map.
const KNOWN_MAX: Duration = Duration::from_secs(2);
/// For how long each may take to answer.
const ANSWER_MAX: Duration = Duration::from_secs(1);
/// Time between two questions: a manager does not look for a newer map more often because of others.
const KNOWN_PAUSE: Duration = Duration::from_millis(100);

pub fn run(args: &ManagerArgs) -> Result<()> {
    let is_told = stop_flag()?;
    let directory = NodeDirectory::new(&args.node.node);
    let name = directory.load()?;
    let disk: Arc<dyn Disk> = Arc::new(OsDisk::new(&args.state.state));
    let holder = format!("ashlar manager, process {}", std::process::id());
    let _lock = MetaLock::take(&disk, &args.state.state, &holder)?;
    let env = Env::os();
    move_to_etcd(args, &name, &disk, &env)?;
    let Opened { coord, events, told, members } = store::open(&disk, &env)?;
    if !Manager::exists(&*coord)? {
        bail!(
            "there is no file system at {}: `ashlar init` makes one, or name its directory with --state",
            args.state.state.display()
        );
    }
    let manager = open_state(args, &disk, coord, &name)?;
    let before = manager.map().read().node(name.node).cloned();
    let or_before = |given: &[SocketAddr], known: fn(&Node, Role) -> &[SocketAddr]| match given.is_empty() {
        true => before.as_ref().map(|node| known(node, Role::Manager).to_vec()).unwrap_or_default(),
        false => given.to_vec(),
    };
    let addresses = or_before(&args.listen, Node::addresses);
    let management = or_before(&args.management, Node::management);
    if addresses.is_empty() {
        bail!("where should the manager listen? Say so with --listen ADDRESS:PORT");
    }
    let doors = Doors::open(&addresses, &management)?;
    let (announcement, bound) = (doors.announcement(Role::Manager), doors.places.addresses.clone());
    let events = Arc::new(events);
    manager.note_changes_in(events.clone());
    let service = Arc::new(ManagerService::new(manager, env.clone(), told)?);
    service.set_own_node(name.node);
    members.iter().for_each(|(_, membership)| guard_members(membership, &service));
    rotate_keys_in_time(&service);
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
    metrics.add_certificate(identity.clone());
    let is_reached = Arc::new(AtomicBool::new(true));
    metrics.add_store(if service.manager().is_shared() { "etcd" } else { "file" }, is_reached.clone());
    let server = doors.serve(|wicket| {
        let admitting = admitting.clone();
        ServerConfig {
            identity: identity.clone(),
            admit: Box::new(move |peer| wicket.admit(peer).and_then(|()| admitting.admit(peer))),
            tokens: Some(tokens.clone()),
            endpoints: vec![(Service::Manager, endpoint.clone()), (Service::Process, metrics.endpoint())],
            epochs: epochs.clone(),
            tasks: env.tasks.clone(),
        }
    })?;
    if let ManagerReply::Refused(text) = service.call(own, None, announcement) {
        bail!("{text}");
    }
    let text = format!("manager, version {}, process {}", env!("CARGO_PKG_VERSION"), std::process::id());
    events.note(name.node, EventKind::ServerStarted, &name.name, &text);
    let _events = keep_events(&events, &env)?;
    // So that what it says to others has the epoch of the map with this manager in it.
    endpoint.tidy();
    let to_others = routes(&service, identity.clone(), epochs.clone(), &env);
    // ORDER: before anybody hears that it serves, and may stop another one.
    make_known(&service, &to_others);
    announce::serving(Role::Manager, &bound);
    let _presence = watch_servers(&service, to_others, &env)?;
    let _looks = keep_certificate(&directory, identity, tokens, &service, &env)?;
    let _members = members.map(|members| keep_members(members, &service, &disk, &env)).transpose()?;
    let _watch = watch(&service, &name, &env, is_reached)?;
    let _plan = plan_moves(&service, &env)?;
    let _keys = rotate_keys(&service, &env)?;
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
    events.note(name.node, EventKind::ServerStopped, &name.name, "manager");
    if let Err(error) = events.write() {
        tracing::warn!(%error, "what has happened last could not be written into the event log");
    }
    Ok(())
}

/// Moves the state to the etcd that was named, unless it is there.
fn move_to_etcd(args: &ManagerArgs, name: &NodeName, disk: &Arc<dyn Disk>, env: &Env) -> Result<()> {
    let Some(store) = EtcdStore::given(&args.etcd, name.cluster)? else { return Ok(()) };
    if !args.move_to_etcd {
        bail!("where the state is was said when the file system was made; --move-to-etcd moves it");
    }
    if EtcdStore::load(disk)?.is_none() {
        store.take_over(disk, env).context("cannot move the state to etcd")?;
        say(format_args!("the state is in etcd now"));
    }
    Ok(())
}

/// Has machines not be removed that are members of an etcd that was set up for this file system.
fn guard_members(membership: &EtcdMembership, service: &ManagerService) {
    let membership = membership.clone();
    service.set_etcd_members(Box::new(move || {
        let members = membership.list().map_err(|error| error.to_string())?;
        Ok(members.iter().map(known_member).collect())
    }));
}

fn known_member(member: &EtcdMember) -> KnownMember {
    let host = |url: &String| -> Option<IpAddr> {
        let address: SocketAddr = url.rsplit('/').next()?.parse().ok()?;
        Some(address.ip())
    };
    KnownMember {
        name: member.name.clone(),
        number: format!("{:x}", member.id),
        hosts: member.peer_urls.iter().filter_map(host).collect(),
    }
}

/// Keeps in step with the members of an etcd that was set up for this file system: those that follow and have everything count from then on, and
/// where all are is noted for the next start and for other managers.
fn keep_members(
    (mut store, membership): (EtcdStore, EtcdMembership),
    service: &Arc<ManagerService>,
    disk: &Arc<dyn Disk>,
    env: &Env,
) -> Result<Background> {
    let (service, disk) = (service.clone(), disk.clone());
    let mut look = move || -> Result<()> {
        let members = membership.list()?;
        for follower in members.iter().filter(|member| member.is_learner && !member.name.is_empty()) {
            // Refused until it has what the others have.
            match membership.promote(follower.id) {
                Ok(()) => tracing::info!(member = follower.name, "a member of etcd counts from now on"),
                Err(error) => {
                    tracing::debug!(%error, member = follower.name, "a member of etcd only follows yet")
                }
            }
        }
        let counting = members.iter().filter(|member| !member.is_learner);
        let urls: Vec<String> = counting.flat_map(|member| member.client_urls.clone()).collect();
        if !urls.is_empty() && store.set_endpoints(&urls) {
            membership.set_endpoints(&urls)?;
            store.save(&disk)?;
            service.set_store(store.text()?);
        }
        Ok(())
    };
    let turn = move || {
        if let Err(error) = look() {
            tracing::debug!(error = format!("{error:#}"), "etcd does not tell which members it has");
        }
        MEMBERS_EVERY
    };
    Background::start(&*env.tasks, "ashlar-etcd", turn)
}

/// Has what happens written, in a thread of its own: nobody waits for the store.
fn keep_events(events: &Arc<EventLog>, env: &Env) -> Result<Background> {
    let (events, mut is_away) = (events.clone(), false);
    let write = move || {
        let outcome = if events.has_waiting() { events.write() } else { Ok(()) };
        if let Err(error) = &outcome
            && !is_away
        {
            tracing::warn!(%error, "the event log cannot be written; what happens waits in memory");
        }
        is_away = outcome.is_err();
        LOOK_EVERY
    };
    Background::start(&*env.tasks, "ashlar-events", write)
}

/// The state, which must be that of this machine's file system.
fn open_state(
    args: &ManagerArgs,
    disk: &Arc<dyn Disk>,
    coord: Box<dyn Coord>,
    name: &NodeName,
) -> Result<Manager> {
    let place = args.state.state.display();
    let manager =
        Manager::open(disk, "", coord).with_context(|| format!("cannot open the state at {place}"))?;
    let cluster = manager.identity().cluster;
    if cluster != name.cluster {
        bail!("{place} is of file system {cluster}, and this machine belongs to {}", name.cluster);
    }
    Ok(manager)
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

/// To the managers of the map, this one among them.
fn routes(
    service: &Arc<ManagerService>,
    identity: Arc<RwLock<Arc<TlsIdentity>>>,
    epochs: Arc<Epochs>,
    env: &Env,
) -> Arc<Routes> {
    let mut instance = [0; 16];
    env.entropy.fill(&mut instance);
    let caller = Caller::new(identity, Role::Manager, instance, epochs);
    Arc::new(Routes::new(Arc::new(caller), service.map()))
}

/// Has all managers that answer know the map of this one. By a call that has a newer epoch they look for it, and tell it to all servers and mounts that wait for a newer one: should they stop a moment
/// later, everybody knows where this one is.
fn make_known(service: &ManagerService, to_others: &Routes) {
    let deadline = Instant::now() + KNOWN_MAX;
    loop {
        let epoch = service.map().read().epoch;
        let answers = ask_managers(to_others, &ManagerRequest::Map { have: Epoch(0) }, ANSWER_MAX);
        let is_older = |answer: &ManagerReply| matches!(answer, ManagerReply::Map(map) if map.epoch < epoch);
        if !answers.iter().any(is_older) || Instant::now() >= deadline {
            return;
        }
        std::thread::sleep(KNOWN_PAUSE);
    }
}

/// Notes which servers are silent, and tells other managers that this one is there, for as long as what it returns lives.
fn watch_servers(
    service: &Arc<ManagerService>,
    to_others: Arc<Routes>,
    env: &Env,
) -> Result<[Background; 2]> {
    let telling = keep_present(to_others, Role::Manager, env)?;
    let service = service.clone();
    let look = move || {
        service.look_for_silent_servers();
        SILENCE_EVERY
    };
    Ok([telling, Background::start(&*env.tasks, "ashlar-silence", look)?])
}

/// Begins moves of chains that are due, and has copies of them made that are missing, in a thread of its own.
fn plan_moves(service: &Arc<ManagerService>, env: &Env) -> Result<Background> {
    let service = service.clone();
    let plan = move || {
        if let Err(error) = service.plan_moves() {
            tracing::warn!(%error, "moves of chains could not be begun");
        }
        if let Err(error) = service.plan_chain_copies() {
            tracing::warn!(%error, "copies of chains could not be given to others");
        }
        PLAN_EVERY
    };
    Background::start(&*env.tasks, "ashlar-plan", plan)
}

/// Has keys of a new epoch be made when it is time, for as long as what it returns lives.
fn rotate_keys(service: &Arc<ManagerService>, env: &Env) -> Result<Background> {
    let service = service.clone();
    let turn = move || {
        rotate_keys_in_time(&service);
        KEYS_EVERY
    };
    Background::start(&*env.tasks, "ashlar-keys", turn)
}

fn rotate_keys_in_time(service: &ManagerService) {
    if let Err(error) = service.rotate_keys_in_time() {
        tracing::warn!(%error, "no new keys could be made; those there are stay in use");
    }
}

/// Sees what other managers change, in a thread of its own, so that nobody waits for the store.
fn watch(
    service: &Arc<ManagerService>,
    name: &NodeName,
    env: &Env,
    is_reached: Arc<AtomicBool>,
) -> Result<Option<Background>> {
    if !service.manager().is_shared() {
        return Ok(None);
    }
    let (service, name, mut is_away) = (service.clone(), name.clone(), false);
    let note = move |service: &ManagerService, kind, text: &str| {
        if let Some(events) = service.manager().events() {
            events.note(name.node, kind, &name.name, text);
        }
    };
    let look = move || {
        let outcome = service.manager().refresh();
        is_reached.store(outcome.is_ok(), Relaxed);
        match outcome {
            Ok(()) if is_away => {
                is_away = false;
                tracing::info!("the state of the file system can be reached again");
                note(
                    &service,
                    EventKind::StateReachable,
                    "the manager reaches the state of the file system again",
                );
            }
            Err(error) if !is_away => {
                is_away = true;
                tracing::error!(%error, "the state of the file system cannot be reached: serving goes on, nothing can be changed");
                note(&service, EventKind::StateUnreachable, &error.to_string());
            }
            _ => {}
        }
        LOOK_EVERY
    };
    Background::start(&*env.tasks, "ashlar-state", look).map(Some)
}
