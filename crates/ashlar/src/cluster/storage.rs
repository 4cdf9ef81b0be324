//! `ashlar storage`: serves targets.

use super::affinity::{self, Affinity, OnNode, Topology, interfaces};
use super::announce;
use super::background::Background;
use super::doors::Doors;
use super::keys;
use super::member::{Member, stop_flag, until_told_to_stop};
use super::node_directory::NodeDirectory;
use super::open_targets::open_targets;
use crate::cli::StorageArgs;
use crate::metrics::Metrics;
use crate::node::{Directories, open_files, services, state::make_private_directory, targets};
use anyhow::{Context, Result, bail};
use ashlar_chunkstore::{ChunkStore, TargetHeader, TargetIdentity, TargetUuid};
use ashlar_env::os::OsDisk;
use ashlar_metrics::{Counted, ServiceKinds, Side};
use ashlar_rpc::Reports;
use ashlar_rpc::net::{Endpoint, Service};
use ashlar_rpc::remote::{Patience, RemoteStorage, tell_managers};
use ashlar_rpc::serve::{Access, StorageEndpoint};
use ashlar_storage::StorageService;
use ashlar_storage::moves::{End, Moves, Outside, REPORT_EVERY, REPORT_SELDOM, Told};
use ashlar_types::map::TargetState;
use ashlar_types::message::{ManagerReply, ManagerRequest};
use ashlar_types::{ClusterMap, EventKind, KeySet, NodeId, Role, Start, TargetId};
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// For how long a manager is waited for that is told what targets have.
const PEER_MAX: Duration = Duration::from_secs(3);
const END_MAX: Duration = Duration::from_secs(5);
/// Time between two looks at which chains are to move.
const TURN_EVERY: Duration = Duration::from_millis(20);

pub fn run(args: &StorageArgs) -> Result<()> {
    let is_told = stop_flag()?;
    open_files::allow_as_many_as_permitted();
    let directories: Vec<PathBuf> = args.data.iter().map(|place| place.dir.clone()).collect();
    let listed = Directories::find_targets(&directories)?;
    let member = Member::start(NodeDirectory::new(&args.node.node), Role::Storage)?;
    let mut doors = Doors::open(&args.listen, &args.management)?;
    let bound = doors.places.addresses.clone();
    let (topology, interfaces) = (Topology::read(Path::new("/sys")), interfaces());
    let affinity =
        |path: &Path| Affinity::of(affinity::place_of(&args.data, path)?, &bound, &topology, &interfaces);
    // What is said of a directory is judged before a target is made in it.
    listed.iter().try_for_each(|(path, _)| affinity(path).map(drop))?;
    let found = find_or_make(&member, &listed, args.pool.as_deref())?;
    let targets: Vec<_> = found
        .iter()
        .map(|(path, identity)| (identity.target, identity.uuid.0, path.display().to_string()))
        .collect();
    let is_known = are_served(&member.map().read(), member.name.node, &targets);
    let moves = Arc::new(moves(&member));
    let service = Arc::new(StorageService::with_moves(moves.clone()));
    let (stores, starts) = open_targets(&member, &found, (args.copies, is_known), &is_told)?;
    for ((path, identity), store) in found.iter().zip(stores) {
        moves
            .take_target(identity.target, &store)
            .with_context(|| format!("cannot read what the target at {} has noted", path.display()))?;
        service.add_target(identity.target, store);
    }
    service.report_to(member.reporter.clone());
    let told = found.iter().map(|(path, identity)| Ok((identity.target, path.clone(), affinity(path)?)));
    let told: Vec<(TargetId, PathBuf, Affinity)> = told.collect::<Result<_>>()?;
    affinity::tell(&told, &topology);
    let of_own = told.iter().filter(|(.., affinity)| !affinity.addresses.is_empty());
    doors.places.targets =
        of_own.map(|(target, _, affinity)| (*target, affinity.addresses.clone())).collect();
    let is_stopping = Arc::new(AtomicBool::new(false));
    let background = services::start_background(&service, &is_stopping, member.env.tasks.clone())?;
    let metrics = Metrics::new("storage");
    metrics.add_map(member.map());
    metrics.add_targets(&service);
    let counted = Counted::new(service.clone(), metrics.calls(Side::Served, ServiceKinds::STORAGE));
    let keys = keys::first_checking_keys(&member)?;
    let access = Arc::new(Access::new(member.name.node, member.map(), keys.clone(), member.env.clone()));
    metrics.add_access(&access);
    let nodes = told.iter().map(|(target, _, affinity)| (*target, affinity.numa));
    let placed = Arc::new(OnNode::new(Arc::new(counted), &topology, nodes));
    let endpoint = StorageEndpoint::new(placed, member.map(), access.clone()).with_peers(service.clone());
    metrics.add_clients(endpoint.clients(), member.map(), true);
    metrics.add_certificate(member.identity.clone());
    let served: [(Service, Arc<dyn Endpoint>); 2] =
        [(Service::Storage, Arc::new(endpoint)), (Service::Process, metrics.endpoint())];
    let announcement = doors.announcement(Role::Storage);
    let _shown = metrics.serve(&args.metrics)?;
    let server = member.serve(&served, doors)?;
    // ORDER: it serves before the map says so.
    let map = member.map().read().clone();
    let is_known = map.node(member.name.node).is_some_and(|node| node.addresses(Role::Storage) == bound);
    member.tell(&announcement, is_known)?;
    let is_known = is_known && are_served(&map, member.name.node, &targets);
    member.tell(&ManagerRequest::Serve { targets }, is_known)?;
    let _looks = member.keep_certificate()?;
    let _moving = keep_moving(&member, &moves, &service)?;
    let _counting = keep_counting(&member, &moves, &service)?;
    let _keys = follow_keys(&member, keys, access)?;
    let reporting = member.keep_reporting(Role::Storage)?;
    let _present = member.keep_present(Role::Storage)?;
    announce::serving(Role::Storage, &bound);
    let (mut stopped, mut review) = (Stopped::default(), member.reviews());
    until_told_to_stop(&is_told, || {
        review(&server);
        stopped.look(&service, &member);
        starts.are_held()
    });
    starts.stop_if_lost();
    announce::notify("STOPPING=1");
    member.report_stop(Role::Storage, reporting);
    moves.stop();
    server.stop();
    is_stopping.store(true, Relaxed);
    if background.join().is_err() {
        tracing::error!("the background thread of the targets ended by a panic");
    }
    let close = |(id, store): (TargetId, Arc<ChunkStore>)| {
        store.close().with_context(|| format!("could not close {id}"))
    };
    service.targets().into_iter().map(close).fold(Ok(()), Result::and)?;
    starts.end(&member);
    Ok(())
}

