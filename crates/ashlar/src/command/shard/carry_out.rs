//! Asks servers for the moves that are wanted, again where one was started anew, until all are done.

use super::plan::Wanted;
use super::{moves, progress};
use crate::cluster::Member;
use crate::command::{node, presence};
use crate::terminal::{say, say_json};
use anyhow::{Result, bail};
use ashlar_rpc::remote::{RemoteShards, Routes};
use ashlar_rpc::wire::{MoveInfo, MoveState};
use ashlar_types::{ClusterMap, NodeId, Role, ShardId};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// LIMIT: how long a metadata server may take to answer.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// Time between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Time between two lines about a shard that takes long.
const SAY_EVERY: Duration = Duration::from_secs(2);
/// LIMIT: for how long nothing may change.
const STILL_MAX: Duration = Duration::from_secs(120);

/// LIMIT: for how long moves may be paused while a command waits for them.
const PAUSED_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// Time between two looks which servers are away, and whether moves are paused.
const AWAY_EVERY: Duration = Duration::from_secs(2);
/// For how long a server that is to have a shard may be away: it may just be started again.
const AWAY_S_MAX: u64 = 30;

/// Moves that were asked for.
struct Moves<'a> {
    member: &'a Member,
    /// One for all calls: a second one's connections would take the place of the first one's.
    routes: Arc<Routes>,
    json: bool,
    wanted: Vec<Wanted>,
    /// From where each comes.
    from: BTreeMap<ShardId, NodeId>,
    asked: BTreeSet<ShardId>,
    done: BTreeSet<ShardId>,
    /// What was seen last, and since when it is so.
    seen: (Vec<MoveInfo>, Instant),
    said: Instant,
    looked_away: Instant,
    /// Since when moves are paused.
    paused: Option<Instant>,
    /// The last thing that a server did not do.
    trouble: Option<String>,
}

/// Carries out what is wanted.
///
/// # Errors
/// When a shard cannot be moved, or nothing changes for long. What was moved until then stays moved.
pub fn carry_out(member: &Member, wanted: Vec<Wanted>, json: bool) -> Result<()> {
    let mut wanted = Some(wanted);
    carry_out_until_done(member, json, |_| Ok(wanted.take().unwrap_or_default()))
}

/// Carries out what `next` says, and what it says then, until that is nothing.
///
/// # Errors
/// As [`carry_out`], and those of `next`.
pub fn carry_out_until_done(
    member: &Member,
    json: bool,
    mut next: impl FnMut(&Arc<Routes>) -> Result<Vec<Wanted>>,
) -> Result<()> {
    let mut moves = Moves {
        member,
        routes: member.routes(),
        json,
        wanted: Vec::new(),
        from: BTreeMap::new(),
        asked: BTreeSet::new(),
        done: BTreeSet::new(),
        seen: (Vec::new(), Instant::now()),
        said: Instant::now(),
        looked_away: Instant::now(),
        paused: None,
        trouble: None,
    };
    loop {
        let wanted = next(&moves.routes)?;
        if wanted.is_empty() {
            break;
        }
        moves.add(wanted);
        moves.look_whether_paused()?;
        while !moves.look()? {
            std::thread::sleep(LOOK_EVERY);
        }
    }
    let map = member.map().read().clone();
    if json {
        let object = |&(shard, to): &Wanted| {
            let from = moves.from.get(&shard).map(|from| node::reference(&map, *from));
            json!({ "id": shard.0, "from": from, "to": node::reference(&map, to) })
        };
        let all: Vec<Value> = moves.wanted.iter().map(object).collect();
        say_json(&all)?;
    } else if moves.wanted.is_empty() {
        say(format_args!("all is where it is to be"));
    }
    Ok(())
}

/// Whether moves have come further. That one is begun or stalls is nothing: those to several servers that do not answer take turns, and each tells for how long.
fn has_changed(before: &[MoveInfo], now: &[MoveInfo]) -> bool {
    let key = |info: &MoveInfo| (info.shard, info.to, matches!(info.state, MoveState::Deciding), info.sent);
    let keys = |all: &[MoveInfo]| all.iter().map(key).collect::<BTreeSet<_>>();
    keys(before) != keys(now)
}

