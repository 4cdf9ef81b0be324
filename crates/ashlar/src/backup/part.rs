//! A part of a backup of a file system of many servers: what one metadata server had. A backup is a directory with a part of each, all of one moment.

use super::format::{Header, Kind, Reader, decode_pair};
use anyhow::{Context, Result, bail};
use ashlar_kv::{KvError, Snapshot, Visit};
use ashlar_namespace::key;
use ashlar_types::{ClusterMap, NodeId, ShardId, ShardSet, codec};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::BufReader;
use std::ops::Bound;
use std::path::{Path, PathBuf};

/// What the names of parts end with.
pub const EXTENSION: &str = "part";

/// One of the servers of a backup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartServer {
    /// Which.
    pub node: NodeId,
    /// Its name then.
    pub name: String,
    /// The shards it had.
    pub shards: ShardSet,
    /// How often it had been started.
    pub incarnation: u64,
}

/// What a part says of itself and of the others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartHead {
    /// Drawn at random for the backup: its parts have the same.
    pub set: [u8; 16],
    /// Whose part this is.
    pub node: NodeId,
    /// All that have a part, by node.
    pub servers: Vec<PartServer>,
    /// The key by which names are hashed. Secret.
    pub name_hash_key: [u8; 16],
    /// The map of that time.
    pub map: ClusterMap,
}

impl PartHead {
    /// The server whose part it is.
    pub fn server(&self) -> Option<&PartServer> {
        self.servers.iter().find(|server| server.node == self.node)
    }
}

/// Looks at a key and its value.
pub type Visitor<'v> = dyn FnMut(&[u8], &[u8]) -> Result<()> + 'v;

/// A backup that is whole and sound.
pub struct PartSet {
    /// What its parts have in common.
    pub head: PartHead,
    /// Which file system, and when.
    pub header: Header,
    /// Its files, with the shards each has.
    files: Vec<(PathBuf, ShardSet)>,
    /// Records of operations across servers that were under way: table `T` of all shards.
    // LIMIT: as many as there were calls at that moment.
    pub under_way: UnderWay,
}

/// See [`PartSet::under_way`].
#[derive(Default)]
pub struct UnderWay(BTreeMap<Vec<u8>, Bytes>);

impl Snapshot for UnderWay {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, KvError> {
        Ok(self.0.get(key).cloned())
    }

    fn scan(&self, from: &[u8], to: &[u8], visit: &mut Visit<'_>) -> Result<(), KvError> {
        if from < to {
            for (key, value) in self.0.range::<[u8], _>((Bound::Included(from), Bound::Excluded(to))) {
                if visit(key, value).is_break() {
                    break;
                }
            }
        }
        Ok(())
    }
}

impl PartSet {
    /// Reads all parts in directory `dir`, to their ends.
    ///
    /// # Errors
    /// When one is damaged or missing, or they do not belong together.
    pub fn open(dir: &Path) -> Result<PartSet> {
        let entries =
            std::fs::read_dir(dir).with_context(|| format!("cannot look into {}", dir.display()))?;
        let mut paths: Vec<PathBuf> = entries
            .map(|entry| Ok(entry?.path()))
            .collect::<std::io::Result<_>>()
            .with_context(|| format!("cannot look into {}", dir.display()))?;
        paths.retain(|path| path.extension().is_some_and(|extension| extension == EXTENSION));
        paths.sort();
        let Some(first) = paths.first() else {
            bail!("{} has no parts of a backup (files that end with .{EXTENSION})", dir.display());
        };
        let mut under_way = UnderWay::default();
        let mut heads: Vec<(PathBuf, Header, PartHead)> = Vec::new();
        for path in &paths {
            let mut visit = |record_key: &[u8], value: &[u8]| {
                if record_key.get(2) == Some(&b'T') {
                    under_way.0.insert(record_key.to_vec(), Bytes::copy_from_slice(value));
                }
                Ok(())
            };
            let (header, head) = read(path, &mut visit)
                .with_context(|| format!("the part {} cannot be used", path.display()))?;
            if let Some((other, _, known)) = heads.iter().find(|(_, _, known)| known.set != head.set) {
                bail!(
                    "{} and {} are parts of different backups ({} and {}): keep those of each in a directory of its own",
                    other.display(),
                    path.display(),
                    shown_set(known.set),
                    shown_set(head.set)
                );
            }
            if let Some((other, ..)) = heads.iter().find(|(_, _, known)| known.node == head.node) {
                bail!("{} and {} are the same part: remove one", other.display(), path.display());
            }
            heads.push((path.clone(), header, head));
        }
        let (_, header, head) =
            heads.first().cloned().with_context(|| format!("{} is gone", first.display()))?;
        let is_there = |node: NodeId| heads.iter().any(|(_, _, head)| head.node == node);
        if let Some(missing) = head.servers.iter().find(|server| !is_there(server.node)) {
            bail!(
                "the part of {} is missing in {}: the backup has {} parts, one per metadata server, and nothing can be said without any of them",
                missing.name,
                dir.display(),
                head.servers.len()
            );
        }
        let shards = |head: &PartHead| head.server().map(|server| server.shards.clone()).unwrap_or_default();
        let files = heads.iter().map(|(path, _, head)| (path.clone(), shards(head))).collect();
        Ok(PartSet { head, header, files, under_way })
    }

