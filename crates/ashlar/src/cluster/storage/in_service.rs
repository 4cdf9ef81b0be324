//! The targets that a storage server has in service, which come and go while it runs.

use super::super::affinity::{Affinity, DataPlace, OnNode, Topology};
use super::super::background::Background;
use super::super::claim::HeldStarts;
use super::super::doors::announcement;
use super::super::member::Member;
use super::super::open_targets::Opening;
use super::remembered::Remembered;
use crate::cli::CopyArgs;
use crate::node::tending::Tending;
use anyhow::{Context, Result, bail};
use ashlar_chunkstore::{ChunkStore, TargetIdentity};
use ashlar_rpc::remote::tell_managers;
use ashlar_storage::moves::{Moves, REPORT_EVERY, REPORT_SELDOM};
use ashlar_storage::{Retired, StorageService};
use ashlar_types::message::ManagerRequest;
use ashlar_types::{Epoch, Places, Role, TargetId};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// For how long a manager is waited for that is told what a target has.
const REPORT_MAX: Duration = Duration::from_secs(3);

/// LIMIT: for how long a target that comes or goes is waited for at the end.
const CHANGE_MAX: Duration = Duration::from_secs(15);

/// Time between two looks whether calls to a target that goes are under way.
const CALLS_PAUSE: Duration = Duration::from_millis(2);

/// What follows from where a target is on this machine.
pub struct Machine {
    /// Where the server listens.
    pub bound: Vec<SocketAddr>,
    pub topology: Topology,
    pub interfaces: Vec<(IpAddr, String)>,
}

impl Machine {
    /// By what the target at `place` is served.
    ///
    /// # Errors
    /// When it names what is not there.
    pub fn affinity(&self, place: &DataPlace) -> Result<Affinity> {
        Affinity::of(place, &self.bound, &self.topology, &self.interfaces)
    }
}

/// What serves targets.
#[derive(Clone)]
pub struct Parts {
    pub member: Arc<Member>,
    pub moves: Arc<Moves>,
    pub service: Arc<StorageService>,
    pub on_node: Arc<OnNode>,
}

/// A target in service.
pub(super) struct Kept {
    /// Its directory, that of the target.
    pub path: PathBuf,
    pub uuid: [u8; 16],
    affinity: Affinity,
    tending: Tending,
    /// Tells managers what it has.
    counting: Option<Background>,
    /// The map has had it. If it has it not any more, it was removed.
    is_in_map: bool,
    /// Somebody takes it out of service.
    is_going: bool,
}

/// See the module.
pub struct InService {
    pub(super) parts: Parts,
    pub(super) machine: Machine,
    copies: CopyArgs,
    starts: HeldStarts,
    /// Where the server listens, without what is of targets.
    places: Places,
    pub(super) remembered: Mutex<Remembered>,
    // LIMIT: as `take::TARGETS_MAX`, or as many as were listed at the start.
    kept: Mutex<BTreeMap<TargetId, Kept>>,
    /// Held while a target comes or goes.
    pub(super) changing: Mutex<()>,
    pub(super) is_told: Arc<AtomicBool>,
    /// The map by which targets were looked at last.
    looked_at: Mutex<Epoch>,
}

