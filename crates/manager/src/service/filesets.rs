//! Filesets: who gets which number, and which is inside of which.

use super::{ManagerService, refused};
use crate::ManagerError;
use ashlar_types::message::ManagerReply;
use ashlar_types::{ClusterMap, Fileset, FilesetId, InodeId, NodePolicy};

fn require(map: &ClusterMap, id: FilesetId) -> Result<(), ManagerError> {
    let is_known = id == FilesetId::default() || map.fileset(id).is_some();
    if is_known { Ok(()) } else { Err(refused(format!("there is no {id}"))) }
}

/// Whether the subtree of `policy`, if it has one, is a fileset of this file system.
pub(super) fn require_subtree(map: &ClusterMap, policy: &NodePolicy) -> Result<(), ManagerError> {
    let Some(subtree) = &policy.subtree else { return Ok(()) };
    let is_known = map.fileset(subtree.fileset).is_some_and(|known| known.root == subtree.root);
    if is_known {
        return Ok(());
    }
    Err(refused(format!(
        "{} is not the directory of {}: say `--subtree PATH` again",
        subtree.path.escape_debug(),
        subtree.fileset
    )))
}

impl ManagerService {
    /// The fileset of which `root` is the directory; a new one inside of `parent` if it is of none yet.
    pub(super) fn new_fileset(&self, root: InodeId, parent: FilesetId) -> Result<ManagerReply, ManagerError> {
        let id = self.manager.change(|state| {
            let map = &mut state.map;
            require(map, parent)?;
            if root == InodeId::ROOT {
                return Err(refused("the root of the file system cannot be a fileset of its own"));
            }
            if let Some(known) = map.filesets.iter().find(|known| known.root == root) {
                return Ok(known.id);
            }
            if map.filesets.len() >= Fileset::COUNT_MAX {
                return Err(refused(format!(
                    "{} directories have been subtrees of machines, and a file system can have no more: choose one of these",
                    Fileset::COUNT_MAX
                )));
            }
            let id = FilesetId(map.filesets.len() as u32 + 1);
            map.filesets.push(Fileset { id, parent, root });
            Ok(id)
        })?;
        Ok(ManagerReply::Fileset(id, self.map().read().epoch))
    }

    /// Notes that `fileset` is inside of `parent`, around which a fileset was made later.
    pub(super) fn enclose_fileset(
        &self,
        fileset: FilesetId,
        parent: FilesetId,
    ) -> Result<ManagerReply, ManagerError> {
        self.manager.change(|state| {
            let map = &mut state.map;
            require(map, parent)?;
            let known =
                map.fileset(fileset).copied().ok_or_else(|| refused(format!("there is no {fileset}")))?;
            if known.parent == parent {
                return Ok(());
            }
            if !map.is_inside(parent, known.parent) || map.is_inside(parent, fileset) {
                return Err(refused(format!("{parent} is not inside of the fileset that {fileset} is in")));
            }
            if let Some(known) = map.filesets.iter_mut().find(|known| known.id == fileset) {
                known.parent = parent;
            }
            Ok(())
        })?;
        Ok(ManagerReply::Done)
    }
}
