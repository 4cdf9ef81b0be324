//! `ashlar-torture full`: fill the file system from several threads, delete, fill again, and check what was stored.
//!
//! The only refusal accepted is ENOSPC (or EDQUOT). While it is full, reads and deletes must work. An overwrite of existing bytes may be
//! refused (a file system may need room for its log), but then every block must hold old or new bytes.

use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;

use crate::report::Report;
use crate::rng::{Rng, pattern, split_mix};

/// Fill the file system until ENOSPC, check, delete half, fill again, delete all.
#[derive(Args, Debug)]
pub struct Arguments {
    /// A directory on the file system under test; the file system should be small.
    #[arg(long)]
    dir: PathBuf,
    /// Threads.
    #[arg(long, default_value_t = 4)]
    threads: u64,
    /// The seed that fixes sizes and content.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Stop filling a file system that is larger than this many MiB.
    #[arg(long, default_value_t = 20_000)]
    mib_max: u64,
    /// Seconds that freed space may take to become usable.
    #[arg(long, default_value_t = 60)]
    reclaim_seconds: u64,
}

/// A file that was written completely.
#[derive(Clone, Debug)]
struct Stored {
    path: PathBuf,
    seed: u64,
    /// The seed of an overwrite that was refused and may have been done in part.
    attempted: Option<u64>,
    len: usize,
}

impl Stored {
    fn is_right(&self, content: &[u8]) -> bool {
        let wanted = pattern(self.seed, self.len);
        let Some(attempted) = self.attempted else { return content == wanted };
        let other = pattern(attempted, self.len);
        content.len() == self.len
            && content
                .chunks(BLOCK)
                .zip(wanted.chunks(BLOCK).zip(other.chunks(BLOCK)))
                .all(|(content, (old, new))| content == old || content == new)
    }
}

/// The unit in which a write that was cut off is done or not.
const BLOCK: usize = 4096;
const PIECE: usize = 256 * 1024;

/// Runs the command.
///
/// # Errors
/// When the working directory cannot be made.
pub fn run(arguments: &Arguments) -> anyhow::Result<Report> {
    let root = arguments.dir.join(format!("full-{}", std::process::id()));
    fs::create_dir(&root).with_context(|| format!("create {}", root.display()))?;
    let mut report = Report::new();
    let mut stored = fill(arguments, &root, 0, &mut report);
    let first = stored.iter().map(|file| file.len).sum::<usize>();
    println!("filled with {} files, {} MiB", stored.len(), first >> 20);
    verify(&stored, &mut report);
    overwrite(&mut stored, &mut report);
    // Deleting must work on a full file system, and make room.
    let (kept, gone): (Vec<_>, Vec<_>) =
        stored.into_iter().enumerate().partition(|(number, _)| number % 2 == 0);
    for (_, file) in &gone {
        match fs::remove_file(&file.path) {
            Ok(()) => report.pass(),
            Err(error) => report.fail(format!("unlink {} while full: {error}", file.path.display())),
        }
    }
    let freed: usize = gone.iter().map(|(_, file)| file.len).sum();
    let mut stored: Vec<Stored> = kept.into_iter().map(|(_, file)| file).collect();
    let refilled = refill(arguments, &root, freed, &mut report);
    println!(
        "deleted {} MiB, filled again with {} MiB",
        freed >> 20,
        refilled.iter().map(|f| f.len).sum::<usize>() >> 20
    );
    stored.extend(refilled);
    verify(&stored, &mut report);
    match fs::remove_dir_all(&root) {
        Ok(()) => report.pass(),
        Err(error) => report.fail(format!("remove everything while full: {error}")),
    }
    Ok(report)
}

/// Fills again until three quarters of what was freed is used, or the time for reclaiming is over.
fn refill(arguments: &Arguments, root: &Path, freed: usize, report: &mut Report) -> Vec<Stored> {
    let end = Instant::now() + Duration::from_secs(arguments.reclaim_seconds);
    let mut stored: Vec<Stored> = Vec::new();
    let mut round = 1;
    loop {
        stored.extend(fill(arguments, root, round, report));
        let bytes: usize = stored.iter().map(|file| file.len).sum();
        if bytes >= freed / 4 * 3 {
            report.pass();
            return stored;
        }
        if Instant::now() > end {
            report.fail(format!(
                "{} MiB were deleted, but after {} s only {} MiB could be written",
                freed >> 20,
                arguments.reclaim_seconds,
                bytes >> 20
            ));
            return stored;
        }
        round += 1;
        std::thread::sleep(Duration::from_millis(500));
    }
}

