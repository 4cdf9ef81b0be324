//! Copies of metadata servers on this machine: which there are, how they reach each other, and that what managers say of them is followed (ADR 0029).

use super::super::background::Background;
use super::super::doors::{Doors, Serving};
use super::super::member::Member;
use super::copy::{Copy, CopyParts};
use super::copy_store::{DirectoryStore, kept_in};
use super::read_through::Passes;
use crate::cli::MetaArgs;
use anyhow::{Context, Result, bail};
use ashlar_console::object::node::name;
use ashlar_kv::KvError;
use ashlar_meta::replica::{self, CopyStore};
use ashlar_rpc::Reports;
use ashlar_rpc::net::{Endpoint, NetError, Service};
use ashlar_rpc::remote::{CopyLinks, tell_managers};
use ashlar_rpc::serve::{CopiesEndpoint, HearsCopies};
use ashlar_types::membership::{Change, Membership};
use ashlar_types::message::{ManagerReply, ManagerRequest};
use ashlar_types::{CopyGroup, CopyNotes, Epoch, EventKind, NodeId};
use parking_lot::{Condvar, Mutex, RwLock};
use rustc_hash::FxHashMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// Time between two questions for copies where nothing has changed.
const ASK_EVERY: Duration = Duration::from_secs(2);
/// Time between two words to managers that this machine can keep copies.
const SAY_EVERY: Duration = Duration::from_secs(2);
/// For how long each manager may take to hear it.
const SAY_MAX: Duration = Duration::from_secs(1);
/// Time between two looks whether something has changed.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// For how long a manager is asked.
const MANAGER_MAX: Duration = Duration::from_secs(3);
/// For how long a copy that took no part any more, or could not be opened, is left alone.
const REST: Duration = Duration::from_secs(10);
/// The same after an invitation that came to nothing, mostly because somebody else was faster.
const SOON: Duration = Duration::from_secs(1);

/// What all copies of this process use.
pub struct Site {
    /// This machine.
    pub member: Arc<Member>,
    /// The directory of `ashlar meta`.
    pub meta: PathBuf,
    pub args: MetaArgs,
    pub links: Arc<CopyLinks>,
    /// Where machines that keep copies are.
    places: Arc<RwLock<FxHashMap<NodeId, Vec<SocketAddr>>>>,
    /// Somebody wants managers to be asked now.
    pub poke: Poke,
    /// A service of this process shows what it counts where `--metrics` says.
    pub is_shown: AtomicBool,
}

impl Site {
    /// Tells managers that a copy of `server` here is damaged.
    pub fn report_damage(&self, server: NodeId, what: &str) {
        let name = name(&self.member.map().read(), server);
        let what = format!("a copy at {}: {what}", self.member.name.name);
        self.member.reporter.report(EventKind::DamageFound, &name, &what);
    }
}

/// Wakes whoever asks managers.
#[derive(Default)]
pub struct Poke {
    is_set: Mutex<bool>,
    changed: Condvar,
}

impl Poke {
    /// Has managers be asked now.
    pub fn set(&self) {
        *self.is_set.lock() = true;
        self.changed.notify_all();
    }

    /// Waits until it is set, at most for `wait`.
    fn wait(&self, wait: Duration) -> bool {
        let mut is_set = self.is_set.lock();
        if !*is_set {
            self.changed.wait_for(&mut is_set, wait);
        }
        std::mem::take(&mut is_set)
    }
}

/// What becomes of the copy of one metadata server here.
#[derive(Clone)]
enum Kept {
    /// It takes part.
    Running(Arc<Copy>),
    /// It is being opened or closed, by a thread of its own.
    Busy,
    /// It could not be, or took no part any more, and is tried again after this time; never in this process without one.
    Resting(Option<Instant>),
}

/// Copies by the metadata server they are of.
type AllKept = RwLock<FxHashMap<NodeId, Kept>>;

/// See the module. It ends with [`Host::stop`].
pub struct Host {
    site: Arc<Site>,
    addresses: Vec<SocketAddr>,
    kept: Arc<AllKept>,
    /// What managers have told last, and the epoch of the map by then.
    notes: Mutex<(CopyNotes, Epoch)>,
    serving: Mutex<Option<Serving>>,
    works: Mutex<Vec<Background>>,
    is_stopping: AtomicBool,
    /// When managers were asked last.
    asked: Mutex<Option<Instant>>,
}

