//! Somebody who moves shards between the metadata servers, again and again, while others are at work.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::{self, SyncSender};
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
    let (moves, has_moved) = mpsc::sync_channel(1);
    thread::scope(|scope| {
        let mover = scope.spawn(|| move_to_and_fro(lab, servers as usize, &is_over, moves));
        // Short work would be over before the first move. It also ends when there is no mover any more.
        let _ = has_moved.recv();
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

/// Says when the first moves were made, and tells in how many turns how many were made after that.
fn move_to_and_fro(
    lab: &Lab,
    servers: usize,
    is_over: &AtomicBool,
    moves: SyncSender<()>,
) -> anyhow::Result<(usize, usize)> {
    let shards = answer(lab, &["shard", "list", "--json"])?;
    let numbers: Vec<String> =
        shards.iter().filter_map(|shard| shard["id"].as_u64()).map(|id| id.to_string()).collect();
    ensure!(!numbers.is_empty(), "there are no shards");
    // Waits until servers that have just joined have taken their share.
    answer(lab, &["shard", "balance", "--json"])?;
    let mut waits = Some(moves);
    let (mut turns, mut counted_turns, mut moved) = (0, 0, 0);
    // At least one turn is made wholly after the word.
    while !is_over.load(SeqCst) || counted_turns == 0 {
        ensure!(counted_turns > 0 || turns < 2 * TURNS_PER_BALANCE, "shards do not move");
        let made = if turns % TURNS_PER_BALANCE == TURNS_PER_BALANCE - 1 {
            answer(lab, &["shard", "balance", "--json"])?
        } else {
            let to = format!("meta{}", turns % servers + 1);
            let half = numbers.iter().skip(turns / servers % 2).step_by(2).map(String::as_str);
            let words: Vec<&str> =
                ["shard", "move"].into_iter().chain(half).chain(["--to", &to, "--json"]).collect();
            answer(lab, &words)?
        };
        turns += 1;
        if waits.is_none() {
            counted_turns += 1;
            moved += made.len();
        } else if !made.is_empty() {
            // Whoever waits for it goes on when it is dropped.
            waits = None;
        }
    }
    Ok((counted_turns, moved))
}

/// What a command for administrators says, a list.
fn answer(lab: &Lab, words: &[&str]) -> anyhow::Result<Vec<Value>> {
    let text = shell::output(&mut lab.administer(words))?;
    serde_json::from_str(&text).with_context(|| format!("parse what `ashlar {}` says", words.join(" ")))
}