fn fill(arguments: &Arguments, root: &Path, round: u64, report: &mut Report) -> Vec<Stored> {
    let share = (arguments.mib_max << 20) / arguments.threads.max(1);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..arguments.threads)
            .map(|thread| {
                let label = round << 16 | thread;
                scope.spawn(move || fill_one(root, arguments.seed, label, share))
            })
            .collect();
        let mut stored = Vec::new();
        for thread in threads {
            match thread.join() {
                Ok((files, None)) => stored.extend(files),
                Ok((files, Some(wrong))) => {
                    stored.extend(files);
                    report.fail(wrong);
                }
                Err(_) => report.fail("a filling thread panicked"),
            }
        }
        stored
    })
}

/// Writes files until there is no space; returns the complete ones and the first refusal that is not for want of space.
fn fill_one(root: &Path, seed: u64, label: u64, bytes_max: u64) -> (Vec<Stored>, Option<String>) {
    let mut rng = Rng::derive(seed, label);
    let mut stored = Vec::new();
    let mut sum = 0;
    for number in 0u64.. {
        let len = match rng.below(10) {
            0..5 => rng.between(1, 64 * 1024),
            5..9 => rng.between(1, 2 << 20),
            _ => rng.between(1, 32 << 20),
        };
        if sum + len > bytes_max {
            break;
        }
        let file = Stored {
            path: root.join(format!("f{label}-{number}")),
            seed: split_mix(seed ^ label << 32 ^ number),
            attempted: None,
            len: len as usize,
        };
        match store(&file) {
            Ok(()) => {
                sum += len;
                stored.push(file);
            }
            Err(error) => {
                let full = is_full(&error);
                // The piece that was stored is removed, as a careful application would do.
                let removed = fs::remove_file(&file.path)
                    .or_else(|error| if error.kind() == ErrorKind::NotFound { Ok(()) } else { Err(error) });
                let wrong = match (full, removed) {
                    (true, Ok(())) => None,
                    (true, Err(error)) => Some(format!("unlink {} while full: {error}", file.path.display())),
                    (false, _) => Some(format!("write {}: {error}, expected ENOSPC", file.path.display())),
                };
                return (stored, wrong);
            }
        }
    }
    (stored, None)
}

fn store(file: &Stored) -> std::io::Result<()> {
    let target = OpenOptions::new().write(true).create_new(true).open(&file.path)?;
    let content = pattern(file.seed, file.len);
    for (number, piece) in content.chunks(PIECE).enumerate() {
        target.write_all_at(piece, (number * PIECE) as u64)?;
    }
    // An error that comes after write has returned is allowed to come here.
    target.sync_all()
}

fn verify(stored: &[Stored], report: &mut Report) {
    for file in stored {
        match fs::read(&file.path) {
            Ok(content) => {
                report.check(file.is_right(&content), || format!("{} has wrong content", file.path.display()))
            }
            Err(error) => report.fail(format!("read {} while full: {error}", file.path.display())),
        }
    }
}

/// Overwrites some files with new bytes of the same length: space they already have.
fn overwrite(stored: &mut [Stored], report: &mut Report) {
    let (mut done, mut refused) = (0, 0);
    for file in stored.iter_mut().step_by(7) {
        let seed = split_mix(file.seed);
        let written = File::options().write(true).open(&file.path).and_then(|target| {
            target.write_all_at(&pattern(seed, file.len), 0).and_then(|()| target.sync_all())
        });
        match written {
            Ok(()) => {
                file.seed = seed;
                done += 1;
                report.pass();
            }
            Err(error) if is_full(&error) => {
                file.attempted = Some(seed);
                refused += 1;
            }
            Err(error) => report.fail(format!("overwrite {} while full: {error}", file.path.display())),
        }
    }
    println!("overwrites while full: {done} done, {refused} refused with ENOSPC");
    verify(stored, report);
}

fn is_full(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
}
