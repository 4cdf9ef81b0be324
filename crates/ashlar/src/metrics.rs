//! What the processes of each role count, and where they show it. The names are in `docs/metrics.md`.

use crate::cli::MetricsPlace;
use anyhow::{Context, Result};
use ashlar_console::object::node::name;
use ashlar_console::object::pool;
use ashlar_fuse::RequestCounts;
use ashlar_manager::{ManagerService, Observe};
use ashlar_meta::MetaService;
use ashlar_metrics::MetricType::{Counter, Gauge};
use ashlar_metrics::{
    Calls, ProcessEndpoint, Registry, Server, ServiceKinds, Side, Text, kind_of_manager_call,
};
use ashlar_rpc::net::{Endpoint, TlsIdentity};
use ashlar_rpc::remote::RemoteMeta;
use ashlar_rpc::serve::{Access, ClientCount, ClientCounts, Proofs};
use ashlar_storage::{Moves, StorageService};
use ashlar_types::map::TargetState;
use ashlar_types::message::{CopyWork, MoveWork};
use ashlar_types::{ClusterMap, Errno};
use parking_lot::{Mutex, RwLock};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Weak};

/// What one process counts.
pub struct Metrics {
    registry: Arc<Registry>,
}

impl Metrics {
    /// For a process of this role: `manager`, `meta`, `storage`, `mount`, `console` or `up`.
    pub fn new(role: &'static str) -> Metrics {
        Metrics { registry: Arc::new(Registry::new(env!("CARGO_PKG_VERSION"), role)) }
    }

    /// Counts of calls of `kinds`, shown from now on.
    pub fn calls(&self, side: Side, kinds: ServiceKinds) -> Arc<Calls> {
        let calls = Arc::new(Calls::new(side, kinds));
        self.registry.add_calls(calls.clone());
        calls
    }

    /// Has calls to a manager counted.
    pub fn manager_calls(&self) -> Box<Observe> {
        let calls = self.calls(Side::Served, ServiceKinds::MANAGER);
        // A refusal has a text and no number.
        Box::new(move |request, took, is_refused| {
            calls.note(kind_of_manager_call(request), took, is_refused.then_some(Errno::EINVAL));
        })
    }

    /// Shows the epoch of the map.
    pub fn add_map(&self, map: Arc<RwLock<Arc<ClusterMap>>>) {
        self.registry.add(move |text| {
            let epoch = map.read().epoch.0;
            text.single("ashlar_map_epoch", Gauge, "Epoch of the newest map that this process has.", epoch);
        });
    }

    /// Shows until when the certificate of this process is good.
    pub fn add_certificate(&self, identity: Arc<RwLock<Arc<TlsIdentity>>>) {
        let known: Mutex<Option<(Arc<TlsIdentity>, Option<u64>)>> = Mutex::default();
        self.registry.add(move |text| {
            let current = identity.read().clone();
            let mut known = known.lock();
            let end = match &*known {
                Some((of, end)) if Arc::ptr_eq(of, &current) => *end,
                _ => current.good_until_s(),
            };
            *known = Some((current, end));
            let help =
                "When the certificate of this process ends, seconds since 1970; 0 if it is not good now.";
            text.single("ashlar_certificate_end_seconds", Gauge, help, end.unwrap_or_default());
        });
    }

    /// Shows what clients have asked of this server; `has_content` of one that gives content.
    pub fn add_clients(
        &self,
        clients: Arc<ClientCounts>,
        map: Arc<RwLock<Arc<ClusterMap>>>,
        has_content: bool,
    ) {
        self.registry.add(move |text| {
            let all = clients.all(&map.read().clone());
            let mut family = |name, help, of: fn(&ClientCount) -> u64| {
                text.family(name, Counter, help);
                all.iter().for_each(|(node, count)| text.sample(&[("node", node)], of(count)));
            };
            family("ashlar_client_calls_total", "Calls of clients, by node.", |count| count.calls);
            if has_content {
                family("ashlar_client_read_bytes_total", "Content read by clients, by node.", |count| {
                    count.read
                });
                let help = "Content written by clients, by node.";
                family("ashlar_client_written_bytes_total", help, |count| count.written);
            }
        });
    }

