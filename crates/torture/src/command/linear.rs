//! `ashlar-torture linear`: see [`crate::linear`].

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use anyhow::Context;
use clap::Args;

use crate::linear::check::{CALLS_MAX, Verdict, check};
use crate::linear::record::record;
use crate::linear::{Answer, Call};
use crate::report::Report;
use crate::rng::Rng;

/// Record what clients do to few names, and check that each call had its effect at one moment.
#[derive(Args, Debug)]
pub struct Arguments {
    /// A directory on the file system under test.
    #[arg(long)]
    dir: PathBuf,
    /// The same directory through another mount.
    #[arg(long)]
    also_dir: Vec<PathBuf>,
    /// Histories.
    #[arg(long, default_value_t = 200)]
    histories: u64,
    /// Clients, shared out among the mounts.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=16))]
    clients: u64,
    /// Calls of a history, all clients together.
    #[arg(long, default_value_t = 48, value_parser = clap::value_parser!(u64).range(1..=CALLS_MAX as u64))]
    calls: u64,
    /// The seed that fixes the calls (not how they interleave).
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// LIMIT: histories of which one may be too long to decide.
const HISTORIES_PER_UNDECIDED: u64 = 100;

/// LIMIT: calls of which one may answer what says nothing (`ESTALE` comes from Linux itself, see [`crate::race`]).
const CALLS_PER_UNKNOWN: u64 = 200;

/// Runs the command. Each history is one check.
///
/// # Errors
/// When the folders cannot be made or removed.
pub fn run(arguments: &Arguments) -> anyhow::Result<Report> {
    let mut report = Report::new();
    let (mut undecided, mut unknown, mut concurrent, mut calls_made) = (0, 0, 0, 0);
    for history in 0..arguments.histories {
        let folder = format!("linear-{}-{history}", std::process::id());
        let mounts: Vec<PathBuf> =
            std::iter::once(&arguments.dir).chain(&arguments.also_dir).map(|dir| dir.join(&folder)).collect();
        for root in &mounts {
            // Through the others it is there already, unless they are something else.
            fs::create_dir_all(root).with_context(|| format!("make {}", root.display()))?;
        }
        let mut rng = Rng::derive(arguments.seed, history);
        let roots: Vec<PathBuf> =
            (0..arguments.clients as usize).map(|client| mounts[client % mounts.len()].clone()).collect();
        let calls = record(&roots, (arguments.calls / arguments.clients) as usize, &mut rng)?;
        calls_made += calls.len() as u64;
        unknown += calls.iter().filter(|call| matches!(call.answer, Answer::Unknown(_))).count() as u64;
        concurrent += calls.windows(2).filter(|pair| pair[1].begin < pair[0].end).count() as u64;
        match check(&calls) {
            Verdict::Ordered(_) => report.pass(),
            Verdict::Undecided => undecided += 1,
            Verdict::Broken(most) => {
                report.fail(tell(arguments, history, &calls, most));
                break;
            }
        }
        for root in mounts.iter().filter(|root| root.exists()) {
            fs::remove_dir_all(root).with_context(|| format!("remove {}", root.display()))?;
        }
    }
    println!(
        "{calls_made} calls, of which {concurrent} began before the one before had ended; {unknown} answers say nothing, {undecided} \
         histories were not decided"
    );
    report.check(undecided <= arguments.histories.div_ceil(HISTORIES_PER_UNDECIDED), || {
        format!("{undecided} of {} histories were not decided", arguments.histories)
    });
    report.check(unknown <= calls_made.div_ceil(CALLS_PER_UNKNOWN), || {
        format!("{unknown} of {calls_made} calls answered what says nothing")
    });
    Ok(report)
}

fn tell(arguments: &Arguments, history: u64, calls: &[Call], most: usize) -> String {
    let mut text = format!(
        "history {history} of seed {}: there is no order of these calls in which all answers are right; at most {most} of them could be \
         ordered:",
        arguments.seed
    );
    for call in calls {
        // Writing to a string cannot fail.
        let _ = write!(text, "\n    {call}");
    }
    text
}
