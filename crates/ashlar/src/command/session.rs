//! `ashlar session`: the sessions that metadata servers have.

use crate::cli::{SessionAction, SessionArgs};
use crate::cluster::{Member, NodeDirectory};
use crate::terminal::say;
use anyhow::{Context, Result, bail};
use ashlar_console::object::node;
use ashlar_console::object::session::object;
use ashlar_rpc::remote::RemoteSessions;
use ashlar_rpc::wire::SessionInfo;
use ashlar_types::{ClusterMap, NodeId, Role, SessionId};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// LIMIT: how long a metadata server may take to answer.
const ANSWER_MAX: Duration = Duration::from_secs(10);
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
        SessionAction::Remove { id } => remove(&member, &map, &servers, SessionId(*id))?,
    }
    Ok(ExitCode::SUCCESS)
}

fn sessions_of(member: &Member, map: &ClusterMap, server: NodeId) -> Result<Vec<SessionInfo>> {
    let sessions = RemoteSessions::new(member.routes(), server).list(Instant::now() + ANSWER_MAX);
    sessions.with_context(|| format!("the metadata server {}", node::name(map, server)))
}

fn list(member: &Member, map: &ClusterMap, servers: &[NodeId], json: bool) -> Result<()> {
    let mut objects = Vec::new();
    for server in servers {
        for info in sessions_of(member, map, *server)? {
            if json {
                objects.push(object(map, *server, &info));
            } else {
                print(map, &info);
            }
        }
    }
    if json {
        say(format_args!("{}", serde_json::to_string_pretty(&objects)?));
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

/// Ends a session, and waits until it has ended.
fn remove(member: &Member, map: &ClusterMap, servers: &[NodeId], id: SessionId) -> Result<()> {
    for server in servers {
        let sessions = RemoteSessions::new(member.routes(), *server);
        let is_there = sessions
            .end(id, Instant::now() + ANSWER_MAX)
            .with_context(|| format!("the metadata server {}", node::name(map, *server)))?;
        if !is_there {
            continue;
        }
        let deadline = Instant::now() + END_MAX;
        while sessions_of(member, map, *server)?.iter().any(|info| info.session == id) {
            if Instant::now() >= deadline {
                bail!("{id} is about to end, but has not yet; `ashlar session list` shows whether it has");
            }
            std::thread::sleep(LOOK_EVERY);
        }
        say(format_args!("ended {id}"));
        return Ok(());
    }
    bail!("there is no {id}; `ashlar session list` shows all")
}
