//! The manager: who the file system is and what it consists of.
//!
//! It owns the cluster map (targets, pools, chains, shards, at an epoch), changes it by compare-and-set through `coord`, says which
//! targets belong to the metadata they are found with ([`starts`]), and keeps the secrets that the first `ashlar up` draws: the
//! name-hash key and the built-in certificate authority.
//!
//! What this crate is not: it is on no data or metadata path.

mod authority;
mod endpoint;
mod etcd_authority;
pub mod events;
mod holders;
mod identity;
mod keys;
mod map_change;
mod plan;
mod service;
pub mod starts;
mod state;
mod token;

pub use authority::{Authority, CERTIFICATE_DAYS, RENEWAL_DAYS, draw_key, public_key_of};
pub use endpoint::{ManagerEndpoint, Observe, admit};
pub use etcd_authority::EtcdAuthority;
pub use identity::{Identity, SECRETS_FILE, Secrets, take_secrets};
pub use map_change::FoundTarget;
pub use plan::place_copies;
pub use service::{EtcdMembers, KnownMember, ManagerService};
pub use state::{
    ClusterState, Joining, KeyEpoch, MetadataRecord, MoveNotes, PromisedTarget, StartRecord, TokenRecord,
    WorkRecord,
};
pub use token::{Token, token_key};

use ashlar_coord::{Coord, CoordError};
use ashlar_env::{Disk, Env};
use ashlar_rpc::capability::root_key;
use ashlar_types::codec;
use ashlar_types::{ClusterMap, Epoch, NodeId, SecretKey};
use events::EventLog;
use parking_lot::{Mutex, RwLock};
use std::sync::{Arc, OnceLock};

/// Why the manager could not open or change the state.
#[derive(Debug, thiserror::Error)]
pub enum ManagerError {
    /// The coordination store failed or was changed by somebody else.
    #[error(transparent)]
    Coord(#[from] CoordError),
    /// A file of the manager could not be read or written.
    #[error("{what}: {source}")]
    Io {
        /// What was being done, with the file's path.
        what: String,
        /// The operating system's answer.
        source: std::io::Error,
    },
    /// Stored state is damaged, foreign or of another version; the text names the file and the way out.
    #[error("{0}")]
    Invalid(String),
}

/// A file system to be: its secrets are stored, its map is not.
pub struct Draft {
    /// Who it is going to be.
    pub identity: Identity,
    /// Its first map.
    pub map: ClusterMap,
    secrets: Secrets,
}

/// See the crate.
pub struct Manager {
    coord: Box<dyn Coord>,
    secrets: Secrets,
    identity: Identity,
    /// Held by whoever changes the state, also while the store is asked; others see what there was.
    changing: Mutex<()>,
    held: Mutex<Held>,
    map: Arc<RwLock<Arc<ClusterMap>>>,
    events: OnceLock<Arc<EventLog>>,
}

/// The stored state as it was seen last.
#[derive(Clone)]
struct Held {
    revision: u64,
    state: ClusterState,
}

/// How often a change is tried again because somebody else was faster.
// LIMIT: of one change.
const CONFLICTS_MAX: u32 = 50;

impl Manager {
    /// Whether `directory` of `disk` has the state of a file system.
    pub fn exists(coord: &dyn Coord) -> Result<bool, ManagerError> {
        Ok(coord.load()?.0 > 0)
    }

    /// Draws the identity of a new file system and stores its secrets durably. Nothing is a file system yet: that takes
    /// [`Manager::create`].
    ///
    /// # Errors
    /// [`ManagerError`].
    pub fn draft(disk: &Arc<dyn Disk>, directory: &str, env: &Env) -> Result<Draft, ManagerError> {
        let (identity, secrets) = identity::draw(env)?;
        identity::store_secrets(disk, directory, &secrets)?;
        let map = map_change::first_map(identity.cluster, NodeId(1));
        Ok(Draft { identity, map, secrets })
    }

