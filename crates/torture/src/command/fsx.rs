//! `ashlar-torture fsx`: see [`crate::fsx`].

use std::path::PathBuf;

use clap::Args;

use crate::fsx::exercise::{Plan, run as exercise};
use crate::report::Report;
use crate::rng::split_mix;

/// Random data operations on single files, checked against a model in memory.
#[derive(Args, Debug)]
pub struct Arguments {
    /// A directory on the file system under test.
    #[arg(long)]
    dir: PathBuf,
    /// The same directory on another mount of the file system: each operation goes through any of them.
    #[arg(long)]
    also_dir: Vec<PathBuf>,
    /// Operations per file.
    #[arg(long, default_value_t = 20_000)]
    ops: u64,
    /// The seed that fixes all choices.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Files, each exercised by a thread of its own.
    #[arg(long, default_value_t = 1)]
    files: u64,
    /// Largest size of a file in bytes.
    #[arg(long, default_value_t = 400_000)]
    size_max: u64,
    /// Open the files with O_DIRECT half of the time.
    #[arg(long)]
    direct: bool,
}

/// Runs the command.
///
/// # Errors
/// Never at present; failures are in the report.
pub fn run(arguments: &Arguments) -> anyhow::Result<Report> {
    let mut report = Report::new();
    let plans: Vec<Plan> = (0..arguments.files.max(1))
        .map(|number| Plan {
            paths: std::iter::once(&arguments.dir)
                .chain(&arguments.also_dir)
                .map(|dir| dir.join(format!("fsx-{}-{number}", std::process::id())))
                .collect(),
            // The first file has the seed given, so that a failure of one file is repeated with `--files 1`.
            seed: (0..number).fold(arguments.seed, |seed, _| split_mix(seed)),
            ops: arguments.ops,
            size_max: arguments.size_max.max(8192),
            direct: arguments.direct,
        })
        .collect();
    std::thread::scope(|scope| {
        let running: Vec<_> = plans.iter().map(|plan| scope.spawn(move || exercise(plan))).collect();
        for thread in running {
            match thread.join() {
                Ok(Ok(checks)) => report.pass_many(checks),
                Ok(Err(what)) => report.fail(what),
                Err(_) => report.fail("an exercising thread panicked"),
            }
        }
    });
    Ok(report)
}
