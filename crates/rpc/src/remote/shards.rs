//! Shards that a metadata server gives to others, for an administrator.

use super::Routes;
use crate::net::NetError;
use crate::wire::{MetaAnswer, MetaCall, MoveInfo, Withdrawal};
use ashlar_types::{NodeId, ShardId};
use std::sync::Arc;
use std::time::Instant;

/// See the module.
pub struct RemoteShards {
    routes: Arc<Routes>,
    node: NodeId,
}

impl RemoteShards {
    /// Those of the metadata server on `node`.
    pub fn new(routes: Arc<Routes>, node: NodeId) -> RemoteShards {
        RemoteShards { routes, node }
    }

    /// What is on its way, is to be, or could not be moved.
    ///
    /// # Errors
    /// [`NetError`]; [`NetError::Refused`] for who is no administrator.
    pub fn moves(&self, deadline: Instant) -> Result<Vec<MoveInfo>, NetError> {
        match self.routes.administer(self.node, &MetaCall::Moves, deadline)? {
            MetaAnswer::Moves(all) => Ok(all),
            MetaAnswer::Failed(errno) => Err(NetError::Errno(errno)),
            _ => Err(NetError::Malformed("an answer of the wrong kind")),
        }
    }

    /// Has shards be given to the server on `to`; false when one of them is not there.
    ///
    /// # Errors
    /// As [`RemoteShards::moves`]; `ENODEV` when there is no metadata server on `to`.
    pub fn give(&self, shards: &[ShardId], to: NodeId, deadline: Instant) -> Result<bool, NetError> {
        match self.routes.administer(
            self.node,
            &MetaCall::MoveShards { shards: shards.to_vec(), to },
            deadline,
        )? {
            MetaAnswer::Done => Ok(true),
            MetaAnswer::NotHere => Ok(false),
            MetaAnswer::Failed(errno) => Err(NetError::Errno(errno)),
            _ => Err(NetError::Malformed("an answer of the wrong kind")),
        }
    }

    /// Has shards stay that are to be given away, all of them if none is named; tells what has become of each, and where it was to go.
    ///
    /// # Errors
    /// As [`RemoteShards::moves`].
    pub fn withdraw(
        &self,
        shards: &[ShardId],
        deadline: Instant,
    ) -> Result<Vec<(ShardId, Option<NodeId>, Withdrawal)>, NetError> {
        let call = MetaCall::WithdrawMoves { shards: shards.to_vec() };
        match self.routes.administer(self.node, &call, deadline)? {
            MetaAnswer::Withdrawn(all) => Ok(all),
            MetaAnswer::Failed(errno) => Err(NetError::Errno(errno)),
            _ => Err(NetError::Malformed("an answer of the wrong kind")),
        }
    }
}
