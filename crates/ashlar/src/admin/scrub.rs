//! Scrubs under way, in portions: a command asks for the next portion until there is none. So nothing goes on for a command that
//! has died, and other commands are answered in between.

use super::{AdminReply, ScrubFinding, ScrubPortion};
use ashlar_chunkstore::{ChunkError, ChunkStore, Finding, ScrubCursor, Scrubbed};
use ashlar_types::TargetId;
use parking_lot::Mutex;
use std::sync::Arc;

/// Scrubs under way at a time.
// LIMIT: the oldest is forgotten for one more.
const JOBS_MAX: usize = 4;
/// Bytes read from each target for a portion; a chunk's lock is held for that chunk only.
const PORTION_BYTES: u64 = 8 << 20;

/// Where a scrub is on a target.
#[derive(Clone, Copy)]
enum At {
    Cursor(Option<ScrubCursor>),
    End,
}

struct Job {
    id: u64,
    targets: Vec<(TargetId, At)>,
}

/// See the module.
#[derive(Default)]
pub struct ScrubJobs {
    jobs: Mutex<(u64, Vec<Job>)>,
}

impl ScrubJobs {
    /// Does the next portion of scrub `id`, or the first of a new one, on all `stores` at the same time.
    pub fn next(&self, id: Option<u64>, stores: &[(TargetId, Arc<ChunkStore>)]) -> AdminReply {
        let Some(mut job) = self.take(id, stores) else {
            return AdminReply::Error("this scrub was forgotten for later ones; start it again".into());
        };
        let outcomes: Vec<(usize, TargetId, Result<Scrubbed, ChunkError>)> = std::thread::scope(|scope| {
            let mut running = Vec::new();
            for (place, (target, at)) in job.targets.iter().enumerate() {
                let store = stores.iter().find(|(id, _)| id == target).map(|(_, store)| store);
                if let (At::Cursor(from), Some(store)) = (*at, store) {
                    running.push((place, *target, scope.spawn(move || store.scrub(from, PORTION_BYTES))));
                }
            }
            let stopped = || ChunkError::Stopped { what: "the scrub ended by a panic".into() };
            running
                .into_iter()
                .map(|(place, target, thread)| {
                    (place, target, thread.join().unwrap_or_else(|_| Err(stopped())))
                })
                .collect()
        });
        let mut portion = ScrubPortion { job: job.id, ..ScrubPortion::default() };
        for (place, target, outcome) in outcomes {
            match outcome {
                Ok(scrubbed) => {
                    portion.bytes_read += scrubbed.bytes_read;
                    portion
                        .findings
                        .extend(scrubbed.findings.into_iter().map(|found| finding(target, found)));
                    job.targets[place].1 = scrubbed.next.map_or(At::End, |next| At::Cursor(Some(next)));
                }
                // The rest of the target cannot be read at all: that is told once.
                Err(error) => {
                    let what = format!("cannot go on: {error}");
                    portion.findings.push(ScrubFinding { target: target.0, inode: None, what });
                    job.targets[place].1 = At::End;
                }
            }
        }
        let is_served = |target: &TargetId| stores.iter().any(|(id, _)| id == target);
        let goes_on = |(target, at): &(TargetId, At)| matches!(at, At::Cursor(_)) && is_served(target);
        portion.is_done = !job.targets.iter().any(goes_on);
        if !portion.is_done {
            self.put_back(job);
        }
        AdminReply::Scrub(Box::new(portion))
    }

    fn take(&self, id: Option<u64>, stores: &[(TargetId, Arc<ChunkStore>)]) -> Option<Job> {
        let mut guard = self.jobs.lock();
        let (last_id, jobs) = &mut *guard;
        match id {
            Some(id) => jobs.iter().position(|job| job.id == id).map(|at| jobs.remove(at)),
            None => {
                *last_id += 1;
                let targets = stores.iter().map(|(target, _)| (*target, At::Cursor(None))).collect();
                Some(Job { id: *last_id, targets })
            }
        }
    }

    fn put_back(&self, job: Job) {
        let mut guard = self.jobs.lock();
        let (_, jobs) = &mut *guard;
        if jobs.len() >= JOBS_MAX {
            jobs.remove(0);
        }
        jobs.push(job);
    }
}

fn finding(target: TargetId, finding: Finding) -> ScrubFinding {
    let (inode, what) = match finding {
        Finding::Data { chunk, block, expected, got } => (
            Some(chunk.inode.0),
            format!("chunk {chunk}: block {block} has checksum {got:#010x}, {expected:#010x} was written"),
        ),
        Finding::Header { chunk, what } => (Some(chunk.inode.0), format!("chunk {chunk}: {what}")),
        Finding::Slot { place, what } => (None, format!("{place}: {what}")),
    };
    ScrubFinding { target: target.0, inode, what }
}
