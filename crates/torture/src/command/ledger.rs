//! `ashlar-torture ledger-write` and `ledger-verify`: the two halves of [`crate::ledger`] by themselves.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;
use clap::Args;

use crate::ledger::expect::Mode;
use crate::ledger::verify::{Tolerance, verify};
use crate::ledger::writer::{Ending, Job, run};
use crate::report::Report;

/// Options of both commands.
#[derive(Args, Debug)]
pub struct Places {
    /// An empty directory on the file system under test.
    #[arg(long)]
    dir: PathBuf,
    /// A directory on another file system for the ledgers.
    #[arg(long)]
    ledger: PathBuf,
    /// Writer threads; the same number for writing and verifying.
    #[arg(long, default_value_t = 4)]
    writers: u32,
    /// What counts as promised.
    #[arg(long, value_enum, default_value = "returned")]
    mode: Mode,
}

/// Write random files and note every acknowledged operation in a ledger.
#[derive(Args, Debug)]
pub struct WriteArguments {
    #[command(flatten)]
    places: Places,
    /// Operations per writer.
    #[arg(long, default_value_t = 1000)]
    ops: u64,
    /// Stop after this many seconds even if there are operations left; 0 means no limit.
    #[arg(long, default_value_t = 0)]
    seconds: u64,
    /// The seed that fixes the operations.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Check that everything the ledgers promise is there, and nothing else.
#[derive(Args, Debug)]
pub struct VerifyArguments {
    #[command(flatten)]
    places: Places,
    /// Accept EIO in place of content (after the stored bytes were damaged on purpose).
    #[arg(long)]
    eio_allowed: bool,
}

/// Runs `ledger-write`.
///
/// # Errors
/// When a ledger cannot be written.
pub fn write(arguments: &WriteArguments) -> anyhow::Result<Report> {
    let places = &arguments.places;
    fs::create_dir_all(&places.ledger).with_context(|| format!("create {}", places.ledger.display()))?;
    let stop = AtomicBool::new(false);
    let mut report = Report::new();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..places.writers)
            .map(|writer| {
                let job = Job {
                    tree: places.dir.clone(),
                    ledgers: places.ledger.clone(),
                    writer,
                    seed: arguments.seed,
                    ops_max: arguments.ops,
                    mode: places.mode,
                };
                let stop = &stop;
                scope.spawn(move || run(&job, stop))
            })
            .collect();
        let end = std::time::Instant::now() + Duration::from_secs(arguments.seconds);
        while arguments.seconds > 0 && threads.iter().any(|thread| !thread.is_finished()) {
            if std::time::Instant::now() > end {
                stop.store(true, Ordering::SeqCst);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        for thread in threads {
            match thread.join() {
                Ok(Ok(Ending::Finished { operations })) => report.pass_many(operations),
                Ok(Ok(Ending::Failed { operations, what })) => {
                    report.pass_many(operations);
                    report.fail(what);
                }
                Ok(Err(error)) => report.fail(format!("{error:#}")),
                Err(_) => report.fail("a writer panicked"),
            }
        }
    });
    Ok(report)
}

/// Runs `ledger-verify`.
///
/// # Errors
/// When a ledger cannot be read.
pub fn check(arguments: &VerifyArguments) -> anyhow::Result<Report> {
    let places = &arguments.places;
    let tolerance = if arguments.eio_allowed { Tolerance::Eio } else { Tolerance::None };
    let mut unreadable = 0;
    let report =
        verify(&places.dir, &places.ledger, places.writers, places.mode, tolerance, &mut unreadable)?;
    if unreadable > 0 {
        println!("{unreadable} reads answered EIO");
    }
    Ok(report)
}
