//! `ashlar etcd join`: this machine becomes a further member.
//!
//! It is added as one that follows (a learner), which decides nothing: so the others go on as they were until it is started and has what they have. Then
//! a manager has it count.

use super::member::{Member, Place};
use super::{membership, own_store};
use crate::cli::EtcdJoinArgs;
use crate::cluster::node_directory::NodeDirectory;
use crate::terminal::say;
use anyhow::{Context, Result, bail};
use ashlar_coord::CoordError;
use ashlar_coord::etcd::{EtcdMember, EtcdMembership};
use std::time::{Duration, Instant};

/// LIMIT: for how long etcd is asked again that has members which have not been connected for long.
const SETTLING_MAX: Duration = Duration::from_secs(30);
/// Time between two tries.
const PAUSE: Duration = Duration::from_millis(500);

pub fn join(args: &EtcdJoinArgs) -> Result<()> {
    let state = &args.state.state;
    let name = NodeDirectory::new(&args.node.node).load()?;
    let (_, authority) = own_store(state)?;
    let member = Member::of(state)?;
    if member.exists() {
        bail!("this machine is a member already; `ashlar etcd run` starts it");
    }
    member.require_no_data()?;
    let (env, _, membership) = membership(state)?;
    let place = Place {
        name: name.name.clone(),
        listen: args.at.listen,
        peers: args.at.peers(),
        token: name.cluster.to_string(),
    };
    let there = membership.list()?;
    if there.iter().any(|known| known.name == place.name) {
        bail!(
            "there is a member `{name}` already; if that was this machine before, take it out first (`ashlar etcd remove {name}` on another one)",
            name = place.name
        );
    }
    let url = place.peer_url();
    let is_waiting = |known: &&EtcdMember| known.name.is_empty() && !known.peer_urls.contains(&url);
    if let Some(other) = there.iter().find(is_waiting) {
        bail!(
            "a member at {} was added and not started yet: start that one first, or take it out (`ashlar etcd remove {:x}`)",
            other.peer_urls.join(", "),
            other.id
        );
    }
    let (own, all) = add(&membership, &url)?;
    let mut initial = Vec::new();
    for known in &all {
        let name = if known.id == own.id { &place.name } else { &known.name };
        let url = known.peer_urls.first().context("etcd names a member without an address")?;
        initial.push((name.clone(), url.clone()));
    }
    member.write(&authority, &place, (&initial, false), &env)?;
    say(format_args!("added {} to etcd; start it with `ashlar etcd run`", place.name));
    Ok(())
}

/// Adds the member at `url`. etcd refuses that while its members have been connected for less than five seconds, as they have after one came.
fn add(membership: &EtcdMembership, url: &str) -> Result<(EtcdMember, Vec<EtcdMember>), CoordError> {
    let deadline = Instant::now() + SETTLING_MAX;
    loop {
        match membership.add(url) {
            Err(error) if error.to_string().contains("unhealthy cluster") && Instant::now() < deadline => {
                std::thread::sleep(PAUSE);
            }
            other => return other,
        }
    }
}
