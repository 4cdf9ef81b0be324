//! Somebody who moves shards between the metadata servers, again and again, while others are at work.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;

use anyhow::{Context, ensure};
use serde_json::Value;

use super::lab::Lab;
use crate::shell;

/// Of so many turns one brings all servers to the same number of shards; in the others half of all shards go to one server.
const TURNS_PER_BALANCE: usize = 4;

/// Does `work` while shards are moved to and fro between so many metadata servers; with only one there is nowhere to move them, and none is.
pub(super) fn beside<T>(
    lab: &Lab,
    servers: u32,
    work: impl FnOnce() -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    if servers < 2 {
        return work();
    }
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let mover = scope.spawn(|| move_to_and_fro(lab, servers as usize, &is_over));
        let done = work();
        is_over.store(true, SeqCst);
        let moved = mover.join().expect("it does not panic");
        let done = done?;
        let (turns, moved) = moved.context("move shards meanwhile")?;
        println!("{moved} times a shard was moved meanwhile, in {turns} turns");
        ensure!(moved > 0, "no shard was moved meanwhile");
        Ok(done)
    })
}

/// Tells in how many turns how many moves were made.
fn move_to_and_fro(lab: &Lab, servers: usize, is_over: &AtomicBool) -> anyhow::Result<(usize, usize)> {
    let shards = answer(lab, &["shard", "list", "--json"])?;
    let numbers: Vec<String> =
        shards.iter().filter_map(|shard| shard["id"].as_u64()).map(|id| id.to_string()).collect();
    ensure!(!numbers.is_empty(), "there are no shards");
    let (mut turns, mut moved) = (0, 0);
    // The first turn waits until servers that have just joined have taken their share.
    while !is_over.load(SeqCst) {
        let made = if turns % TURNS_PER_BALANCE == 0 {
            answer(lab, &["shard", "balance", "--json"])?
        } else {
            let to = format!("meta{}", turns % servers + 1);
            let half = numbers.iter().skip(turns / servers % 2).step_by(2).map(String::as_str);
            let words: Vec<&str> =
                ["shard", "move"].into_iter().chain(half).chain(["--to", &to, "--json"]).collect();
            answer(lab, &words)?
        };
        turns += 1;
        moved += made.len();
    }
    Ok((turns, moved))
}

/// What a command for administrators says, a list.
fn answer(lab: &Lab, words: &[&str]) -> anyhow::Result<Vec<Value>> {
    let text = shell::output(&mut lab.administer(words))?;
    serde_json::from_str(&text).with_context(|| format!("parse what `ashlar {}` says", words.join(" ")))
}