/// Gives what comes from other copies to the one it is for.
struct Hearing(Arc<AllKept>);

impl HearsCopies for Hearing {
    fn hear(&self, server: NodeId, from: NodeId, head: &[u8], payload: &[u8]) -> Option<Vec<u8>> {
        let Some(Kept::Running(copy)) = self.0.read().get(&server).cloned() else { return None };
        Some(copy.replica().hear(from, head, payload))
    }

    fn go_on_without(&self, server: NodeId, lost: NodeId) -> Option<()> {
        let Some(Kept::Running(copy)) = self.0.read().get(&server).cloned() else { return None };
        copy.replica().go_on_without(lost)
    }
}

impl Host {
    /// Listens for other copies, and begins to keep those that are in `meta`. `is_shown`: a service of this process shows what it counts already.
    ///
    /// # Errors
    /// When an address cannot be used, or a thread cannot be started.
    pub fn start(member: Arc<Member>, meta: PathBuf, args: &MetaArgs, is_shown: bool) -> Result<Arc<Host>> {
        let listen = match args.copies_listen.is_empty() {
            false => args.copies_listen.clone(),
            // Any port: who has to know it is told by managers.
            true => args.listen.iter().map(|address| SocketAddr::new(address.ip(), 0)).collect(),
        };
        let doors = Doors::open(&listen, &[])?;
        let addresses = doors.places.addresses.clone();
        let (kept, places) = (Arc::<AllKept>::default(), Arc::default());
        let links = Arc::new(CopyLinks::new(member.caller.clone(), Arc::clone(&places)));
        let site = Arc::new(Site {
            member,
            meta,
            args: args.clone(),
            links,
            places,
            poke: Poke::default(),
            is_shown: AtomicBool::new(is_shown),
        });
        let host = Arc::new(Host {
            site: site.clone(),
            addresses: addresses.clone(),
            kept: kept.clone(),
            notes: Mutex::default(),
            serving: Mutex::default(),
            works: Mutex::default(),
            is_stopping: AtomicBool::new(false),
            asked: Mutex::default(),
        });
        let endpoint: Arc<dyn Endpoint> = Arc::new(CopiesEndpoint::new(Arc::new(Hearing(kept))));
        *host.serving.lock() = Some(site.member.serve(&[(Service::Copies, endpoint)], doors)?);
        let (tasks, routes) = (site.member.env.tasks.clone(), site.member.routes());
        let say = move || {
            tell_managers(&routes, &ManagerRequest::HostCopies { addresses: addresses.clone() }, SAY_MAX);
            SAY_EVERY
        };
        let (following, mut review) = (host.clone(), site.member.reviews());
        let turn = move || {
            following.turn();
            if let Some(serving) = &*following.serving.lock() {
                review(serving);
            }
            Duration::ZERO
        };
        let (reading, mut passes) = (host.clone(), Passes::new(Duration::from_secs(args.read_through_every)));
        let read = move || passes.turn(&reading.running());
        let works = [
            Background::start(&*tasks, "ashlar-host", say)?,
            Background::start(&*tasks, "ashlar-copies", turn)?,
            Background::start(&*tasks, "ashlar-read", read)?,
        ];
        host.works.lock().extend(works);
        Ok(host)
    }

    /// Where other copies reach those of this machine.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Whether managers know that the metadata server of this machine is served from copies, wherever.
    pub fn is_own_served_by_copies(&self) -> bool {
        let notes = self.notes.lock();
        // Not known: nothing is begun because of that.
        notes.1 == Epoch(0) || notes.0.membership(self.own()).is_some()
    }

    /// Whether the metadata server of this machine is to have copies, and has none yet.
    pub fn is_own_to_be_founded(&self) -> bool {
        let notes = self.notes.lock();
        notes.0.group(self.own()).is_some_and(|group| group.wanted > 1 && group.membership.is_none())
    }

    /// Has the metadata of this machine, which nobody has open and which is known by `uuid`, be the first copy.
    ///
    /// # Errors
    /// When it cannot be moved, or no manager answers.
    pub fn found_own(&self, uuid: [u8; 16]) -> Result<()> {
        self.site.is_shown.store(false, SeqCst);
        let (own, store) = (self.own(), self.store(self.own())?);
        if !store.is_used()? {
            store.found(&self.site.meta, |store| {
                let alone = Membership::new(Epoch(0), [own]);
                replica::prepare(store, &alone).context("cannot note that there are to be copies")
            })?;
        }
        match self.site.member.ask(&ManagerRequest::FoundCopies { uuid })? {
            ManagerReply::CopiesChanged(_) => {}
            _ => bail!("the manager gave an answer of the wrong kind"),
        }
        self.site.poke.set();
        Ok(())
    }

