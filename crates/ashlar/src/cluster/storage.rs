//! `ashlar storage`: serves targets.

mod find;
mod in_service;
mod let_go;
mod remembered;
mod shared;
mod take;

use super::affinity::{self, Affinity, OnNode, Topology, interfaces};
use super::announce;
use super::background::Background;
use super::doors::Doors;
use super::keys;
use super::member::{Member, stop_flag, until_told_to_stop};
use super::node_directory::NodeDirectory;
use crate::cli::StorageArgs;
use crate::metrics::Metrics;
use crate::node::{Directories, open_files};
use anyhow::{Result, bail};
use ashlar_chunkstore::{TargetHeader, TargetIdentity};
use ashlar_metrics::{Counted, ServiceKinds, Side};
use ashlar_rpc::Reports;
use ashlar_rpc::net::{Endpoint, Service};
use ashlar_rpc::remote::{Patience, RemoteStorage};
use ashlar_rpc::serve::{Access, StorageEndpoint};
use ashlar_storage::StorageService;
use ashlar_storage::moves::{End, Moves, Outside, Told};
use ashlar_types::map::TargetState;
use ashlar_types::message::{ChainChange, ManagerReply, ManagerRequest};
use ashlar_types::{ClusterMap, EventKind, KeySet, NodeId, Role, TargetId};
use find::find_or_make;
use in_service::{InService, Machine, Parts};
use remembered::Remembered;
use shared::SharedDisks;
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use take::Taker;

/// For how long a manager is waited for that is told what targets have.
const PEER_MAX: Duration = Duration::from_secs(3);
const END_MAX: Duration = Duration::from_secs(5);
/// Time between two looks at which chains are to move.
const TURN_EVERY: Duration = Duration::from_millis(20);

pub fn run(args: &StorageArgs) -> Result<()> {
    let is_told = stop_flag()?;
    open_files::allow_as_many_as_permitted();
    let directory = NodeDirectory::new(&args.node.node);
    let mut remembered = Remembered::load(&directory)?;
    let data = remembered.places(&args.data, &args.without)?;
    let has_shared = !args.shared.shared.is_empty() || !args.shared.standby.is_empty();
    let directories: Vec<PathBuf> = data.iter().map(|place| place.dir.clone()).collect();
    let listed = Directories::find_targets(&directories)?;
    let member = Arc::new(Member::start(directory, Role::Storage)?);
    let listed = without_removed((&member, &mut remembered), listed, has_shared)?;
    let doors = Doors::open(&args.listen, &args.management)?;
    let machine = Machine {
        bound: doors.places.addresses.clone(),
        topology: Topology::read(Path::new("/sys")),
        interfaces: interfaces(),
    };
    let bound = machine.bound.clone();
    // What is said of a directory is judged before a target is made in it.
    let affinities: HashMap<PathBuf, Affinity> = listed
        .iter()
        .map(|(path, _)| Ok((path.clone(), machine.affinity(affinity::place_of(&data, path)?)?)))
        .collect::<Result<_>>()?;
    let pool_of = |path: &Path| {
        let added = remembered.pool_of(path).filter(|pool| !pool.is_empty());
        added.map(str::to_owned).or_else(|| args.pool.clone())
    };
    let found = find_or_make(&member, &listed, pool_of)?;
    let metrics = Metrics::new("storage");
    let (parts, access, keys) = parts(&member, &metrics, &machine)?;
    let (service, moves) = (parts.service.clone(), parts.moves.clone());
    let in_service = InService::new(
        parts.clone(),
        (machine, doors.places.clone()),
        args.copies,
        remembered,
        is_told.clone(),
    )?;
    let in_service = Arc::new(in_service);
    // ORDER: nobody is answered before that a target which is to come is missing.
    let shared = SharedDisks::new(in_service.clone(), &args.shared, args.pool.clone())?;
    let targets = |map: &ClusterMap, served: &[_]| are_served(map, member.name.node, served);
    let is_known = targets(&member.map().read(), &shown(&found));
    in_service.open(&found, |path| Ok(affinities.get(path).cloned().unwrap_or_default()), is_known)?;
    service.report_to(member.reporter.clone());
    affinity::tell(&in_service.affinities(), &in_service.machine.topology);
    let endpoint = StorageEndpoint::new(parts.on_node.clone(), member.map(), access.clone())
        .with_peers(service.clone())
        .with_taker(Arc::new(Taker(in_service.clone())));
    metrics.add_clients(endpoint.clients(), member.map(), true);
    metrics.add_certificate(member.identity.clone());
    let served: [(Service, Arc<dyn Endpoint>); 2] =
        [(Service::Storage, Arc::new(endpoint)), (Service::Process, metrics.endpoint())];
    let _shown = metrics.serve(&args.metrics)?;
    let server = member.serve(&served, doors)?;
    // ORDER: it serves before the map says so.
    let map = member.map().read().clone();
    let is_known = map.node(member.name.node).is_some_and(|node| node.addresses(Role::Storage) == bound);
    member.tell(&in_service.announcement(), is_known)?;
    let is_known = is_known && targets(&map, &in_service.served());
    member.tell(&ManagerRequest::Serve { targets: in_service.served() }, is_known)?;
    in_service.note_entered();
    let _looks = member.keep_certificate()?;
    let _moving = keep_moving(&member, &moves, &service)?;
    in_service.count()?;
    let _keys = follow_keys(&member, keys, access)?;
    let reporting = member.keep_reporting(Role::Storage)?;
    let _present = member.keep_present(Role::Storage)?;
    let sharing = shared.keep()?;
    announce::serving(Role::Storage, &bound);
    let (mut stopped, mut review) = (Stopped::default(), member.reviews());
    until_told_to_stop(&is_told, || {
        review(&server);
        in_service.turn();
        stopped.look(&service, &member);
        in_service.are_held()
    });
    in_service.stop_if_lost();
    announce::notify("STOPPING=1");
    member.report_stop(Role::Storage, reporting);
    moves.stop();
    server.stop();
    shared.end();
    drop(sharing);
    in_service.close()
}

