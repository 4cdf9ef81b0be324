//! Copies of metadata servers on this machine: which there are, how they reach each other, and that what managers say of them is followed (ADR 0029).

use super::super::background::Background;
use super::super::doors::{Doors, Serving};
use super::super::member::Member;
use super::copy::{Copy, CopyParts};
use super::copy_store::{DirectoryStore, kept_in};
use crate::cli::MetaArgs;
use anyhow::{Context, Result, bail};
use ashlar_meta::replica::{self, CopyStore};
use ashlar_rpc::net::{Endpoint, Service};
use ashlar_rpc::remote::CopyLinks;
use ashlar_rpc::serve::{CopiesEndpoint, HearsCopies};
use ashlar_types::membership::{Change, Membership};
use ashlar_types::message::{ManagerReply, ManagerRequest};
use ashlar_types::{CopyNotes, Epoch, NodeId};
use parking_lot::{Condvar, Mutex, RwLock};
use rustc_hash::FxHashMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// Time between two questions for copies where nothing has changed: managers hear by it that this machine can keep some.
const ASK_EVERY: Duration = Duration::from_secs(2);
/// Time between two looks whether something has changed.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// For how long a copy that took no part any more is left alone.
const REST: Duration = Duration::from_secs(10);
/// For how long a manager is asked.
const MANAGER_MAX: Duration = Duration::from_secs(3);

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

/// Copies by the metadata server they are of.
type Kept = RwLock<FxHashMap<NodeId, Arc<Copy>>>;

/// See the module. It ends with [`Host::stop`].
pub struct Host {
    site: Arc<Site>,
    addresses: Vec<SocketAddr>,
    kept: Arc<Kept>,
    /// What managers have told last, and the epoch of the map by then.
    notes: Mutex<(CopyNotes, Epoch)>,
    serving: Mutex<Option<Serving>>,
    following: Mutex<Option<Background>>,
    is_stopping: AtomicBool,
    /// Copies that took no part any more, and since when they wait to be begun anew.
    resting: Mutex<FxHashMap<NodeId, Instant>>,
    /// When managers were asked last, milliseconds since the start.
    asked_ms: AtomicU64,
    began: Instant,
}

/// Gives what comes from other copies to the one it is for.
struct Hearing(Arc<Kept>);

impl HearsCopies for Hearing {
    fn hear(&self, server: NodeId, from: NodeId, head: &[u8], payload: &[u8]) -> Option<Vec<u8>> {
        let copy = self.0.read().get(&server).cloned()?;
        Some(copy.replica().hear(from, head, payload))
    }
}

