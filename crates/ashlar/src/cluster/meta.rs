//! `ashlar meta`: serves metadata.

use super::announce;
use super::background::Background;
use super::member::{Member, listen, stop_flag, until_told_to_stop};
use super::node_directory::NodeDirectory;
use crate::cli::MetaArgs;
use crate::metrics::Metrics;
use crate::node::state::{make_private_directory, open_lane, root_settings};
use crate::node::{MetaLock, open_files, require_owner};
use anyhow::{Context, Result, bail};
use ashlar_env::os::OsDisk;
use ashlar_env::{Disk, OpenMode, replace_file};
use ashlar_meta::{MetaConfig, MetaService};
use ashlar_metrics::{Counted, ServiceKinds, Side};
use ashlar_rpc::net::Service;
use ashlar_rpc::remote::{Patience, RemotePeers, RemoteStorage};
use ashlar_rpc::serve::MetaEndpoint;
use ashlar_types::codec::crc32c;
use ashlar_types::message::{ManagerReply, ManagerRequest};
use ashlar_types::{NodeId, Role, ShardId};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// File that says which metadata this is: magic `ASHLMTA1`, uuid 16 bytes, CRC-32C u32 little-endian of the uuid.
const UUID_FILE: &str = "metadata";
const UUID_MAGIC: &[u8; 8] = b"ASHLMTA1";
/// For how long a target that does not answer is waited for.
const TARGET_MAX: Duration = Duration::from_secs(10);
/// For how long a manager is asked.
const MANAGER_MAX: Duration = Duration::from_secs(5);
/// Time between looks whether shards are to change hands.
const BALANCE_EVERY: Duration = Duration::from_millis(500);

pub fn run(args: &MetaArgs) -> Result<()> {
    let is_told = stop_flag()?;
    open_files::allow_as_many_as_permitted();
    let member = Member::start(NodeDirectory::new(&args.node.node), Role::Meta)?;
    let (listeners, bound) = listen(&args.listen)?;
    make_private_directory(&args.meta)?;
    require_owner(&args.meta)?;
    let path = args.meta.canonicalize().with_context(|| format!("cannot use {}", args.meta.display()))?;
    let disk: Arc<dyn Disk> = Arc::new(OsDisk::new(&path));
    let _lock = MetaLock::take(&disk, &path, &format!("ashlar meta, process {}", std::process::id()))?;
    let uuid = find_or_draw(&member, &disk, &path)?;
    let reply = member.ask(&ManagerRequest::MetaIdentity { uuid, path: path.display().to_string() })?;
    let ManagerReply::MetaIdentity { name_hash_key, epoch } = reply else {
        bail!("the manager gave an answer of the wrong kind");
    };
    // ORDER: which shards are here, and whether the root is, says the map.
    member.wait_for_epoch(epoch)?;
    let lane = open_lane(&disk, &path, &member.env, member.name.cluster, None)?;
    let metrics = Metrics::new("meta");
    metrics.add_map(member.map());
    let storage = Arc::new(RemoteStorage::new(member.routes(), Patience::new(TARGET_MAX)).giving_up());
    let storage = Arc::new(Counted::new(storage, metrics.calls(Side::Sent, ServiceKinds::STORAGE)));
    let config = MetaConfig {
        lane,
        env: member.env.clone(),
        name_hash_key,
        map: member.map(),
        keeps_sessions: true,
        storage,
        peers: Some((Arc::new(RemotePeers::new(member.routes())), member.name.node)),
    };
    let (meta, report) = MetaService::start(config, root_settings())
        .context("the metadata service could not recover; the log has details")?;
    if report.sessions_reaped > 0 {
        tracing::info!(?report, "cleaned up after sessions that had not ended");
    }
    meta.start_collector().context("cannot start a thread")?;
    meta.start_trimmer().context("cannot start a thread")?;
    metrics.add_meta(&meta);
    let counted = Arc::new(Counted::new(meta.clone(), metrics.calls(Side::Served, ServiceKinds::META)));
    let endpoint = Arc::new(MetaEndpoint::new(counted, member.map(), member.env.clock.clone()));
    let _shown = metrics.serve(&args.metrics)?;
    let server = member.serve(Service::Meta, endpoint.clone(), listeners)?;
    // ORDER: it serves before the map says so.
    member.ask(&ManagerRequest::Listen { role: Role::Meta, addresses: bound.clone() })?;
    let _looks = member.keep_certificate()?;
    let _balance = balance(&member, &meta)?;
    announce::serving(Role::Meta, &bound);
    let mut turn = 0u32;
    until_told_to_stop(&is_told, || {
        turn = turn.wrapping_add(1);
        if turn.is_multiple_of(20) {
            endpoint.tidy();
            meta.resume_across();
        }
        true
    });
    announce::notify("STOPPING=1");
    server.stop();
    drop((server, endpoint));
    meta.prepare_stop();
    meta.stop().context("could not close the metadata log")
}