impl InService {
    /// Nothing is in service yet.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn new(
        parts: Parts,
        (machine, places): (Machine, Places),
        copies: CopyArgs,
        remembered: Remembered,
        is_told: Arc<AtomicBool>,
    ) -> Result<InService> {
        Ok(InService {
            starts: HeldStarts::keep(&parts.member, Role::Storage, Vec::new())?,
            parts,
            machine,
            copies,
            places,
            remembered: Mutex::new(remembered),
            kept: Mutex::default(),
            changing: Mutex::default(),
            is_told,
            looked_at: Mutex::default(),
        })
    }

    /// Takes the targets `found` into service here; managers have not been told. `is_known`: the map says that they are served here.
    ///
    /// # Errors
    /// When one cannot be opened, or is not to be served: with its directory, the reason and the way out.
    pub fn open(
        &self,
        found: &[(PathBuf, TargetIdentity)],
        affinity: impl Fn(&Path) -> Result<Affinity>,
        is_known: bool,
    ) -> Result<()> {
        self.open_with(found, affinity, (self.copies, is_known))
    }

    /// As [`InService::open`], of directories about which something else was said.
    pub(super) fn open_with(
        &self,
        found: &[(PathBuf, TargetIdentity)],
        affinity: impl Fn(&Path) -> Result<Affinity>,
        how: (CopyArgs, bool),
    ) -> Result<()> {
        let mut opening = Opening::new(&self.parts.member, how, &self.is_told, &self.starts);
        for (path, identity) in found {
            let affinity = affinity(path)?;
            let store = opening.open(path, identity)?;
            self.serve(path, identity, &store, affinity).inspect_err(|_| {
                self.starts.let_go(&self.parts.member, identity.uuid.0);
            })?;
        }
        opening.finish()
    }

    fn serve(
        &self,
        path: &Path,
        identity: &TargetIdentity,
        store: &Arc<ChunkStore>,
        affinity: Affinity,
    ) -> Result<()> {
        let Parts { moves, service, on_node, member } = &self.parts;
        let id = identity.target;
        if let Some((known, _)) = self.place_of(id) {
            bail!("{id} is served here from {} already", known.display());
        }
        moves
            .take_target(id, store)
            .with_context(|| format!("cannot read what the target at {} has noted", path.display()))?;
        let tending = Tending::start(id, store.clone(), member.env.tasks.clone())?;
        on_node.place(id, affinity.numa);
        service.add_target(id, store.clone());
        let (path, uuid) = (path.to_owned(), identity.uuid.0);
        let kept = Kept { path, uuid, affinity, tending, counting: None, is_in_map: false, is_going: false };
        self.kept.lock().insert(id, kept);
        Ok(())
    }

    /// Id, uuid and directory of each target, as managers are told.
    pub fn served(&self) -> Vec<(TargetId, [u8; 16], String)> {
        let kept = self.kept.lock();
        kept.iter().map(|(id, kept)| (*id, kept.uuid, kept.path.display().to_string())).collect()
    }

    /// Notes that managers have taken what is served into the map. Without the note a later start has to be told what was removed meanwhile.
    pub fn note_entered(&self) {
        let served = self.served();
        let mut remembered = self.remembered.lock();
        let before = remembered.clone();
        remembered.enter(served.iter().map(|(_, uuid, _)| *uuid));
        if *remembered != before
            && let Err(error) = remembered.store(self.parts.member.directory())
        {
            tracing::warn!("which targets are served here is not noted for the next start: {error:#}");
        }
    }

    /// Number and directory of each target, with by what it is served.
    pub fn affinities(&self) -> Vec<(TargetId, PathBuf, Affinity)> {
        let kept = self.kept.lock();
        kept.iter().map(|(id, kept)| (*id, kept.path.clone(), kept.affinity.clone())).collect()
    }

    /// What managers are told of where this server listens.
    pub fn announcement(&self) -> ManagerRequest {
        let of_own = self.affinities().into_iter().filter(|(.., affinity)| !affinity.addresses.is_empty());
        let targets = of_own.map(|(target, _, affinity)| (target, affinity.addresses)).collect();
        announcement(&Places { targets, ..self.places.clone() }, Role::Storage)
    }

    /// Has managers told again and again what each target has; each by a thread of its own, as counting one whose disk hangs takes as long as that.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn count(&self) -> Result<()> {
        for (id, kept) in self.kept.lock().iter_mut().filter(|(_, kept)| kept.counting.is_none()) {
            let Parts { moves, service, member, .. } = self.parts.clone();
            let (target, routes) = (*id, member.routes());
            let report = move || {
                let begun = Instant::now();
                let targets: Vec<_> = moves.count(&service, target).into_iter().collect();
                // Counting is to cost next to nothing; but a target of which managers have heard nothing for long gets no chains.
                let pause = (begun.elapsed() * 50).clamp(REPORT_EVERY, REPORT_SELDOM);
                tell_managers(&routes, &ManagerRequest::ReportTargets { targets }, REPORT_MAX);
                pause
            };
            kept.counting = Some(Background::start(&*member.env.tasks, "ashlar-count", report)?);
        }
        Ok(())
    }

    /// Whether everything may go on being served.
    pub fn are_held(&self) -> bool {
        self.starts.are_held()
    }

    /// Ends this process at once if something is served by another server by now.
    pub fn stop_if_lost(&self) {
        self.starts.stop_if_lost();
    }

    /// Targets that the map has had and has not any more, each told once.
    pub(super) fn newly_removed(&self) -> Vec<TargetId> {
        let map = self.parts.member.map().read().clone();
        if std::mem::replace(&mut *self.looked_at.lock(), map.epoch) == map.epoch {
            return Vec::new();
        }
        let mut kept = self.kept.lock();
        let mut removed = Vec::new();
        for (id, kept) in kept.iter_mut().filter(|(_, kept)| !kept.is_going) {
            let is_there = map.target(*id).is_some_and(|target| target.uuid == kept.uuid);
            if !is_there && kept.is_in_map {
                kept.is_going = true;
                removed.push(*id);
            }
            kept.is_in_map |= is_there;
        }
        removed
    }

    /// The directory of a target, and what it is known by, if it is in service.
    pub(super) fn place_of(&self, id: TargetId) -> Option<(PathBuf, [u8; 16])> {
        self.kept.lock().get(&id).map(|kept| (kept.path.clone(), kept.uuid))
    }

    /// Takes a target out of service and closes it.
    ///
    /// # Errors
    /// When its last changes could not be made durable; it is closed all the same.
    pub(super) fn let_go(&self, id: TargetId) -> Result<()> {
        let Some(kept) = self.kept.lock().remove(&id) else { return Ok(()) };
        let Parts { moves, service, on_node, member } = &self.parts;
        let retired = service.retire_target(id);
        // ORDER: who has called already is answered before it is closed.
        let deadline = Instant::now() + CHANGE_MAX;
        while retired.as_ref().is_some_and(Retired::is_in_use) && Instant::now() < deadline {
            std::thread::sleep(CALLS_PAUSE);
        }
        let store = retired.map(|retired| retired.store);
        let Kept { counting, tending, uuid, affinity, .. } = kept;
        drop(counting);
        moves.forget_target(id);
        on_node.place(id, None);
        tending.end();
        let closed = store.map_or(Ok(()), |store| store.close());
        // ORDER: managers hear that it is free when it is.
        self.starts.let_go(member, uuid);
        if !affinity.addresses.is_empty()
            && let Err(error) = member.ask(&self.announcement())
        {
            // What the map has of it besides harms nobody, and goes with the next start.
            tracing::warn!(target_id = %id, "managers were not told that it is reached nowhere any more: {error:#}");
        }
        closed.with_context(|| format!("could not close {id}"))
    }

    /// Closes all of them, and tells managers that nothing is served any more. Nobody asks for anything now.
    ///
    /// # Errors
    /// When the last changes of one could not be made durable; all are closed.
    pub fn close(&self) -> Result<()> {
        // ORDER: whoever is taking a target in looks once more whether he may, and is through then, or lets go of it.
        let _alone = self.changing.try_lock_for(CHANGE_MAX);
        let kept = std::mem::take(&mut *self.kept.lock());
        kept.values().for_each(|kept| kept.tending.note_ending());
        kept.into_values().for_each(|kept| kept.tending.end());
        let close = |(id, store): (TargetId, Arc<ChunkStore>)| {
            store.close().with_context(|| format!("could not close {id}"))
        };
        self.parts.service.targets().into_iter().map(close).fold(Ok(()), Result::and)?;
        self.starts.end(&self.parts.member);
        Ok(())
    }
}
