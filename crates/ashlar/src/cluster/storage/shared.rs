//! Disks that other storage servers reach as well (ADR 0031): managers say who has one, and what is to be done is done here, for each disk by a thread of its own.

mod fence;
mod mount;
mod probe;

use super::in_service::InService;
use crate::cli::{SharedArgs, SharedPlace};
use crate::cluster::background::Background;
use crate::node::Directories;
use anyhow::{Context, Result, bail};
use ashlar_replication::shared_disk::{AtServer, Do};
use ashlar_rpc::Reports;
use ashlar_rpc::remote::{ask_managers, tell_managers};
use ashlar_types::message::{ManagerReply, ManagerRequest};
use ashlar_types::{DiskId, DiskOrder, DiskWord, EventKind, NodeId, SharedDisk, TargetId};
use fence::Fence;
use mount::Mounting;
use parking_lot::Mutex;
use probe::Probe;
use rustix::fs::{FlockOperation, flock};
use std::collections::BTreeMap;
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// Time between two words to managers.
const SAY_EVERY: Duration = Duration::from_secs(1);
/// For how long each manager may take to hear them.
const SAY_MAX: Duration = Duration::from_secs(1);
/// For how long a manager may take to grant a disk.
const GRANT_MAX: Duration = Duration::from_secs(5);
/// Time between two attempts at what has failed.
const AGAIN_AFTER: Duration = Duration::from_secs(5);
/// LIMIT: for how long disks are waited for at the end, all of them together.
const END_MAX: Duration = Duration::from_secs(30);
/// Time between two looks meanwhile.
const LOOK: Duration = Duration::from_millis(50);

/// See the module.
pub struct SharedDisks {
    in_service: Arc<InService>,
    disks: Vec<Arc<OneDisk>>,
    fence: Option<Fence>,
    pool: Option<String>,
    lock: Arc<File>,
    is_locked: AtomicBool,
    /// What managers have told of disks: the target on each, once it is known.
    told: Mutex<BTreeMap<DiskId, Option<TargetId>>>,
}

/// A thread is at a disk, until this is dropped.
struct AtWork<'a>(&'a AtomicBool);

impl Drop for AtWork<'_> {
    fn drop(&mut self) {
        self.0.store(false, SeqCst);
    }
}

struct OneDisk {
    mounting: Mounting,
    is_preferred: bool,
    state: Mutex<State>,
    /// A thread is at it.
    is_at_work: AtomicBool,
    probe: Probe,
}

struct State {
    /// Once it could be read.
    id: Option<DiskId>,
    at: AtServer,
    target: Option<TargetId>,
    /// What was tried here last has failed.
    has_failed: bool,
    /// When to try again what has failed.
    not_before: Option<Instant>,
    /// What was told last that goes wrong, so that it is told once.
    told: String,
}

impl SharedDisks {
    /// The disks that `args` names, none of which is in service.
    ///
    /// # Errors
    /// When there are too many, or one is named twice.
    pub fn new(
        in_service: Arc<InService>,
        args: &SharedArgs,
        pool: Option<String>,
    ) -> Result<Arc<SharedDisks>> {
        let node = in_service.parts.member.name.node;
        let named = args.shared.iter().map(|place| (place, true));
        let named: Vec<_> = named.chain(args.standby.iter().map(|place| (place, false))).collect();
        if named.len() > SharedDisk::AT_SERVER_MAX {
            bail!("{} shared disks, and a server has {} at the most", named.len(), SharedDisk::AT_SERVER_MAX);
        }
        for (at, (place, _)) in named.iter().enumerate() {
            if named[..at].iter().any(|(other, _)| other.dir == place.dir) {
                bail!("{} is named twice: once with --shared or --standby", place.dir.display());
            }
        }
        let lock = Arc::new(in_service.parts.member.directory().disks_lock()?);
        let disk = |(place, is_preferred)| Arc::new(OneDisk::new(place, is_preferred, (node, &lock)));
        let disks: Vec<_> = named.into_iter().map(disk).collect();
        if !disks.is_empty() && args.fence.is_none() {
            eprintln!(
                "ashlar: without --fence this server takes no shared disk over from a server that is silent, before an administrator has said `ashlar disk fenced`"
            );
        }
        let fence = args.fence.clone().map(Fence::new);
        let own = SharedDisks {
            in_service,
            disks,
            fence,
            pool,
            lock,
            is_locked: AtomicBool::new(false),
            told: Mutex::default(),
        };
        own.await_targets();
        Ok(Arc::new(own))
    }

