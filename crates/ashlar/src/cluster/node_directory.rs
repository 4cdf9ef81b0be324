//! What a machine keeps of the file system it belongs to: a directory with its name, certificate and key, and the last map.
//!
//! | file | what |
//! |---|---|
//! | `node.json` | file system, node, name, roles, addresses of managers |
//! | `certificate.pem`, `key.pem`, `authority.pem` | its certificate and key, the certificate of the authority |
//! | `keys` | of a storage server: the last keys by which it checks capabilities: magic `ASHLKEY1`, CRC-32C u32 little-endian of the rest, encoding |
//! | `targets.json` | of a storage server: directories that were added while it ran, and what targets are known by that were removed meanwhile |
//! | `disks.lock` | of a storage server with shared disks: locked while a process of it, or a program that one has started, may mount one |
//! | `console.sock` | of a console that runs: where `ashlar console login` asks |
//! | `map` | the last cluster map: magic `ASHLMAP3`, CRC-32C u32 little-endian of the rest, encoding |

use crate::node::state::make_private_directory;
use anyhow::{Context, Result, bail};
use ashlar_rpc::net::{KnowsToken, TlsIdentity};
use ashlar_types::codec::{self, crc32c};
use ashlar_types::{ClusterId, ClusterMap, KeySet, NodeId, Roles};
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

const NODE_FILE: &str = "node.json";
const CERTIFICATE_FILE: &str = "certificate.pem";
const KEY_FILE: &str = "key.pem";
const AUTHORITY_FILE: &str = "authority.pem";
const KEYS_FILE: &str = "keys";
const KEYS_MAGIC: &[u8; 8] = b"ASHLKEY1";
const TARGETS_FILE: &str = "targets.json";
const DISKS_LOCK_FILE: &str = "disks.lock";
/// LIMIT: bytes of it that are read.
const TARGETS_BYTES_MAX: u64 = 16 << 20;
const MAP_FILE: &str = "map";
const MAP_MAGIC: &[u8; 8] = b"ASHLMAP4";
/// LIMIT: for how long other processes of the node are waited for that keep a map; it takes them milliseconds.
const OTHERS_MAX: Duration = Duration::from_secs(5);
/// Time between two attempts.
const PAUSE: Duration = Duration::from_millis(5);

/// What `node.json` says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct NodeFile {
    cluster: String,
    node: u32,
    name: String,
    roles: String,
    managers: Vec<SocketAddr>,
}

/// Who a machine is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeName {
    pub cluster: ClusterId,
    pub node: NodeId,
    pub name: String,
    pub roles: Roles,
    pub managers: Vec<SocketAddr>,
}

/// Certificate and key, PEM.
pub struct Papers {
    pub certificate: String,
    pub key: String,
    pub authority: String,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct NodeDirectory {
    path: PathBuf,
}

impl NodeDirectory {
    pub fn new(path: &Path) -> NodeDirectory {
        NodeDirectory { path: path.to_owned() }
    }

    /// Refuses a directory that has a node already.
    pub fn require_unused(&self) -> Result<()> {
        if self.path.join(NODE_FILE).exists() {
            let known = self.load().map(|name| format!("{} of file system {}", name.name, name.cluster));
            bail!(
                "{} belongs to {}: name another directory with --identity, or remove this one to leave that file system",
                self.path.display(),
                known.unwrap_or_else(|_| "a node".into())
            );
        }
        Ok(())
    }

    /// Makes the directory.
    pub fn store(&self, name: &NodeName, papers: &Papers) -> Result<()> {
        make_private_directory(&self.path)?;
        self.store_papers(papers)?;
        let file = NodeFile {
            cluster: name.cluster.to_string(),
            node: name.node.0,
            name: name.name.clone(),
            roles: name.roles.to_string(),
            managers: name.managers.clone(),
        };
        // ORDER: last, because it is what makes the directory one of a node.
        self.write(NODE_FILE, &serde_json::to_vec_pretty(&file)?)
    }

    /// Replaces certificate and key.
    pub fn store_papers(&self, papers: &Papers) -> Result<()> {
        self.write(KEY_FILE, papers.key.as_bytes())?;
        self.write(CERTIFICATE_FILE, papers.certificate.as_bytes())?;
        self.write(AUTHORITY_FILE, papers.authority.as_bytes())
    }

    /// Its path, for people.
    pub fn shown(&self) -> std::path::Display<'_> {
        self.path.display()
    }