    fn own(&self) -> NodeId {
        self.site.member.name.node
    }

    fn store(&self, server: NodeId) -> Result<DirectoryStore> {
        let member = &self.site.member;
        DirectoryStore::new(&self.site.meta, server, &member.env, member.name.cluster)
    }

    /// Looks whether something has changed, and asks managers if so.
    fn turn(self: &Arc<Self>) {
        let epoch = self.site.member.map().read().epoch;
        // Earlier managers tell nothing, and are not asked on and on.
        let known = self.notes.lock().1;
        let is_known = known >= epoch || known == Epoch(0) && self.asked.lock().is_some();
        let is_due = self.asked.lock().is_none_or(|asked| asked.elapsed() >= ASK_EVERY);
        if is_known && !is_due && !self.site.poke.wait(LOOK_EVERY) {
            return;
        }
        *self.asked.lock() = Some(Instant::now());
        if let Err(error) = self.follow_once() {
            let error = format!("{error:#}");
            tracing::debug!(error, "copies could not be looked after; trying again");
            self.site.poke.wait(LOOK_EVERY);
        }
    }

    /// Asks managers, and does what they say. Nothing here waits for a disk: other copies may have to take over meanwhile.
    fn follow_once(self: &Arc<Self>) -> Result<()> {
        let asked = self.site.member.managers.call(&ManagerRequest::Copies, Instant::now() + MANAGER_MAX);
        let ManagerReply::Copies { epoch, notes, hosts, invited } = asked.context("the manager")? else {
            bail!("the manager gave an answer of the wrong kind");
        };
        // ORDER: one that is behind may not know of copies that are served from.
        let newest = self.notes.lock().1.max(self.site.member.map().read().epoch);
        if epoch < newest {
            bail!("a manager is behind: it has the map of {epoch}, and this machine has heard of {newest}");
        }
        // A manager that was just started has not heard of all: they are where they were.
        self.site.places.write().extend(hosts.into_iter().map(|host| (host.node, host.addresses)));
        *self.notes.lock() = (notes.clone(), epoch);
        let on_disk = kept_in(&self.site.meta)?;
        for group in &notes.groups {
            if let Some(membership) = &group.membership {
                self.follow(group, membership, on_disk.contains(&group.server));
            }
        }
        let is_over = |server: &NodeId| notes.membership(*server).is_none();
        let over: Vec<NodeId> = self.kept.read().keys().copied().filter(is_over).collect();
        for server in over {
            if let Some(Kept::Running(copy)) = self.kept.read().get(&server).cloned() {
                let words = "there are no copies of a metadata server any more; what is here is left alone";
                tracing::warn!(%server, "{words}");
                self.retire(server, copy);
            }
        }
        for server in invited {
            let group = notes.group(server).context("an invitation to nothing")?.clone();
            self.accept(group);
        }
        Ok(())
    }

    /// Does what managers say of one group.
    fn follow(self: &Arc<Self>, group: &CopyGroup, membership: &Membership<NodeId>, is_on_disk: bool) {
        let known = self.kept.read().get(&group.server).cloned();
        match known {
            Some(Kept::Running(copy)) if copy.replica().broken().is_some() => self.retire(group.server, copy),
            // Others go on without it by now: it is set aside.
            Some(Kept::Running(copy)) if !membership.is_in_sync(self.own()) && copy.began_damaged() => {
                self.retire(group.server, copy);
            }
            Some(Kept::Running(copy)) => copy.learn(membership, group.wanted),
            Some(Kept::Busy) => {}
            Some(Kept::Resting(until)) if until.is_none_or(|until| Instant::now() < until) => {}
            Some(Kept::Resting(_)) | None => {
                if membership.is_member(self.own()) || is_on_disk {
                    let (host, group) = (self.clone(), group.clone());
                    self.apart(group.server, move || host.open(&group));
                }
            }
        }
    }

