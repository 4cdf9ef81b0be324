//! Arguments of `ashlar drill`.

use super::NodePlace;
use clap::{Args, Subcommand};
use std::path::PathBuf;

/// `ashlar drill`
#[derive(Debug, Args)]
pub struct DrillArgs {
    /// What to do.
    #[command(subcommand)]
    pub action: DrillAction,
}

/// What can be done about drills.
#[derive(Debug, Subcommand)]
pub enum DrillAction {
    /// Show the failures of a drill: what is done to a lab, and what an operator is told to do to real machines.
    List {
        /// Print JSON: a list of objects with `name`, `number` (in the list of ten failures, or null), `title`, `in_lab` (what is done to a lab), `not_in_lab` (what of it is not like the real
        /// failure, or null), `operator` and `operator_after` (what an operator does, and does to put it right).
        #[arg(long)]
        json: bool,
    },
    /// Have failures happen, one after the other, while programs write and read files, and report what these have seen.
    ///
    /// In a lab (--lab) failures are made. Elsewhere (--mount) an operator at the terminal is told what to do, and the file system has to be named with --consent. The exit status is 0
    /// when every failure that was run was survived.
    Run(Box<DrillRunArgs>),
    /// Have failures happen to a lab that nobody has chosen: several at once, at any moment, for any time, round after round, while programs write and read files.
    ///
    /// After each round everything is put right, in the order in which it happens to be, all copies have to come back, every file is compared, and copies with each other. The first
    /// round that is not survived ends it. The exit status is 0 when all rounds were survived.
    Thrash(Box<DrillThrashArgs>),
}

/// `ashlar drill run`
#[derive(Debug, Args)]
pub struct DrillRunArgs {
    /// The lab, as `ashlar lab up --dir` made it.
    #[arg(long, value_name = "DIR", conflicts_with = "mount", required_unless_present = "mount")]
    pub lab: Option<PathBuf>,
    /// Make the lab first, one that all of it can be done to, and remove it afterwards: two metadata servers with copies on each other, three storage servers with two disks each, two
    /// clients, and three managers where etcd is installed.
    #[arg(long, requires = "lab")]
    pub make_lab: bool,
    /// A mount of a file system that is no lab. Twice, for two mounts: what is written through one is read through the other.
    #[arg(long, value_name = "DIR")]
    pub mount: Vec<PathBuf>,
    #[command(flatten)]
    pub node: NodePlace,
    /// That failures may happen to this file system, which is no lab: its id, as `ashlar drill run` without this says it.
    #[arg(long, value_name = "ID", conflicts_with = "lab")]
    pub consent: Option<String>,
    /// These failures alone, as `ashlar drill list` names them; in the order of that list.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub only: Vec<String>,
    /// For how long a failure lasts, seconds. Some last longer, because what they are about takes longer, and those of a moment shorter.
    #[arg(long, value_name = "SECONDS", default_value_t = 15, value_parser = clap::value_parser!(u32).range(2..=86_400))]
    pub load_seconds: u32,
    /// How often each failure happens, one time after the other. The report then tells how the longest calls of all times are spread.
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repeat: u32,
    /// The report to write, Markdown.
    #[arg(long, value_name = "FILE", default_value = "drill.md")]
    pub report: PathBuf,
    #[command(flatten)]
    pub load: DrillLoad,
}

/// What works meanwhile, what it is promised, and where it is told.
#[derive(Clone, Debug, Args)]
pub struct DrillLoad {
    /// Copies of the content that the drill writes.
    #[arg(long, value_name = "COUNT", default_value_t = 2, value_parser = clap::value_parser!(u8).range(2..=3))]
    pub copies: u8,
    /// Programs that write and read.
    #[arg(long, value_name = "COUNT", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub workers: u16,
    /// For how long a call may take, seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub stall_max: u32,
    /// In what time all copies must be there again once a failure is put right, seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub redundant_within: u32,
    /// The same report as JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// What was done to which file, written while it is done. Without it: beside the report, with `.ledger` behind its name.
    #[arg(long, value_name = "FILE")]
    pub ledger: Option<PathBuf>,
}

/// `ashlar drill thrash`
#[derive(Debug, Args)]
pub struct DrillThrashArgs {
    /// The lab, as `ashlar lab up --dir` made it.
    #[arg(long, value_name = "DIR")]
    pub lab: PathBuf,
    /// Make the lab first, as `ashlar drill run --make-lab` does, and remove it afterwards if all was survived.
    #[arg(long)]
    pub make_lab: bool,
    /// For how long rounds are begun, minutes.
    #[arg(long = "for", value_name = "MINUTES", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=10_080))]
    pub minutes: u32,
    /// No more rounds than so many.
    #[arg(long, value_name = "COUNT", default_value_t = u32::MAX, hide_default_value = true, value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: u32,
    /// What fails when, and for how long, follows from this number. Without it: from one that is drawn, which the report has.
    #[arg(long, value_name = "NUMBER")]
    pub seed: Option<u64>,
    /// The first round: the ones before it are left out, so that one that failed can be run by itself.
    #[arg(long, value_name = "ROUND", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub first_round: u32,
    /// The report to write, Markdown.
    #[arg(long, value_name = "FILE", default_value = "thrash.md")]
    pub report: PathBuf,
    #[command(flatten)]
    pub load: DrillLoad,
}