    /// Where a console listens for whoever may log in: who may use this directory.
    pub fn console_socket(&self) -> PathBuf {
        self.path.join("console.sock")
    }

    /// Its private key, PEM.
    pub fn key(&self) -> Result<String> {
        let path = self.path.join(KEY_FILE);
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
    }

    /// The certificate of the authority, PEM.
    pub fn authority(&self) -> Result<String> {
        let path = self.path.join(AUTHORITY_FILE);
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
    }

    /// Replaces the certificate by another one for the same key.
    pub fn store_certificate(&self, certificate: &str) -> Result<()> {
        let _alone = self.lock()?;
        self.write(CERTIFICATE_FILE, certificate.as_bytes())
    }

    /// Who this machine is.
    pub fn load(&self) -> Result<NodeName> {
        let path = self.path.join(NODE_FILE);
        if !path.exists() {
            bail!(
                "{} is not there: this machine belongs to no file system yet; `ashlar join TOKEN` makes it a node, with a token of `ashlar token`",
                path.display()
            );
        }
        let damaged =
            || format!("{} is damaged; `ashlar join` with a new token makes it anew", path.display());
        let bytes = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let file: NodeFile = serde_json::from_slice(&bytes).with_context(damaged)?;
        let (Some(cluster), Some(roles)) = (ClusterId::parse(&file.cluster), Roles::parse(&file.roles))
        else {
            bail!(damaged());
        };
        Ok(NodeName { cluster, node: NodeId(file.node), name: file.name, roles, managers: file.managers })
    }

    /// Its certificate and key, ready to use.
    pub fn identity(&self, tokens: Option<Arc<KnowsToken>>) -> Result<TlsIdentity> {
        let read = |name: &str| {
            let path = self.path.join(name);
            fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
        };
        let (certificate, key, authority) = (read(CERTIFICATE_FILE)?, read(KEY_FILE)?, read(AUTHORITY_FILE)?);
        TlsIdentity::with_tokens(&certificate, &key, &authority, tokens)
            .with_context(|| format!("cannot use the certificate in {}", self.path.display()))
    }

    /// Keeps a map for the time in which no manager answers, unless there is a newer one.
    pub fn store_map(&self, map: &ClusterMap) -> Result<()> {
        // Several roles and mounts of a machine share the directory, and all keep what they have seen.
        let _alone = self.lock()?;
        if self.load_map().is_some_and(|known| known.cluster == map.cluster && known.epoch >= map.epoch) {
            return Ok(());
        }
        self.write(MAP_FILE, &framed(MAP_MAGIC, &codec::encode(map)))
    }

    /// As [`NodeDirectory::store_map`], for a manager: what it goes by is the state, and the map is for others on this machine.
    pub fn keep_map(&self, map: &ClusterMap) {
        if let Err(error) = self.store_map(map) {
            tracing::warn!(error = format!("{error:#}"), "the map could not be kept");
        }
    }

    /// The last map, if there is a good one.
    pub fn load_map(&self) -> Option<ClusterMap> {
        let bytes = fs::read(self.path.join(MAP_FILE)).ok()?;
        let map: ClusterMap = codec::decode(unframed(MAP_MAGIC, &bytes)?, "map").ok()?;
        map.check().is_ok().then_some(map)
    }

    /// Keeps keys for the time in which no manager answers.
    pub fn store_keys(&self, cluster: ClusterId, keys: &KeySet) -> Result<()> {
        self.write(KEYS_FILE, &framed(KEYS_MAGIC, &codec::encode(&(cluster, keys))))
    }

    /// The last keys, if there are good ones of this file system.
    pub fn load_keys(&self, cluster: ClusterId) -> Option<KeySet> {
        let bytes = fs::read(self.path.join(KEYS_FILE)).ok()?;
        let (of, keys): (ClusterId, KeySet) = codec::decode(unframed(KEYS_MAGIC, &bytes)?, "keys").ok()?;
        (of == cluster && keys.is_sound()).then_some(keys)
    }

    /// What is kept of directories that came and went while the storage server ran, if anything is.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn load_targets(&self) -> Result<Option<Vec<u8>>> {
        let path = self.path.join(TARGETS_FILE);
        let mut bytes = Vec::new();
        let read = File::open(&path).and_then(|file| file.take(TARGETS_BYTES_MAX).read_to_end(&mut bytes));
        match read {
            Ok(_) => Ok(Some(bytes)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
        }
    }