    /// Has a thread of its own do something with the copy of `server`, and tell what becomes of it.
    fn apart(self: &Arc<Self>, server: NodeId, work: impl FnOnce() -> Kept + Send + 'static) {
        self.kept.write().insert(server, Kept::Busy);
        let kept = self.kept.clone();
        let run = move || {
            let done = work();
            kept.write().insert(server, done);
        };
        if let Err(error) = self.site.member.env.tasks.spawn("ashlar-copy-turn", Box::new(run)) {
            tracing::error!(%error, %server, "no thread could be started for a copy");
            self.kept.write().insert(server, Kept::Resting(Some(Instant::now() + REST)));
        }
    }

    /// Lets go of a copy that takes no part any more. It is begun anew after a while, with what it has on the disk.
    fn retire(self: &Arc<Self>, server: NodeId, copy: Arc<Copy>) {
        self.apart(server, move || {
            copy.begin_stop(false);
            copy.await_stop();
            // What of its log is on the disk could not be noted to be uncertain: this process does not go by it.
            let is_noted = copy.close();
            copy.note_damage();
            Kept::Resting(is_noted.then(|| Instant::now() + REST))
        });
    }

    /// Begins to keep the copy that is in the directory.
    fn open(&self, group: &CopyGroup) -> Kept {
        match self.try_open(group) {
            Ok(Some(copy)) => Kept::Running(copy),
            Ok(None) => Kept::Resting(Some(Instant::now() + REST)),
            Err(error) => self.rest(group.server, &error),
        }
    }

    fn try_open(&self, group: &CopyGroup) -> Result<Option<Arc<Copy>>> {
        let (server, Some(membership)) = (group.server, &group.membership) else { return Ok(None) };
        if self.is_stopping.load(SeqCst) {
            return Ok(None);
        }
        let store = self.store(server)?;
        store.end_founding(&self.site.meta)?;
        if store.is_damaged() && !self.set_aside(&store, server, membership)? {
            return Ok(None);
        }
        let store = Arc::new(store);
        let parts = CopyParts { site: self.site.clone(), server, store: store.clone(), begun: group.begun };
        let started = Copy::start(parts, membership);
        if let Err(error) = &started
            && let Some(KvError::Corrupt { what }) = error.downcast_ref()
        {
            store.note_damage(what)?;
            self.site.report_damage(server, what);
        }
        started.map(Some)
    }

    /// Sets aside what is damaged, if others go on without it; what the last one has is used whatever it is. Whether this machine is to keep a copy.
    fn set_aside(
        &self,
        store: &DirectoryStore,
        server: NodeId,
        membership: &Membership<NodeId>,
    ) -> Result<bool> {
        if membership.is_in_sync(self.own()) {
            return Ok(true);
        }
        let kept = replica::kept_membership(store).ok().flatten();
        if kept.is_some_and(|kept| kept.epoch > membership.epoch) {
            bail!("managers say less than this copy knows");
        }
        let aside = store.set_aside()?;
        let (path, words) = (
            aside.display(),
            "a damaged copy of metadata is made anew from another one; what it was may be removed",
        );
        tracing::warn!(%server, %path, "{words}");
        Ok(membership.is_member(self.own()))
    }

    /// This machine is to keep a copy from now on.
    fn accept(self: &Arc<Self>, group: CopyGroup) {
        let known = self.kept.read().get(&group.server).cloned();
        let running = match known {
            Some(Kept::Busy) => return,
            Some(Kept::Resting(until)) if until.is_none_or(|until| Instant::now() < until) => return,
            Some(Kept::Running(copy)) if copy.began_damaged() => return,
            Some(Kept::Running(copy)) => Some(copy),
            Some(Kept::Resting(_)) | None => None,
        };
        let is_expected = group.former.iter().any(|(node, _)| *node == self.own());
        let host = self.clone();
        self.apart(group.server, move || {
            match host.knows_newer(&group, running.as_ref()) {
                Ok(false) => {}
                Ok(true) => return running.map_or(Kept::Resting(Some(Instant::now() + SOON)), Kept::Running),
                Err(error) => return host.rest(group.server, &error),
            }
            // What managers do not know to have been a copy of this metadata may be one of before a restore: numbers of entries would be compared that mean something else.
            let running = match is_expected {
                true => running,
                false => match host.forget(&group, running) {
                    Ok(()) => None,
                    Err(error) => return host.rest(group.server, &error),
                },
            };
            host.join(&group, running)
        });
    }

