//! The note in a metadata directory that is an older copy, and is served all the same: the first start compares it with all targets, as after a restore.

use anyhow::{Context, Result, bail};
use ashlar_env::{Disk, OpenMode, replace_file};
use ashlar_kv::{Frame, Lane, Snapshot, Urgency, WriteSet};
use ashlar_namespace::key;
use ashlar_types::{ClusterMap, Epoch, NodeId, OpId, codec};
use bytes::Bytes;
use std::sync::Arc;

/// The note: magic `ASHLOLD1`, and whether the number of starts was changed, 0 or 1.
const FILE: &str = "older-copy";
const MAGIC: &[u8; 8] = b"ASHLOLD1";
/// Verb number of what is committed, for people who read logs.
const VERB: u8 = 103;
/// By how much numbers of starts go on: others have seen what was numbered by starts since the copy was made.
// LIMIT: a start's number has 23 bits: of two thousand older copies.
const STARTS_SKIPPED: u64 = 1 << 12;

/// See the module.
pub struct OlderCopy {
    is_counted: bool,
}

impl OlderCopy {
    /// The note in `disk`, if there is one.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn load(disk: &Arc<dyn Disk>) -> Result<Option<OlderCopy>> {
        let shown = disk.describe(FILE);
        let file = match disk.open(FILE, OpenMode::Read) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).with_context(|| format!("cannot open {shown}")),
        };
        let mut bytes = [0; 9];
        let got = file.read_at(0, &mut bytes).with_context(|| format!("cannot read {shown}"))?;
        // Damaged or not: it says that targets are to be compared.
        Ok(Some(OlderCopy { is_counted: got == bytes.len() && bytes.starts_with(MAGIC) && bytes[8] == 1 }))
    }

    /// Writes it into `disk`, durably, before anything says that this is the newest copy.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn store(disk: &Arc<dyn Disk>, is_counted: bool) -> Result<()> {
        let bytes = [MAGIC.as_slice(), &[u8::from(is_counted)]].concat();
        replace_file(&**disk, FILE, &bytes).with_context(|| format!("cannot write {}", disk.describe(FILE)))
    }

    /// Takes it away.
    ///
    /// # Errors
    /// When it cannot be removed.
    pub fn remove(disk: &Arc<dyn Disk>) -> Result<()> {
        disk.remove(FILE)
            .and_then(|()| disk.sync_dir(""))
            .with_context(|| format!("cannot remove {}", disk.describe(FILE)))
    }

    /// Refuses to serve shards by `map` that came to `node` after the copy was made: here they are empty, and all of their files would be deleted as newer than the copy. `lane` has a counter of
    /// inodes for each shard that was here at a start, and they move with their shards.
    ///
    /// # Errors
    /// With the shards, and when the log cannot be read.
    pub fn require_shards(&self, lane: &Lane, (map, node): (&ClusterMap, NodeId)) -> Result<()> {
        let (seen, mut missing) = (lane.read(), Vec::new());
        for shard in map.shards.iter().filter(|shard| shard.primary == node) {
            let has = |key: &[u8]| {
                Ok::<_, anyhow::Error>(seen.get(key).context("cannot read the metadata log")?.is_some())
            };
            let was_here = has(&key::counter(shard.id))? && !has(&key::arriving(shard.id))?;
            if !was_here {
                missing.push(shard.id.to_string());
            }
        }
        if missing.is_empty() {
            return Ok(());
        }
        // LIMIT: of names in the message.
        let (count, named) = (missing.len(), missing.iter().take(8).cloned().collect::<Vec<_>>().join(", "));
        let more = if count > 8 { format!(" and {} more", count - 8) } else { String::new() };
        bail!(
            "{named}{more} came to this server after this copy of its metadata was made, and nothing of their files is in it: to serve them would delete all of these. \
             Serve the newest metadata, or restore a backup with `ashlar restore`"
        );
    }

    /// Has the number of this start in `lane` be higher than any that others have seen.
    ///
    /// # Errors
    /// When the log cannot be read or written.
    pub fn skip_starts(&self, disk: &Arc<dyn Disk>, lane: &Lane) -> Result<()> {
        if self.is_counted {
            return Ok(());
        }
        let stored = lane.read().get(&key::incarnation()).context("cannot read the number of starts")?;
        let last: u64 = match stored {
            Some(bytes) => codec::decode(&bytes, "number of starts").context("the number of starts")?,
            None => 0,
        };
        let value = Bytes::from(codec::encode(&(last + STARTS_SKIPPED)));
        let frame = Frame {
            shard: key::shard_of(&key::incarnation()),
            epoch: Epoch(0),
            op: OpId::default(),
            verb: VERB,
            writes: WriteSet(vec![(key::incarnation(), Some(value))]),
            reply: Bytes::new(),
        };
        lane.write().commit(vec![frame], Urgency::FreesSpace).context("cannot write the metadata log")?;
        lane.flush_all().context("cannot write the metadata log")?;
        OlderCopy::store(disk, true)
    }
}
