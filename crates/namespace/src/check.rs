//! The consistency check of the namespace, over a snapshot of all shards: every rule that the verbs keep, looked at from outside.
//!
//! Three stages, each streaming over the tables in key order with bounded memory; what does not fit is done in several passes:
//! 1. accounting: the counters of each shard against the sum over its inodes;
//! 2. records: each inode with what belongs to it in its shard (entries, body, link target, attributes, orphan, writer and garbage
//!    records), and what belongs to none; a directory that is split with its slices;
//! 3. links: entries against the inodes they point to, in any shard: existence, type, link count, parent, reachability.
//!
//! The check only reads and may run on a snapshot of a live file system; it then tells what was wrong at that moment. Findings come
//! in an order in which [`crate::verb::repair`] can take them one by one, with nothing else changing the namespace between check
//! and repair. Damaged bytes are a finding; a store that cannot be read is an error.
//!
//! Chunks on targets are compared elsewhere, with the lists that [`for_each_chunked_file`] and [`for_each_garbage`] give.

mod accounts;
mod chunks;
mod finding;
mod links;
mod records;
mod side;
mod slices;

pub use chunks::{ChunkedFile, for_each_chunked_file, for_each_garbage};
pub use finding::{EntryName, Finding};

use crate::error::NsError;
use crate::record::Inode;
use ashlar_kv::{Key, Snapshot};
use ashlar_types::{InodeId, ShardId, codec};
use std::ops::ControlFlow;

/// What to check, and with how much memory.
#[derive(Clone, Debug)]
pub struct CheckArgs<'a> {
    /// All shards of the file system.
    pub shards: Vec<ShardId>,
    /// The key of the name hash.
    pub hash_key: &'a [u8; 16],
    /// Inodes that one pass over the entries counts links for, 1 or more.
    // LIMIT: 48 bytes each; as many directories are remembered as reachable.
    pub inodes_per_pass: usize,
    /// Accounting counters that one pass over a shard's inodes sums up, 1 or more.
    // LIMIT: about 100 bytes each.
    pub accounts_per_pass: usize,
}

impl<'a> CheckArgs<'a> {
    /// A check of `shard_count` shards with less than 1 GiB of memory.
    pub fn new(shard_count: u16, hash_key: &'a [u8; 16]) -> CheckArgs<'a> {
        let shards = (0..shard_count).map(ShardId).collect();
        CheckArgs { shards, hash_key, inodes_per_pass: 8 << 20, accounts_per_pass: 1 << 20 }
    }
}

/// What a check has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// Inodes.
    pub inodes: u64,
    /// Directory entries.
    pub entries: u64,
    /// Findings.
    pub findings: u64,
    /// Whether the receiver of findings asked to stop.
    pub is_cut_short: bool,
}

/// Where findings go; it may ask to stop.
pub type Tell<'t> = dyn FnMut(Finding) -> ControlFlow<()> + 't;

/// Why a stage ends early.
enum Stop {
    /// The receiver has enough.
    Enough,
    Error(NsError),
}

impl From<NsError> for Stop {
    fn from(error: NsError) -> Stop {
        Stop::Error(error)
    }
}

impl From<ashlar_kv::KvError> for Stop {
    fn from(error: ashlar_kv::KvError) -> Stop {
        Stop::Error(error.into())
    }
}

/// Looks at one pair of a scan.
type Visit<'v, C> = dyn FnMut(&mut C, &[u8], &[u8]) -> Result<ControlFlow<()>, Stop> + 'v;

/// What the stages share.
struct Checker<'c> {
    snapshot: &'c dyn Snapshot,
    args: &'c CheckArgs<'c>,
    report: CheckReport,
    tell: &'c mut Tell<'c>,
}

/// Checks everything and tells each finding.
///
/// # Errors
/// [`NsError::Kv`] when the store cannot be read.
pub fn check<'c>(
    snapshot: &'c dyn Snapshot,
    args: &'c CheckArgs<'c>,
    tell: &'c mut Tell<'c>,
) -> Result<CheckReport, NsError> {
    let mut checker = Checker { snapshot, args, report: CheckReport::default(), tell };
    match run(&mut checker) {
        Ok(()) => Ok(checker.report),
        Err(Stop::Enough) => Ok(CheckReport { is_cut_short: true, ..checker.report }),
        Err(Stop::Error(error)) => Err(error),
    }
}

fn run(checker: &mut Checker<'_>) -> Result<(), Stop> {
    let mut shards = checker.args.shards.clone();
    shards.sort_unstable();
    for &shard in &shards {
        accounts::check_shard(checker, shard)?;
    }
    for &shard in &shards {
        records::check_shard(checker, shard)?;
    }
    links::check(checker, &shards)
}

impl Checker<'_> {
    fn found(&mut self, finding: Finding) -> Result<(), Stop> {
        self.report.findings += 1;
        if (self.tell)(finding).is_break() { Err(Stop::Enough) } else { Ok(()) }
    }

    /// Visits the pairs in `[from, to)`; `visit` gets the checker back to report.
    fn scan(&mut self, from: &[u8], to: &[u8], visit: &mut Visit<'_, Self>) -> Result<(), Stop> {
        let mut stop = None;
        let snapshot = self.snapshot;
        snapshot.scan(from, to, &mut |record_key, value| match visit(self, record_key, value) {
            Ok(flow) => flow,
            Err(reason) => {
                stop = Some(reason);
                ControlFlow::Break(())
            }
        })?;
        stop.map_or(Ok(()), Err)
    }

    /// The record of `id`: `None` when there is none, `Some(None)` when there is one that does not decode.
    fn inode(&self, id: InodeId) -> Result<Option<Option<Inode>>, Stop> {
        let bytes = self.snapshot.get(&crate::key::inode(id))?;
        Ok(bytes.map(|bytes| codec::decode(&bytes, "inode record").ok()))
    }
}

/// The key of `table` in the shard of `id` from which on records of `id` and greater ids are; for an id beyond the shard the end of
/// the table.
fn table_from(shard: ShardId, table: u8, id: u64) -> Key {
    let (mut from, to) = crate::key::table_range(shard, table);
    if id > InodeId::new(shard, InodeId::COUNTER_MAX).map_or(u64::MAX, |last| last.0) {
        return to;
    }
    from.extend_from_slice(&id.to_be_bytes());
    from
}
