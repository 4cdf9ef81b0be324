//! A directory of a storage server becomes a target while everybody goes on.

use super::super::node;
use super::{Seen, find, print};
use crate::cluster::{DataPlace, Member};
use crate::terminal::say_json;
use anyhow::{Context, Result, anyhow, bail};
use ashlar_rpc::net::NetError;
use ashlar_rpc::remote::RemoteTargets;
use ashlar_rpc::wire::TargetPlace;
use ashlar_types::{ClusterMap, Node, Role};
use std::time::{Duration, Instant};

/// LIMIT: for how long the server is waited for. Another server that seems to have the target is waited for 15 s there, and a large index is read.
const ANSWER_MAX: Duration = Duration::from_secs(120);

/// What is to be added.
pub struct Addition<'a> {
    /// The directory, on the machine of the server.
    pub place: &'a DataPlace,
    /// The machine; without it this one.
    pub on: Option<&'a str>,
    /// The pool; without it the first one.
    pub pool: Option<&'a str>,
}

pub fn run(member: &Member, map: &ClusterMap, addition: &Addition<'_>, json: bool) -> Result<()> {
    let server = server(member, map, addition.on)?;
    let Some(dir) = addition.place.dir.to_str() else {
        bail!("{} has a name that is no UTF-8: rename it", addition.place.dir.display());
    };
    let place = TargetPlace {
        dir: dir.to_owned(),
        pool: addition.pool.unwrap_or_default().to_owned(),
        listen: addition.place.listen.clone(),
        numa: addition.place.numa,
    };
    let servers = RemoteTargets::new(member.routes(), server.id);
    let taken =
        servers.take(place, Instant::now() + ANSWER_MAX).map_err(|error| untold(&server.name, &error))?;
    let id = taken.map_err(|why| anyhow!("{}: {why}", server.name))?;
    let map = member.map_after(|map| map.target(id).is_some());
    let target = find(&map, id.0)?;
    let seen = Seen::ask(member, &map, std::slice::from_ref(target));
    if json {
        return say_json(&seen.object(&map, target));
    }
    print(&map, target, &seen);
    Ok(())
}

/// The machine that is meant, which must be one that a storage server is on.
fn server<'m>(member: &Member, map: &'m ClusterMap, on: Option<&str>) -> Result<&'m Node> {
    let node = match on {
        Some(name) => node::find(map, name)?,
        None => map.node(member.name.node).context("this machine was removed from the file system")?,
    };
    if node.addresses(Role::Storage).is_empty() {
        let servers: Vec<&str> = map.listening(Role::Storage).map(|node| node.name.as_str()).collect();
        bail!(
            "no storage server runs on {}: say with --on on which machine the directory is ({}), or begin with `ashlar storage --data DIR` there",
            node.name,
            if servers.is_empty() { "there is none yet".to_owned() } else { servers.join(", ") }
        );
    }
    Ok(node)
}

/// What to say of a server that has not told what has become of it.
fn untold(name: &str, error: &NetError) -> anyhow::Error {
    match error {
        NetError::Refused(text) => anyhow!(
            "{name} does not do it: {text}. A server of an older version takes a new target at its start alone, with one more --data"
        ),
        _ => anyhow!(
            "{name} has not told in {} s whether it has done it ({error}): `ashlar target list` shows it once it has",
            ANSWER_MAX.as_secs()
        ),
    }
}
