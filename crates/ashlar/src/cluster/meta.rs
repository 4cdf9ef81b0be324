//! `ashlar meta`: serves metadata.

use super::announce;
use super::background::Background;
use super::claim::HeldStarts;
use super::doors::Doors;
use super::keys;
use super::member::{Member, stop_flag, until_told_to_stop};
use super::meta_directory;
use super::node_directory::NodeDirectory;
use super::older_copy::OlderCopy;
use super::restored::{self, RestoredNote};
use super::shard_pause::{ASK_EVERY, ShardPause};
use crate::cli::{CopyArgs, MetaArgs};
use crate::metrics::Metrics;
use crate::node::state::{make_private_directory, open_lane, root_settings};
use crate::node::{MetaLock, open_files, require_owner};
use anyhow::{Context, Result, bail};
use ashlar_env::Disk;
use ashlar_env::os::OsDisk;
use ashlar_kv::{Lane, LaneConfig};
use ashlar_meta::{MetaConfig, MetaService, Transferred};
use ashlar_metrics::{Counted, ServiceKinds, Side};
use ashlar_rpc::Reports;
use ashlar_rpc::net::{Endpoint, Service};
use ashlar_rpc::remote::{Granter, Patience, RemotePeers, RemoteStorage};
use ashlar_rpc::serve::{MetaEndpoint, Proofs};
use ashlar_types::message::{ManagerReply, ManagerRequest};
use ashlar_types::{Epoch, EventKind, NodeId, Role, ShardId};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// For how long a target that does not answer is waited for.
const TARGET_MAX: Duration = Duration::from_secs(10);
/// For how long a manager is asked.
const MANAGER_MAX: Duration = Duration::from_secs(5);
/// Time between looks whether shards are to change hands, after one that failed.
const TEND_EVERY: Duration = Duration::from_millis(500);

pub fn run(args: &MetaArgs) -> Result<()> {
    let is_told = stop_flag()?;
    open_files::allow_as_many_as_permitted();
    let member = Member::start(NodeDirectory::new(&args.node.node), Role::Meta)?;
    let doors = Doors::open(&args.listen, &args.management)?;
    let (announcement, bound) = (doors.announcement(Role::Meta), doors.places.addresses.clone());
    make_private_directory(&args.meta)?;
    require_owner(&args.meta)?;
    let path = args.meta.canonicalize().with_context(|| format!("cannot use {}", args.meta.display()))?;
    let disk: Arc<dyn Disk> = Arc::new(OsDisk::new(&path));
    let _lock = MetaLock::take(&disk, &path, &format!("ashlar meta, process {}", std::process::id()))?;
    let restored = RestoredNote::load(&disk)?;
    restored.iter().try_for_each(|note| note.take_effect(&member, &disk, &path))?;
    let Opened { lane, uuid, older, starts } = open(&member, (&disk, &path), args.copies, &is_told)?;
    let reply = member.ask(&ManagerRequest::MetaIdentity { uuid, path: path.display().to_string() })?;
    let ManagerReply::MetaIdentity { name_hash_key, epoch } = reply else {
        bail!("the manager gave an answer of the wrong kind");
    };
    // ORDER: which shards are here, and whether the root is, says the map.
    member.wait_for_epoch(epoch)?;
    restored.iter().try_for_each(|note| note.require_shards(&member.map().read()))?;
    older.iter().try_for_each(|older| require_shards(older, &lane, &member))?;
    older.iter().try_for_each(|older| older.skip_starts(&disk, &lane))?;
    let metrics = Metrics::new("meta");
    metrics.add_map(member.map());
    let routes = member.routes();
    let storage = Arc::new(RemoteStorage::new(routes.clone(), Patience::new(TARGET_MAX)).giving_up());
    let storage = Arc::new(Counted::new(storage, metrics.calls(Side::Sent, ServiceKinds::STORAGE)));
    let config = MetaConfig {
        lane: Arc::new(lane),
        env: member.env.clone(),
        name_hash_key,
        map: member.map(),
        keeps_sessions: true,
        storage: storage.clone(),
        peers: Some((Arc::new(RemotePeers::new(routes.clone())), member.name.node)),
    };
    let (meta, report) = MetaService::start(config, root_settings())
        .context("the metadata service could not recover; the log has details")?;
    if report.sessions_reaped > 0 {
        tracing::info!(?report, "cleaned up after sessions that had not ended");
    }
    // Whoever has taken it over meanwhile is not to be settled with.
    starts.stop_if_lost();
    let is_behind = restored.is_some() || older.is_some();
    if is_behind && restored::settle(&member, &meta, &*storage, args.accept_missing_targets)? {
        forget_notes(&disk, restored.is_some(), older.is_some())?;
    }
    start_threads(&meta, args.split_at).context("cannot start a thread")?;
    metrics.add_meta(&meta);
    let counted = Arc::new(Counted::new(meta.clone(), metrics.calls(Side::Served, ServiceKinds::META)));
    let keys = keys::first_sealing_keys(&member)?;
    let (of, env) = ((member.name.cluster, member.name.node), member.env.clone());
    let granter = Granter::start(routes, env, of, keys.clone()).context("cannot start a thread")?;
    let clock = member.env.clock.clone();
    let proofs = Arc::new(Proofs::new(member.name.cluster, &keys::open_key(&member)?));
    metrics.add_proofs(proofs.clone());
    let endpoint = MetaEndpoint::new(counted, member.map(), clock, granter.clone(), proofs);
    let endpoint = Arc::new(endpoint.reporting_to(member.reporter.clone()));
    meta.report_to(member.reporter.clone());
    metrics.add_clients(endpoint.clients(), member.map(), false);
    metrics.add_certificate(member.identity.clone());
    let _shown = metrics.serve(&args.metrics)?;
    let served: [(Service, Arc<dyn Endpoint>); 2] =
        [(Service::Meta, endpoint.clone()), (Service::Process, metrics.endpoint())];
    let server = member.serve(&served, doors)?;
    // ORDER: it serves before the map says so.
    member.ask(&announcement)?;
    let _looks = member.keep_certificate()?;
    let _moving = move_shards(&member, &meta)?;
    let (asked, sealing) = (granter.clone(), granter.clone());
    let request = (ManagerRequest::SealingKeys, keys);
    let _keys =
        keys::follow(&member, request, move || asked.wants_keys(), move |keys| sealing.set_keys(keys))?;
    let reporting = member.keep_reporting(Role::Meta)?;
    let _present = member.keep_present(Role::Meta)?;
    announce::serving(Role::Meta, &bound);
    let (mut turn, mut has_stopped, mut review) = (0u32, false, member.reviews());
    until_told_to_stop(&is_told, || {
        review(&server);
        turn = turn.wrapping_add(1);
        if turn.is_multiple_of(20) {
            has_stopped = has_stopped || report_if_stopped(&member, &meta);
            endpoint.tidy();
            meta.resume_across();
        }
        starts.are_held()
    });
    starts.stop_if_lost();
    announce::notify("STOPPING=1");
    member.report_stop(Role::Meta, reporting);
    server.stop();
    drop((server, served, endpoint));
    granter.stop();
    meta.prepare_stop();
    meta.stop().context("could not close the metadata log")?;
    starts.end(&member);
    Ok(())
}

