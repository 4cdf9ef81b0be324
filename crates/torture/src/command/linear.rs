//! `ashlar-torture linear`: see [`crate::linear`].

use std::fmt::Write as _;
use std::fs::{self, File};
use std::path::PathBuf;

use anyhow::Context;
use clap::Args;

use crate::linear::check::{CALLS_MAX, Verdict, check};
use crate::linear::record::{Disturbance, NAMES_OF_FOLDER, Recorded, record};
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
    /// Set an extended attribute on directories of the histories meanwhile, for what the file system does about it.
    #[arg(long, value_name = "NAME=VALUE")]
    disturb: Option<Disturbance>,
    /// So many other names in every tenth folder of histories: what is done to it takes longer.
    #[arg(long, value_name = "NAMES", default_value_t = 0, requires = "disturb")]
    fill: u64,
}

/// LIMIT: histories of which one may be too long to decide.
const HISTORIES_PER_UNDECIDED: u64 = 100;

/// Histories that are recorded in one folder, one after the other: what was done to it in an earlier one is so in a later one.
const HISTORIES_PER_FOLDER: u64 = 4;

/// Of so many folders one is filled.
const FOLDERS_PER_FILLED: u64 = 10;

/// LIMIT: calls of which one may answer what says nothing (`ESTALE` comes from Linux itself, see [`crate::race`]).
const CALLS_PER_UNKNOWN: u64 = 200;

/// A folder of histories, through all mounts.
struct Folder {
    roots: Vec<PathBuf>,
}

impl Folder {
    fn make(arguments: &Arguments, number: u64) -> anyhow::Result<Self> {
        let name = format!("linear-{}-{number}", std::process::id());
        let dirs = std::iter::once(&arguments.dir).chain(&arguments.also_dir);
        let roots: Vec<PathBuf> = dirs.map(|dir| dir.join(&name)).collect();
        for root in &roots {
            // Through the others it is there already, unless they are something else.
            fs::create_dir_all(root).with_context(|| format!("make {}", root.display()))?;
        }
        if number % FOLDERS_PER_FILLED == FOLDERS_PER_FILLED - 1 {
            for at in 0..arguments.fill {
                let path = roots[0].join(format!("filler{at}"));
                File::create(&path).with_context(|| format!("make {}", path.display()))?;
            }
        }
        Ok(Self { roots })
    }

    /// Removes what a history has left.
    fn clean(&self) -> anyhow::Result<()> {
        for path in self.roots.iter().flat_map(|root| NAMES_OF_FOLDER.map(|name| root.join(name))) {
            let Ok(found) = fs::symlink_metadata(&path) else { continue };
            let removed = if found.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
            removed.with_context(|| format!("remove {}", path.display()))?;
        }
        Ok(())
    }

    fn remove(&self) -> anyhow::Result<()> {
        for root in self.roots.iter().filter(|root| root.exists()) {
            fs::remove_dir_all(root).with_context(|| format!("remove {}", root.display()))?;
        }
        Ok(())
    }
}

/// What was recorded, in all.
#[derive(Default)]
struct Sums {
    calls: u64,
    concurrent: u64,
    unknown: u64,
    undecided: u64,
    disturbed: u64,
}

impl Sums {
    fn add(&mut self, recorded: &Recorded) {
        let calls = &recorded.calls;
        self.calls += calls.len() as u64;
        self.unknown += calls.iter().filter(|call| matches!(call.answer, Answer::Unknown(_))).count() as u64;
        self.concurrent += calls.windows(2).filter(|pair| pair[1].begin < pair[0].end).count() as u64;
        self.disturbed += recorded.disturbed;
    }

    fn tell(&self, arguments: &Arguments, report: &mut Report) {
        let Sums { calls, concurrent, unknown, undecided, disturbed } = self;
        println!(
            "{calls} calls, of which {concurrent} began before the one before had ended; {unknown} answers say nothing, {undecided} \
             histories were not decided"
        );
        if arguments.disturb.is_some() {
            println!("directories were disturbed {disturbed} times");
            report.check(*disturbed > 0, || "no directory was disturbed".to_owned());
        }
        report.check(*undecided <= arguments.histories.div_ceil(HISTORIES_PER_UNDECIDED), || {
            format!("{undecided} of {} histories were not decided", arguments.histories)
        });
        report.check(*unknown <= calls.div_ceil(CALLS_PER_UNKNOWN), || {
            format!("{unknown} of {calls} calls answered what says nothing")
        });
    }
}

/// Runs the command. Each history is one check.
///
/// # Errors
/// When the folders cannot be made or removed.
pub fn run(arguments: &Arguments) -> anyhow::Result<Report> {
    let (mut report, mut sums) = (Report::new(), Sums::default());
    let folders = arguments.histories.div_ceil(HISTORIES_PER_FOLDER);
    'folders: for number in 0..folders {
        let folder = Folder::make(arguments, number)?;
        let clients = arguments.clients as usize;
        let roots: Vec<PathBuf> =
            (0..clients).map(|client| folder.roots[client % folder.roots.len()].clone()).collect();
        // Whether the folder is disturbed, or only what is in it, is fixed for each folder: some never are.
        let is_filled = number % FOLDERS_PER_FILLED == FOLDERS_PER_FILLED - 1;
        let first = number * HISTORIES_PER_FOLDER;
        for history in first..arguments.histories.min(first + HISTORIES_PER_FOLDER) {
            let mut rng = Rng::derive(arguments.seed, history);
            let disturbance = arguments.disturb.as_ref().map(|disturbance| {
                let is_wide = is_filled || (number % 2 == 1 && history > first);
                (disturbance, is_wide)
            });
            let calls_each = (arguments.calls / arguments.clients) as usize;
            let recorded = record(&roots, calls_each, disturbance, &mut rng)?;
            sums.add(&recorded);
            match check(&recorded.calls) {
                Verdict::Ordered(_) => report.pass(),
                Verdict::Undecided => sums.undecided += 1,
                Verdict::Broken(most) => {
                    report.fail(tell(arguments, history, &recorded.calls, most));
                    break 'folders;
                }
            }
            folder.clean()?;
        }
        folder.remove()?;
    }
    sums.tell(arguments, &mut report);
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
