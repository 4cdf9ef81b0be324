//! `ashlar bench run`: the options.

use super::BenchTeamArgs;
use super::threads::{ThreadList, parse_threads};
use crate::cli::parse_bytes;
use ashlar_bench::run::{Part, Tool};
use clap::{Args, ValueEnum};
use std::path::PathBuf;
use std::time::Duration;

/// `ashlar bench run`
#[derive(Debug, Args)]
pub struct BenchSweepArgs {
    /// An empty directory on the file system to be measured; with --agents as all of them see it.
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,

    #[command(flatten)]
    pub team: BenchTeamArgs,

    /// What the whole run may take, as 30s, 10m or 2h. It is planned to fit; what is shortened or left out is said before it begins.
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = parse_time, conflicts_with = "same_as")]
    pub budget: Duration,

    /// Where the report goes: NAME.html, NAME.md and NAME.json; until it is finished NAME.journal keeps what was measured.
    #[arg(long, value_name = "NAME", default_value = "ashlar-bench-report")]
    pub output: PathBuf,

    /// Write over a report that is there.
    #[arg(long)]
    pub replace: bool,

    /// Go on with a run that was interrupted, by the same command.
    #[arg(long)]
    pub resume: bool,

    /// Say what would be done, and end.
    #[arg(long)]
    pub dry_run: bool,

    /// What is measured: sequential, random, metadata, all, or single parts as sequential-n-n. Without it all that fit into the time.
    #[arg(long, value_name = "LIST", value_delimiter = ',', conflicts_with = "same_as", value_parser = parse_parts)]
    pub parts: Vec<PartList>,

    /// Numbers of threads: 4, or 1,2,8, or 1..64 for all powers of two in between. Without it up to four times the
    /// processors (of all agents' machines), as fits into the time.
    #[arg(long, value_name = "LIST", value_parser = parse_threads, conflicts_with = "same_as")]
    pub threads: Option<ThreadList>,

    /// How often everything is measured. With fewer than three nothing can be told about how sure a figure is.
    #[arg(long, value_name = "COUNT", default_value_t = 3, conflicts_with = "same_as", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repetitions: u32,

    /// Do exactly what the run of this report (JSON) did, so that both can be compared.
    #[arg(long, value_name = "REPORT.json", conflicts_with_all = ["with", "fill"])]
    pub same_as: Option<PathBuf>,

    /// An empty directory on the local file system of a device below: what the devices do alone becomes the ceiling. Repeat for more.
    /// Not with --agents: `ashlar bench device` measures the disks of servers.
    #[arg(long = "device", value_name = "DIR")]
    pub devices: Vec<PathBuf>,

    /// What `ashlar bench network --json` told, so that the network becomes a ceiling: content to and from the servers passes through it. With
    /// --agents it is that of all agents' machines together, which are found in the file by their names.
    #[arg(long, value_name = "FILE.json")]
    pub network: Option<PathBuf>,

    /// Which of the agents of --network this machine was.
    #[arg(long, value_name = "NUMBER", default_value_t = 1, requires = "network", conflicts_with = "agents", value_parser = clap::value_parser!(u32).range(1..))]
    pub network_agent: u32,

    /// Programs that do the same in turns with our own workloads, where they are installed. Not with --agents.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub with: Vec<BenchTool>,

    /// Fill the file system to these levels (per cent in use) at the end, and measure at each. Needs --consent-to-fill. Not with --agents.
    #[arg(long, value_name = "LIST", value_delimiter = ',', requires = "consent_to_fill", value_parser = clap::value_parser!(u8).range(1..=99))]
    pub fill: Vec<u8>,

    /// Yes, files may be written until the file system is as full as --fill says. They are removed afterwards.
    #[arg(long)]
    pub consent_to_fill: bool,

    /// Memory of servers of the file system that do not measure, all together.
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes, default_value = "0")]
    pub server_memory: u64,

    /// Leave the caches of the measuring machines alone. Without it they are dropped between phases, as root.
    #[arg(long)]
    pub keep_caches: bool,

    /// Measure in a directory that is not empty. What is there stays as it is.
    #[arg(long)]
    pub beside_others: bool,

    /// What stands at the top of the report.
    #[arg(long, value_name = "TEXT")]
    pub title: Option<String>,

    /// What the directory is called in the report, which names neither paths nor hosts.
    #[arg(long, value_name = "TEXT", default_value = "The file system")]
    pub place_name: String,

    /// Rows of the published tables that the report shows its figures beside, as 002-15,004-24; `none` for none. Without it all with the same workload.
    #[arg(long, value_name = "ROWS", value_delimiter = ',')]
    pub beside: Vec<String>,
}

/// A program that measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BenchTool {
    /// fio: content.
    Fio,
    /// IOzone: content, a file per thread.
    Iozone,
    /// IOR: sequential content.
    Ior,
    /// mdtest: metadata.
    Mdtest,
}

impl From<BenchTool> for Tool {
    fn from(tool: BenchTool) -> Tool {
        match tool {
            BenchTool::Fio => Tool::Fio,
            BenchTool::Iozone => Tool::Iozone,
            BenchTool::Ior => Tool::Ior,
            BenchTool::Mdtest => Tool::Mdtest,
        }
    }
}

/// Parts that one word names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartList(pub Vec<Part>);

fn parse_parts(text: &str) -> Result<PartList, String> {
    Part::named(text.trim()).map(PartList)
}

/// `90`, `90s`, `10m`, `2h`.
fn parse_time(text: &str) -> Result<Duration, String> {
    let wrong = || format!("`{text}` is no time such as 90s, 10m or 2h");
    let (number, seconds) = match text.trim().char_indices().last() {
        Some((at, 's')) => (&text.trim()[..at], 1),
        Some((at, 'm')) => (&text.trim()[..at], 60),
        Some((at, 'h')) => (&text.trim()[..at], 3600),
        Some(_) => (text.trim(), 1),
        None => return Err(wrong()),
    };
    let number: u64 = number.parse().map_err(|_| wrong())?;
    let time = number.checked_mul(seconds).filter(|time| (1..=30 * 86_400).contains(time));
    time.map(Duration::from_secs).ok_or_else(|| format!("`{text}` is not between 1s and 30 days"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_seconds_minutes_or_hours() {
        for (text, seconds) in [("90", 90), ("90s", 90), ("10m", 600), (" 2h ", 7200)] {
            assert_eq!(parse_time(text), Ok(Duration::from_secs(seconds)));
        }
        for wrong in ["", "m", "0", "-1m", "1d", "1.5h", "99999999999999999999h", "800h"] {
            assert!(parse_time(wrong).is_err(), "{wrong}");
        }
    }
}