    /// Stores the first map of `draft`, which makes it a file system: one pool, all shards on one node, no targets yet.
    ///
    /// # Errors
    /// [`ManagerError`], also when there is one already.
    pub fn create(draft: Draft, coord: Box<dyn Coord>) -> Result<Manager, ManagerError> {
        let Draft { map, secrets, .. } = draft;
        let state = ClusterState::new(map);
        let revision = coord.compare_and_set(0, &state.encode())?;
        Ok(Manager::over(coord, secrets, Held { revision, state }))
    }

    /// Opens the state of an existing file system.
    ///
    /// # Errors
    /// [`ManagerError`].
    pub fn open(
        disk: &Arc<dyn Disk>,
        directory: &str,
        coord: Box<dyn Coord>,
    ) -> Result<Manager, ManagerError> {
        let (revision, bytes) = coord.load()?;
        let place = disk.describe(directory);
        if let Some(what) = ClusterState::newer(&format!("the cluster state in {place}"), &bytes) {
            return Err(ManagerError::Invalid(what));
        }
        let state = ClusterState::decode(&bytes).map_err(|what| {
            ManagerError::Invalid(format!(
                "the cluster state in {place} is damaged: {what}; restore it with `ashlar restore`"
            ))
        })?;
        let secrets = identity::load_secrets(disk, directory)?;
        if secrets.cluster != state.map.cluster {
            return Err(ManagerError::Invalid(format!(
                "{} holds secrets of file system {} but a map of {}; restore both from one backup",
                disk.describe(directory),
                secrets.cluster,
                state.map.cluster
            )));
        }
        Ok(Manager::over(coord, secrets, Held { revision, state }))
    }

    fn over(coord: Box<dyn Coord>, secrets: Secrets, held: Held) -> Manager {
        let map = Arc::new(RwLock::new(Arc::new(held.state.map.clone())));
        Manager {
            coord,
            identity: secrets.identity(),
            secrets,
            changing: Mutex::new(()),
            held: Mutex::new(held),
            map,
            events: OnceLock::new(),
        }
    }

    /// Has what changes noted in `events`. Only the first one that is given counts.
    pub fn note_changes_in(&self, events: Arc<EventLog>) {
        let _ = self.events.set(events);
    }

    /// Where events are noted, if anywhere.
    pub fn events(&self) -> Option<&Arc<EventLog>> {
        self.events.get()
    }

    /// Who the file system is.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Its certificate authority.
    ///
    /// # Errors
    /// [`ManagerError::Invalid`] when its key is damaged.
    pub fn authority(&self) -> Result<Authority, ManagerError> {
        Authority::new(&self.secrets)
    }

    /// The current map, kept current for whoever holds the handle.
    pub fn map(&self) -> Arc<RwLock<Arc<ClusterMap>>> {
        self.map.clone()
    }

    /// The state as it was seen last.
    pub fn state(&self) -> ClusterState {
        self.held.lock().state.clone()
    }

    /// Looks at the state as it was seen last, without a copy of it.
    pub(crate) fn with_state<T>(&self, look: impl FnOnce(&ClusterState) -> T) -> T {
        look(&self.held.lock().state)
    }

    /// Changes the state: `change` makes the next one of the current one. A change of the map is its next epoch. Whoever else changes it at
    /// the same time comes before or after.
    ///
    /// # Errors
    /// What `change` refuses, and [`ManagerError`]; then nothing has changed.
    pub fn change<T>(
        &self,
        change: impl FnMut(&mut ClusterState) -> Result<T, ManagerError>,
    ) -> Result<T, ManagerError> {
        self.replace(None, change, false)
    }

    /// As [`Manager::change`]; events of it are told as the doing of `node`, if one is named.
    ///
    /// # Errors
    /// As [`Manager::change`].
    pub fn change_by<T>(
        &self,
        node: Option<NodeId>,
        change: impl FnMut(&mut ClusterState) -> Result<T, ManagerError>,
    ) -> Result<T, ManagerError> {
        self.replace(node, change, false)
    }

