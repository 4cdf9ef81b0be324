//! The metadata service of one metadata server, with everything around it: what it is reached by, what it asks of others, what works behind it.

use super::super::announce;
use super::super::background::Background;
use super::super::doors::{Doors, Serving};
use super::super::keys;
use super::super::member::Member;
use super::super::shard_pause::{ASK_EVERY, ShardPause};
use super::unheard;
use crate::cli::MetaArgs;
use crate::metrics::Metrics;
use crate::node::state::root_settings;
use anyhow::{Context, Result};
use ashlar_kv::Lane;
use ashlar_meta::replica::Tenure;
use ashlar_meta::{MetaConfig, MetaService, Transferred};
use ashlar_metrics::{Counted, ServiceKinds, Side};
use ashlar_rpc::net::{Caller, Endpoint, Service};
use ashlar_rpc::remote::{Granter, Patience, RemotePeers, RemoteStorage, Routes, ServiceStart};
use ashlar_rpc::serve::{MetaEndpoint, Proofs};
use ashlar_rpc::{Reports, StorageCalls};
use ashlar_types::message::{ManagerReply, ManagerRequest};
use ashlar_types::{Epoch, EventKind, NodeId, Role, ShardId};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// For how long a target that does not answer is waited for.
const TARGET_MAX: Duration = Duration::from_secs(10);
/// For how long a manager is asked.
const MANAGER_MAX: Duration = Duration::from_secs(5);
/// Time between looks whether shards are to change hands, after one that failed.
const TEND_EVERY: Duration = Duration::from_millis(500);
/// For how long a start waits until storage servers have heard of it, and one that compares what they have with what is left.
const HEARD_MAX: Duration = Duration::from_secs(2);
const HEARD_AFTER_LOSS_MAX: Duration = Duration::from_secs(3);
/// Turns between two looks at what is behind the service.
const TIDY_EVERY: u32 = 20;

/// What a service is made of.
pub struct Parts<'a> {
    /// The metadata server.
    pub member: &'a Member,
    pub lane: Arc<Lane>,
    /// Something that was acknowledged may not be in the lane.
    pub has_lost: bool,
    pub name_hash_key: [u8; 16],
    /// The epoch at which it is begun, later with every start.
    pub start: Epoch,
    /// The copy that it is served from.
    pub copy: Option<Arc<Tenure>>,
    pub args: &'a MetaArgs,
    /// Whether it shows what it counts where `--metrics` says: one service of a process does.
    pub shows_metrics: bool,
}

/// A service that runs.
pub struct Running {
    pub meta: Arc<MetaService>,
    storage: Arc<dyn StorageCalls>,
    endpoint: Arc<MetaEndpoint>,
    granter: Arc<Granter>,
    metrics: Metrics,
    shown: Option<ashlar_metrics::Server>,
    server: Option<Serving>,
    works: Vec<Background>,
    reporting: Option<Background>,
    review: Box<dyn FnMut(&Serving) + Send>,
    turn: u32,
    has_stopped: bool,
    is_shared: bool,
}

/// Stops attending storage servers where a start comes to nothing.
struct StopsGranter(Option<Arc<Granter>>);

