//! Metadata that is restored from a backup of all metadata servers.
//!
//! The first server that is started with it has all others be *awaited*: their records have, in place of what their directories are known by, something
//! that no directory has. Whoever comes with metadata of the same backup is let in, once.

use super::{ManagerService, refused};
use crate::ManagerError;
use crate::state::{ClusterState, MetadataRecord};
use ashlar_types::message::ManagerReply;
use ashlar_types::{Epoch, EventKind, NodeId, Role};

impl ManagerService {
    /// Has only directories serve that were made of backup `set`; that of the caller, `node`, is known by `uuid`. Any other would be metadata of another time
    /// than the rest.
    pub(super) fn restore_metadata(
        &self,
        node: NodeId,
        (set, uuid): ([u8; 16], [u8; 16]),
        seen: Epoch,
        instead_of: Option<NodeId>,
    ) -> Result<ManagerReply, ManagerError> {
        let is_begun = self.manager.change(|state| {
            let own = state.metadata.iter().find(|record| record.node == node);
            // Asked for once more: the answer was lost.
            if own.is_some_and(|record| record.uuid == uuid) {
                return Ok(false);
            }
            let is_awaited = match own {
                Some(record) => record.uuid == awaited(set, node),
                None => state.metadata.iter().any(|record| record.uuid == awaited(set, record.node)),
            };
            if !is_awaited {
                begin(state, set, seen)?;
            }
            if let Some(lost) = instead_of.filter(|lost| *lost != node) {
                take_place(state, lost, node);
            }
            state.metadata.retain(|record| record.node != node);
            // LIMIT: one per node.
            state.metadata.push(MetadataRecord { uuid, node, path: of_backup(set) });
            state.map.epoch = Epoch(state.map.epoch.0 + 1);
            Ok(!is_awaited)
        })?;
        if is_begun {
            let text = format!("to that of backup {}: what has changed since is given up", shown(set));
            tracing::warn!(%node, text, "the metadata of the file system goes back");
            self.note(node, EventKind::MetadataRestored, "metadata", &text);
        }
        Ok(ManagerReply::Done)
    }
}

/// What stands for the directory of `node` until it comes. Directories are known by what was drawn at random.
fn awaited(set: [u8; 16], node: NodeId) -> [u8; 16] {
    (u128::from_be_bytes(set) ^ u128::from(node.0)).to_be_bytes()
}

/// The number of a backup, for people.
fn shown(set: [u8; 16]) -> String {
    set.iter().take(4).map(|byte| format!("{byte:02x}")).collect()
}

/// Where metadata is, for who is refused because of it.
fn of_backup(set: [u8; 16]) -> String {
    format!("a directory that `ashlar restore` makes of backup {}", shown(set))
}

/// Has all metadata servers be awaited.
fn begin(state: &mut ClusterState, set: [u8; 16], seen: Epoch) -> Result<(), ManagerError> {
    if state.map.epoch != seen {
        return Err(refused(format!(
            "the file system has changed since the metadata was restored, from {seen} to {}: servers were started or machines have joined. Restore it anew, \
             while all metadata servers are stopped",
            state.map.epoch
        )));
    }
    // What is restored has no copies yet. Those of what is given up are of no use.
    for group in &mut state.copies.groups {
        group.membership = None;
        group.former.clear();
    }
    for record in &mut state.metadata {
        (record.uuid, record.path) = (awaited(set, record.node), of_backup(set));
    }
    Ok(())
}

/// Gives `node` the shards of `lost`, whose metadata is nowhere any more.
fn take_place(state: &mut ClusterState, lost: NodeId, node: NodeId) {
    state.metadata.retain(|record| record.node != lost);
    state.copies.groups.retain(|group| group.server != lost);
    for shard in state.map.shards.iter_mut().filter(|shard| shard.primary == lost) {
        shard.primary = node;
    }
    // It does not serve, whatever it said.
    for known in state.map.nodes.iter_mut().filter(|known| known.id == lost) {
        known.listening.retain(|listening| listening.role != Role::Meta);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_for_a_directory_is_another_one_for_every_node_and_backup() {
        let all = [([1; 16], 1), ([1; 16], 2), ([2; 16], 1)].map(|(set, node)| awaited(set, NodeId(node)));
        assert!(all[0] != all[1] && all[0] != all[2] && all[1] != all[2]);
    }
}