impl Moves<'_> {
    /// Adds what is wanted, unless it is there already. What has come back since it was moved is moved once more.
    fn add(&mut self, wanted: Vec<Wanted>) {
        let map = self.member.map().read().clone();
        for (shard, to) in wanted {
            let Some(from) = map.primary(shard).filter(|from| *from != to) else { continue };
            self.wanted.retain(|(known, _)| *known != shard);
            self.wanted.push((shard, to));
            self.from.insert(shard, from);
            self.asked.remove(&shard);
            self.done.remove(&shard);
        }
        self.seen = (Vec::new(), Instant::now());
    }

    /// Looks how far they are, and asks for those that nobody works at; whether all are done.
    fn look(&mut self) -> Result<bool> {
        let map = self.member.map().read().clone();
        let mut left: BTreeMap<NodeId, Vec<Wanted>> = BTreeMap::new();
        // What goes on from where it was wanted is for whoever wants that.
        let open = self.wanted.iter().filter(|(shard, _)| !self.done.contains(shard));
        for (shard, to) in open.copied().collect::<Vec<Wanted>>() {
            match map.primary(shard) {
                Some(primary) if primary == to => {
                    if self.done.insert(shard) {
                        self.seen.1 = Instant::now();
                        self.say_done(&map, shard, to);
                    }
                }
                Some(primary) => left.entry(primary).or_default().push((shard, to)),
                None => bail!("there is no {shard} any more"),
            }
        }
        let mut seen = Vec::new();
        for (server, wanted) in &left {
            seen.extend(self.look_at(&map, *server, wanted)?);
        }
        let since = if has_changed(&self.seen.0, &seen) { Instant::now() } else { self.seen.1 };
        self.seen = (seen, since);
        if !left.is_empty() && self.seen.1.elapsed() > STILL_MAX {
            bail!("nothing has changed for {} s: {}", STILL_MAX.as_secs(), self.why_still(&map));
        }
        if self.looked_away.elapsed() > AWAY_EVERY {
            self.look_whether_paused()?;
            self.require_receivers(&map, left.values().flatten())?;
            self.looked_away = Instant::now();
        }
        if !self.json && self.said.elapsed() > SAY_EVERY {
            self.said = Instant::now();
            let is_under_way =
                |info: &&MoveInfo| matches!(info.state, MoveState::Copying | MoveState::Stalled(_));
            for info in self.seen.0.iter().filter(is_under_way) {
                say(format_args!("{} {}", info.shard, progress(&map, info)));
            }
        }
        Ok(left.is_empty())
    }

    /// Says when moves are paused, and when they go on: nothing is to change meanwhile.
    ///
    /// # Errors
    /// When they have been for too long.
    fn look_whether_paused(&mut self) -> Result<()> {
        // A manager that does not tell, or is of an older version, knows of none.
        let is_paused = moves::are_paused(self.member).unwrap_or(false);
        match (is_paused, self.paused) {
            (true, None) => {
                self.paused = Some(Instant::now());
                eprintln!(
                    "ashlar: moves of shards are paused; this waits until `ashlar shard moves --resume` has them go on"
                );
            }
            (false, Some(_)) => {
                self.paused = None;
                eprintln!("ashlar: moves of shards go on");
            }
            (true, Some(since)) if since.elapsed() > PAUSED_MAX => {
                bail!(
                    "moves of shards have been paused for {} h: those that are left are waiting (`ashlar shard moves`)",
                    PAUSED_MAX.as_secs() / 3600
                );
            }
            _ => {}
        }
        if is_paused {
            self.seen.1 = Instant::now();
        }
        Ok(())
    }

    /// Why nothing changes.
    fn why_still(&self, map: &ClusterMap) -> String {
        let is_stalled = |info: &&MoveInfo| matches!(info.state, MoveState::Stalled(_));
        match (self.seen.0.iter().find(is_stalled), &self.trouble) {
            (Some(info), _) => format!(
                "{} {}; `ashlar shard move --cancel {}` has it stay",
                info.shard,
                progress(map, info),
                info.shard.0
            ),
            (None, Some(trouble)) => trouble.clone(),
            (None, None) => "`ashlar shard list` shows what is on its way".into(),
        }
    }

    /// Ends when a server that is to have one of the shards is away for long.
    fn require_receivers<'w>(
        &self,
        map: &ClusterMap,
        mut left: impl Iterator<Item = &'w Wanted>,
    ) -> Result<()> {
        let away = presence::ask(self.member);
        let silence = |to: NodeId| away.seconds(to, Role::Meta).filter(|seconds| *seconds >= AWAY_S_MAX);
        if let Some((shard, to, seconds)) = left.find_map(|&(shard, to)| Some((shard, to, silence(to)?))) {
            bail!(
                "{shard} does not get to {}, which does not answer since {seconds} s; it is served as before, and goes there if that comes back soon: `ashlar shard list` shows it, and `ashlar shard move --cancel {}` has it stay",
                node::name(map, to),
                shard.0
            );
        }
        Ok(())
    }

    /// What `server` moves of what is `wanted` of it.
    fn look_at(&mut self, map: &ClusterMap, server: NodeId, wanted: &[Wanted]) -> Result<Vec<MoveInfo>> {
        let shards = RemoteShards::new(self.routes.clone(), server);
        let moves = match shards.moves(Instant::now() + ANSWER_MAX) {
            Ok(moves) => moves,
            Err(error) => {
                self.trouble = Some(format!("{}: {error}", node::name(map, server)));
                return Ok(Vec::new());
            }
        };
        let mut to_ask: BTreeMap<NodeId, Vec<ShardId>> = BTreeMap::new();
        let mut seen = Vec::new();
        for &(shard, to) in wanted {
            let known = moves.iter().find(|info| (info.shard, info.to) == (shard, to));
            match known.map(|info| &info.state) {
                Some(MoveState::Failed(why)) if self.asked.contains(&shard) => {
                    bail!(
                        "{shard} could not be moved from {} to {}: {why}; it is served as before, and can be moved again",
                        node::name(map, server),
                        node::name(map, to)
                    );
                }
                None | Some(MoveState::Failed(_)) => to_ask.entry(to).or_default().push(shard),
                Some(_) => seen.extend(known.cloned()),
            }
        }
        for (to, asked) in to_ask {
            match shards.give(&asked, to, Instant::now() + ANSWER_MAX) {
                Ok(true) => self.asked.extend(asked),
                // The map tells in a moment.
                Ok(false) => {
                    self.trouble = Some(format!("{} has not all of these shards", node::name(map, server)))
                }
                Err(error) => self.trouble = Some(format!("{}: {error}", node::name(map, server))),
            }
        }
        Ok(seen)
    }

    fn say_done(&self, map: &ClusterMap, shard: ShardId, to: NodeId) {
        if self.json {
            return;
        }
        let from = self.from.get(&shard).map(|from| node::name(map, *from)).unwrap_or_default();
        let left = self.wanted.iter().filter(|(wanted, _)| !self.done.contains(wanted)).count();
        say(format_args!("moved {shard} from {from} to {}, {left} to go", node::name(map, to)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_goes_on_being_silent_is_no_change() {
        let info = |shard: u16, state: MoveState, sent| MoveInfo {
            shard: ShardId(shard),
            to: NodeId(2),
            state,
            sent,
            total: 9,
        };
        let stalled = |seconds: u32| MoveState::Stalled(format!("it has not answered for {seconds} s"));
        let before = [info(1, stalled(5), 0), info(2, MoveState::Waiting, 0)];
        assert!(!has_changed(&before, &[info(1, stalled(6), 0), info(2, MoveState::Waiting, 0)]));
        assert!(!has_changed(&before, &[info(2, stalled(5), 0), info(1, MoveState::Waiting, 0)]), "turns");
        assert!(has_changed(&before, &[info(1, MoveState::Copying, 4), info(2, MoveState::Waiting, 0)]));
        assert!(has_changed(&before, &[info(1, MoveState::Deciding, 0), info(2, MoveState::Waiting, 0)]));
        assert!(has_changed(&before, &before[..1]));
    }
}
