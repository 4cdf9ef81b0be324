//! `ashlar-torture full`: fill the file system from several threads, delete, fill again, and check what was stored.
//!
//! The only refusal accepted is ENOSPC (or EDQUOT), and only for new bytes: while it is full, reads, overwrites, changes of attributes
//! and deletes must work. `statfs` must say that it is full when it is, and what is deleted must count and be usable within seconds.

use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;

use crate::report::Report;
use crate::rng::{Rng, pattern, split_mix};
use crate::sys::attr::fstatfs;

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
    /// Seconds that freed space may take to show in `statfs`.
    #[arg(long, default_value_t = 5)]
    reclaim_seconds: u64,
}

/// A file that was written completely.
#[derive(Clone, Debug)]
struct Stored {
    path: PathBuf,
    seed: u64,
    len: usize,
}

const PIECE: usize = 256 * 1024;
/// The share of what was deleted that must be usable again: the rest may have gone to whoever else wrote, and the log.
const USABLE_PERCENT: u64 = 75;
/// What `statfs` may still call available when a small write is refused, bytes.
const AVAILABLE_WHEN_FULL_MAX: u64 = 16 << 20;
/// Fillings until most of what was deleted is used again: each ends when its threads have met a file too large for what is left.
const REFILLS_MAX: u64 = 8;

/// Runs the command.
///
/// # Errors
/// When the working directory cannot be made.
pub fn run(arguments: &Arguments) -> anyhow::Result<Report> {
    let root = arguments.dir.join(format!("full-{}", std::process::id()));
    fs::create_dir(&root).with_context(|| format!("create {}", root.display()))?;
    let mut report = Report::new();
    let available_first = available_bytes(&root)?;
    let mut stored = fill(arguments, &root, 0, &mut report);
    let first = stored.iter().map(|file| file.len).sum::<usize>();
    println!("filled with {} files, {} MiB", stored.len(), first >> 20);
    verify(&stored, &mut report);
    top_up(&root, &mut report)?;
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
    let freed = gone.iter().map(|(_, file)| file.len as u64).sum();
    let mut stored: Vec<Stored> = kept.into_iter().map(|(_, file)| file).collect();
    wait_for_space(arguments, &root, freed, &mut report)?;
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
    wait_for_space(arguments, &arguments.dir, available_first, &mut report)?;
    Ok(report)
}

fn available_bytes(path: &Path) -> anyhow::Result<u64> {
    let directory = File::open(path).with_context(|| format!("open {}", path.display()))?;
    let stat = fstatfs(directory.as_fd())
        .map_err(|errno| anyhow::anyhow!("statfs {}: {errno:?}", path.display()))?;
    Ok(stat.bavail * u64::try_from(stat.bsize).unwrap_or(0))
}

/// Uses the last bytes and looks whether `statfs` agrees that nothing is left.
fn top_up(root: &Path, report: &mut Report) -> anyhow::Result<()> {
    let path = root.join("last");
    let file = File::create(&path).or_else(|_| File::create(root.join("f0-0")))?;
    let mut at = 0;
    let refused = loop {
        match file.write_all_at(&[0x5a; 64 * 1024], at) {
            Ok(()) => at += 64 * 1024,
            Err(error) => break error,
        }
    };
    report.check(is_full(&refused), || format!("write {}: {refused}, expected ENOSPC", path.display()));
    let available = available_bytes(root)?;
    println!("{} MiB more in pieces; then statfs says {available} bytes are available", at >> 20);
    report.check(available <= AVAILABLE_WHEN_FULL_MAX, || {
        format!("64 KiB are refused, but statfs says that {available} bytes are available")
    });
    Ok(())
}

/// Waits until `statfs` shows most of `freed` bytes.
fn wait_for_space(arguments: &Arguments, path: &Path, freed: u64, report: &mut Report) -> anyhow::Result<()> {
    let begin = Instant::now();
    loop {
        let available = available_bytes(path)?;
        if available >= freed / 100 * USABLE_PERCENT {
            println!(
                "{} MiB available {:.1} s after deleting {} MiB",
                available >> 20,
                begin.elapsed().as_secs_f64(),
                freed >> 20
            );
            report.pass();
            return Ok(());
        }
        if begin.elapsed() > Duration::from_secs(arguments.reclaim_seconds) {
            report.fail(format!(
                "{} MiB were deleted, but after {} s statfs says that only {available} bytes are available",
                freed >> 20,
                arguments.reclaim_seconds
            ));
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Fills again until most of what was freed is used. Nobody waits in between: a write that finds no space must do that itself.
fn refill(arguments: &Arguments, root: &Path, freed: u64, report: &mut Report) -> Vec<Stored> {
    let mut stored: Vec<Stored> = Vec::new();
    for round in 1..=REFILLS_MAX {
        stored.extend(fill(arguments, root, round, report));
        let bytes: u64 = stored.iter().map(|file| file.len as u64).sum();
        if bytes >= freed / 100 * USABLE_PERCENT {
            report.pass();
            return stored;
        }
    }
    let bytes: usize = stored.iter().map(|file| file.len).sum();
    report.fail(format!("{} MiB were deleted, but only {} MiB could be written", freed >> 20, bytes >> 20));
    stored
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
            Ok(content) => report.check(content == pattern(file.seed, file.len), || {
                format!("{} has wrong content", file.path.display())
            }),
            Err(error) => report.fail(format!("read {} while full: {error}", file.path.display())),
        }
    }
}

/// Overwrites some files with new bytes of the same length, and changes their mode: that takes no space they do not have.
fn overwrite(stored: &mut [Stored], report: &mut Report) {
    for file in stored.iter_mut().step_by(7) {
        let seed = split_mix(file.seed);
        let written = File::options().write(true).open(&file.path).and_then(|target| {
            target.write_all_at(&pattern(seed, file.len), 0)?;
            target.set_permissions(fs::Permissions::from_mode(0o640))?;
            target.sync_all()
        });
        match written {
            Ok(()) => {
                file.seed = seed;
                report.pass();
            }
            Err(error) => {
                report.fail(format!(
                    "overwrite {} of {} bytes while full: {error}",
                    file.path.display(),
                    file.len
                ));
            }
        }
    }
    verify(stored, report);
}

fn is_full(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
}
