//! All shards of a metadata server go to others, and none comes to it any more.

use super::plan::{self, Wanted};
use super::{
    LIST_MAX, SETTLED_LOOKS, SETTLING_MAX, SETTLING_PAUSE, carry_out, leave_out, require_there, withdraw,
};
use crate::cluster::Member;
use crate::command::{node, presence};
use anyhow::{Context, Result, bail};
use ashlar_console::object::away::Away;
use ashlar_rpc::remote::{RemoteShards, Routes};
use ashlar_rpc::wire::{MoveInfo, MoveState, Withdrawal};
use ashlar_types::{ClusterMap, NodeId, Role, ShardId};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

/// Gives away all that the server `name` has, and what comes to it until it has nothing.
///
/// # Errors
/// When there is no other server, a shard cannot be moved, or one is still on its way to it after a while.
pub fn drain(member: &Member, map: &ClusterMap, name: &str, json: bool) -> Result<()> {
    let from = node::find(map, name)?.id;
    let Some(other) = map.listening(Role::Meta).map(|server| server.id).find(|id| *id != from) else {
        bail!("{name} is the only metadata server; `ashlar token --role meta` makes a token for another one");
    };
    let mut draining =
        Draining { member, name, from, other, json, has_ended_share: false, stopped: BTreeSet::new() };
    carry_out::carry_out_until_done(member, json, |routes| draining.next(routes))
}

struct Draining<'a> {
    member: &'a Member,
    name: &'a str,
    from: NodeId,
    /// Any other server.
    other: NodeId,
    json: bool,
    /// Whether it was told to take none by itself any more.
    has_ended_share: bool,
    /// Shards that were on their way to it, and stay where they are.
    stopped: BTreeSet<ShardId>,
}

impl Draining<'_> {
    /// What is to be moved now; nothing once the server has nothing, and nothing comes.
    fn next(&mut self, routes: &Arc<Routes>) -> Result<Vec<Wanted>> {
        let deadline = Instant::now() + SETTLING_MAX;
        let mut quiet = 0;
        loop {
            let map = self.member.map().read().clone();
            let away = presence::ask(self.member);
            self.end_share(routes, &away)?;
            // ORDER: asked after the map was looked at. What has come since is in the next one.
            let is_any_coming = self.stop_what_comes(routes, &map, &away);
            if map.shards.iter().any(|shard| shard.primary == self.from) {
                require_there(&map, &away, self.from)?;
                let left_out = leave_out(&map, &away, Some(self.from));
                return plan::drain(&map, self.from, &left_out)
                    .context("no other metadata server answers: start one again first");
            }
            quiet = if is_any_coming { 0 } else { quiet + 1 };
            if quiet == SETTLED_LOOKS {
                return Ok(Vec::new());
            }
            if Instant::now() > deadline {
                bail!(
                    "{} has no shard, and may get one yet: `ashlar shard moves` shows what is on its way; drain it again then",
                    self.name
                );
            }
            std::thread::sleep(SETTLING_PAUSE);
        }
    }

    /// Has the server take nothing by itself any more, unless it is away: then it does not.
    fn end_share(&mut self, routes: &Arc<Routes>, away: &Away) -> Result<()> {
        if self.has_ended_share || away.seconds(self.from, Role::Meta).is_some() {
            return Ok(());
        }
        let server = RemoteShards::new(routes.clone(), self.from);
        server
            .give(&[], self.other, Instant::now() + LIST_MAX)
            .with_context(|| format!("{} cannot be told to take no shards any more", self.name))?;
        self.has_ended_share = true;
        Ok(())
    }

    /// Has shards stay that are to go to the server; whether any may come all the same: it is just being handed over, or who may send one does not answer.
    fn stop_what_comes(&mut self, routes: &Arc<Routes>, map: &ClusterMap, away: &Away) -> bool {
        let mut is_any_coming = false;
        let senders = map.listening(Role::Meta).map(|server| server.id);
        for sender in senders.filter(|id| *id != self.from && away.seconds(*id, Role::Meta).is_none()) {
            let server = RemoteShards::new(routes.clone(), sender);
            let Ok(moves) = server.moves(Instant::now() + LIST_MAX) else {
                is_any_coming = true;
                continue;
            };
            let is_coming =
                |info: &&MoveInfo| info.to == self.from && !matches!(info.state, MoveState::Failed(_));
            let coming: Vec<ShardId> = moves.iter().filter(is_coming).map(|info| info.shard).collect();
            if coming.is_empty() {
                continue;
            }
            // What is being copied is let go of in a moment.
            is_any_coming = true;
            for (shard, to, outcome) in
                server.withdraw(&coming, Instant::now() + LIST_MAX).unwrap_or_default()
            {
                let is_new = outcome == Withdrawal::Withdrawn && self.stopped.insert(shard);
                if is_new && !self.json {
                    withdraw::print(map, shard, to, outcome);
                }
            }
        }
        is_any_coming
    }
}
