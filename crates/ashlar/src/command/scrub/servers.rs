//! A scrub of a file system of many servers: all targets at the same time, in portions.

use super::{NAMED_MAX, Outcome, ahead_by};
use crate::admin::ScrubFinding;
use crate::cli::ScrubArgs;
use crate::cluster::{Member, NodeDirectory};
use anyhow::{Context, Result, bail};
use ashlar_rpc::remote::{Patience, RemoteStorage};
use ashlar_rpc::{Payload, StorageCalls};
use ashlar_types::message::{StorageReply, StorageRequest};
use ashlar_types::{Errno, Role, TargetId};
use parking_lot::Mutex;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// For how long a storage server that does not answer is waited for.
const ANSWER_MAX: Duration = Duration::from_secs(30);

pub fn run(args: &ScrubArgs, identity: &Path) -> Result<ExitCode> {
    let member = Member::start(NodeDirectory::new(identity), Role::Admin)?;
    let targets: Vec<TargetId> = member.map().read().targets.iter().map(|target| target.id).collect();
    if targets.is_empty() {
        bail!("no target has been made yet");
    }
    let storage = RemoteStorage::new(member.routes(), Patience::new(ANSWER_MAX)).giving_up();
    let (begin, outcome) =
        (Instant::now(), Mutex::new(Outcome { targets: targets.len(), ..Outcome::default() }));
    // LIMIT: a thread per target.
    std::thread::scope(|threads| {
        for &target in &targets {
            let (storage, outcome) = (&storage, &outcome);
            let scrub = move || {
                let found = scrub_target(storage, target, outcome, |bytes_read| match args.rate {
                    Some(rate) => ahead_by(bytes_read, rate, begin.elapsed()),
                    None => Duration::ZERO,
                });
                if let Err(errno) = found {
                    note(
                        outcome,
                        target,
                        [(None, format!("cannot be scrubbed, or not to its end: {errno}"))],
                    );
                }
            };
            let started =
                std::thread::Builder::new().name("ashlar-scrub".into()).spawn_scoped(threads, scrub);
            started.context("cannot start a thread")?;
        }
        Ok::<_, anyhow::Error>(())
    })?;
    let mut outcome = outcome.into_inner();
    outcome.findings.sort_by_key(|finding| finding.target);
    Ok(outcome.tell(begin.elapsed(), args.mountpoint.as_deref(), args.json))
}

/// Scrubs a target to its end; `pause` tells how far all together are ahead of their rate.
fn scrub_target(
    storage: &RemoteStorage,
    target: TargetId,
    outcome: &Mutex<Outcome>,
    pause: impl Fn(u64) -> Duration,
) -> Result<(), Errno> {
    let mut from = Vec::new();
    loop {
        let request = StorageRequest::Scrub { target, from };
        let StorageReply::Scrubbed { findings, next, bytes_read } = storage.call(&request, Payload::None)?
        else {
            return Err(Errno::EPROTO);
        };
        note(outcome, target, findings.into_iter().map(|(inode, what)| (inode.map(|inode| inode.0), what)));
        let read = {
            let mut outcome = outcome.lock();
            outcome.bytes_read += bytes_read;
            outcome.bytes_read
        };
        if next.is_empty() {
            return Ok(());
        }
        from = next;
        std::thread::sleep(pause(read));
    }
}

fn note(outcome: &Mutex<Outcome>, target: TargetId, found: impl IntoIterator<Item = (Option<u64>, String)>) {
    let mut outcome = outcome.lock();
    for (inode, what) in found {
        outcome.count += 1;
        if outcome.findings.len() < NAMED_MAX {
            outcome.findings.push(ScrubFinding { target: target.0, inode, what });
        }
    }
}
