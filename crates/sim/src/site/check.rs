//! What must hold of the stores of all servers when everything has ended.

use super::{HASH_KEY, SHARDS, Site};
use ashlar_kv::{KvError, LaneReader, Snapshot, Visit};
use ashlar_namespace::check::{self, CheckArgs};
use ashlar_namespace::key;
use ashlar_types::{SessionId, ShardId};
use bytes::Bytes;
use std::ops::ControlFlow;

/// The stores of all servers, each for its shards.
struct All<'a>(Vec<LaneReader<'a>>, &'a Site);

impl All<'_> {
    fn server_of(&self, shard: ShardId) -> usize {
        self.1.truth.lock().primary(shard).map_or(0, |node| node.0 as usize - 1)
    }

    fn of(&self, from: &[u8]) -> &LaneReader<'_> {
        &self.0[self.server_of(key::shard_of(from))]
    }
}

impl Snapshot for All<'_> {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, KvError> {
        self.of(key).get(key)
    }

    fn scan(&self, from: &[u8], to: &[u8], visit: &mut Visit<'_>) -> Result<(), KvError> {
        self.of(from).scan(from, to, visit)
    }
}

/// What is left in the store of server `at` that should not be there.
fn left_over(all: &All<'_>, at: usize) -> Result<Vec<String>, KvError> {
    let mut left = Vec::new();
    for shard in (0..SHARDS).map(ShardId) {
        let is_here = all.server_of(shard) == at;
        let prefix = key::shard_prefix(shard);
        all.0[at].scan(&prefix, &key::after_prefix(&prefix), &mut |found, _| {
            let what = match found.get(2) {
                _ if *found == key::incarnation()[..] || *found == key::unmet(SessionId(0))[..] => {
                    return ControlFlow::Continue(());
                }
                // Shards that are coming, sessions, and answers that are kept for them.
                Some(b'K' | b'P' | b'N' | b'R') => "left behind",
                _ if key::is_of_server(found) => return ControlFlow::Continue(()),
                _ if !is_here => "of a shard that another server has",
                Some(b'T' | b'H') => "still under way",
                Some(b'O' | b'W' | b'G') => "left behind",
                _ => return ControlFlow::Continue(()),
            };
            left.push(format!("server {at}: {what}: {}", found.escape_ascii()));
            ControlFlow::Continue(())
        })?;
    }
    Ok(left)
}

/// Stops all servers in good order, and checks what they leave.
///
/// # Errors
/// In words: what does not hold.
pub(super) fn stop_and_check(site: &Site) -> Result<(), String> {
    for server in &site.servers {
        server.end(site)?;
    }
    site.scheduler.kill_all();
    let lanes: Result<Vec<_>, String> =
        site.servers.iter().map(|server| server.lane(site, "audit:")).collect();
    let lanes = lanes?;
    let failed = |error: KvError| format!("a store cannot be read: {error}");
    let all = All(lanes.iter().map(|lane| lane.read()).collect(), site);
    let mut found = Vec::new();
    for at in 0..lanes.len() {
        found.extend(left_over(&all, at).map_err(failed)?);
    }
    let args =
        CheckArgs { inodes_per_pass: 1024, accounts_per_pass: 1024, ..CheckArgs::new(SHARDS, &HASH_KEY) };
    let mut tell = |finding: check::Finding| {
        found.push(format!("{finding:?}"));
        ControlFlow::Continue(())
    };
    check::check(&all, &args, &mut tell)
        .map_err(|error| format!("the namespace cannot be checked: {error}"))?;
    drop(all);
    lanes.iter().try_for_each(|lane| lane.close()).map_err(failed)?;
    site.scheduler.kill_all();
    found.truncate(8);
    if found.is_empty() { Ok(()) } else { Err(format!("at the end: {}", found.join("; "))) }
}
