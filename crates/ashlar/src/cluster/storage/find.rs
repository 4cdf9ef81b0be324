//! The targets in the directories that are listed; a directory that has none becomes one.

use super::super::member::Member;
use crate::node::{state::make_private_directory, targets};
use anyhow::{Context, Result, bail};
use ashlar_chunkstore::{ChunkStore, TargetHeader, TargetIdentity, TargetUuid};
use ashlar_env::os::OsDisk;
use ashlar_types::message::{ManagerReply, ManagerRequest};
use ashlar_types::{ClusterMap, Start, TargetId};
use std::path::{Path, PathBuf};

/// The targets that are `listed`, each with the pool it is to be in if somebody has said one; those that are none yet are made there.
///
/// # Errors
/// When one is of another file system, was here and is not any more, or cannot be made.
pub fn find_or_make(
    member: &Member,
    listed: &[(PathBuf, Option<TargetHeader>)],
    pool_of: impl Fn(&Path) -> Option<String>,
) -> Result<Vec<(PathBuf, TargetIdentity)>> {
    let map = member.map().read().clone();
    let own = ClusterMap {
        targets: map.targets.iter().filter(|target| target.node == member.name.node).cloned().collect(),
        ..ClusterMap::clone(&map)
    };
    let mut found = Vec::new();
    for (path, header) in listed {
        let pool = pool_of(path);
        let pool = pool.as_deref();
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
