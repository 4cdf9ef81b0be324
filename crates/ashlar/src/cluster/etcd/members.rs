//! `ashlar etcd list` and `remove`.

use super::membership;
use crate::cli::{EtcdListArgs, EtcdRemoveArgs};
use crate::terminal::say;
use anyhow::{Context, Result, bail};
use ashlar_coord::etcd::EtcdMember;
use serde_json::{Value, json};

pub fn list(args: &EtcdListArgs) -> Result<()> {
    let (_, _, membership) = membership(&args.state.state)?;
    let members = membership.list()?;
    if args.json {
        let objects: Vec<Value> = members.iter().map(object).collect();
        say(format_args!("{}", serde_json::to_string_pretty(&objects)?));
        return Ok(());
    }
    for member in &members {
        let name = if member.name.is_empty() { format!("{:x}", member.id) } else { member.name.clone() };
        say(format_args!("{name:<24} {:<12} {}", standing(member), member.client_urls.join(", ")));
    }
    Ok(())
}

/// What a member is.
fn standing(member: &EtcdMember) -> &'static str {
    match (member.name.is_empty(), member.is_learner) {
        (true, _) => "not started",
        (false, true) => "follows",
        (false, false) => "counts",
    }
}

fn object(member: &EtcdMember) -> Value {
    json!({
        "id": format!("{:x}", member.id),
        "name": member.name,
        "standing": standing(member),
        "clients": member.client_urls,
        "peers": member.peer_urls,
    })
}

pub fn remove(args: &EtcdRemoveArgs) -> Result<()> {
    let (_, _, membership) = membership(&args.state.state)?;
    let members = membership.list()?;
    let is_it = |member: &&EtcdMember| member.name == args.name || format!("{:x}", member.id) == args.name;
    let member = members.iter().find(is_it).with_context(|| {
        format!("there is no member `{}`; `ashlar etcd list` shows all", args.name.escape_debug())
    })?;
    if !members.iter().any(|other| other.id != member.id && !other.is_learner) {
        bail!("{} is the only member that counts: the state of the file system would be lost", args.name);
    }
    membership.remove(member.id)?;
    say(format_args!(
        "removed {}; if its machine is to be a member again, remove `etcd/` in its manager's directory there first",
        args.name
    ));
    Ok(())
}
