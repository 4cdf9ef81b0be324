//! One copy of a metadata server on this machine, and its service while this machine is the one that serves it.

use super::super::background::Background;
use super::super::doors::{Doors, announcement_of_copy};
use super::super::member::Member;
use super::copy_store::DirectoryStore;
use super::host::Site;
use super::papers;
use super::service::{Parts, Running};
use anyhow::{Context, Result, bail};
use ashlar_console::object::node::name;
use ashlar_meta::replica::{Agreement, CopyPeers, LeaseTerms, Replica, ReplicaConfig, Standing, Tenure};
use ashlar_rpc::Reports;
use ashlar_rpc::remote::CopyLinks;
use ashlar_types::membership::{Change, Membership};
use ashlar_types::message::{ManagerReply, ManagerRequest};
use ashlar_types::{Epoch, Errno, EventKind, NodeId};
use parking_lot::Mutex;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::SeqCst};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Time between two looks at the service.
const TURN: Duration = Duration::from_millis(50);
/// Time between two tries to begin the service.
const AGAIN: Duration = Duration::from_millis(500);
/// The longest such time.
const AGAIN_MAX: Duration = Duration::from_secs(2);
/// A service that could not be begun so often in turn is left to another machine.
const FAILURES_MAX: u32 = 3;
/// For how long managers are told where the service is.
const ANNOUNCE_MAX: Duration = Duration::from_secs(15);
/// For how long a manager is asked for a change.
const MANAGER_MAX: Duration = Duration::from_secs(3);
/// For how long a service is waited for that ends. What does not end is ended with the process, so that another service of it can begin.
const END_MAX: Duration = Duration::from_secs(30);
/// A copy that was made anew because of damage is kept for so long, whatever is found: copies that all cannot be read would be made anew from each other for ever.
const KEEPS_FOR: Duration = Duration::from_secs(3600);
/// For how long a copy that leaves is waited for until others know.
const LEAVE_MAX: Duration = Duration::from_secs(5);

/// What a copy is made of.
pub struct CopyParts {
    pub site: Arc<Site>,
    pub server: NodeId,
    pub store: Arc<DirectoryStore>,
    /// The epoch at which the service was begun last, as managers know.
    pub begun: Epoch,
}

/// See the module.
pub struct Copy {
    parts: CopyParts,
    replica: Arc<Replica>,
    /// Who the metadata server is, once this machine may say so, with what keeps its certificate.
    member: Mutex<Option<(Arc<Member>, Option<Background>)>>,
    /// How many copies there are to be; 0: not known.
    wanted: AtomicU8,
    /// The newest epoch at which a service was begun here, or may have been before the process began.
    begun: Mutex<Epoch>,
    /// How often in turn the service could not be begun, and until when it is not tried.
    failed: Mutex<(u32, Option<Instant>)>,
    is_stopping: AtomicBool,
    leaves: AtomicBool,
    has_ended: Mutex<bool>,
    ended: parking_lot::Condvar,
}

struct Peers {
    links: Arc<CopyLinks>,
    server: NodeId,
}

impl CopyPeers for Peers {
    fn ask(&self, node: NodeId, head: &[u8], payload: &[u8], wait: Duration) -> Result<Vec<u8>, Errno> {
        self.links.ask(self.server, node, head, payload, wait)
    }
}

/// Asks managers.
struct Managers {
    site: Weak<Site>,
    server: NodeId,
}

impl Agreement for Managers {
    fn propose(&self, expected: Epoch, change: Change<NodeId>) {
        let Some(site) = self.site.upgrade() else { return };
        let request = ManagerRequest::ChangeCopies { server: self.server, expected, change };
        match site.member.managers.call(&request, Instant::now() + MANAGER_MAX) {
            Ok(_) => tracing::info!(server = %self.server, ?change, "copies of metadata were changed"),
            Err(error) => tracing::debug!(%error, server = %self.server, ?change, "copies were not changed"),
        }
        site.poke.set();
    }

    fn refresh(&self) {
        if let Some(site) = self.site.upgrade() {
            site.poke.set();
        }
    }
}

/// A service that runs here.
struct Service {
    running: Running,
    tenure: Arc<Tenure>,
    member: Arc<Member>,
    shows_metrics: bool,
}

