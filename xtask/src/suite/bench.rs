//! Ashlar beside a reference, measured with one program, taking turns: `cargo xtask bench PART`.
//!
//! The references are the ceiling of the machine (the example `ceiling` of `crates/fuse`: a server without data behind the same FUSE layer
//! with the same settings) and the local file system the data lies on. On a shared machine only ratios taken in one run mean anything, so
//! everybody is mounted for the whole time, every case is run on each in turn for several rounds, the ratio is taken in each round, and
//! medians are shown with the least and the greatest. docs/performance.md has the targets and results.

mod children;
mod cluster_data;
mod cluster_latency;
mod cluster_metadata;
mod cluster_moves;
mod control_group;
mod data;
mod directory;
mod durability;
mod figures;
mod fio_agreement;
mod goodput;
mod lab_agents;
mod metadata;
mod place;
mod report;
mod scale;
mod server;
mod sizes;
mod sync;
mod throughput;
mod timed_load;
mod work;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use self::report::Report;
use crate::repository::{Repository, Work};
use crate::shell;

/// Options of the task.
#[derive(clap::Args, Debug)]
pub struct Arguments {
    #[command(subcommand)]
    part: Part,
}

#[derive(clap::Subcommand, Debug)]
enum Part {
    /// Create, stat, read and remove, beside the ceiling and the local file system.
    Metadata(metadata::Arguments),
    /// Streams and random requests, beside the ceiling and the local file system.
    Data(data::Arguments),
    /// What a file costs by its size, for several inline limits.
    Sizes(sizes::Arguments),
    /// Creating and syncing from 1 to 32 threads, beside the local file system and beside not syncing.
    Sync(sync::Arguments),
    /// One directory with very many entries beside one with few.
    Directory(directory::Arguments),
    /// Very many files under a memory limit: rates, memory, restart (as root).
    Scale(scale::Arguments),
    /// Unpacking sources and building a C project, beside the local file system.
    Work(work::Arguments),
    /// Our load generator beside fio, in pairs.
    FioAgreement(fio_agreement::Arguments),
    /// Storage servers behind slow links, beside plain TCP; N-1 beside N-N (as root).
    ClusterData(cluster_data::Arguments),
    /// Metadata servers that each have the same share of a processor (as root).
    ClusterMetadata(cluster_metadata::Arguments),
    /// How long calls take while targets are emptied and filled (as root).
    ClusterMoves(cluster_moves::Arguments),
    /// Operations one at a time on an idle mount of a cluster, beside the round trips that they cost (as root).
    ClusterLatency(cluster_latency::Arguments),
    /// What `async` buys beside `sync`, by directory and by mount (as root).
    Durability(durability::Arguments),
    /// All parts for one machine but fio-agreement, one after the other, with their defaults; takes more than an hour.
    All(Shared),
}

/// Options of every part.
#[derive(clap::Args, Clone, Debug)]
struct Shared {
    /// Rounds; the median of them counts.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// A directory on the file system to lie on and be compared with; by default that for temporary files. `sync`, `scale` and
    /// `work` want one on a disk.
    #[arg(long)]
    base: Option<PathBuf>,
    /// How requests come from the kernel, for Ashlar and the ceiling alike.
    #[arg(long, value_enum, default_value_t = Transport::Auto)]
    transport: Transport,
    /// Where to write the tables (.md) and the raw figures (.json); printed only, without it.
    #[arg(long)]
    output: Option<PathBuf>,
    /// Measure the programs in this directory (ashlar, ashlar-torture, examples/ceiling) instead of building them.
    #[arg(long)]
    programs: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Transport {
    /// io_uring if it is switched on, else /dev/fuse.
    Auto,
    /// /dev/fuse.
    Device,
    /// io_uring; refused unless it is switched on.
    Uring,
}

impl Transport {
    /// The name `ashlar up` and the ceiling know.
    fn choice(self) -> &'static str {
        match self {
            Self::Auto | Self::Uring => "auto",
            Self::Device => "device",
        }
    }
}

/// Where the switch of FUSE over io_uring is. It concerns every FUSE mount of the machine, so it is read and never set.
const URING_SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

/// What every part gets: the programs, and a directory of its own.
#[derive(Debug)]
struct Bench {
    programs: PathBuf,
    directory: PathBuf,
    shared: Shared,
}

/// Runs the task.
///
/// # Errors
/// When a program cannot be built, mounted or run.
pub fn run(repository: &Repository, arguments: &Arguments) -> anyhow::Result<()> {
    let shared = match &arguments.part {
        Part::Metadata(part) => &part.shared,
        Part::Data(part) => &part.shared,
        Part::Sizes(part) => &part.shared,
        Part::Sync(part) => &part.shared,
        Part::Directory(part) => &part.shared,
        Part::Scale(part) => &part.shared,
        Part::Work(part) => &part.shared,
        Part::FioAgreement(part) => &part.shared,
        Part::ClusterData(part) => &part.shared,
        Part::ClusterMetadata(part) => &part.shared,
        Part::ClusterMoves(part) => &part.shared,
        Part::ClusterLatency(part) => &part.shared,
        Part::Durability(part) => &part.shared,
        Part::All(shared) => shared,
    };
    let switch = fs::read_to_string(URING_SWITCH).unwrap_or_default();
    if shared.transport == Transport::Uring && switch.trim() != "Y" {
        bail!(
            "FUSE over io_uring is not switched on; as root: echo 1 > {URING_SWITCH} (docs/guides/kernel.md)"
        );
    }
    let programs = match &shared.programs {
        Some(programs) => programs.canonicalize().with_context(|| format!("find {}", programs.display()))?,
        None => build(repository)?,
    };
    let mut report = Report::new(shared.output.clone());
    let mut failure = None;
    for (name, part) in parts(&arguments.part) {
        let result = in_own_directory(name, shared, &programs, |bench| part(repository, bench, &mut report));
        // One part that fails shall not take the figures of the others with it.
        if let Err(error) = result {
            eprintln!("{name}: {error:#}");
            failure = failure.or(Some(error.context(name)));
        }
    }
    report.finish()?;
    failure.map_or(Ok(()), Err)
}