    fn replace<T>(
        &self,
        node: Option<NodeId>,
        mut change: impl FnMut(&mut ClusterState) -> Result<T, ManagerError>,
        must_prove: bool,
    ) -> Result<T, ManagerError> {
        let _changing = self.changing.lock();
        for _ in 0..CONFLICTS_MAX {
            let held = self.held.lock().clone();
            let mut next = held.state.clone();
            let told = change(&mut next)?;
            if next == held.state && !must_prove {
                return Ok(told);
            }
            if next.map != held.state.map {
                next.map.epoch = Epoch(held.state.map.epoch.0 + 1);
            }
            match self.coord.compare_and_set(held.revision, &next.encode()) {
                Ok(revision) => {
                    self.note_change(node, &held.state, &next);
                    self.see(Held { revision, state: next });
                    return Ok(told);
                }
                Err(CoordError::Conflict { .. }) => self.refresh()?,
                Err(other) => return Err(other.into()),
            }
        }
        Err(ManagerError::Invalid("the cluster state is changed too often; try again".into()))
    }

    /// As [`Manager::change`], and what it tells was certainly so at some moment after the call began, also when it leaves the state as it is: a
    /// compare-and-set shows that nobody had changed it.
    ///
    /// # Errors
    /// As [`Manager::change`].
    pub fn change_and_prove<T>(
        &self,
        change: impl FnMut(&mut ClusterState) -> Result<T, ManagerError>,
    ) -> Result<T, ManagerError> {
        self.replace(None, change, true)
    }

    fn note_change(&self, node: Option<NodeId>, before: &ClusterState, after: &ClusterState) {
        let Some(log) = self.events.get() else { return };
        for change in events::events_of(before, after) {
            log.note(node.unwrap_or(change.node), change.kind, &change.subject, &change.text);
        }
    }

    /// Whether managers on other machines can use the same state.
    pub fn is_shared(&self) -> bool {
        self.coord.is_shared()
    }

    /// The root of the keys of capabilities. Made of what only managers have, so that it need not be kept.
    pub(crate) fn root_key(&self) -> SecretKey {
        root_key(self.secrets.ca_key_pem.as_bytes(), self.identity.cluster)
    }

    /// What another manager of the file system needs. Secret.
    pub fn secrets(&self) -> Vec<u8> {
        codec::encode(&self.secrets)
    }

    /// Looks whether somebody else has changed the state.
    ///
    /// # Errors
    /// [`ManagerError`], also when the store has an older state than was seen.
    pub fn refresh(&self) -> Result<(), ManagerError> {
        let known = self.held.lock().revision;
        let Some((revision, bytes)) = self.coord.changed_since(known)? else { return Ok(()) };
        if revision < known {
            // Another thread may have seen a newer one meanwhile, but not an older one.
            return Err(ManagerError::Invalid(format!(
                "the cluster state went back from revision {known} to {revision}: it came from an older copy, and is not believed"
            )));
        }
        if let Some(what) = ClusterState::newer("the cluster state", &bytes) {
            return Err(ManagerError::Invalid(what));
        }
        let state = ClusterState::decode(&bytes)
            .map_err(|what| ManagerError::Invalid(format!("the cluster state is damaged: {what}")))?;
        self.see(Held { revision, state });
        Ok(())
    }

    /// Takes a state over, unless a newer one was seen.
    fn see(&self, newer: Held) {
        let mut held = self.held.lock();
        if newer.revision > held.revision {
            *held = newer;
            *self.map.write() = Arc::new(held.state.map.clone());
        }
    }

    /// Takes the targets that were found on `node` into the map: new ones get chains, known ones their path and state; those of the node that
    /// were not found go offline. Tells the map after it.
    ///
    /// # Errors
    /// [`ManagerError`].
    pub fn take_targets(&self, node: NodeId, found: &[FoundTarget]) -> Result<Arc<ClusterMap>, ManagerError> {
        self.change(|state| {
            state.map = map_change::with_targets(&state.map, found, node)?;
            let newest = state.map.targets.last().map(|target| target.id);
            state.last_target = state.last_target.max(newest.unwrap_or_default());
            Ok(())
        })?;
        Ok(self.map.read().clone())
    }
}
