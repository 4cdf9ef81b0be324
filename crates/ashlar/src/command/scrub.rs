//! `ashlar scrub`: reads all data of a running file system and compares it with its checksums.

mod servers;

use crate::admin::{AdminReply, AdminRequest, ScrubFinding, ask, find_running};
use crate::cli::ScrubArgs;
use crate::terminal::{say, shown};
use anyhow::{Result, bail};
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::{DirEntryExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Findings that are named.
// LIMIT: about 200 bytes each; more are only counted.
const NAMED_MAX: usize = 10_000;

pub fn run(args: &ScrubArgs) -> Result<ExitCode> {
    if let Some(identity) = &args.identity {
        return servers::run(args, identity);
    }
    let running = find_running(args.mountpoint.as_deref())?;
    let [(socket, status)] = running.as_slice() else {
        bail!("{} file systems run here; name the mount point of one", running.len());
    };
    let (begin, mut job, mut bytes_read, mut count) = (Instant::now(), None, 0u64, 0u64);
    let mut findings: Vec<ScrubFinding> = Vec::new();
    loop {
        let portion = match ask(socket, &AdminRequest::Scrub { job })? {
            AdminReply::Scrub(portion) => portion,
            _ => bail!("the answer is of another version"),
        };
        bytes_read += portion.bytes_read;
        count += portion.findings.len() as u64;
        let room = NAMED_MAX.saturating_sub(findings.len());
        findings.extend(portion.findings.into_iter().take(room));
        if portion.is_done {
            break;
        }
        if let Some(rate) = args.rate {
            std::thread::sleep(ahead_by(bytes_read, rate, begin.elapsed()));
        }
        job = Some(portion.job);
    }
    let outcome = Outcome { findings, count, bytes_read, targets: status.targets.len() };
    Ok(outcome.tell(begin.elapsed(), status.mounts.first().map(PathBuf::as_path), args.json))
}

/// What a scrub has found.
#[derive(Default)]
struct Outcome {
    findings: Vec<ScrubFinding>,
    /// All, also those that are not named.
    count: u64,
    bytes_read: u64,
    targets: usize,
}

impl Outcome {
    /// Tells all of it, with names of files as they are below `mount`.
    fn tell(&self, took: Duration, mount: Option<&Path>, is_json: bool) -> ExitCode {
        let Outcome { findings, count, bytes_read, targets } = self;
        let seconds = took.as_secs_f64();
        let names = match mount {
            Some(mount) => paths_of(mount, findings.iter().filter_map(|finding| finding.inode)),
            None => BTreeMap::new(),
        };
        for finding in findings {
            print(finding, finding.inode.and_then(|inode| names.get(&inode)).map(PathBuf::as_path), is_json);
        }
        let rate = *bytes_read as f64 / seconds.max(1e-6) / f64::from(1 << 20);
        if is_json {
            let summary = serde_json::json!({
                "summary": { "bytes_read": bytes_read, "seconds": seconds, "findings": count, "targets": targets }
            });
            say(summary);
        } else {
            say(format_args!(
                "{bytes_read} bytes read in {seconds:.1} s ({rate:.0} MiB/s), {count} problems found"
            ));
        }
        if *count == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

/// By how much a scrub that has read `bytes_read` after `elapsed` is ahead of `mib_per_s`.
fn ahead_by(bytes_read: u64, mib_per_s: u64, elapsed: Duration) -> Duration {
    let bytes_per_s = (mib_per_s << 20) as f64;
    Duration::from_secs_f64(bytes_read as f64 / bytes_per_s).saturating_sub(elapsed)
}

fn print(finding: &ScrubFinding, path: Option<&Path>, is_json: bool) {
    let ScrubFinding { target, inode, what } = finding;
    let path = path.map(shown);
    if is_json {
        say(serde_json::json!({ "target": target, "path": path, "inode": inode, "what": what }));
        return;
    }
    let path = path.map(|path| format!("{path}: ")).unwrap_or_default();
    say(format_args!("{path}target-{target}: {what}"));
}

/// Paths below `mount` of those of `wanted` that have one. What cannot be looked into is passed over: those names stay unknown.
fn paths_of(mount: &Path, wanted: impl Iterator<Item = u64>) -> BTreeMap<u64, PathBuf> {
    let mut wanted: BTreeSet<u64> = wanted.collect();
    let mut paths = BTreeMap::new();
    let Ok(device) = mount.metadata().map(|root| root.dev()) else { return paths };
    // LIMIT: one entry per directory that was seen and not yet looked into.
    let mut directories = vec![mount.to_owned()];
    while let Some(directory) = directories.pop() {
        if wanted.is_empty() {
            break;
        }
        let Ok(entries) = std::fs::read_dir(&directory) else { continue };
        for entry in entries.flatten() {
            if wanted.remove(&entry.ino()) {
                paths.insert(entry.ino(), entry.path());
            }
            let is_directory = entry.file_type().is_ok_and(|file_type| file_type.is_dir());
            if is_directory && entry.metadata().is_ok_and(|metadata| metadata.dev() == device) {
                directories.push(entry.path());
            }
        }
    }
    paths
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scrub_ahead_of_its_rate_waits_and_one_behind_does_not() {
        let seconds = Duration::from_secs;
        assert_eq!(ahead_by(100 << 20, 10, seconds(4)), seconds(6));
        assert_eq!(ahead_by(100 << 20, 10, seconds(10)), seconds(0));
        assert_eq!(
            ahead_by(100 << 20, 10, seconds(100)),
            seconds(0),
            "lost time is not made up for by a burst below zero"
        );
        assert_eq!(ahead_by(0, 1, seconds(0)), seconds(0));
        assert_eq!(ahead_by(u64::MAX, 1_000_000, seconds(0)).as_secs(), u64::MAX / (1_000_000 << 20));
    }
}
