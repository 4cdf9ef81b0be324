//! The directory that a mount shows as its root: that of the file system, what the policy of the machine says, or a directory below that.

use anyhow::{Result, bail};
use ashlar_client::{Client, Who};
use ashlar_types::policy::Subtree;
use ashlar_types::{ClusterMap, Errno, FileType, InodeId, Name, NodeId};
use parking_lot::RwLock;
use std::sync::{Arc, OnceLock};

/// See the module.
pub struct MountRoot {
    map: Arc<RwLock<Arc<ClusterMap>>>,
    node: NodeId,
    /// A path from there.
    below: Option<String>,
    /// The directory at that path, once it was found. It stays the root, wherever it is moved.
    found: OnceLock<InodeId>,
}

impl MountRoot {
    /// What `node` is shown by `map`, which somebody keeps current, or the directory that is at `below` in it.
    pub fn new(map: Arc<RwLock<Arc<ClusterMap>>>, node: NodeId, below: Option<String>) -> MountRoot {
        MountRoot { map, node, below, found: OnceLock::new() }
    }

    /// As the process before had found it: it is not looked for again.
    #[must_use]
    pub fn with_found(self, found: Option<InodeId>) -> MountRoot {
        MountRoot { found: found.map(OnceLock::from).unwrap_or_default(), ..self }
    }

    /// The directory at the path that was named, once it was found.
    pub fn found(&self) -> Option<InodeId> {
        self.found.get().copied()
    }

    /// The root at this moment.
    pub fn now(&self) -> InodeId {
        let shown = || {
            let map = self.map.read();
            map.node(self.node).and_then(|node| node.policy.subtree.as_ref()).map(|subtree| subtree.root)
        };
        self.found.get().copied().or_else(shown).unwrap_or(InodeId::ROOT)
    }

    fn subtree(&self) -> Option<Subtree> {
        self.map.read().node(self.node).and_then(|node| node.policy.subtree.clone())
    }

    /// Looks whether it is there, where it is not the root of the file system.
    ///
    /// # Errors
    /// What is missing, and what to do.
    pub fn find(&self, client: &Client) -> Result<()> {
        let (who, subtree) = (Who::system(), self.subtree());
        if subtree.is_none() && self.below.is_none() || self.found().is_some() {
            return Ok(());
        }
        let mut at = self.now();
        match (client.getattr(&who, at), subtree) {
            (Ok(_), _) => {}
            (Err(Errno::ESTALE), Some(Subtree { path, .. })) => bail!(
                "the directory that is all this machine may see, {} when it was chosen, was removed; an administrator chooses another one \
                 with `ashlar node policy NAME --subtree PATH`",
                path.escape_debug()
            ),
            (Err(errno), _) => bail!("the root directory cannot be read: {errno}"),
        }
        let Some(path) = &self.below else { return Ok(()) };
        for part in path.split('/').filter(|part| !part.is_empty() && *part != ".") {
            let shown = (path.escape_debug(), part.escape_debug());
            let Ok(name) = Name::new(part.as_bytes()) else {
                bail!("--subdirectory {}: `{}` cannot be the name of a directory", shown.0, shown.1);
            };
            let found = match client.lookup(&who, at, name) {
                Ok(Ok(found)) => found,
                Ok(Err(_)) | Err(Errno::ENOENT | Errno::ESTALE) => {
                    bail!("--subdirectory {}: there is no `{}`", shown.0, shown.1)
                }
                Err(errno) => bail!("--subdirectory {}: `{}`: {errno}", shown.0, shown.1),
            };
            if FileType::from_mode(found.attr.mode) != Some(FileType::Directory) {
                bail!("--subdirectory {}: `{}` is not a directory", shown.0, shown.1);
            }
            at = found.attr.inode;
        }
        let _ = self.found.set(at);
        Ok(())
    }
}
