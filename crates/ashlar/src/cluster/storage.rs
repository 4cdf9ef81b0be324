//! `ashlar storage`: serves targets.

use super::announce;
use super::member::{Member, listen, stop_flag, until_told_to_stop};
use super::node_directory::NodeDirectory;
use crate::cli::StorageArgs;
use crate::metrics::Metrics;
use crate::node::{Directories, open_files, services, state::make_private_directory, targets};
use anyhow::{Context, Result, bail};
use ashlar_chunkstore::{ChunkStore, TargetHeader, TargetIdentity, TargetUuid};
use ashlar_env::os::OsDisk;
use ashlar_metrics::{Counted, ServiceKinds, Side};
use ashlar_rpc::net::Service;
use ashlar_rpc::serve::StorageEndpoint;
use ashlar_storage::StorageService;
use ashlar_types::message::{ManagerReply, ManagerRequest};
use ashlar_types::{ClusterMap, Role, Start, TargetId};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

pub fn run(args: &StorageArgs) -> Result<()> {
    let is_told = stop_flag()?;
    open_files::allow_as_many_as_permitted();
    let listed = Directories::find_targets(&args.data)?;
    let member = Member::start(NodeDirectory::new(&args.node.node), Role::Storage)?;
    let (listeners, bound) = listen(&args.listen)?;
    let holder = format!("ashlar storage, process {}", std::process::id());
    let found = find_or_make(&member, &listed)?;
    let service = Arc::new(StorageService::new());
    for (path, identity) in &found {
        let store = targets::open_alone(path, identity, &member.env, &holder).with_context(|| {
            format!(
                "cannot open the target at {}; leave this directory out to start without it",
                path.display()
            )
        })?;
        service.add_target(identity.target, store);
    }
    let is_stopping = Arc::new(AtomicBool::new(false));
    let background = services::start_background(&service, &is_stopping, member.env.tasks.clone())?;
    let metrics = Metrics::new("storage");
    metrics.add_map(member.map());
    metrics.add_targets(&service);
    let counted = Counted::new(service.clone(), metrics.calls(Side::Served, ServiceKinds::STORAGE));
    let endpoint = Arc::new(StorageEndpoint::new(Arc::new(counted), member.map()));
    let _shown = metrics.serve(&args.metrics)?;
    let server = member.serve(Service::Storage, endpoint, listeners)?;
    // ORDER: it serves before the map says so.
    member.ask(&ManagerRequest::Listen { role: Role::Storage, addresses: bound.clone() })?;
    let served = found
        .iter()
        .map(|(path, identity)| (identity.target, identity.uuid.0, path.display().to_string()))
        .collect();
    member.ask(&ManagerRequest::Serve { targets: served })?;
    let _looks = member.keep_certificate()?;
    announce::serving(Role::Storage, &bound);
    until_told_to_stop(&is_told, || true);
    announce::notify("STOPPING=1");
    server.stop();
    is_stopping.store(true, Relaxed);
    if background.join().is_err() {
        tracing::error!("the background thread of the targets ended by a panic");
    }
    let close = |(id, store): (TargetId, Arc<ChunkStore>)| {
        store.close().with_context(|| format!("could not close {id}"))
    };
    service.targets().into_iter().map(close).fold(Ok(()), Result::and)
}

/// The targets that are listed; those that are none yet are made.
fn find_or_make(
    member: &Member,
    listed: &[(PathBuf, Option<TargetHeader>)],
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
            Some(header) => header.identity,
            None => {
                targets::refuse_vanished(&own, listed, path)?;
                make(member, path)?
            }
        };
        found.push((path.clone(), identity));
    }
    Ok(found)
}

fn make(member: &Member, path: &Path) -> Result<TargetIdentity> {
    let mut uuid = [0; 16];
    member.env.entropy.fill(&mut uuid);
    let reply = member.ask(&ManagerRequest::NewTarget { uuid, path: path.display().to_string() })?;
    let ManagerReply::Target(target) = reply else { bail!("the manager gave an answer of the wrong kind") };
    let identity = TargetIdentity { cluster: member.name.cluster, target, uuid: TargetUuid(uuid) };
    make_private_directory(path)?;
    ChunkStore::format(&OsDisk::new(path), &identity)
        .with_context(|| format!("cannot make a target at {}", path.display()))?;
    let header = TargetHeader { identity, start: Start::default() };
    eprintln!("ashlar: made {} at {}", header.identity.target, path.display());
    Ok(identity)
}