impl StopsGranter {
    /// It goes on.
    fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for StopsGranter {
    fn drop(&mut self) {
        if let Some(granter) = &self.0 {
            granter.stop();
        }
    }
}

/// Links of a service: those of the process, or, where it is served from copies, of an instance of its own that says nothing any more once another machine may
/// have taken over.
fn routes_of(parts: &Parts<'_>) -> Arc<Routes> {
    let Some(tenure) = parts.copy.clone() else { return parts.member.routes() };
    let (member, mut instance) = (parts.member, [0; 16]);
    member.env.entropy.fill(&mut instance);
    let may_send = Arc::new(move || tenure.may_speak());
    let caller = Caller::new(member.identity.clone(), Role::Meta, instance, member.epochs.clone());
    Arc::new(Routes::new(Arc::new(caller.guarded(may_send)), member.map()))
}

impl Running {
    /// Recovers the metadata, and starts what works behind calls. Nobody is served before [`Running::open`].
    ///
    /// # Errors
    /// When the metadata cannot be recovered, or a manager does not answer who has to.
    pub fn start(parts: &Parts<'_>) -> Result<Running> {
        let Parts { member, args, .. } = parts;
        let metrics = Metrics::new("meta");
        metrics.add_map(member.map());
        let routes = routes_of(parts);
        let targets = Arc::new(RemoteStorage::new(routes.clone(), Patience::new(TARGET_MAX)).giving_up());
        let calls = metrics.calls(Side::Sent, ServiceKinds::STORAGE);
        let storage = Arc::new(Counted::new(targets.clone(), calls));
        let keys = keys::first_sealing_keys(member)?;
        let (of, env) = ((member.name.cluster, member.name.node), member.env.clone());
        let is_shared = parts.copy.is_some();
        let start = Some(ServiceStart { number: parts.start.0, is_shared });
        // ORDER: before it asks anything of targets, they heed no machine that served it before.
        let granter =
            Granter::start(routes.clone(), env, of, keys.clone(), start).context("cannot start a thread")?;
        let stops = StopsGranter(Some(granter.clone()));
        if is_shared {
            let silent = granter.await_heard(if parts.has_lost { HEARD_AFTER_LOSS_MAX } else { HEARD_MAX });
            if !silent.is_empty() {
                let names: Vec<String> = silent.iter().map(ToString::to_string).collect();
                tracing::warn!(
                    servers = names.join(", "),
                    "not every storage server has heard of this start; those are asked for nothing until they have"
                );
            }
            // Who has all that was acknowledged need not compare it with what a target has.
            if !silent.is_empty() && !parts.has_lost {
                let (granter, map) = (granter.clone(), member.map());
                let is_unheard = move |node| silent.contains(&node) && !granter.has_heard(node);
                targets.do_without(Box::new(move |request| {
                    // ORDER: not under its lock. Who has heard is asked under another one.
                    let map = map.read().clone();
                    unheard::answer(request, &map, &is_unheard)
                }));
            }
        }
        let config = MetaConfig {
            has_lost: parts.has_lost,
            lane: parts.lane.clone(),
            env: member.env.clone(),
            name_hash_key: parts.name_hash_key,
            map: member.map(),
            keeps_sessions: true,
            storage: storage.clone(),
            peers: Some((Arc::new(RemotePeers::new(routes)), member.name.node)),
        };
        let (meta, report) = MetaService::start(config, root_settings())
            .context("the metadata service could not recover; the log has details")?;
        if report.sessions_reaped > 0 {
            tracing::info!(?report, "cleaned up after sessions that had not ended");
        }
        metrics.add_meta(&meta);
        let endpoint = endpoint_of(parts, &meta, &granter, &metrics)?;
        metrics.add_certificate(member.identity.clone());
        let shown = match parts.shows_metrics.then(|| metrics.serve(&args.metrics)).transpose() {
            Ok(shown) => shown.flatten(),
            // Who takes over does not wait for that.
            Err(error) if is_shared => {
                tracing::warn!(error = format!("{error:#}"), "what is counted is not shown");
                None
            }
            Err(error) => return Err(error),
        };
        let request = (ManagerRequest::SealingKeys, keys);
        let (asked, sealing) = (granter.clone(), granter.clone());
        let keys =
            keys::follow(member, request, move || asked.wants_keys(), move |keys| sealing.set_keys(keys))?;
        stops.keep();
        Ok(Running {
            is_shared,
            meta,
            storage,
            endpoint,
            granter,
            metrics,
            shown,
            server: None,
            works: vec![keys],
            reporting: None,
            review: Box::new(member.reviews()),
            turn: 0,
            has_stopped: false,
        })
    }

    /// Targets, as the service sees them.
    pub fn storage(&self) -> &dyn StorageCalls {
        &*self.storage
    }

    /// Serves at `doors`, and has managers told by `announce`.
    ///
    /// # Errors
    /// When a thread cannot be started, or no manager takes it.
    pub fn open(
        &mut self,
        (member, args): (&Member, &MetaArgs),
        doors: Doors,
        announce: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let bound: Vec<SocketAddr> = doors.places.addresses.clone();
        start_threads(&self.meta, args.split_at).context("cannot start a thread")?;
        let served: [(Service, Arc<dyn Endpoint>); 2] =
            [(Service::Meta, self.endpoint.clone()), (Service::Process, self.metrics.endpoint())];
        self.server = Some(member.serve(&served, doors)?);
        // ORDER: it serves before the map says so.
        announce()?;
        self.works.extend(move_shards(member, &self.meta)?);
        self.reporting = Some(member.keep_reporting(Role::Meta)?);
        self.works.push(member.keep_present(Role::Meta)?);
        announce::serving(Role::Meta, &bound);
        Ok(())
    }

    /// Looks after it. To be called every 50 ms or so.
    pub fn tend(&mut self, member: &Member) {
        if let Some(server) = &self.server {
            (self.review)(server);
        }
        self.turn = self.turn.wrapping_add(1);
        if self.turn.is_multiple_of(TIDY_EVERY) {
            self.has_stopped = self.has_stopped || report_if_stopped(member, &self.meta);
            self.endpoint.tidy();
            self.meta.resume_across();
        }
    }