/// Starts what works behind calls.
fn start_threads(meta: &Arc<MetaService>, split_at: u64) -> std::io::Result<()> {
    meta.start_collector()?;
    meta.start_trimmer()?;
    meta.start_splitter(split_at)
}

/// Metadata that may be served.
struct Opened {
    lane: Lane,
    uuid: [u8; 16],
    older: Option<OlderCopy>,
    starts: HeldStarts,
}

/// Has the metadata in `disk`, the directory `path`, begin its next start, and opens it.
fn open(
    member: &Member,
    (disk, path): (&Arc<dyn Disk>, &Path),
    copies: CopyArgs,
    is_told: &AtomicBool,
) -> Result<Opened> {
    let own = meta_directory::begin(member, (disk, path), copies, is_told)?;
    let older = OlderCopy::load(disk)?;
    let lane = open_lane(disk, path, &member.env, member.name.cluster, LaneConfig::default())?;
    // ORDER: who is refused has not taken it over from the newest one.
    older.iter().try_for_each(|older| require_shards(older, &lane, member))?;
    meta_directory::confirm(member, &own)?;
    let (uuid, starts) = (own.uuid, HeldStarts::keep(member, Role::Meta, vec![own])?);
    Ok(Opened { lane, uuid, older, starts })
}

/// Refuses shards that came to this server after the copy was made.
fn require_shards(older: &OlderCopy, lane: &Lane, member: &Member) -> Result<()> {
    let map = member.map().read().clone();
    older.require_shards(lane, (&map, member.name.node))
}

/// Takes away the notes that targets are to be compared.
fn forget_notes(disk: &Arc<dyn Disk>, is_restored: bool, is_older: bool) -> Result<()> {
    if is_restored {
        RestoredNote::remove(disk)?;
    }
    if is_older {
        OlderCopy::remove(disk)?;
    }
    Ok(())
}

/// Tells managers if the metadata takes no more changes; tells whether that is so.
fn report_if_stopped(member: &Member, meta: &MetaService) -> bool {
    let why = meta.stopped();
    if let Some(why) = &why {
        member.reporter.report(EventKind::MetadataStopped, &member.name.name, why);
    }
    why.is_some()
}

/// Has shards go to other servers as they are to, and come from them, for as long as what it returns lives.
fn move_shards(member: &Member, meta: &Arc<MetaService>) -> Result<[Background; 3]> {
    let (managers, sender) = (member.managers.clone(), meta.clone());
    let transfer = move |shards: &[ShardId], from: NodeId, to: NodeId, seen: Epoch| {
        let request = ManagerRequest::TransferShards { shards: shards.to_vec(), from, to, seen };
        match managers.ask_once(&request, Instant::now() + MANAGER_MAX) {
            Some(Ok(ManagerReply::Transferred(Ok(())))) => Transferred::Done,
            Some(Ok(ManagerReply::Transferred(Err(why)))) => Transferred::Refused(why),
            Some(Ok(_)) => Transferred::Unknown,
            Some(Err(error)) => {
                tracing::warn!(%error, "it is not known whether a shard was transferred; asking again");
                Transferred::Unknown
            }
            None => Transferred::NotAsked,
        }
    };
    let pause = Arc::new(ShardPause::new(member, meta));
    let asked = pause.clone();
    let send = move || {
        // ORDER: before one is begun. While it is under way, the other thread looks.
        asked.look();
        sender.carry_out_moves(&transfer)
    };
    let send = Background::start(&*member.env.tasks, "ashlar-send", send)?;
    let look = move || {
        pause.look();
        ASK_EVERY
    };
    let look = Background::start(&*member.env.tasks, "ashlar-pause", look)?;
    let receiver = meta.clone();
    let tend = move || {
        receiver.tend_shards().unwrap_or_else(|errno| {
            tracing::warn!(%errno, "could not look whether shards are to change hands; trying again");
            TEND_EVERY
        })
    };
    let tend = Background::start(&*member.env.tasks, "ashlar-shards", tend)?;
    Ok([send, look, tend])
}