/// Those of `found` that were not removed from the file system after they were served here.
fn without_removed(
    (member, remembered): (&Member, &mut Remembered),
    found: Vec<(PathBuf, Option<TargetHeader>)>,
    has_others: bool,
) -> Result<Vec<(PathBuf, Option<TargetHeader>)>> {
    let before = remembered.clone();
    let told = remembered.is_in_doubt(&found, &member.map().read()).then(|| member.map_told_now());
    let told = told.and_then(|told| {
        let warn = |error: &_| {
            tracing::warn!("no manager tells which targets were removed; going by what is known: {error:#}");
        };
        told.inspect_err(warn).ok()
    });
    if let Some(map) = &told {
        remembered.review(&found, map);
    }
    let listed = remembered.without_removed(found, told.is_some());
    if *remembered != before {
        remembered.store(member.directory())?;
    }
    if listed.is_empty() && !has_others {
        bail!(
            "nothing is left to serve: name an empty directory for a new target, or have this server stay off"
        );
    }
    Ok(listed)
}

/// Id, uuid and directory of each.
fn shown(found: &[(PathBuf, TargetIdentity)]) -> Vec<(TargetId, [u8; 16], String)> {
    let shown = |(path, identity): &(PathBuf, TargetIdentity)| {
        (identity.target, identity.uuid.0, path.display().to_string())
    };
    found.iter().map(shown).collect()
}

/// What serves targets, with what clients need to be let at them and the keys by which that is checked.
fn parts(member: &Arc<Member>, metrics: &Metrics, machine: &Machine) -> Result<(Parts, Arc<Access>, KeySet)> {
    let moves = Arc::new(moves(member));
    let service = Arc::new(StorageService::with_moves(moves.clone()));
    metrics.add_map(member.map());
    metrics.add_targets(&service);
    metrics.add_moves(&moves);
    let counted = Counted::new(service.clone(), metrics.calls(Side::Served, ServiceKinds::STORAGE));
    let on_node = Arc::new(OnNode::new(Arc::new(counted), &machine.topology));
    let keys = keys::first_checking_keys(member)?;
    let access = Arc::new(Access::new(member.name.node, member.map(), keys.clone(), member.env.clone()));
    metrics.add_access(&access);
    Ok((Parts { member: member.clone(), moves, service, on_node }, access, keys))
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
    let managers = member.managers.clone();
    let change_chains = move |by: TargetId, changes: Vec<ChainChange>| {
        let request = ManagerRequest::ChangeChains { by, changes };
        if let Some(Err(error)) = managers.ask_once(&request, Instant::now() + END_MAX) {
            tracing::warn!(%error, target = %by, "no manager changes who keeps copies of chains; it is asked again");
        }
    };
    Moves::new(Outside {
        map: member.map(),
        is_kept: Box::new(member.is_kept()),
        peers: Arc::new(RemoteStorage::new(member.routes(), Patience::new(PEER_MAX))),
        end_move: Box::new(end_move),
        change_chains: Box::new(change_chains),
        env: member.env.clone(),
        piece_bytes: Outside::PIECE_BYTES,
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
