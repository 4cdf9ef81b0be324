//! A metadata server whose metadata is backed up, for an administrator.

use super::Routes;
use crate::net::NetError;
use crate::wire::{BackupStep, BackupTold, MetaAnswer, MetaCall};
use ashlar_types::NodeId;
use std::sync::Arc;
use std::time::Instant;

/// See the module.
pub struct RemoteBackup {
    routes: Arc<Routes>,
    node: NodeId,
    backup: u64,
}

impl RemoteBackup {
    /// Backup `backup` of the metadata server on `node`.
    pub fn new(routes: Arc<Routes>, node: NodeId, backup: u64) -> RemoteBackup {
        RemoteBackup { routes, node, backup }
    }

    /// Has a step be done. Each may be asked for twice.
    ///
    /// # Errors
    /// [`NetError`]; [`NetError::Refused`] for who is no administrator, `ENOENT` when the server does not know the backup any more.
    pub fn step(&self, step: BackupStep, deadline: Instant) -> Result<BackupTold, NetError> {
        let call = MetaCall::Backup { backup: self.backup, step };
        match self.routes.administer(self.node, &call, deadline)? {
            MetaAnswer::Backup(told) => Ok(told),
            MetaAnswer::Failed(errno) => Err(NetError::Errno(errno)),
            _ => Err(NetError::Malformed("an answer of the wrong kind")),
        }
    }
}
