//! `ashlar session`: the sessions that metadata servers have.

use super::presence;
use crate::cli::{SessionAction, SessionArgs};
use crate::cluster::{Member, NodeDirectory};
use crate::terminal::{say, say_json};
use anyhow::{Context, Result, bail};
use ashlar_console::object::session::{Merged, merged, object, object_by_server};
use ashlar_console::object::{node, with};
use ashlar_rpc::net::NetError;
use ashlar_rpc::remote::RemoteSessions;
use ashlar_rpc::wire::SessionInfo;
use ashlar_types::{ClusterMap, NodeId, Role, SessionId};
use serde_json::{Value, json};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// LIMIT: how long a metadata server may take to answer.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// LIMIT: the same for one that managers believe to be away: they may be wrong, so it is asked where something is to be done there.
const AWAY_ANSWER_MAX: Duration = Duration::from_secs(3);
/// LIMIT: servers that are asked at once.
const ASKED_MAX: usize = 64;
/// LIMIT: how long the end of a session may take: the term of its leases, and a little more.
const END_MAX: Duration = Duration::from_secs(30);
/// Time between two looks whether a session has ended.
const LOOK_EVERY: Duration = Duration::from_millis(200);

pub fn run(args: &SessionArgs) -> Result<ExitCode> {
    let member = Member::start(NodeDirectory::new(&args.node.node), Role::Admin)?;
    let map = member.map().read().clone();
    let servers: Vec<NodeId> = map.listening(Role::Meta).map(|node| node.id).collect();
    if servers.is_empty() {
        bail!("no metadata server has been started yet");
    }
    match &args.action {
        SessionAction::List { json } => list(&member, &map, &servers, *json)?,
        SessionAction::Show { id, json } => show(&member, &map, &servers, SessionId(*id), *json)?,
        SessionAction::Remove { id, json } => remove(&member, &map, &servers, SessionId(*id), *json)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn sessions_of(member: &Member, map: &ClusterMap, server: NodeId) -> Result<Vec<SessionInfo>> {
    let sessions = RemoteSessions::new(member.routes(), server).list(Instant::now() + ANSWER_MAX);
    sessions.with_context(|| format!("the metadata server {}", node::name(map, server)))
}

/// A metadata server that did not tell.
struct Unanswered {
    server: NodeId,
    away_s: Option<u64>,
    reason: String,
}

impl Unanswered {
    fn text(&self, map: &ClusterMap) -> String {
        format!("{} does not answer: {}", node::name(map, self.server), self.reason)
    }

    fn object(&self, map: &ClusterMap) -> Value {
        let name = map.node(self.server).map(|known| known.name.as_str());
        json!({ "id": self.server.0, "name": name, "away_s": self.away_s, "reason": self.reason })
    }
}

/// What servers have told, each with the one that did, and those that have told nothing.
type Asked<T> = (Vec<(NodeId, T)>, Vec<Unanswered>);

/// Asks all servers beside each other, those that managers believe to be away for `away_max`.
fn ask_all<T: Send>(
    member: &Member,
    servers: &[NodeId],
    away_max: Option<Duration>,
    ask: impl Fn(RemoteSessions, Instant) -> Result<T, NetError> + Sync,
) -> Asked<T> {
    let away = presence::ask(member);
    let routes = member.routes();
    let ask_one = |server: NodeId| -> Result<T, Unanswered> {
        let away_s = away.seconds(server, Role::Meta);
        let wait = if away_s.is_some() { away_max } else { Some(ANSWER_MAX) };
        let answer = wait.map(|wait| ask(RemoteSessions::new(routes.clone(), server), Instant::now() + wait));
        let reason = match (answer, away_s) {
            (Some(Ok(answer)), _) => return Ok(answer),
            (_, Some(seconds)) => format!("nothing was heard of it for {seconds} s"),
            (Some(Err(error)), None) => error.to_string(),
            (None, None) => "it was not asked".to_owned(),
        };
        Err(Unanswered { server, away_s, reason })
    };
    let (mut told, mut unanswered) = (Vec::new(), Vec::new());
    for some in servers.chunks(ASKED_MAX) {
        let answers: Vec<_> = std::thread::scope(|scope| {
            let asking: Vec<_> =
                some.iter().map(|server| (*server, scope.spawn(|| ask_one(*server)))).collect();
            asking.into_iter().map(|(server, thread)| (server, thread.join())).collect()
        });
        for (server, answer) in answers {
            match answer {
                Ok(Ok(answer)) => told.push((server, answer)),
                Ok(Err(silent)) => unanswered.push(silent),
                Err(_) => {
                    let reason = "asking it failed".to_owned();
                    unanswered.push(Unanswered { server, away_s: None, reason });
                }
            }
        }
    }
    (told, unanswered)
}

/// What all servers that answer know, at least one of them; those that managers believe to be away are asked for `away_max`.
fn all_told(
    member: &Member,
    map: &ClusterMap,
    servers: &[NodeId],
    away_max: Option<Duration>,
) -> Result<Asked<Vec<SessionInfo>>> {
    let list = |sessions: RemoteSessions, deadline| sessions.list(deadline);
    let (told, unanswered) = ask_all(member, servers, away_max, list);
    if told.is_empty() {
        let all: Vec<String> = unanswered.iter().map(|silent| silent.text(map)).collect();
        bail!("no metadata server tells which sessions it has: {}", all.join("; "));
    }
    Ok((told, unanswered))
}

/// The session of this id, as those who have told know it.
fn find(
    map: &ClusterMap,
    told: &[(NodeId, Vec<SessionInfo>)],
    id: SessionId,
    unanswered: &[Unanswered],
) -> Result<Merged> {
    let found = merged(told).into_iter().find(|session| session.info.session == id);
    found.with_context(|| unknown(map, id, unanswered))
}

fn unknown(map: &ClusterMap, id: SessionId, unanswered: &[Unanswered]) -> String {
    let silent: Vec<String> = unanswered.iter().map(|silent| silent.text(map)).collect();
    let silent = if silent.is_empty() { String::new() } else { format!(" ({})", silent.join("; ")) };
    format!("there is no {id}{silent}; `ashlar session list` shows all")
}

fn list(member: &Member, map: &ClusterMap, servers: &[NodeId], is_json: bool) -> Result<()> {
    let (told, unanswered) = all_told(member, map, servers, None)?;
    let sessions = merged(&told);
    if is_json {
        let sessions: Vec<Value> = sessions.iter().map(|session| object(map, session)).collect();
        let unanswered: Vec<Value> = unanswered.iter().map(|silent| silent.object(map)).collect();
        let all = json!({ "sessions": sessions, "unanswered": unanswered });
        return say_json(&all);
    }
    sessions.iter().for_each(|session| print(map, &session.info));
    for silent in &unanswered {
        say(format_args!("{}; what it alone knows is not shown", silent.text(map)));
    }
    Ok(())
}

/// Shows what each server has of a session.
fn show(member: &Member, map: &ClusterMap, servers: &[NodeId], id: SessionId, is_json: bool) -> Result<()> {
    let (told, unanswered) = all_told(member, map, servers, None)?;
    let session = find(map, &told, id, &unanswered)?;
    if is_json {
        let unanswered: Vec<Value> = unanswered.iter().map(|silent| silent.object(map)).collect();
        let shown = object_by_server(map, &session, &told);
        return say_json(&with(shown, json!({ "unanswered": unanswered })));
    }
    print(map, &session.info);
    for (server, infos) in &told {
        for info in infos.iter().filter(|info| info.session == id) {
            say(format_args!(
                "{:>14} at {}: {} leases, {} open, {} locks, heard of {:.1} s ago",
                "",
                node::name(map, *server),
                info.leases,
                info.opens,
                info.locks,
                info.heard_ms as f64 / 1e3,
            ));
        }
    }
    for silent in &unanswered {
        say(format_args!("{}; what it has of the session is not shown", silent.text(map)));
    }
    Ok(())
}

fn print(map: &ClusterMap, info: &SessionInfo) {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let age = now.as_secs().saturating_sub(info.since_s);
    let ending = if info.is_ending { "  is being ended" } else { "" };
    say(format_args!(
        "{:<14} {:<24} for {age} s, heard of {:.1} s ago  {} leases, {} open, {} locks{ending}",
        info.session.to_string(),
        node::name(map, info.owner.node),
        info.heard_ms as f64 / 1e3,
        info.leases,
        info.opens,
        info.locks,
    ));
}

/// Waits until none of `servers` has the session.
fn await_end(member: &Member, map: &ClusterMap, servers: &[NodeId], id: SessionId) -> Result<()> {
    let deadline = Instant::now() + END_MAX;
    for server in servers {
        while sessions_of(member, map, *server)?.iter().any(|info| info.session == id) {
            if Instant::now() >= deadline {
                bail!("{id} is about to end, but has not yet; `ashlar session list` shows whether it has");
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }
    Ok(())
}

/// Ends a session at all servers that know it, and waits until it has ended.
///
/// # Errors
/// When no server knows it, when it does not end in time, and when a server that may have it did not answer: it may go on there.
fn remove(member: &Member, map: &ClusterMap, servers: &[NodeId], id: SessionId, is_json: bool) -> Result<()> {
    let ended = match is_json {
        true => {
            let (told, unanswered) = all_told(member, map, servers, Some(AWAY_ANSWER_MAX))?;
            Some(object(map, &find(map, &told, id, &unanswered)?))
        }
        false => None,
    };
    let end = |sessions: RemoteSessions, deadline| sessions.end(id, deadline);
    let (told, unanswered) = ask_all(member, servers, Some(AWAY_ANSWER_MAX), end);
    let silent: Vec<String> = unanswered.iter().map(|silent| silent.text(map)).collect();
    let there: Vec<NodeId> =
        told.into_iter().filter(|(_, is_there)| *is_there).map(|(server, _)| server).collect();
    if there.is_empty() {
        bail!("{}", unknown(map, id, &unanswered));
    }
    let outcome = await_end(member, map, &there, id);
    // Also when it is not known how it goes on: it was told to end.
    match ended {
        Some(ended) => {
            let unanswered: Vec<Value> = unanswered.iter().map(|silent| silent.object(map)).collect();
            say_json(&with(ended, json!({ "unanswered": unanswered })))?;
        }
        None if silent.is_empty() && outcome.is_ok() => say(format_args!("ended {id}")),
        None => {}
    }
    outcome?;
    if silent.is_empty() {
        return Ok(());
    }
    bail!(
        "{id} has ended at all servers that answer, but {}; there it ends by itself if its mount is not heard of, or `ashlar session remove {}` ends it once they answer",
        silent.join("; "),
        id.0
    )
}
