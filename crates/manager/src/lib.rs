//! The manager: who the file system is and what it consists of.
//!
//! It owns the cluster map (targets, pools, chains, shards, at an epoch), changes it by compare-and-set through `coord`, says which
//! targets belong to the metadata they are found with ([`starts`]), and keeps the secrets that the first `ashlar up` draws: the
//! name-hash key and the built-in certificate authority.
//!
//! What this crate is not: it is on no data or metadata path.

mod identity;
mod map_change;
pub mod starts;

pub use identity::{Identity, SECRETS_FILE, Secrets};
pub use map_change::FoundTarget;

use ashlar_coord::{Coord, CoordError};
use ashlar_env::{Disk, Env};
use ashlar_types::codec;
use ashlar_types::{ClusterMap, NodeId};
use parking_lot::{Mutex, RwLock};
use std::sync::Arc;

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
}

/// See the crate.
pub struct Manager {
    coord: Box<dyn Coord>,
    identity: Identity,
    revision: Mutex<u64>,
    map: Arc<RwLock<Arc<ClusterMap>>>,
}

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
        Ok(Draft { identity, map })
    }

    /// Stores the first map of `draft`, which makes it a file system: one pool, all shards on one node, no targets yet.
    ///
    /// # Errors
    /// [`ManagerError`], also when there is one already.
    pub fn create(draft: Draft, coord: Box<dyn Coord>) -> Result<Manager, ManagerError> {
        let Draft { identity, map } = draft;
        let revision = coord.compare_and_set(0, &codec::encode(&map))?;
        Ok(Manager {
            coord,
            identity,
            revision: Mutex::new(revision),
            map: Arc::new(RwLock::new(Arc::new(map))),
        })
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
        let damaged = |what: &dyn std::fmt::Display| {
            let place = disk.describe(directory);
            ManagerError::Invalid(format!(
                "the cluster state in {place} is damaged: {what}; restore it with `ashlar restore`"
            ))
        };
        let map: ClusterMap = codec::decode(&bytes, "cluster map").map_err(|error| damaged(&error))?;
        map.check().map_err(|what| damaged(&what))?;
        let secrets = identity::load_secrets(disk, directory)?;
        if secrets.cluster != map.cluster {
            return Err(ManagerError::Invalid(format!(
                "{} holds secrets of file system {} but a map of {}; restore both from one backup",
                disk.describe(directory),
                secrets.cluster,
                map.cluster
            )));
        }
        let identity = secrets.identity();
        Ok(Manager {
            coord,
            identity,
            revision: Mutex::new(revision),
            map: Arc::new(RwLock::new(Arc::new(map))),
        })
    }

    /// Who the file system is.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// The current map, kept current for whoever holds the handle.
    pub fn map(&self) -> Arc<RwLock<Arc<ClusterMap>>> {
        self.map.clone()
    }

    /// Takes the targets that were found into the map: new ones get chains, known ones their path and state; those that
    /// were not found go offline. Tells the map after it.
    ///
    /// # Errors
    /// [`ManagerError`].
    pub fn take_targets(&self, found: &[FoundTarget]) -> Result<Arc<ClusterMap>, ManagerError> {
        let mut revision = self.revision.lock();
        let current = self.map.read().clone();
        for new in found {
            let taken = current.targets.iter().find(|known| known.id == new.id && known.uuid != new.uuid);
            if let Some(taken) = taken {
                return Err(ManagerError::Invalid(format!(
                    "{} says it is {}, but that is another one, last seen at {}",
                    new.path, new.id, taken.path
                )));
            }
        }
        let next = map_change::with_targets(&current, found, NodeId(1))?;
        if next == *current {
            return Ok(current);
        }
        *revision = self.coord.compare_and_set(*revision, &codec::encode(&next))?;
        let next = Arc::new(next);
        *self.map.write() = next.clone();
        Ok(next)
    }
}
