//! `ashlar-torture litmus`: see [`crate::litmus`].

use std::path::PathBuf;

use clap::Args;

use crate::litmus::Row;
use crate::litmus::run::{Litmus, Place};
use crate::litmus::table::{close_to_open_rows, rows};
use crate::report::Report;
use crate::rng::Rng;

/// Run small programs of two and three clients and check that nothing comes out that strict coherence forbids.
#[derive(Args, Debug)]
pub struct Arguments {
    /// A directory on the file system under test.
    #[arg(long, required_unless_present = "list")]
    dir: Option<PathBuf>,
    /// The same directory through another mount.
    #[arg(long)]
    also_dir: Vec<PathBuf>,
    /// How often each program is run.
    #[arg(long, default_value_t = 200)]
    runs: u64,
    /// The seed that fixes delays and who is on which mount (not how the clients interleave).
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Only programs whose name contains this.
    #[arg(long)]
    only: Option<String>,
    /// The programs for mounts that are close-to-open.
    #[arg(long)]
    close_to_open: bool,
    /// Give one client of each program an old copy of its files: every program must then fail.
    #[arg(long)]
    stale: bool,
    /// Print the programs and what each forbids.
    #[arg(long)]
    list: bool,
}

/// Runs the command. Each program is one check, and ends at its first violation.
///
/// # Errors
/// When the directories cannot be used, or no program has that name.
pub fn run(arguments: &Arguments) -> anyhow::Result<Report> {
    let wanted = |row: &&Row| arguments.only.as_ref().is_none_or(|only| row.name.contains(only));
    let mut report = Report::new();
    let rows: Vec<&Row> = match arguments.close_to_open {
        true => close_to_open_rows().collect(),
        false => rows().collect(),
    };
    if arguments.list {
        rows.into_iter().filter(wanted).for_each(show);
        return Ok(report);
    }
    let dirs: Vec<PathBuf> = arguments.dir.iter().chain(&arguments.also_dir).cloned().collect();
    for (at, row) in rows.into_iter().enumerate().filter(|(_, row)| wanted(row)) {
        let litmus = Litmus::new(row)?;
        let mut rng = Rng::derive(arguments.seed, at as u64);
        let mut violation = None;
        for run in 0..arguments.runs.max(1) {
            let folder = format!("litmus-{}-{at}-{run}", std::process::id());
            let place = Place { dirs: &dirs, folder: &folder, is_stale: arguments.stale };
            violation = litmus.run(&place, &mut rng)?.map(|violation| (run, violation));
            if violation.is_some() {
                break;
            }
        }
        let Some((run, violation)) = violation else {
            report.pass();
            continue;
        };
        report.fail(format!(
            "{}\n    run {run}: {}\n{}    again: ashlar-torture litmus{} --seed {} --only '{}' with the same directories",
            row.name,
            violation.what,
            violation.history,
            if arguments.close_to_open { " --close-to-open" } else { "" },
            arguments.seed,
            row.name
        ));
        if violation.is_stuck {
            break;
        }
    }
    anyhow::ensure!(
        report.passed() + report.failed() > 0,
        "no program has a name like that; --list shows them"
    );
    Ok(report)
}

fn show(row: &Row) {
    println!("{}\n  before:    {}", row.name, row.before);
    for (number, client) in row.clients.iter().enumerate() {
        println!("  client {number}:  {client}");
    }
    println!("  finally:   {}", row.finally);
    println!("  forbidden: {}\n", row.forbidden.join("   or   "));
}