    /// Keeps that.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn store_targets(&self, bytes: &[u8]) -> Result<()> {
        self.write(TARGETS_FILE, bytes)
    }

    /// Keeps other processes from writing a map, until it is dropped.
    /// What is to be locked before a shared disk is mounted. It stays locked while any process has it open.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn disks_lock(&self) -> Result<File> {
        let path = self.path.join(DISKS_LOCK_FILE);
        let mut options = OpenOptions::new();
        let file = options.write(true).create(true).truncate(false).mode(0o600).open(&path);
        file.with_context(|| format!("cannot open {}", path.display()))
    }

    fn lock(&self) -> Result<File> {
        let directory =
            File::open(&self.path).with_context(|| format!("cannot open {}", self.path.display()))?;
        let deadline = Instant::now() + OTHERS_MAX;
        while let Err(error) = flock(&directory, FlockOperation::NonBlockingLockExclusive) {
            if Instant::now() >= deadline {
                return Err(error).with_context(|| format!("cannot lock {}", self.path.display()));
            }
            std::thread::sleep(PAUSE);
        }
        Ok(directory)
    }

    fn write(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let (new, path) = (self.path.join(format!("{name}.new")), self.path.join(name));
        let store = || -> std::io::Result<()> {
            let mut file =
                OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
            file.write_all(bytes)?;
            file.sync_all()?;
            fs::rename(&new, &path)?;
            fs::File::open(&self.path)?.sync_all()
        };
        store().with_context(|| format!("cannot write {}", path.display()))
    }
}

/// A file: magic, checksum of the rest, and that.
fn framed(magic: &[u8; 8], body: &[u8]) -> Vec<u8> {
    [magic.as_slice(), &crc32c(0, body).to_le_bytes(), body].concat()
}

/// What is in a file, if it is whole.
fn unframed<'a>(magic: &[u8; 8], bytes: &'a [u8]) -> Option<&'a [u8]> {
    let (sum, body) = bytes.strip_prefix(magic)?.split_at_checked(4)?;
    (sum == crc32c(0, body).to_le_bytes()).then_some(body)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use ashlar_types::SecretKey;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn keys_are_its_owner_s_alone_and_of_its_file_system() {
        let dir = tempfile::tempdir().unwrap();
        let directory = NodeDirectory::new(dir.path());
        let keys = KeySet(vec![(1, SecretKey([1; 32])), (2, SecretKey([2; 32]))]);
        let cluster = ClusterId([7; 16]);
        assert_eq!(directory.load_keys(cluster), None);
        directory.store_keys(cluster, &keys).unwrap();
        directory.store_keys(cluster, &keys).unwrap();
        let path = dir.path().join(KEYS_FILE);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(directory.load_keys(cluster), Some(keys));
        assert_eq!(directory.load_keys(ClusterId([8; 16])), None);
        let mut damaged = fs::read(&path).unwrap();
        *damaged.last_mut().unwrap() ^= 1;
        fs::write(&path, damaged).unwrap();
        assert_eq!(directory.load_keys(cluster), None);
    }
    use ashlar_types::map::Shard;
    use ashlar_types::{Epoch, Node, NodePolicy, ShardId};

    #[test]
    fn of_many_who_keep_a_map_at_the_same_time_the_newest_stays() {
        let dir = tempfile::tempdir().unwrap();
        let map = |epoch: u64| ClusterMap {
            cluster: ClusterId([7; 16]),
            epoch: Epoch(epoch),
            pools: Vec::new(),
            targets: Vec::new(),
            chains: Vec::new(),
            shards: vec![Shard { id: ShardId(0), primary: NodeId(1) }],
            moves: Default::default(),
            filesets: Vec::new(),
            nodes: vec![Node {
                id: NodeId(1),
                name: "first".into(),
                roles: Roles::default(),
                listening: Vec::new(),
                policy: NodePolicy::default(),
                domain: String::new(),
            }],
        };
        std::thread::scope(|scope| {
            for writer in 0..8 {
                let directory = NodeDirectory::new(dir.path());
                scope.spawn(move || {
                    for turn in 0..20 {
                        directory.store_map(&map(turn * 8 + writer + 1)).unwrap();
                    }
                });
            }
        });
        let directory = NodeDirectory::new(dir.path());
        assert_eq!(directory.load_map().unwrap().epoch, Epoch(160));
        directory.store_map(&map(3)).unwrap();
        assert_eq!(directory.load_map().unwrap().epoch, Epoch(160), "an older one comes too late");
    }
}
