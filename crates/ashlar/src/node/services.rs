//! Starting and stopping the services of a single machine, step by step.

use super::read_only::ReadOnlyMeta;
use super::state::{State, root_settings};
use super::tending::Tending;
use super::{Directories, Site, targets};
use crate::fsck;
use anyhow::{Context, Result};
use ashlar_env::Env;
use ashlar_meta::{MetaConfig, MetaService};
use ashlar_rpc::forced_codec::ForcedCodec;
use ashlar_rpc::{MetaCalls, StorageCalls};
use ashlar_storage::StorageService;
use ashlar_types::{ClusterId, ClusterMap};
use parking_lot::RwLock;
use std::path::PathBuf;
use std::sync::Arc;

/// How to start.
#[derive(Clone, Copy, Debug, Default)]
pub struct ServicesConfig {
    /// Pass every message through its codec.
    pub force_codec: bool,
    /// Change nothing in the directories, which exist: what a start puts right, and everything after it, is kept in memory and in a
    /// temporary directory, and is gone with the services. For disks that cannot be written to.
    pub changes_nothing: bool,
}

/// The services of a file system, running.
pub struct Services {
    state: State,
    config: ServicesConfig,
    storage: Arc<StorageService>,
    meta: Arc<MetaService>,
    tending: Vec<Tending>,
}

impl Services {
    /// Starts everything, or makes a new file system if there is none.
    ///
    /// # Errors
    /// The first step that fails, with the directory or file and the way out. Nothing is left running.
    pub fn start(directories: Directories, config: ServicesConfig) -> Result<Services> {
        let holder = format!("ashlar up, process {}", std::process::id());
        let state = match config.changes_nothing {
            true => State::look_at(directories, &holder)?,
            false => State::open_or_create(directories, &holder)?,
        };
        let lane = state.open_lane(None)?;
        let stores = targets::open_all(&state, &lane, &holder)?;
        if state.is_restored()? {
            fsck::remove_newer_chunks(&state, &lane, &stores)?;
        }
        let storage = Arc::new(StorageService::new());
        for (id, store) in stores {
            storage.add_target(id, store);
        }
        let meta_config = MetaConfig {
            has_lost: false,
            keeps_sessions: false,
            lane: Arc::new(lane),
            env: state.env.clone(),
            name_hash_key: state.manager.identity().name_hash_key,
            map: state.manager.map(),
            storage: storage.clone(),
            peers: None,
        };
        let (meta, report) = MetaService::start(meta_config, root_settings())
            .context("the metadata service could not recover; the log has details, and `ashlar fsck` checks everything")?;
        if report.sessions_reaped > 0 {
            tracing::info!(?report, "cleaned up after mounts that had not ended");
        }
        meta.start_collector().context("cannot start a thread")?;
        meta.start_trimmer().context("cannot start a thread")?;
        // On one machine there is nothing to gain by it, but for who says so.
        meta.start_splitter(0).context("cannot start a thread")?;
        let tend = |(id, store)| Tending::start(id, store, state.env.tasks.clone());
        let tending = storage.targets().into_iter().map(tend).collect::<Result<_>>()?;
        Ok(Services { state, config, storage, meta, tending })
    }

    /// What a mount is given of them.
    pub fn site(&self) -> Site {
        Site {
            meta: self.meta_calls(),
            storage: self.storage_calls(),
            map: self.map(),
            env: self.env().clone(),
            checks_payload: false,
            node: self.map().read().nodes.first().map(|node| node.id).unwrap_or_default(),
            root: None,
            inherited: None,
        }
    }

    /// The metadata service as clients call it.
    pub fn meta_calls(&self) -> Arc<dyn MetaCalls> {
        let calls: Arc<dyn MetaCalls> = if self.config.force_codec {
            Arc::new(ForcedCodec(self.meta.clone()))
        } else {
            self.meta.clone()
        };
        if self.config.changes_nothing { Arc::new(ReadOnlyMeta(calls)) } else { calls }
    }

    /// The storage services as clients call them.
    pub fn storage_calls(&self) -> Arc<dyn StorageCalls> {
        if self.config.force_codec {
            Arc::new(ForcedCodec(self.storage.clone()))
        } else {
            self.storage.clone()
        }
    }

    /// The storage service, for administration.
    pub fn storage(&self) -> &Arc<StorageService> {
        &self.storage
    }

    /// The metadata service, for administration.
    pub fn meta(&self) -> &Arc<MetaService> {
        &self.meta
    }

    /// The cluster map, kept current.
    pub fn map(&self) -> Arc<RwLock<Arc<ClusterMap>>> {
        self.state.manager.map()
    }

    /// Clocks and randomness.
    pub fn env(&self) -> &Env {
        &self.state.env
    }

    /// Who this file system is.
    pub fn cluster(&self) -> ClusterId {
        self.state.cluster()
    }

    /// Where its metadata is.
    pub fn meta_directory(&self) -> &PathBuf {
        &self.state.directories.meta
    }

    /// Why the metadata takes no more changes; `None` while it does.
    pub fn meta_stopped(&self) -> Option<String> {
        self.meta.stopped()
    }

    /// Inodes in use.
    ///
    /// # Errors
    /// When the metadata cannot be read.
    pub fn inodes_used(&self) -> Result<u64> {
        self.meta.inodes_used().context("cannot read the accounting")
    }

    /// Somebody uses the file system: what a first start has made stays.
    pub fn keep(&self) {
        self.state.keep();
    }

    /// Tells whoever wants the directories next that they will be free soon.
    pub fn note_ending(&self) {
        self.state.note_ending();
    }

    /// Stops everything in order: both sides are made durable and what the targets remember for metadata is confirmed, then the targets
    /// close, then the metadata log.
    ///
    /// # Errors
    /// The first failure; the rest is stopped all the same.
    pub fn stop(mut self) -> Result<()> {
        self.tending.iter().for_each(Tending::note_ending);
        std::mem::take(&mut self.tending).into_iter().for_each(Tending::end);
        // Both sides know then what the other has; the next start has nothing to compare.
        self.meta.prepare_stop();
        let synced = self
            .storage
            .targets()
            .into_iter()
            .try_for_each(|(id, store)| store.close().with_context(|| format!("could not close {id}")));
        let stopped = self.meta.stop().context("could not close the metadata log");
        let Services { state, meta, storage, .. } = self;
        // ORDER: the directories last: what a first start has made that nobody used is removed with the state.
        drop((meta, storage));
        drop(state);
        synced.and(stopped)
    }
}