    /// Tells managers of the disks, and does what they say, for as long as what it returns lives.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn keep(self: &Arc<Self>) -> Result<Vec<Background>> {
        let tasks = &self.in_service.parts.member.env.tasks;
        if self.disks.is_empty() {
            return Ok(Vec::new());
        }
        let own = self.clone();
        let turn = move || {
            own.turn();
            SAY_EVERY
        };
        let mut all = vec![Background::start(&**tasks, "ashlar-disks", turn)?];
        for disk in &self.disks {
            let disk = disk.clone();
            let probe = move || {
                if disk.state.lock().target.is_some() {
                    disk.probe.look(disk.mounting.dir());
                }
                probe::EVERY
            };
            all.push(Background::start(&**tasks, "ashlar-probe", probe)?);
        }
        Ok(all)
    }

    /// Lets go of all of them, and says so: another server need not wait. What [`SharedDisks::keep`] has returned goes on saying meanwhile what is mounted; nothing new is begun once this server
    /// is told to stop.
    pub fn end(&self) {
        let deadline = Instant::now() + END_MAX;
        for disk in &self.disks {
            while disk.is_at_work.swap(true, SeqCst) && Instant::now() < deadline {
                std::thread::sleep(LOOK);
            }
            let is_mounted = {
                let state = disk.state.lock();
                state.id.is_some() && state.at.is_mounted()
            };
            if is_mounted && let Err(error) = self.let_go(disk) {
                tracing::error!("a shared disk stays mounted: {error:#}");
            }
        }
        let words = self.words();
        if !words.is_empty() {
            tell_managers(
                &self.in_service.parts.member.routes(),
                &ManagerRequest::ShareDisks { words },
                SAY_MAX,
            );
        }
    }

    fn words(&self) -> Vec<DiskWord> {
        let word = |disk: &Arc<OneDisk>| {
            let has_stopped = disk.has_stopped(&self.in_service);
            let state = disk.state.lock();
            let is_failing = state.has_failed || has_stopped || disk.probe.is_late();
            Some(DiskWord {
                id: state.id?,
                seen: state.at.seen(),
                is_mounted: state.at.is_mounted(),
                fenced: state.at.fenced(),
                is_failing,
                is_preferred: disk.is_preferred,
                can_fence: self.fence.is_some(),
                target: state.target,
            })
        };
        self.disks.iter().filter_map(word).collect()
    }

    /// Whether nothing that a process before has begun is under way any more: a program that mounts may outlive who has started it.
    fn is_alone(&self) -> bool {
        if self.is_locked.load(SeqCst) {
            return true;
        }
        let locked = flock(&*self.lock, FlockOperation::NonBlockingLockExclusive);
        if let Err(error) = locked {
            tracing::warn!(%error, "shared disks wait for what a process before has begun: a mount, or another `ashlar storage` of this machine");
        }
        self.is_locked.store(locked.is_ok(), SeqCst);
        locked.is_ok()
    }

    fn turn(self: &Arc<Self>) {
        if !self.is_alone() {
            return;
        }
        let is_unknown = |disk: &&Arc<OneDisk>| {
            let state = disk.state.lock();
            state.id.is_none() && state.not_before.is_none_or(|at| Instant::now() >= at)
        };
        for disk in self.disks.iter().filter(is_unknown) {
            self.start_work(disk, |own, disk| disk.identify(own.in_service.parts.member.name.node));
        }
        let words = self.words();
        if words.is_empty() {
            return;
        }
        let routes = self.in_service.parts.member.routes();
        let answers = ask_managers(&routes, &ManagerRequest::ShareDisks { words }, SAY_MAX);
        // The same for all disks: a server is switched off once for all of them.
        let told = Instant::now();
        for answer in answers {
            match answer {
                ManagerReply::DiskOrders(orders) => {
                    self.note_told(&orders);
                    orders.iter().for_each(|order| self.follow(order, told));
                }
                ManagerReply::Refused(text) => {
                    tracing::warn!(text, "a manager does not take what is said of shared disks")
                }
                _ => {}
            }
        }
    }

    /// Who asks for a target on one of the disks that is not in service here asks again.
    fn await_targets(&self) {
        let told = self.told.lock();
        let known = told.values().filter_map(|target| *target).collect();
        self.in_service.parts.service.await_targets(told.len() < self.disks.len(), known);
    }

    fn note_told(&self, orders: &[DiskOrder]) {
        {
            let mut told = self.told.lock();
            for DiskOrder { disk, .. } in orders {
                let known = told.entry(disk.id).or_default();
                *known = disk.target.or(*known);
            }
        }
        self.await_targets();
    }

    fn follow(self: &Arc<Self>, order: &DiskOrder, told: Instant) {
        let is_it = |disk: &&Arc<OneDisk>| disk.state.lock().id == Some(order.disk.id);
        let Some(disk) = self.disks.iter().find(is_it) else { return };
        if disk.is_at_work.load(SeqCst) || self.in_service.is_told.load(SeqCst) {
            return;
        }
        let next = {
            let mut state = disk.state.lock();
            let serves = state.target.is_some();
            let own = self.in_service.parts.member.name.node;
            if order.disk.user().is_some_and(|user| user != own) {
                // Managers remember who could not use it. Here it is judged anew when it comes back.
                state.has_failed = false;
            }
            let next = state.at.told(&order.disk, serves, order.is_to_take);
            let is_too_early = state.not_before.is_some_and(|at| Instant::now() < at);
            next.filter(|_| !is_too_early)
        };
        match next {
            None => {}
            Some(Do::Ask) => self.start_work(disk, SharedDisks::take),
            Some(Do::LetGo) => self.start_work(disk, SharedDisks::let_go),
            Some(Do::Fence { from, turn }) => {
                self.start_work(disk, move |own, disk| own.fence(disk, (from, turn), told));
            }
        }
    }

    /// Has a thread do something with a disk, unless one is at it.
    fn start_work(
        self: &Arc<Self>,
        disk: &Arc<OneDisk>,
        work: impl FnOnce(&SharedDisks, &OneDisk) -> Result<()> + Send + 'static,
    ) {
        if disk.is_at_work.swap(true, SeqCst) {
            return;
        }
        let (own, at) = (self.clone(), disk.clone());
        let run = move || {
            let _at_work = AtWork(&at.is_at_work);
            at.note(work(&own, &at));
        };
        if let Err(error) = self.in_service.parts.member.env.tasks.spawn("ashlar-disk", Box::new(run)) {
            tracing::error!(%error, "no thread can be started for a shared disk; trying again");
            disk.is_at_work.store(false, SeqCst);
        }
    }

    fn take(&self, disk: &OneDisk) -> Result<()> {
        let id = disk.state.lock().id.context("a disk that could not be read")?;
        let request = ManagerRequest::UseDisk { disk: id };
        let granted = self.in_service.parts.member.managers.call(&request, Instant::now() + GRANT_MAX);
        match granted.context("the manager")? {
            // ORDER: it counts as mounted before it is, so that nobody is told that it is not.
            ManagerReply::DiskGranted(granted) if disk.state.lock().at.granted(&granted) => {}
            ManagerReply::DiskGranted(_) => return Ok(()),
            _ => bail!("the manager gave an answer of the wrong kind"),
        }
        let target = match disk.mounting.mount(id).and_then(|()| self.serve(disk)) {
            Ok(target) => Some(target),
            Err(error) => {
                disk.state.lock().has_failed = true;
                disk.mounting.unmount().context(format!("{error:#}"))?;
                disk.state.lock().at.let_go();
                return Err(error);
            }
        };
        disk.probe.begin();
        {
            let mut state = disk.state.lock();
            (state.has_failed, state.target) = (false, target);
        }
        self.told.lock().insert(id, target);
        self.await_targets();
        Ok(())
    }

    fn serve(&self, disk: &OneDisk) -> Result<TargetId> {
        let listed = Directories::find_targets(&[disk.mounting.dir().to_owned()])?;
        self.in_service.take_shared(&listed, self.pool.as_deref())
    }

    fn let_go(&self, disk: &OneDisk) -> Result<()> {
        let target = disk.state.lock().target;
        if let Some(target) = target {
            if let Err(error) = self.in_service.let_go(target) {
                // What could not be made durable here the next server finds missing, as after a power cut.
                tracing::error!("{error:#}");
            }
            disk.state.lock().target = None;
        }
        disk.mounting.unmount()?;
        disk.probe.end();
        let mut state = disk.state.lock();
        state.at.let_go();
        // What has failed is judged anew when it comes back.
        state.has_failed = false;
        drop(state);
        eprintln!("ashlar: {} is not served here any more", disk.mounting.dir().display());
        Ok(())
    }

    fn fence(&self, disk: &OneDisk, (from, turn): (NodeId, u64), told: Instant) -> Result<()> {
        let Some(fence) = &self.fence else { return Ok(()) };
        let member = &self.in_service.parts.member;
        let map = member.map().read().clone();
        let node = map.node(from).with_context(|| format!("there is no {from} that could be fenced"))?;
        eprintln!("ashlar: fencing {}, for the shared disk {}", node.name, disk.mounting.dir().display());
        if let Err(error) = fence.run(node, told) {
            let text = format!("{error:#}");
            if disk.state.lock().told != text {
                member.reporter.report(EventKind::FenceFailed, &node.name, &text);
            }
            return Err(error);
        }
        disk.state.lock().at.has_fenced(turn);
        Ok(())
    }
}

