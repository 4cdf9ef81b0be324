//! Calls that concern several servers: names of what another server has, and what is asked of all of them.

use super::RemoteMeta;
use crate::Caller;
use ashlar_types::message::{MetaReply, MetaRequest};
use ashlar_types::{ClusterMap, Errno, NodeId, ShardId, StatFs};
use std::time::{Duration, Instant};

/// For how long a server may take to tell how many inodes it has.
const SPACE_MAX: Duration = Duration::from_secs(2);

/// How often a name is looked up anew because what it stood for was gone when it was asked for.
// LIMIT: of names that are replaced on and on.
const TRIES_MAX: usize = 64;

impl RemoteMeta {
    /// A call to the server of `shard`. If it names something that another server has, that one is asked, too.
    pub(super) fn call_and_follow(
        &self,
        caller: Caller<'_>,
        request: MetaRequest<'_>,
        shard: ShardId,
        deadline: Instant,
    ) -> Result<MetaReply, Errno> {
        if !matches!(request, MetaRequest::Lookup { .. } | MetaRequest::Create { .. }) {
            return self.call_home(caller, request, shard, deadline);
        }
        for _ in 0..TRIES_MAX {
            let reply = self.call_home(caller, request.clone(), shard, deadline)?;
            let MetaReply::Elsewhere { inode, leases: of_name } = reply else { return Ok(reply) };
            let follow = match &request {
                MetaRequest::Create { read, write, truncate, handle, .. } => MetaRequest::Open {
                    inode,
                    read: *read,
                    write: *write,
                    truncate: *truncate,
                    handle: *handle,
                },
                _ => MetaRequest::Getattr { inode },
            };
            match self.call_home(caller, follow, inode.home(), deadline) {
                Ok(MetaReply::Attr { attr, leases }) => {
                    return Ok(MetaReply::Attr { attr, leases: leases.with(of_name) });
                }
                Ok(MetaReply::Opened { mut open, created }) => {
                    open.leases = open.leases.with(of_name);
                    return Ok(MetaReply::Opened { open, created });
                }
                // The name stands for something else by now, or for nothing.
                Err(Errno::ESTALE) => {}
                other => return other,
            }
        }
        Err(Errno::ESTALE)
    }

    /// A call to all servers: of one that asks for space, to all that there are, else to those at which the session has anything.
    ///
    /// # Errors
    /// What they answer; `ETIMEDOUT` when shards move between them for as long as the call may take.
    pub(super) fn call_all(
        &self,
        caller: Caller<'_>,
        request: &MetaRequest<'_>,
        deadline: Instant,
    ) -> Result<MetaReply, Errno> {
        loop {
            let map = self.routes.map();
            let reply = self.call_all_of(&map, caller, request, deadline);
            // A shard that has moved meanwhile was asked for at its new server, and the others of its former one may not have been.
            let is_sync = matches!(request, MetaRequest::Sync(_));
            if !is_sync || reply.is_err() || self.routes.map().shards == map.shards {
                return reply;
            }
            if Instant::now() >= deadline {
                return Err(Errno::ETIMEDOUT);
            }
        }
    }

    /// The same, to those that `map` has.
    fn call_all_of(
        &self,
        map: &ClusterMap,
        caller: Caller<'_>,
        request: &MetaRequest<'_>,
        deadline: Instant,
    ) -> Result<MetaReply, Errno> {
        if matches!(request, MetaRequest::MakeRoom) {
            return self.make_room_everywhere(caller, deadline);
        }
        let known: Vec<NodeId> = self
            .live_session(caller.op.session)?
            .presences()
            .iter()
            .map(|presence| presence.server)
            .collect();
        let mut asked: Vec<NodeId> = Vec::new();
        let mut whole: Option<Result<MetaReply, Errno>> = None;
        for shard in &map.shards {
            let is_wanted = matches!(request, MetaRequest::Statfs) || known.contains(&shard.primary);
            if !is_wanted || asked.contains(&shard.primary) {
                continue;
            }
            asked.push(shard.primary);
            let is_first = whole.is_none();
            let is_space = matches!(request, MetaRequest::Statfs);
            let wait =
                if is_first || !is_space { deadline } else { deadline.min(Instant::now() + SPACE_MAX) };
            let reply = self.call_home(caller, request.clone(), shard.id, wait);
            if !is_first && is_space && reply.is_err() {
                // Inodes of a server that is away are not counted: whoever asks for space is not to wait for it.
                continue;
            }
            whole = Some(match (whole, reply) {
                (None, reply) => reply,
                (Some(Ok(MetaReply::StatFs(sum))), Ok(MetaReply::StatFs(more))) => {
                    Ok(MetaReply::StatFs(together(sum, more)))
                }
                (Some(Ok(_)), reply) => reply,
                (Some(failed), _) => failed,
            });
        }
        whole.unwrap_or(Ok(MetaReply::Done))
    }
}

/// Space is the same whoever is asked; inodes are those of each server's shards.
fn together(one: StatFs, other: StatFs) -> StatFs {
    StatFs {
        inodes_used: one.inodes_used.saturating_add(other.inodes_used),
        inodes_free: one.inodes_free.min(other.inodes_free),
        ..one
    }
}