    /// Shows what clients have claimed to have open and did not prove.
    pub fn add_proofs(&self, proofs: Arc<Proofs>) {
        self.registry.add(move |text| {
            let help = "Open files and locks that clients claimed to have, and did not prove.";
            text.single("ashlar_claims_refused_total", Counter, help, proofs.refused());
        });
    }

    /// Shows what the kernel has asked a mount.
    pub fn add_kernel_requests(&self, requests: Arc<RequestCounts>) {
        self.registry.add(move |text| {
            let help = "Requests of the kernel to the mount, by kind; several mounts of a process together.";
            text.family("ashlar_kernel_requests_total", Counter, help);
            requests.all().iter().for_each(|(kind, count)| text.sample(&[("kind", kind)], count));
        });
    }

    /// Shows whether the state of the file system can be reached where it is stored.
    pub fn add_store(&self, store: &'static str, is_reached: Arc<AtomicBool>) {
        self.registry.add(move |text| {
            let help = "1 if this manager reaches the state of the file system, else 0.";
            text.family("ashlar_state_is_reached", Gauge, help);
            text.sample(&[("store", store)], u8::from(is_reached.load(Relaxed)));
        });
    }

    /// What is shown, for consoles and administrators over the network of the servers.
    pub fn endpoint(&self) -> Arc<dyn Endpoint> {
        Arc::new(ProcessEndpoint::new(self.registry.clone()))
    }

    /// Shows what the state of a file system has.
    pub fn add_manager(&self, service: &Arc<ManagerService>) {
        self.add_map(service.map());
        let service = Arc::downgrade(service);
        self.registry.add(move |text| {
            if let Some(service) = service.upgrade() {
                tell_state(&service, text);
            }
        });
    }

    /// Shows the tables of metadata and its log.
    pub fn add_meta(&self, meta: &Arc<MetaService>) {
        let meta: Weak<MetaService> = Arc::downgrade(meta);
        self.registry.add(move |text| {
            if let Some(meta) = meta.upgrade() {
                tell_meta(&meta, text);
            }
        });
    }

    /// Shows what a storage server lets clients do.
    pub fn add_access(&self, access: &Arc<Access>) {
        let access = Arc::downgrade(access);
        self.registry.add(move |text| {
            let Some(access) = access.upgrade() else { return };
            let (attached, refused) = access.counts();
            let help = "Capabilities that clients have shown and that were good.";
            text.single("ashlar_capabilities_shown_total", Counter, help, attached);
            let help = "Calls of clients that were refused for lack of a capability; they come again with another one.";
            text.single("ashlar_capabilities_refused_total", Counter, help, refused);
        });
    }

    /// Shows how often a mount needed a capability that did not come with the file.
    pub fn add_capabilities(&self, meta: &Arc<RemoteMeta>) {
        let meta = Arc::downgrade(meta);
        self.registry.add(move |text| {
            let Some(meta) = meta.upgrade() else { return };
            let (asked, again) = meta.capability_counts();
            let help = "Capabilities that were asked for by themselves.";
            text.single("ashlar_capabilities_asked_total", Counter, help, asked);
            let help =
                "Calls that a storage server has refused, and that were made again with another capability.";
            text.single("ashlar_capabilities_again_total", Counter, help, again);
        });
    }

    /// Shows the space of targets.
    pub fn add_targets(&self, storage: &Arc<StorageService>) {
        let storage = Arc::downgrade(storage);
        self.registry.add(move |text| {
            if let Some(storage) = storage.upgrade() {
                tell_targets(&storage, text);
            }
        });
    }

    /// Shows what was copied from targets for moves.
    pub fn add_moves(&self, moves: &Arc<Moves>) {
        let moves = Arc::downgrade(moves);
        self.registry.add(move |text| {
            let Some(moves) = moves.upgrade() else { return };
            let help = "Content copied from the target for moves and to give others their copies, bytes.";
            text.family("ashlar_target_moved_bytes_total", Counter, help);
            for (target, bytes) in moves.copied() {
                text.sample(&[("target", &target.0.to_string())], bytes);
            }
            let help = "Damaged blocks of 4 KiB that were brought back from other copies.";
            text.single("ashlar_blocks_mended_total", Counter, help, moves.blocks_mended());
        });
    }

    /// Shows everything at the address that was given, if one was, for as long as what it returns lives.
    ///
    /// # Errors
    /// When nobody can listen there.
    pub fn serve(&self, place: &MetricsPlace) -> Result<Option<Server>> {
        let Some(address) = place.address else { return Ok(None) };
        let server = Server::start(address, self.registry.clone())
            .context("--metrics: choose an address of this machine and a port that is free")?;
        tracing::info!(address = %server.address(), "metrics are shown");
        Ok(Some(server))
    }
}

