//! `ashlar shard`: which metadata server answers for what.

use super::node;
use crate::cli::{ShardAction, ShardArgs};
use crate::cluster::{Member, NodeDirectory};
use crate::terminal::say;
use anyhow::Result;
use ashlar_types::Role;
use serde_json::{Value, json};
use std::process::ExitCode;

pub fn run(args: &ShardArgs) -> Result<ExitCode> {
    let member = Member::start(NodeDirectory::new(&args.node.node), Role::Admin)?;
    let map = member.map().read().clone();
    let ShardAction::List { json } = &args.action;
    if *json {
        let object = |shard: &ashlar_types::map::Shard| json!({ "id": shard.id.0, "node": node::reference(&map, shard.primary) });
        let shards: Vec<Value> = map.shards.iter().map(object).collect();
        say(format_args!("{}", serde_json::to_string_pretty(&shards)?));
    } else {
        for shard in &map.shards {
            say(format_args!("{:<12} {}", shard.id.to_string(), node::name(&map, shard.primary)));
        }
    }
    Ok(ExitCode::SUCCESS)
}