    /// Ends it.
    ///
    /// # Errors
    /// When the log cannot be closed; one with copies stays open.
    pub fn stop(mut self, member: &Member) -> Result<()> {
        if let Some(reporting) = self.reporting.take() {
            member.report_stop(Role::Meta, reporting);
        }
        self.works.clear();
        if let Some(server) = self.server.take() {
            server.stop();
        }
        self.shown = None;
        let Running { meta, endpoint, granter, is_shared, .. } = self;
        drop(endpoint);
        granter.stop();
        // Where another machine goes on, it does not wait for targets.
        if !is_shared {
            meta.prepare_stop();
        }
        meta.stop().context("could not close the metadata log")
    }

    /// Ends it at once: another machine may serve it already, and nobody is told anything more.
    pub fn drop_service(mut self) {
        self.works.clear();
        self.reporting = None;
        if let Some(server) = self.server.take() {
            server.stop();
        }
        self.shown = None;
        self.granter.stop();
        if let Err(error) = self.meta.stop() {
            tracing::warn!(%error, "a metadata service did not end in good order; its copies go on");
        }
    }
}

fn endpoint_of(
    parts: &Parts<'_>,
    meta: &Arc<MetaService>,
    granter: &Arc<Granter>,
    metrics: &Metrics,
) -> Result<Arc<MetaEndpoint>> {
    let member = parts.member;
    let counted = Arc::new(Counted::new(meta.clone(), metrics.calls(Side::Served, ServiceKinds::META)));
    let clock = member.env.clock.clone();
    let proofs = Arc::new(Proofs::new(member.name.cluster, &keys::open_key(member)?));
    metrics.add_proofs(proofs.clone());
    let endpoint = MetaEndpoint::new(counted, member.map(), clock, granter.clone(), proofs);
    let endpoint = match &parts.copy {
        Some(tenure) => endpoint.with_copies(tenure.clone()),
        None => endpoint,
    };
    let endpoint = Arc::new(endpoint.reporting_to(member.reporter.clone()));
    meta.report_to(member.reporter.clone());
    metrics.add_clients(endpoint.clients(), member.map(), false);
    Ok(endpoint)
}

/// Starts what works behind calls.
fn start_threads(meta: &Arc<MetaService>, split_at: u64) -> std::io::Result<()> {
    meta.start_collector()?;
    meta.start_trimmer()?;
    meta.start_splitter(split_at)
}

/// Tells managers if the metadata takes no more changes; tells whether that is so.
fn report_if_stopped(member: &Member, meta: &MetaService) -> bool {
    let why = meta.stopped();
    if let Some(why) = &why {
        member.reporter.report(EventKind::MetadataStopped, &member.name.name, why);
    }
    why.is_some()
}

/// Has shards go to other servers as they are to, and come from them, for as long as what it returns lives.
fn move_shards(member: &Member, meta: &Arc<MetaService>) -> Result<[Background; 3]> {
    let (managers, sender) = (member.managers.clone(), meta.clone());
    let transfer = move |shards: &[ShardId], from: NodeId, to: NodeId, seen: Epoch| {
        let request = ManagerRequest::TransferShards { shards: shards.to_vec(), from, to, seen };
        match managers.ask_once(&request, Instant::now() + MANAGER_MAX) {
            Some(Ok(ManagerReply::Transferred(Ok(())))) => Transferred::Done,
            Some(Ok(ManagerReply::Transferred(Err(why)))) => Transferred::Refused(why),
            Some(Ok(_)) => Transferred::Unknown,
            Some(Err(error)) => {
                tracing::warn!(%error, "it is not known whether a shard was transferred; asking again");
                Transferred::Unknown
            }
            None => Transferred::NotAsked,
        }
    };
    let pause = Arc::new(ShardPause::new(member, meta));
    let asked = pause.clone();
    let send = move || {
        // ORDER: before one is begun. While it is under way, the other thread looks.
        asked.look();
        sender.carry_out_moves(&transfer)
    };
    let send = Background::start(&*member.env.tasks, "ashlar-send", send)?;
    let look = move || {
        pause.look();
        ASK_EVERY
    };
    let look = Background::start(&*member.env.tasks, "ashlar-pause", look)?;
    let receiver = meta.clone();
    let tend = move || match receiver.tend_shards() {
        Ok(pause) => {
            receiver.await_shards(pause);
            Duration::ZERO
        }
        Err(errno) => {
            tracing::warn!(%errno, "could not look whether shards are to change hands; trying again");
            TEND_EVERY
        }
    };
    let tend = Background::start(&*member.env.tasks, "ashlar-shards", tend)?;
    Ok([send, look, tend])
}