impl Copy {
    /// Begins to keep it.
    ///
    /// # Errors
    /// What the store answers; when no thread can be started.
    pub fn start(parts: CopyParts, membership: &Membership<NodeId>) -> Result<Arc<Copy>> {
        let (site, server) = (&parts.site, parts.server);
        let config = ReplicaConfig {
            node: site.member.name.node,
            env: site.member.env.clone(),
            terms: LeaseTerms::DEFAULT,
            store: parts.store.clone(),
            peers: Arc::new(Peers { links: site.links.clone(), server }),
            keeps_for: KEEPS_FOR.saturating_sub(parts.store.since_set_aside().unwrap_or(KEEPS_FOR)),
            agreement: Arc::new(Managers { site: Arc::downgrade(site), server }),
        };
        let replica = Replica::start(config, membership)?;
        let tasks = site.member.env.tasks.clone();
        let copy = Arc::new(Copy {
            parts,
            replica,
            member: Mutex::default(),
            wanted: AtomicU8::new(0),
            begun: Mutex::default(),
            failed: Mutex::default(),
            is_stopping: AtomicBool::new(false),
            leaves: AtomicBool::new(false),
            has_ended: Mutex::new(false),
            ended: Default::default(),
        });
        // A process before this one may have begun a service at this epoch; the next one is begun at a later one.
        *copy.begun.lock() = copy.replica.first_epoch().max(copy.parts.begun);
        let tending = copy.clone();
        let named = copy.clone();
        // Beforehand: when the other machine has died is no time for it.
        let name = move || {
            if let Err(error) = named.server_member() {
                tracing::debug!(error = format!("{error:#}"), "not certified for a metadata server yet");
            }
        };
        tasks.spawn("ashlar-papers", Box::new(name)).context("cannot start a thread")?;
        tasks.spawn("ashlar-copy", Box::new(move || tending.tend())).context("cannot start a thread")?;
        Ok(copy)
    }

    /// The machine behind it.
    pub fn replica(&self) -> &Arc<Replica> {
        &self.replica
    }

    /// Managers say that it is kept by `membership`, and how many are wanted, if that is not 0.
    pub fn learn(&self, membership: &Membership<NodeId>, wanted: u8) {
        if wanted > 0 {
            self.wanted.store(wanted, SeqCst);
        }
        if let Err(error) = self.replica.learn(membership) {
            tracing::error!(%error, server = %self.parts.server, "a copy could not note who keeps it");
        }
    }

    /// Has it end. If it `leaves`, others go on with the service at once, as soon as managers know; who follows what they say is needed for that.
    pub fn begin_stop(&self, leaves: bool) {
        self.leaves.store(leaves, SeqCst);
        self.is_stopping.store(true, SeqCst);
    }

    /// Waits until it takes no part any more.
    pub fn await_stop(&self) {
        let mut has_ended = self.has_ended.lock();
        let end = Instant::now() + END_MAX + LEAVE_MAX;
        while !*has_ended && !self.ended.wait_until(&mut has_ended, end).timed_out() {}
    }

    /// Closes what it has on the disk; tells whether it is noted what that is.
    pub fn close(&self) -> bool {
        let closed = self.replica.stop();
        if let Err(error) = &closed {
            tracing::warn!(%error, server = %self.parts.server, "a copy was not closed in good order; the next start puts it right");
        }
        closed.is_ok() || self.replica.broken().is_none()
    }

    /// Whether what it has was found to be damaged before it was begun.
    pub fn began_damaged(&self) -> bool {
        self.parts.store.is_damaged()
    }

    /// Tells that what it has is damaged.
    pub fn report_damage(&self, what: &str) {
        self.parts.site.report_damage(self.parts.server, what);
    }

    /// Notes, once it is closed, what was found to be damaged here: it is not used again once others go on without it.
    pub fn note_damage(&self) {
        let Some(what) = self.replica.damage() else { return };
        if let Err(error) = self.parts.store.note_damage(&what) {
            tracing::warn!(%error, server = %self.parts.server, "that a copy is damaged cannot be noted: it is found again");
        }
    }