/// Whether `map` says that `node` serves these targets and no others.
fn are_served(map: &ClusterMap, node: NodeId, targets: &[(TargetId, [u8; 16], String)]) -> bool {
    let of_node =
        map.targets.iter().filter(|target| target.node == node && target.state == TargetState::Online);
    let mut known: Vec<_> = of_node.map(|target| (target.id, target.uuid, target.path.clone())).collect();
    let mut served = targets.to_vec();
    known.sort();
    served.sort();
    known == served
}

/// Has the server go by the newest keys, for as long as what it returns lives.
fn follow_keys(member: &Member, first: KeySet, access: Arc<Access>) -> Result<Background> {
    let (keep, asked) = (member.keeper_of_keys(), access.clone());
    let take = move |keys: KeySet| {
        keep(&keys);
        access.set_keys(keys);
    };
    keys::follow(member, (ManagerRequest::CheckingKeys, first), move || asked.wants_keys(), take)
}

/// What moves of chains need of others.
fn moves(member: &Member) -> Moves {
    let managers = member.managers.clone();
    let end_move = move |end: End| {
        let End { chain, from, since, is_given_up } = end;
        let request = ManagerRequest::EndMove { chain, from, since, is_given_up };
        match managers.ask_once(&request, Instant::now() + END_MAX) {
            Some(Ok(ManagerReply::MoveEnded { is_finished })) => Told::Ended { is_finished },
            Some(Ok(_)) => Told::Unknown,
            Some(Err(error)) => {
                tracing::warn!(%error, %chain, "no manager tells whether a chain has moved");
                Told::Unknown
            }
            None => Told::NotAsked,
        }
    };
    Moves::new(Outside {
        map: member.map(),
        is_kept: Box::new(member.is_kept()),
        peers: Arc::new(RemoteStorage::new(member.routes(), Patience::new(PEER_MAX))),
        end_move: Box::new(end_move),
        env: member.env.clone(),
    })
}