    /// Asks to be admitted, and keeps the copy from then on.
    fn join(&self, group: &CopyGroup, running: Option<Arc<Copy>>) -> Kept {
        match (self.admit(group, running.is_none()), running) {
            (Ok(membership), Some(copy)) => {
                self.note_epoch(membership.epoch);
                copy.learn(&membership, group.wanted);
                Kept::Running(copy)
            }
            (Ok(membership), None) => {
                self.note_epoch(membership.epoch);
                self.open(&CopyGroup { membership: Some(membership), ..group.clone() })
            }
            (Err(error), running) => {
                let error = format!("{error:#}");
                tracing::debug!(server = %group.server, error, "an invitation to keep a copy came to nothing");
                running.map_or(Kept::Resting(Some(Instant::now() + SOON)), Kept::Running)
            }
        }
    }

    /// Removes a copy that is of no use.
    fn forget(&self, group: &CopyGroup, running: Option<Arc<Copy>>) -> Result<()> {
        if let Some(copy) = running {
            copy.begin_stop(false);
            copy.await_stop();
            copy.close();
        }
        // It may have heard of something while it was closed.
        if self.knows_newer(group, None)? {
            bail!("managers say less than this copy knows");
        }
        self.store(group.server)?.remove()
    }

    /// Whether what is kept here is of a newer membership than `group` says: a manager is behind.
    fn knows_newer(&self, group: &CopyGroup, running: Option<&Arc<Copy>>) -> Result<bool> {
        let told = group.membership.as_ref().map_or(Epoch(0), |membership| membership.epoch);
        let known = match running {
            Some(copy) => Some(copy.replica().membership()),
            None => replica::kept_membership(&self.store(group.server)?)?,
        };
        Ok(known
            .is_some_and(|known| known.epoch > told || known.epoch == told && known.is_member(self.own())))
    }

    /// Managers that tell of less are behind.
    fn note_epoch(&self, epoch: Epoch) {
        let mut notes = self.notes.lock();
        notes.1 = notes.1.max(epoch);
    }

    fn rest(&self, server: NodeId, error: &anyhow::Error) -> Kept {
        let error = format!("{error:#}");
        tracing::error!(%server, error, "a copy of metadata cannot be kept; trying again");
        Kept::Resting(Some(Instant::now() + REST))
    }

    /// Asks managers for this machine to be one of those that keep a copy.
    fn admit(&self, group: &CopyGroup, is_new: bool) -> Result<Membership<NodeId>> {
        let membership = group.membership.as_ref().context("an invitation to nothing")?;
        if is_new {
            let store = self.store(group.server)?;
            if store.kept()?.is_none() {
                // ORDER: noted before a manager is asked, see `replica::prepare`.
                replica::prepare(&store, membership)?;
            }
        }
        let change = Change::Admit(self.own());
        let request =
            ManagerRequest::ChangeCopies { server: group.server, expected: membership.epoch, change };
        match self.site.member.managers.call(&request, Instant::now() + MANAGER_MAX) {
            Ok(ManagerReply::CopiesChanged(membership)) => {
                tracing::info!(server = %group.server, epoch = %membership.epoch, "a copy of metadata is kept here from now on");
                Ok(membership)
            }
            Ok(_) => bail!("the manager gave an answer of the wrong kind"),
            Err(NetError::Refused(why)) => bail!("{why}"),
            Err(error) => Err(error).context("the manager"),
        }
    }

    /// Copies that take part, by the metadata server they are of.
    fn running(&self) -> Vec<(NodeId, Arc<Copy>)> {
        let running = |(server, kept): (&NodeId, &Kept)| match kept {
            Kept::Running(copy) => Some((*server, copy.clone())),
            _ => None,
        };
        self.kept.read().iter().filter_map(running).collect()
    }

    /// Ends all copies: services that run from them go to other machines where there are some.
    pub fn stop(&self) {
        self.is_stopping.store(true, SeqCst);
        let copies: Vec<Arc<Copy>> = self.running().into_iter().map(|(_, copy)| copy).collect();
        copies.iter().for_each(|copy| copy.begin_stop(true));
        // Memberships are still followed meanwhile: without this machine others go on at once.
        copies.iter().for_each(|copy| copy.await_stop());
        self.works.lock().clear();
        self.kept.write().clear();
        if let Some(serving) = self.serving.lock().take() {
            serving.stop();
        }
        for copy in &copies {
            copy.close();
        }
    }
}
