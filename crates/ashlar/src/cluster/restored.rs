//! The note in a metadata directory that was made of a backup, and what its first start does: from then on no metadata of another time serves, and targets
//! have nothing that is newer.

use super::announce;
use super::member::Member;
use super::meta_directory::read_uuid;
use anyhow::{Context, Result, bail};
use ashlar_env::{Disk, OpenMode, replace_file};
use ashlar_meta::MetaService;
use ashlar_rpc::{Payload, StorageCalls};
use ashlar_types::codec::{self, crc32c};
use ashlar_types::message::{ManagerRequest, StorageRequest};
use ashlar_types::{ClusterMap, Epoch, NodeId, ShardSet, TargetId};
use parking_lot::{Condvar, Mutex};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The note: magic `ASHLRST1`, CRC-32C u32 little-endian of the rest, encoding.
const FILE: &str = "restored-part";
const MAGIC: &[u8; 8] = b"ASHLRST1";
// LIMIT: of the note: 65,536 shards are 8 KiB.
const BYTES_MAX: usize = 64 << 10;
/// For how long storage servers are waited for that start at the same time.
const TARGETS_MAX: Duration = Duration::from_secs(60);
/// For how much longer the service manager is to wait while targets are compared, and how often that is said.
const EXTENSION: &str = "EXTEND_TIMEOUT_USEC=300000000\nSTATUS=comparing targets with restored metadata";
const EXTEND_EVERY: Duration = Duration::from_secs(60);
/// Time between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestoredNote {
    /// The backup.
    pub set: [u8; 16],
    /// The node whose metadata it is.
    pub node: NodeId,
    /// The shards that were put in.
    pub shards: ShardSet,
    /// The map then.
    pub seen: Epoch,
    /// The node that is lost, whose shards are this one's.
    pub instead_of: Option<NodeId>,
}

impl RestoredNote {
    /// The note in `disk`, if there is one.
    ///
    /// # Errors
    /// When it cannot be read or is damaged.
    pub fn load(disk: &Arc<dyn Disk>) -> Result<Option<RestoredNote>> {
        let shown = disk.describe(FILE);
        let file = match disk.open(FILE, OpenMode::Read) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).with_context(|| format!("cannot open {shown}")),
        };
        let mut bytes = vec![0; BYTES_MAX];
        let got = file.read_at(0, &mut bytes).with_context(|| format!("cannot read {shown}"))?;
        let rest = bytes[..got].strip_prefix(MAGIC).and_then(|rest| rest.split_first_chunk::<4>());
        let note = rest.filter(|(crc, rest)| crc32c(0, rest).to_le_bytes() == **crc);
        let note = note.and_then(|(_, rest)| codec::decode(rest, "note of a restore").ok());
        note.map(Some)
            .with_context(|| format!("{shown} is damaged; restore the metadata anew with `ashlar restore`"))
    }

    /// Writes it into `disk`, durably.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn store(&self, disk: &Arc<dyn Disk>) -> Result<()> {
        let rest = codec::encode(self);
        let bytes = [MAGIC.as_slice(), &crc32c(0, &rest).to_le_bytes(), &rest].concat();
        replace_file(&**disk, FILE, &bytes).with_context(|| format!("cannot write {}", disk.describe(FILE)))
    }

    /// Takes it away: what it is about is done.
    ///
    /// # Errors
    /// When it cannot be removed.
    pub fn remove(disk: &Arc<dyn Disk>) -> Result<()> {
        disk.remove(FILE)
            .and_then(|()| disk.sync_dir(""))
            .with_context(|| format!("cannot remove {}", disk.describe(FILE)))
    }

    /// Has only metadata of this backup serve from now on.
    ///
    /// # Errors
    /// When the file system has changed since, or the directory is another node's.
    pub fn take_effect(&self, member: &Member, disk: &Arc<dyn Disk>, path: &Path) -> Result<()> {
        if self.node != member.name.node {
            bail!(
                "this metadata was restored for {}, and this machine is {}, {}: restore it here with this machine's --identity",
                self.node,
                member.name.name,
                member.name.node
            );
        }
        let Some(uuid) = read_uuid(disk, path)? else {
            bail!(
                "{} is what a restore has left that did not end: remove it, and restore again",
                path.display()
            );
        };
        let RestoredNote { set, seen, instead_of, .. } = *self;
        member.ask(&ManagerRequest::RestoreMetadata { set, uuid, seen, instead_of })?;
        Ok(())
    }

    /// Refuses to serve shards by `map` that were not put in.
    ///
    /// # Errors
    /// With the shard.
    pub fn require_shards(&self, map: &ClusterMap) -> Result<()> {
        let missing =
            map.shards.iter().find(|shard| shard.primary == self.node && !self.shards.has(shard.id));
        if let Some(missing) = missing {
            bail!(
                "{} is this server's now, and was not when the metadata was restored: restore it anew, while all metadata servers are stopped",
                missing.id
            );
        }
        Ok(())
    }
}

/// Whether something has ended.
type Signal = (Mutex<bool>, Condvar);

/// Compares all targets with the metadata of `meta`, in favour of that. Tells whether all could be asked.
///
/// # Errors
/// When a target does not answer, unless that `is_accepted`, and when something cannot be read or written.
pub fn settle(
    member: &Member,
    meta: &MetaService,
    storage: &dyn StorageCalls,
    is_accepted: bool,
) -> Result<bool> {
    let map = member.map().read().clone();
    let (deadline, mut missing): (_, Vec<TargetId>) = (Instant::now() + TARGETS_MAX, Vec::new());
    let all: Vec<TargetId> = map.targets.iter().map(|target| target.id).collect();
    eprintln!("ashlar: first start after a restore: comparing {} targets with the metadata", all.len());
    let answers = |target: TargetId| storage.call(&StorageRequest::Space { target }, Payload::None).is_ok();
    for &target in &all {
        while !answers(target) {
            if Instant::now() >= deadline || is_accepted {
                missing.push(target);
                break;
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }
    if let Some(first) = missing.first().filter(|_| !is_accepted) {
        let (node, path) =
            map.target(*first).map(|target| (target.node, target.path.as_str())).unwrap_or_default();
        let name = map.node(node).map_or_else(|| node.to_string(), |node| node.name.clone());
        bail!(
            "{first}, at {path} on {name}, is not served: what it has that is newer than the backup could show in new files, so the first start after a restore \
             compares all targets. Start its storage server; if it is lost, start this one with --accept-missing-targets, and never serve that target again"
        );
    }
    let there: Vec<TargetId> = all.into_iter().filter(|target| !missing.contains(target)).collect();
    // Whoever has started this process is not to take it for one that hangs.
    let is_over = Signal::default();
    std::thread::scope(|threads| {
        let patience = || {
            let mut ended = is_over.0.lock();
            while !*ended {
                announce::notify(EXTENSION);
                is_over.1.wait_for(&mut ended, EXTEND_EVERY);
            }
        };
        std::thread::Builder::new()
            .name("ashlar-patience".into())
            .spawn_scoped(threads, patience)
            .context("cannot start a thread")?;
        let settled = meta.settle_restored(&there);
        *is_over.0.lock() = true;
        is_over.1.notify_all();
        settled.context("targets could not be compared with restored metadata; the log has details")
    })?;
    Ok(missing.is_empty())
}