impl OneDisk {
    fn new(place: &SharedPlace, is_preferred: bool, (node, lock): (NodeId, &Arc<File>)) -> OneDisk {
        let mounting = Mounting::new(place.dir.clone(), place.device.clone(), lock.clone());
        let at = AtServer::new(node, true);
        let state =
            State { id: None, at, target: None, has_failed: false, not_before: None, told: String::new() };
        OneDisk {
            mounting,
            is_preferred,
            state: Mutex::new(state),
            is_at_work: AtomicBool::new(false),
            probe: Probe::default(),
        }
    }

    fn identify(&self, node: NodeId) -> Result<()> {
        let id = self.mounting.identify()?;
        let mut state = self.state.lock();
        // ORDER: looked at when nobody of before can mount it any more.
        state.at = AtServer::new(node, self.mounting.is_in_use());
        state.id = Some(id);
        Ok(())
    }

    fn has_stopped(&self, in_service: &InService) -> bool {
        let target = self.state.lock().target;
        let store = target.and_then(|target| in_service.parts.service.target(target));
        store.is_some_and(|store| store.stopped().is_some())
    }

    /// Notes how something went, and tells people what goes wrong, once.
    fn note(&self, done: Result<()>) {
        let mut state = self.state.lock();
        match done {
            Ok(()) => (state.not_before, state.told) = (None, String::new()),
            Err(error) => {
                state.not_before = Some(Instant::now() + AGAIN_AFTER);
                let text = format!("{error:#}");
                if state.told != text {
                    tracing::error!(dir = %self.mounting.dir().display(), "shared disk: {text}");
                    eprintln!("ashlar: shared disk {}: {text}", self.mounting.dir().display());
                    state.told = text;
                }
            }
        }
    }
}