impl Host {
    /// Listens for other copies, and begins to keep those that are in `meta`.
    ///
    /// # Errors
    /// When an address cannot be used, a copy cannot be opened, or no manager answers.
    pub fn start(member: Arc<Member>, meta: PathBuf, args: &MetaArgs) -> Result<Arc<Host>> {
        let listen = match args.copies_listen.is_empty() {
            false => args.copies_listen.clone(),
            // Any port: who has to know it is told by managers.
            true => args.listen.iter().map(|address| SocketAddr::new(address.ip(), 0)).collect(),
        };
        let doors = Doors::open(&listen, &[])?;
        let addresses = doors.places.addresses.clone();
        let (kept, places) = (Arc::<Kept>::default(), Arc::default());
        let links = Arc::new(CopyLinks::new(member.caller.clone(), Arc::clone(&places)));
        let site = Arc::new(Site {
            member,
            meta,
            args: args.clone(),
            links,
            places,
            poke: Poke::default(),
            is_shown: AtomicBool::new(false),
        });
        let host = Arc::new(Host {
            site: site.clone(),
            addresses: addresses.clone(),
            kept: kept.clone(),
            notes: Mutex::default(),
            serving: Mutex::default(),
            following: Mutex::default(),
            is_stopping: AtomicBool::new(false),
            resting: Mutex::default(),
            asked_ms: AtomicU64::new(0),
            began: Instant::now(),
        });
        let endpoint: Arc<dyn Endpoint> = Arc::new(CopiesEndpoint::new(Arc::new(Hearing(kept))));
        *host.serving.lock() = Some(site.member.serve(&[(Service::Copies, endpoint)], doors)?);
        match site.member.ask(&ManagerRequest::HostCopies { addresses }) {
            Ok(_) => {}
            // One of an earlier version keeps no copies, and everything else goes on.
            Err(error) => {
                tracing::warn!(error = format!("{error:#}"), "managers do not know of copies of metadata");
                return Ok(host);
            }
        }
        host.follow_once()?;
        let following = host.clone();
        let turn = move || {
            following.turn();
            Duration::ZERO
        };
        *host.following.lock() = Some(Background::start(&*site.member.env.tasks, "ashlar-copies", turn)?);
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

    /// Has the metadata of this machine, which nobody has open, be the first copy.
    ///
    /// # Errors
    /// When it cannot be moved, or no manager answers.
    pub fn found_own(&self) -> Result<()> {
        let (own, store) = (self.own(), self.store(self.own())?);
        if !store.is_used()? {
            store.found(&self.site.meta, |store| {
                let alone = Membership::new(Epoch(0), [own]);
                replica::prepare(store, &alone).context("cannot note that there are to be copies")
            })?;
        }
        match self.site.member.ask(&ManagerRequest::FoundCopies)? {
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
    fn turn(&self) {
        let epoch = self.site.member.map().read().epoch;
        let is_known = self.notes.lock().1 >= epoch;
        let now_ms = self.began.elapsed().as_millis() as u64;
        let is_due = now_ms.saturating_sub(self.asked_ms.load(SeqCst)) >= ASK_EVERY.as_millis() as u64;
        if is_known && !is_due && !self.site.poke.wait(LOOK_EVERY) {
            return;
        }
        self.asked_ms.store(now_ms, SeqCst);
        if let Err(error) = self.follow_once() {
            tracing::debug!(error = format!("{error:#}"), "copies could not be looked after; trying again");
            self.site.poke.wait(LOOK_EVERY);
        }
    }

    /// Asks managers, and does what they say.
    fn follow_once(&self) -> Result<()> {
        let asked = self.site.member.managers.call(&ManagerRequest::Copies, Instant::now() + MANAGER_MAX);
        let ManagerReply::Copies { epoch, notes, invited } = asked.context("the manager")? else {
            bail!("the manager gave an answer of the wrong kind");
        };
        // ORDER: one that is behind may not know of copies that are served from.
        let newest = self.notes.lock().1.max(self.site.member.map().read().epoch);
        if epoch < newest {
            bail!("a manager is behind: it has the map of {epoch}, and this machine has heard of {newest}");
        }
        let places = notes.hosts.iter().map(|host| (host.node, host.addresses.clone())).collect();
        *self.site.places.write() = places;
        *self.notes.lock() = (notes.clone(), epoch);
        let on_disk = kept_in(&self.site.meta)?;
        let me = self.own();
        for group in &notes.groups {
            let Some(membership) = &group.membership else { continue };
            let known = self.kept.read().get(&group.server).cloned();
            match known {
                Some(copy) if copy.replica().broken().is_some() => self.retire(group.server, &copy),
                Some(copy) => copy.learn(membership, group.wanted),
                None if !self.is_resting(group.server)
                    && (membership.is_member(me) || on_disk.contains(&group.server)) =>
                {
                    self.keep(group.server, membership)?;
                }
                None => {}
            }
        }
        let is_over = |server: &NodeId| notes.membership(*server).is_none();
        let over: Vec<NodeId> = self.kept.read().keys().copied().filter(is_over).collect();
        for server in over {
            let known = self.kept.read().get(&server).cloned();
            if let Some(copy) = known {
                tracing::warn!(%server, "there are no copies of a metadata server any more; what is here is left alone");
                self.retire(server, &copy);
            }
        }
        for server in invited.into_iter().filter(|server| !self.is_resting(*server)) {
            let membership = notes.membership(server).context("an invitation to nothing")?;
            self.accept(server, membership)?;
        }
        Ok(())
    }

    /// Lets go of a copy that takes no part any more. It is begun anew after a while, with what it has on the disk.
    fn retire(&self, server: NodeId, copy: &Copy) {
        self.kept.write().remove(&server);
        copy.begin_stop(false);
        copy.await_stop();
        copy.close();
        self.resting.lock().insert(server, Instant::now());
    }

    fn is_resting(&self, server: NodeId) -> bool {
        self.resting.lock().get(&server).is_some_and(|since| since.elapsed() < REST)
    }

    /// Begins to keep the copy of `server` that is in the directory.
    fn keep(&self, server: NodeId, membership: &Membership<NodeId>) -> Result<()> {
        if self.is_stopping.load(SeqCst) {
            return Ok(());
        }
        let store = self.store(server)?;
        store.end_founding(&self.site.meta)?;
        let parts = CopyParts { site: self.site.clone(), server, store: Arc::new(store) };
        let copy = Copy::start(parts, membership)
            .with_context(|| format!("cannot keep a copy of the metadata of {server}"))?;
        self.kept.write().insert(server, copy);
        Ok(())
    }

    /// This machine is to keep a copy of `server` from now on.
    fn accept(&self, server: NodeId, membership: &Membership<NodeId>) -> Result<()> {
        let me = self.own();
        if !self.kept.read().contains_key(&server) {
            let store = self.store(server)?;
            if store.kept()?.is_none() {
                // ORDER: noted before a manager is asked, see `replica::prepare`.
                replica::prepare(&store, membership)?;
            }
        }
        let change = Change::Admit(me);
        let request = ManagerRequest::ChangeCopies { server, expected: membership.epoch, change };
        let asked = self.site.member.managers.call(&request, Instant::now() + MANAGER_MAX);
        let ManagerReply::CopiesChanged(membership) = asked.context("the manager")? else {
            bail!("the manager gave an answer of the wrong kind");
        };
        tracing::info!(%server, epoch = %membership.epoch, "a copy of metadata is kept here from now on");
        let known = self.kept.read().get(&server).cloned();
        match known {
            Some(copy) => copy.learn(&membership, 0),
            None => self.keep(server, &membership)?,
        }
        Ok(())
    }

    /// Ends all copies: services that run from them go to other machines where there are some.
    pub fn stop(&self) {
        self.is_stopping.store(true, SeqCst);
        let copies: Vec<Arc<Copy>> = self.kept.read().values().cloned().collect();
        copies.iter().for_each(|copy| copy.begin_stop(true));
        // Memberships are still followed meanwhile: without this machine others go on at once.
        copies.iter().for_each(|copy| copy.await_stop());
        *self.following.lock() = None;
        self.kept.write().clear();
        if let Some(serving) = self.serving.lock().take() {
            serving.stop();
        }
        copies.iter().for_each(|copy| copy.close());
    }
}