    /// Visits the pairs of `shards`, but those of operations under way.
    ///
    /// # Errors
    /// As [`PartSet::open`], and what `visit` answers.
    pub fn for_each_pair(&self, shards: &ShardSet, visit: &mut Visitor<'_>) -> Result<()> {
        let has_any = |of: &ShardSet| of.iter().any(|shard| shards.has(shard));
        for (path, _) in self.files.iter().filter(|(_, of)| has_any(of)) {
            let mut wanted = |record_key: &[u8], value: &[u8]| {
                let is_wanted = shards.has(key::shard_of(record_key)) && record_key.get(2) != Some(&b'T');
                if is_wanted { visit(record_key, value) } else { Ok(()) }
            };
            read(path, &mut wanted).with_context(|| format!("the part {} cannot be used", path.display()))?;
        }
        Ok(())
    }

    /// All shards.
    pub fn shards(&self) -> Vec<ShardId> {
        self.head.map.shards.iter().map(|shard| shard.id).collect()
    }
}

/// The number of a backup, for people.
pub fn shown_set(set: [u8; 16]) -> String {
    set.iter().take(4).map(|byte| format!("{byte:02x}")).collect()
}

/// Reads a part to its end.
fn read(path: &Path, visit: &mut Visitor<'_>) -> Result<(Header, PartHead)> {
    let input = File::open(path).context("cannot open it")?;
    let mut reader = Reader::new(BufReader::new(input))?;
    if !reader.header.is_part {
        bail!("it is a backup of a single machine");
    }
    let (kind, payload) = reader.frame()?;
    if kind != Kind::Part {
        bail!("it does not say whose part it is");
    }
    let head: PartHead = codec::decode(&payload, "head of a part").context("its head is malformed")?;
    head.map.check().map_err(anyhow::Error::msg).context("the map in it")?;
    let own = head.server().context("it is of none of its servers")?.shards.clone();
    if head.map.cluster != reader.header.cluster {
        bail!("its map is of another file system");
    }
    let mut pairs = 0u64;
    loop {
        match reader.frame()? {
            (Kind::Pairs, payload) => {
                let mut rest = payload.as_slice();
                while !rest.is_empty() {
                    let (record_key, value, behind) = decode_pair(rest).context("a pair is malformed")?;
                    if record_key.len() < 3 || !own.has(key::shard_of(record_key)) {
                        bail!("it has a key that is none of its server's");
                    }
                    visit(record_key, value)?;
                    pairs += 1;
                    rest = behind;
                }
            }
            (Kind::End, payload) if payload == pairs.to_le_bytes() && reader.is_at_end()? => break,
            (Kind::End, _) => bail!("its end does not match its content"),
            (..) => bail!("a frame is not where it belongs"),
        }
    }
    Ok((reader.header, head))
}