/// Which metadata is in the directory; an empty one becomes that of a new file system, if the manager says so.
fn find_or_draw(member: &Member, disk: &Arc<dyn Disk>, path: &Path) -> Result<[u8; 16]> {
    match read_uuid(disk, path)? {
        Some(uuid) => Ok(uuid),
        None => draw(member, disk, path),
    }
}

/// Which metadata is in `disk`, the directory `path`, if it says so.
///
/// # Errors
/// When that cannot be read or is damaged.
pub fn read_uuid(disk: &Arc<dyn Disk>, path: &Path) -> Result<Option<[u8; 16]>> {
    let shown = path.join(UUID_FILE);
    let file = match disk.open(UUID_FILE, OpenMode::Read) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("cannot open {}", shown.display())),
    };
    let mut bytes = [0; 28];
    let got = file.read_at(0, &mut bytes).with_context(|| format!("cannot read {}", shown.display()))?;
    let mut uuid = [0; 16];
    uuid.copy_from_slice(&bytes[8..24]);
    if got != bytes.len() || &bytes[..8] != UUID_MAGIC || bytes[24..] != crc32c(0, &uuid).to_le_bytes() {
        bail!("{} is damaged; restore the metadata from a backup", shown.display());
    }
    Ok(Some(uuid))
}

/// Says durably which metadata is in `disk`, the directory `path`.
///
/// # Errors
/// When it cannot be written.
pub fn write_uuid(disk: &Arc<dyn Disk>, path: &Path, uuid: [u8; 16]) -> Result<()> {
    let mut bytes = UUID_MAGIC.to_vec();
    bytes.extend_from_slice(&uuid);
    bytes.extend_from_slice(&crc32c(0, &uuid).to_le_bytes());
    replace_file(&**disk, UUID_FILE, &bytes)
        .with_context(|| format!("cannot write {}", path.join(UUID_FILE).display()))
}

fn draw(member: &Member, disk: &Arc<dyn Disk>, path: &Path) -> Result<[u8; 16]> {
    let others = disk.list("").with_context(|| format!("cannot list {}", path.display()))?;
    if let Some(other) = others.iter().find(|name| *name != crate::node::LOCK_FILE) {
        bail!(
            "{} is not empty, it has {other}, and it is not the metadata of a file system of servers; `ashlar promote` makes that of a single machine one",
            path.display()
        );
    }
    let mut uuid = [0; 16];
    member.env.entropy.fill(&mut uuid);
    // ORDER: the manager first. If it knows of other metadata, nothing is made here.
    member.ask(&ManagerRequest::MetaIdentity { uuid, path: path.display().to_string() })?;
    write_uuid(disk, path, uuid)?;
    Ok(uuid)
}

/// Has shards spread over the metadata servers, for as long as what it returns lives.
fn balance(member: &Member, meta: &Arc<MetaService>) -> Result<Background> {
    let (managers, meta) = (member.managers.clone(), meta.clone());
    let transfer = move |shards: &[ShardId], from: NodeId, to: NodeId| {
        let request = ManagerRequest::TransferShards { shards: shards.to_vec(), from, to };
        let asked = managers.call(&request, Instant::now() + MANAGER_MAX);
        asked.inspect_err(|error| tracing::warn!(%error, "shards could not be transferred")).is_ok()
    };
    let look = move || {
        if let Err(errno) = meta.balance_shards(&transfer) {
            tracing::warn!(%errno, "could not look whether shards are to change hands; trying again");
        }
        BALANCE_EVERY
    };
    Background::start(&*member.env.tasks, "ashlar-balance", look)
}