type Run<'a> = Box<dyn Fn(&Repository, &Bench, &mut Report) -> anyhow::Result<()> + 'a>;

fn parts(part: &Part) -> Vec<(&'static str, Run<'_>)> {
    match part {
        Part::Metadata(part) => vec![("metadata", Box::new(|_, bench, report| part.run(bench, report)))],
        Part::Data(part) => vec![("data", Box::new(|_, bench, report| part.run(bench, report)))],
        Part::Sizes(part) => vec![("sizes", Box::new(|_, bench, report| part.run(bench, report)))],
        Part::Sync(part) => vec![("sync", Box::new(|_, bench, report| part.run(bench, report)))],
        Part::Directory(part) => vec![("directory", Box::new(|_, bench, report| part.run(bench, report)))],
        Part::Scale(part) => vec![("scale", Box::new(|_, bench, report| part.run(bench, report)))],
        Part::Work(part) => {
            vec![("work", Box::new(|repository, bench, report| part.run(repository, bench, report)))]
        }
        Part::FioAgreement(part) => {
            vec![("fio-agreement", Box::new(|_, bench, report| part.run(bench, report)))]
        }
        Part::ClusterData(part) => {
            vec![("cluster-data", Box::new(|_, bench, report| part.run(bench, report)))]
        }
        Part::ClusterMetadata(part) => {
            vec![("cluster-metadata", Box::new(|_, bench, report| part.run(bench, report)))]
        }
        Part::ClusterMoves(part) => {
            vec![("cluster-moves", Box::new(|_, bench, report| part.run(bench, report)))]
        }
        Part::ClusterLatency(part) => {
            vec![(
                "cluster-latency",
                Box::new(|repository, bench, report| part.run(repository, bench, report)),
            )]
        }
        Part::Durability(part) => {
            vec![("durability", Box::new(|_, bench, report| part.run(bench, report)))]
        }
        Part::All(shared) => {
            let shared = || shared.clone();
            vec![
                ("metadata", Box::new(move |_, b, r| metadata::Arguments::standard(shared()).run(b, r))),
                ("data", Box::new(move |_, b, r| data::Arguments::standard(shared()).run(b, r))),
                ("sizes", Box::new(move |_, b, r| sizes::Arguments::standard(shared()).run(b, r))),
                ("sync", Box::new(move |_, b, r| sync::Arguments::standard(shared()).run(b, r))),
                ("directory", Box::new(move |_, b, r| directory::Arguments::standard(shared()).run(b, r))),
                ("scale", Box::new(move |_, b, r| scale::Arguments::standard(shared()).run(b, r))),
                ("work", Box::new(move |x, b, r| work::Arguments::standard(shared()).run(x, b, r))),
            ]
        }
    }
}

fn build(repository: &Repository) -> anyhow::Result<PathBuf> {
    let programs = repository.build(true)?;
    let arguments = ["build", "--quiet", "--release", "-p", "ashlar-fuse", "--example", "ceiling"];
    shell::run(&mut repository.cargo(&arguments))?;
    Ok(programs)
}

fn in_own_directory(
    name: &str,
    shared: &Shared,
    programs: &Path,
    part: impl FnOnce(&Bench) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let parent = match &shared.base {
        Some(base) => base.canonicalize().with_context(|| format!("find {}", base.display()))?,
        None => std::env::temp_dir(),
    };
    let work = Work::create_in(&parent, &format!("bench-{name}"))?;
    let bench =
        Bench { programs: programs.to_owned(), directory: work.path().to_owned(), shared: shared.clone() };
    let result = part(&bench);
    work.finish(result)
}

impl Bench {
    /// Refuses a base in memory, where a sync costs nothing and a page cache cannot be given back.
    fn insist_on_disk(&self) -> anyhow::Result<()> {
        let name = report::file_system_name(&self.directory)?;
        if matches!(name.as_str(), "tmpfs" | "ramfs") {
            bail!(
                "{} is on {name}; this part needs a disk: name a directory on one with --base",
                self.directory.display()
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn shared() -> Shared {
        Shared { rounds: 1, base: None, transport: Transport::Auto, output: None, programs: None }
    }

    #[test]
    fn every_part_runs_alone_and_all_runs_every_part() {
        let names = |part: &Part| parts(part).into_iter().map(|(name, _)| name).collect::<Vec<_>>();
        let all = names(&Part::All(shared()));
        let alone = [
            Part::Metadata(metadata::Arguments::standard(shared())),
            Part::Data(data::Arguments::standard(shared())),
            Part::Sizes(sizes::Arguments::standard(shared())),
            Part::Sync(sync::Arguments::standard(shared())),
            Part::Directory(directory::Arguments::standard(shared())),
            Part::Scale(scale::Arguments::standard(shared())),
            Part::Work(work::Arguments::standard(shared())),
        ];
        assert_eq!(alone.iter().flat_map(names).collect::<Vec<_>>(), all);
    }
}
