//! `ashlar-torture differential`: see [`crate::differential`].

use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use clap::Args;

use crate::differential::op::Step;
use crate::differential::run::{Failure, Settings, Tally, run_random, run_steps};
use crate::differential::shrink::shrink;
use crate::report::Report;

/// Apply the same random operations to two directories and compare everything.
#[derive(Args, Debug)]
pub struct Arguments {
    /// A directory on the reference file system (ext4).
    #[arg(long)]
    left: PathBuf,
    /// A directory on the file system under test.
    #[arg(long)]
    right: PathBuf,
    /// The same directory through another mount: each operation then goes through the next mount.
    #[arg(long)]
    right_also: Vec<PathBuf>,
    /// Operations in all.
    #[arg(long, default_value_t = 5000)]
    ops: u64,
    /// The seed that fixes all choices.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Act as several users, with sticky and set-group-id directories (needs root).
    #[arg(long)]
    users: bool,
    /// Leave `O_TMPFILE` out, which FUSE has only from Linux 6.1 on.
    #[arg(long)]
    without_tmpfile: bool,
    /// Operations between two comparisons of the whole trees.
    #[arg(long, default_value_t = 500)]
    compare_every: usize,
    /// Operations after which both sides start again with empty directories and a new seed.
    #[arg(long, default_value_t = 10_000)]
    epoch_ops: u64,
    /// Seconds one operation may take.
    #[arg(long, default_value_t = 60)]
    stall_seconds: u64,
    /// Seconds to spend on shortening a failing sequence; 0 turns it off.
    #[arg(long, default_value_t = 60)]
    shrink_seconds: u64,
    /// Where to write the failing sequence.
    #[arg(long, default_value = "differential.trace")]
    trace: PathBuf,
    /// Print how often each operation succeeded and failed.
    #[arg(long)]
    stats: bool,
    /// Run the steps of a trace file instead of random ones.
    #[arg(long)]
    replay: Option<PathBuf>,
}

/// Runs the command.
///
/// # Errors
/// When the directories cannot be used; differences are failures in the report.
pub fn run(arguments: &Arguments) -> anyhow::Result<Report> {
    let settings = Settings {
        left: arguments.left.clone(),
        right: arguments.right.clone(),
        right_also: arguments.right_also.clone(),
        users: arguments.users,
        without_tmpfile: arguments.without_tmpfile,
        compare_every: arguments.compare_every.max(1),
        stall: Duration::from_secs(arguments.stall_seconds),
    };
    let mut report = Report::new();
    let mut tally = Tally::default();
    let failure = match &arguments.replay {
        Some(trace) => {
            let steps = read_trace(trace)?;
            let outcome = run_steps(&settings, &mut steps.iter(), &mut tally)?;
            outcome.map_err(|divergence| Failure { seed: arguments.seed, steps, divergence })
        }
        None => run_random(&settings, arguments.seed, arguments.ops, arguments.epoch_ops, &mut tally)?,
    };
    if arguments.stats {
        print!("{tally}");
    }
    match failure {
        Ok(compared) => report.pass_many(compared),
        Err(failure) => explain(arguments, &settings, failure, &mut report)?,
    }
    Ok(report)
}

fn explain(
    arguments: &Arguments,
    settings: &Settings,
    mut failure: Failure,
    report: &mut Report,
) -> anyhow::Result<()> {
    println!("seed {}, {}", failure.seed, failure.divergence);
    failure.steps.truncate(failure.divergence.at + 1);
    let full = failure.steps.len();
    if arguments.shrink_seconds > 0 {
        println!("shortening for at most {} s ...", arguments.shrink_seconds);
        let budget = Duration::from_secs(arguments.shrink_seconds);
        let shrunk = shrink(settings, failure.steps, failure.divergence, budget)?;
        (failure.steps, failure.divergence) = (shrunk.steps, shrunk.divergence);
    }
    write_trace(&arguments.trace, &failure.steps)?;
    println!("{} of {full} steps lead to the difference:", failure.steps.len());
    for (number, step) in failure.steps.iter().enumerate().rev().take(40).rev() {
        println!("  {number}: {step:?}");
    }
    let users = if arguments.users { " --users" } else { "" };
    let also: String =
        arguments.right_also.iter().map(|dir| format!(" --right-also {}", dir.display())).collect();
    report.fail(format!(
        "{}\n  run again: ashlar-torture differential --left {l} --right {r}{also}{users} --replay {}\n  or with all \
         steps: ashlar-torture differential --left {l} --right {r}{also}{users} --seed {} --ops {full}",
        failure.divergence,
        arguments.trace.display(),
        failure.seed,
        l = arguments.left.display(),
        r = arguments.right.display(),
    ));
    Ok(())
}

fn write_trace(path: &Path, steps: &[Step]) -> anyhow::Result<()> {
    let mut file = BufWriter::new(File::create(path).with_context(|| format!("create {}", path.display()))?);
    for step in steps {
        serde_json::to_writer(&mut file, step)?;
        file.write_all(b"\n")?;
    }
    file.flush().with_context(|| format!("write {}", path.display()))
}

fn read_trace(path: &Path) -> anyhow::Result<Vec<Step>> {
    let file = File::open(path).with_context(|| format!("open {}", path.display()))?;
    BufReader::new(file)
        .lines()
        .enumerate()
        .map(|(number, line)| {
            serde_json::from_str(&line?).with_context(|| format!("{} line {}", path.display(), number + 1))
        })
        .collect()
}