    fn tend(&self) {
        let mut service: Option<Service> = None;
        let mut standing = self.replica.standing();
        let mut is_told_broken = false;
        while !self.is_stopping.load(SeqCst) {
            standing = self.replica.wait_for_change(standing, TURN);
            let may_go_on = standing.is_primary && standing.is_active && !standing.must_end_service;
            match &mut service {
                Some(running) if may_go_on => running.running.tend(&running.member),
                Some(_) => self.end_now(service.take()),
                None if standing.is_serving && self.may_try() => service = self.begin(standing),
                None => {}
            }
            if let Some(why) = self.replica.broken().filter(|_| !std::mem::replace(&mut is_told_broken, true))
            {
                tracing::error!(server = %self.parts.server, why, "a copy of metadata takes no part any more; it is begun anew in a while");
                if self.replica.damage().is_some() {
                    self.report_damage(&why);
                }
            }
            self.leave_if_too_many(standing);
        }
        self.end_in_order(service.take());
        *self.has_ended.lock() = true;
        self.ended.notify_all();
    }

    /// The last copy in order goes where there are more than are wanted.
    fn leave_if_too_many(&self, standing: Standing) {
        let wanted = usize::from(self.wanted.load(SeqCst));
        if wanted == 0 || standing.is_primary {
            return;
        }
        let (me, membership) = (self.parts.site.member.name.node, self.replica.membership());
        let is_last = membership.in_sync.last() == Some(&me) && membership.in_sync.len() > 1;
        if membership.in_sync.len() > wanted && is_last {
            self.replica.leave();
        }
    }

    /// Begins the service, if this machine may; or asks for an epoch at which it may.
    fn begin(&self, standing: Standing) -> Option<Service> {
        if standing.epoch <= *self.begun.lock() {
            // ORDER: each start has an epoch of its own. Targets tell by it who served last.
            let request = ManagerRequest::ChangeCopies {
                server: self.parts.server,
                expected: standing.epoch,
                change: Change::Renew,
            };
            let site = &self.parts.site;
            if let Err(error) = site.member.managers.call(&request, Instant::now() + MANAGER_MAX) {
                tracing::debug!(%error, "no new epoch for a metadata server; trying again");
                std::thread::sleep(AGAIN);
            }
            site.poke.set();
            return None;
        }
        let tenure = self.replica.begin_service()?;
        *self.begun.lock() = standing.epoch;
        let shows_metrics = !self.parts.site.is_shown.swap(true, SeqCst);
        match self.run(&tenure, standing.epoch, shows_metrics) {
            Ok((running, member)) => {
                *self.failed.lock() = (0, None);
                Some(Service { running, tenure, member, shows_metrics })
            }
            Err(error) => {
                self.ended(&tenure, shows_metrics);
                self.note_failure(&error);
                None
            }
        }
    }

    fn may_try(&self) -> bool {
        self.failed.lock().1.is_none_or(|until| Instant::now() >= until)
    }

    /// The service could not be begun: it is tried again, less and less often; and elsewhere, if it cannot be begun here and others have all of it.
    fn note_failure(&self, error: &anyhow::Error) {
        let server = self.parts.server;
        let times = {
            let mut failed = self.failed.lock();
            let pause = (AGAIN * 2u32.pow(failed.0.min(6))).min(AGAIN_MAX);
            *failed = (failed.0.saturating_add(1), Some(Instant::now() + pause));
            failed.0
        };
        let error = format!("{error:#}");
        tracing::error!(%server, error, "the service of a metadata server could not be begun from this copy; trying again");
        let name = name(&self.parts.site.member.map().read(), server);
        self.parts.site.member.reporter.report(EventKind::MetadataStopped, &name, &error);
        // Without a manager nobody can begin it.
        let is_of_managers = self.parts.site.member.map_told_now().is_err();
        if times >= FAILURES_MAX && !is_of_managers && self.replica.membership().in_sync.len() > 1 {
            tracing::error!(%server, "it is left to another copy");
            self.replica.leave();
        }
    }

    fn run(&self, tenure: &Arc<Tenure>, epoch: Epoch, shows_metrics: bool) -> Result<(Running, Arc<Member>)> {
        let (site, server) = (&self.parts.site, self.parts.server);
        let (member, doors) = (self.server_member()?, self.doors()?);
        let reply = site
            .member
            .managers
            .call(&ManagerRequest::BeginService { server, epoch }, Instant::now() + MANAGER_MAX);
        let ManagerReply::MetaIdentity { name_hash_key, epoch: of_map } = reply.context("the manager")?
        else {
            bail!("the manager gave an answer of the wrong kind");
        };
        // ORDER: which shards are here, and whether the root is, says the map.
        member.wait_for_epoch(of_map)?;
        let parts = Parts {
            member: &member,
            lane: tenure.lane().clone(),
            has_lost: tenure.has_lost(),
            name_hash_key,
            start: epoch,
            copy: Some(tenure.clone()),
            args: &site.args,
            shows_metrics,
        };
        let mut running = Running::start(&parts)?;
        if parts.has_lost
            && let Err(error) = tenure.loss_noted()
        {
            tracing::warn!(%error, "that a loss was told cannot be noted: it is told again with the next start");
        }
        let announcement = announcement_of_copy(&doors.places, (server, epoch));
        let announce = || {
            let told = site.member.managers.call(&announcement, Instant::now() + ANNOUNCE_MAX);
            told.map(drop).context("the manager")
        };
        if let Err(error) = running.open((&member, &site.args), doors, announce) {
            let _watch = EndWatch::begin();
            running.drop_service();
            return Err(error);
        }
        Ok((running, member))
    }