fn tell_state(service: &ManagerService, text: &mut Text) {
    let map = service.map().read().clone();
    text.single("ashlar_nodes", Gauge, "Machines of the file system.", map.nodes.len());
    text.family("ashlar_targets", Gauge, "Targets of the file system, by whether somebody serves them.");
    let online = map.targets.iter().filter(|target| target.state == TargetState::Online).count();
    text.sample(&[("state", "online")], online);
    text.sample(&[("state", "offline")], map.targets.len() - online);
    let tokens = service.manager().state().tokens.iter().filter(|token| token.used_by.is_none()).count();
    tell_works(service, text);
    tell_copies(service, text);
    tell_chains(&map, text);
    tell_rebuilds(&map, &service.copy_works(), text);
    text.single("ashlar_tokens", Gauge, "Tokens that were made and not used, old ones included.", tokens);
}

/// Who keeps the metadata of whom.
fn tell_copies(service: &ManagerService, text: &mut Text) {
    let (map, notes) = (service.map().read().clone(), service.manager().state().copies);
    text.family("ashlar_metadata_copies", Gauge, "Servers that have all of the metadata of a server.");
    for group in &notes.groups {
        let copies = group.membership.as_ref().map_or(1, |known| known.in_sync.len());
        text.sample(&[("server", &name(&map, group.server))], copies);
    }
    text.family("ashlar_metadata_copies_wanted", Gauge, "How many are to have it.");
    for group in &notes.groups {
        text.sample(&[("server", &name(&map, group.server))], group.wanted);
    }
}

/// How many copies there are of what is in chains of several.
fn tell_chains(map: &ClusterMap, text: &mut Text) {
    let (mut copies, mut wanted, mut short) = (0, 0, 0);
    for (chain, group) in map.chains_of_copies() {
        copies += chain.targets.len();
        wanted += usize::from(group.wanted);
        short += usize::from(chain.is_short());
    }
    let single = &mut |name, help, value: usize| text.single(name, Gauge, help, value);
    single(
        "ashlar_chain_copies",
        "Targets that have all of a chain of several copies, of all such chains together.",
        copies,
    );
    single("ashlar_chain_copies_wanted", "How many are to have it.", wanted);
    single("ashlar_chains_short", "Chains of several copies that have fewer than they are to have.", short);
}

/// Which copies are lacking.
fn tell_rebuilds(map: &ClusterMap, works: &[CopyWork], text: &mut Text) {
    let mut family = |name, help, of: fn(&CopyWork) -> u64| {
        text.family(name, Gauge, help);
        for work in works {
            let pool = pool::name(map, work.pool);
            text.sample(&[("pool", pool)], of(work));
        }
    };
    let help = "Chains that lack a copy and are being given one.";
    family("ashlar_rebuild_chains_under_way", help, |work| work.chains_under_way);
    let help = "What the chains that lack copies have, bytes, as often as they lack one.";
    family("ashlar_rebuild_bytes_lacking", help, |work| work.bytes_lacking);
    let help = "Chains of which that is not known, as no target tells.";
    family("ashlar_rebuild_chains_untold", help, |work| work.chains_untold);
}

/// How far what is drained and rebalanced is.
fn tell_works(service: &ManagerService, text: &mut Text) {
    let (map, works) = (service.map().read().clone(), service.works());
    let mut family = |name, help, of: fn(&MoveWork) -> Option<u64>| {
        text.family(name, Gauge, help);
        for work in &works {
            let target = work.target.map(|target| target.0.to_string()).unwrap_or_default();
            let pool = pool::name(&map, work.pool);
            if let Some(value) = of(work) {
                text.sample(&[("target", &target), ("pool", pool)], value);
            }
        }
    };
    family("ashlar_moves_chains_done", "Chains that have gone from what is drained or rebalanced.", |work| {
        Some(work.chains_done)
    });
    family(
        "ashlar_moves_chains_left",
        "Chains that are to go yet; estimated if a pool is rebalanced.",
        |work| Some(work.chains_left),
    );
    let help = "What the chains that have gone had, bytes.";
    family("ashlar_moves_bytes_done", help, |work| Some(work.bytes_done));
    let help = "What the chains that are to go have, bytes; estimated if a pool is rebalanced.";
    family("ashlar_moves_bytes_left", help, |work| work.bytes_left);
    let help =
        "1 if moves between targets (kind chains) or metadata servers (kind shards) are paused, else 0.";
    text.family("ashlar_moves_are_paused", Gauge, help);
    text.sample(&[("kind", "chains")], u8::from(map.moves.is_paused));
    text.sample(&[("kind", "shards")], u8::from(service.manager().state().moves.are_shards_paused));
}