/// Has chains move, for as long as what it returns lives.
fn keep_moving(member: &Member, moves: &Arc<Moves>, service: &Arc<StorageService>) -> Result<Background> {
    let (moves, service) = (moves.clone(), service.clone());
    let turn = move || {
        moves.turn(&service);
        TURN_EVERY
    };
    Background::start(&*member.env.tasks, "ashlar-moves", turn)
}

/// Tells managers what the targets have, for as long as what it returns lives; each by a thread of its own, as counting one whose disk hangs takes as long as that.
fn keep_counting(
    member: &Member,
    moves: &Arc<Moves>,
    service: &Arc<StorageService>,
) -> Result<Vec<Background>> {
    let routes = member.routes();
    let count = |(target, _)| {
        let (moves, service, routes) = (moves.clone(), service.clone(), routes.clone());
        let report = move || {
            let begun = Instant::now();
            let targets: Vec<_> = moves.count(&service, target).into_iter().collect();
            // Counting is to cost next to nothing; but a target of which managers have heard nothing for long gets no chains.
            let pause = (begun.elapsed() * 50).clamp(REPORT_EVERY, REPORT_SELDOM);
            tell_managers(&routes, &ManagerRequest::ReportTargets { targets }, PEER_MAX);
            pause
        };
        Background::start(&*member.env.tasks, "ashlar-count", report)
    };
    service.targets().into_iter().map(count).collect()
}

/// Targets that have stopped, which administrators were told.
#[derive(Default)]
struct Stopped(HashSet<TargetId>);

impl Stopped {
    fn look(&mut self, service: &StorageService, member: &Member) {
        for (id, store) in service.targets() {
            if !self.0.contains(&id)
                && let Some(why) = store.stopped()
            {
                self.0.insert(id);
                member.reporter.report(EventKind::TargetStopped, &id.to_string(), &why);
            }
        }
    }
}

/// The targets that are listed; those that are none yet are made, in `pool`.
fn find_or_make(
    member: &Member,
    listed: &[(PathBuf, Option<TargetHeader>)],
    pool: Option<&str>,
) -> Result<Vec<(PathBuf, TargetIdentity)>> {
    let map = member.map().read().clone();
    let own = ClusterMap {
        targets: map.targets.iter().filter(|target| target.node == member.name.node).cloned().collect(),
        ..ClusterMap::clone(&map)
    };
    let mut found = Vec::new();
    for (path, header) in listed {
        let identity = match header {
            Some(TargetHeader { identity, .. }) if identity.cluster != map.cluster => bail!(
                "{} belongs to file system {}, not to {}",
                path.display(),
                identity.cluster,
                map.cluster
            ),
            Some(header) => {
                warn_of_other_pool(&map, header.identity.target, path, pool);
                header.identity
            }
            None => {
                targets::refuse_vanished(&own, listed, path)?;
                make(member, path, pool.unwrap_or_default())?
            }
        };
        found.push((path.clone(), identity));
    }
    Ok(found)
}

/// A target stays in the pool it was made in.
fn warn_of_other_pool(map: &ClusterMap, id: TargetId, path: &Path, pool: Option<&str>) {
    let known = map.target(id).and_then(|target| map.pools.iter().find(|known| known.id == target.pool));
    if let Some((known, wanted)) = known.zip(pool).filter(|(known, wanted)| known.name != *wanted) {
        tracing::warn!(
            path = %path.display(),
            pool = known.name,
            wanted,
            "a target stays in the pool it was made in: to have its disk in another one, drain it, remove it, and begin with an empty directory"
        );
    }
}

fn make(member: &Member, path: &Path, pool: &str) -> Result<TargetIdentity> {
    let mut uuid = [0; 16];
    member.env.entropy.fill(&mut uuid);
    let reply = member.ask(&ManagerRequest::NewTarget {
        uuid,
        path: path.display().to_string(),
        pool: pool.to_owned(),
    })?;
    let ManagerReply::Target(target) = reply else { bail!("the manager gave an answer of the wrong kind") };
    let identity = TargetIdentity { cluster: member.name.cluster, target, uuid: TargetUuid(uuid) };
    make_private_directory(path)?;
    ChunkStore::format(&OsDisk::new(path), &identity)
        .with_context(|| format!("cannot make a target at {}", path.display()))?;
    let header = TargetHeader { identity, start: Start::default() };
    eprintln!("ashlar: made {} at {}", header.identity.target, path.display());
    Ok(identity)
}