    /// Where the service is reached: the metadata server of this machine where it always is, others at any port.
    fn doors(&self) -> Result<Doors> {
        let (args, is_own) = (&self.parts.site.args, self.parts.server == self.parts.site.member.name.node);
        let any =
            |address: &SocketAddr| SocketAddr::new(address.ip(), if is_own { address.port() } else { 0 });
        let listen: Vec<SocketAddr> = args.listen.iter().map(any).collect();
        let management: Vec<SocketAddr> = args.management.iter().map(any).collect();
        Doors::open(&listen, &management)
    }

    /// Who the metadata server is, for others.
    fn server_member(&self) -> Result<Arc<Member>> {
        let mut known = self.member.lock();
        if let Some((member, _)) = &*known {
            return Ok(member.clone());
        }
        let (site, server) = (&self.parts.site, self.parts.server);
        let made = match server == site.member.name.node {
            // Whose certificate the process keeps.
            true => (site.member.clone(), None),
            false => {
                let path = self.parts.store.identity_path();
                let (member, keeping) = papers::member_of(&site.member, server, &path)?;
                (Arc::new(member), Some(keeping))
            }
        };
        let member = made.0.clone();
        *known = Some(made);
        Ok(member)
    }

    fn ended(&self, tenure: &Tenure, showed_metrics: bool) {
        tenure.end();
        if showed_metrics {
            self.parts.site.is_shown.store(false, SeqCst);
        }
    }

    /// Another machine serves, or may.
    fn end_now(&self, service: Option<Service>) {
        let Some(Service { running, tenure, shows_metrics, .. }) = service else { return };
        tracing::warn!(server = %self.parts.server, "this machine does not serve a metadata server any more");
        let _watch = EndWatch::begin();
        running.drop_service();
        self.ended(&tenure, shows_metrics);
    }

    /// This process ends.
    fn end_in_order(&self, service: Option<Service>) {
        // ORDER: at once, and before what is under way has come to an end: it may wait for another metadata server, and is answered by whoever serves then.
        if let Some(service) = &service {
            service.tenure.end();
        }
        let leaves = self.leaves.load(SeqCst);
        if leaves {
            self.replica.leave();
        }
        if let Some(Service { running, tenure, member, shows_metrics }) = service {
            let _watch = EndWatch::begin();
            if let Err(error) = running.stop(&member) {
                tracing::warn!(error = format!("{error:#}"), "a metadata service did not end in good order");
            }
            self.ended(&tenure, shows_metrics);
        }
        let (me, end) = (self.parts.site.member.name.node, Instant::now() + LEAVE_MAX);
        while leaves && Instant::now() < end {
            let membership = self.replica.membership();
            if !membership.is_in_sync(me) || membership.in_sync.len() == 1 {
                break;
            }
            std::thread::sleep(TURN);
        }
    }
}

/// Ends the process when a service does not end.
struct EndWatch(Arc<AtomicBool>);

impl EndWatch {
    fn begin() -> EndWatch {
        let is_over = Arc::new(AtomicBool::new(false));
        let seen = is_over.clone();
        let watch = move || {
            let end = Instant::now() + END_MAX;
            while !seen.load(SeqCst) {
                if Instant::now() >= end {
                    eprintln!(
                        "ashlar: a metadata service does not end; ending this process, to be started anew"
                    );
                    std::process::exit(70);
                }
                std::thread::sleep(TURN);
            }
        };
        if let Err(error) = std::thread::Builder::new().name("ashlar-end".into()).spawn(watch) {
            tracing::warn!(%error, "the end of a service is not watched");
        }
        EndWatch(is_over)
    }
}

impl Drop for EndWatch {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}