fn tell_meta(meta: &MetaService, text: &mut Text) {
    let measures = meta.measures();
    let lane = &measures.lane;
    text.single("ashlar_sessions", Gauge, "Mounts that have a session.", measures.sessions);
    text.single(
        "ashlar_leased_inodes",
        Gauge,
        "Inodes that somebody has a lease on.",
        measures.leased_inodes,
    );
    let splits = &measures.splits;
    text.single("ashlar_splits_under_way", Gauge, "Directories that are being split.", splits.under_way);
    text.single("ashlar_splits_total", Counter, "Large directories that were split.", splits.ended);
    let help = "Entries of directories that went to slices.";
    text.single("ashlar_split_entries_total", Counter, help, splits.entries_moved);
    text.single("ashlar_open_inodes", Gauge, "Inodes that somebody has open.", measures.open_inodes);
    text.single("ashlar_locks_held", Gauge, "Locks that are held.", measures.locks_held);
    text.single("ashlar_locks_awaited", Gauge, "Requests that wait for a lock.", measures.locks_awaited);
    let help = "Times that the log of metadata was made durable, each for all who asked meanwhile.";
    text.single("ashlar_lane_flushes_total", Counter, help, lane.flush_count);
    text.single("ashlar_lane_commits_total", Counter, "Groups of changes committed.", lane.appended_groups);
    let help = "Times that changes went from the log to the engine.";
    text.single("ashlar_lane_checkpoints_total", Counter, help, lane.checkpoint_count);
    let help = "Changes that waited for a checkpoint.";
    text.single("ashlar_lane_write_waits_total", Counter, help, lane.write_waits);
    let help = "Time that changes waited for checkpoints, seconds.";
    text.single("ashlar_lane_write_wait_seconds_total", Counter, help, lane.write_wait_total.as_secs_f64());
    let help = "Changes refused because the disk of metadata is full.";
    text.single("ashlar_lane_refused_total", Counter, help, lane.refused_for_space);
    let help = "Log of metadata that a crash would have to read, bytes.";
    text.single("ashlar_lane_log_bytes", Gauge, help, lane.log_bytes);
    text.single(
        "ashlar_lane_engine_bytes",
        Gauge,
        "Files of the engine of metadata, bytes.",
        lane.engine_bytes,
    );
    let help = "Memory of changes that are not in the engine yet, estimated, bytes.";
    text.single("ashlar_lane_overlay_bytes", Gauge, help, lane.overlay_bytes);
    let help = "1 if metadata takes no more changes after an error, else 0.";
    text.single("ashlar_meta_is_stopped", Gauge, help, u8::from(meta.stopped().is_some()));
}

fn tell_targets(storage: &StorageService, text: &mut Text) {
    let targets = storage.targets();
    let names: Vec<String> = targets.iter().map(|(id, _)| id.0.to_string()).collect();
    let spaces: Vec<_> = targets.iter().map(|(id, _)| storage.space(*id).ok().flatten()).collect();
    text.family(
        "ashlar_target_size_bytes",
        Gauge,
        "Size of the target; disks that targets share are divided, bytes.",
    );
    for (name, space) in names.iter().zip(&spaces) {
        if let Some(space) = space {
            text.sample(&[("target", name)], space.bytes_total);
        }
    }
    text.family("ashlar_target_free_bytes", Gauge, "Free space of the target, bytes.");
    for (name, space) in names.iter().zip(&spaces) {
        if let Some(space) = space {
            text.sample(&[("target", name)], space.bytes_free);
        }
    }
    text.family("ashlar_target_is_stopped", Gauge, "1 if the target serves no more after an error, else 0.");
    for (name, (_, store)) in names.iter().zip(&targets) {
        text.sample(&[("target", name)], u8::from(store.stopped().is_some()));
    }
}
