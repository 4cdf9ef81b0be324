//! `ashlar chain`: chains of several copies.

use super::pool;
use super::target::works;
use crate::cli::{ChainAction, ChainArgs};
use crate::cluster::{Member, NodeDirectory};
use crate::terminal::{say, say_json};
use anyhow::Result;
use ashlar_console::object::chain::{self, copied, object};
use ashlar_console::object::pool::name;
use ashlar_types::map::{Chain, ChainCopies};
use ashlar_types::message::MoveProgress;
use ashlar_types::{ClusterMap, Role, TargetId};
use serde_json::Value;
use std::process::ExitCode;

pub fn run(args: &ChainArgs) -> Result<ExitCode> {
    let member = Member::start(NodeDirectory::new(&args.node.node), Role::Admin)?;
    let map = member.map().read().clone();
    let ChainAction::List { short, pool, json } = &args.action;
    let pool = pool.as_ref().map(|name| pool::find(&map, name)).transpose()?.map(|pool| pool.id);
    let all: Vec<(&Chain, &ChainCopies)> = copied(&map, pool).collect();
    let (rebuilds, progress) = works::rebuilds(&member, &map, pool);
    let shown = all.iter().filter(|(chain, _)| !short || chain.is_short());
    if *json {
        let shown: Vec<Value> =
            shown.map(|(chain, copies)| object(&map, chain, copies, progress.get(&chain.id))).collect();
        say_json(&shown)?;
    } else {
        shown.for_each(|(chain, copies)| print(&map, chain, copies, progress.get(&chain.id)));
        let short = all.iter().filter(|(chain, _)| chain.is_short()).count();
        say(format_args!("{} chains of several copies, {short} with fewer than they are to have", all.len()));
        for rebuild in &rebuilds {
            say(format_args!("pool {}: {}", name(&map, rebuild.work.pool), rebuild.text()));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn print(map: &ClusterMap, chain: &Chain, copies: &ChainCopies, progress: Option<&MoveProgress>) {
    let named = |what: &str, targets: &[TargetId]| match targets {
        [] => String::new(),
        targets => format!("{what}{}", numbers(targets)),
    };
    let how_far = progress.map(how_far).unwrap_or_default();
    let short = if chain.is_short() { format!(" of {}", copies.wanted) } else { String::new() };
    say(format_args!(
        "{:<12} {:<16} targets {}{short}{}{}{}",
        chain.id.to_string(),
        chain::pool(map, chain),
        numbers(&chain.targets),
        named(", catching up: ", &copies.catching_up),
        how_far,
        named(", waited for: ", &awaited(copies)),
    ));
}

/// How far the one is that is being brought up to date.
fn how_far(progress: &MoveProgress) -> String {
    const MIB: f64 = (1u64 << 20) as f64;
    let (done, total) = (progress.bytes_done, progress.bytes_total);
    // What changes is sent more than once; 0 until it was counted.
    let total =
        if total == 0 { String::new() } else { format!(" of at most {:.1}", total.max(done) as f64 / MIB) };
    let obstacle =
        if progress.obstacle.is_empty() { String::new() } else { format!(", {}", progress.obstacle) };
    format!(" ({:.1}{total} MiB{obstacle})", done as f64 / MIB)
}

/// Who had all of it, and is not being brought up to date.
fn awaited(copies: &ChainCopies) -> Vec<TargetId> {
    copies.former.iter().filter(|former| !copies.catching_up.contains(former)).copied().collect()
}

fn numbers(targets: &[TargetId]) -> String {
    targets.iter().map(|target| target.0.to_string()).collect::<Vec<_>>().join(" ")
}
