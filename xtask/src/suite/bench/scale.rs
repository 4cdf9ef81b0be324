//! Very many files under a memory limit: does it go on as it began, in how much memory, and how long does a restart take?
//!
//! The server runs in a control group of its own. The programs that create run in another one with the same limit, because the kernel's caches
//! of names and inodes count for those who fill them. Before each tenth the ceiling is measured, so that the noise of the machine can be told
//! from the file system growing slower.

use std::time::Instant;

use anyhow::{Context, bail};
use serde_json::json;

use super::control_group::ControlGroup;
use super::figures::ratios;
use super::place::{ASHLAR, CEILING, Phase, Place, words};
use super::report::{Report, Target, Wanted};
use super::server::Server;
use super::{Bench, Shared};

const FILES_DEFAULT: u64 = 1_000_000;
const MEMORY_MIB_DEFAULT: u64 = 2_048;
const TENTHS: u64 = 10;
const THREADS: u64 = 2;
const PER_DIRECTORY: &str = "10000";
/// Files per thread of each tenth that are looked at afterwards.
const SAMPLE: &str = "1000";

/// Options of `bench scale`.
#[derive(clap::Args, Debug)]
pub(super) struct Arguments {
    #[command(flatten)]
    pub(super) shared: Shared,
    /// Files.
    #[arg(long, default_value_t = FILES_DEFAULT, value_parser = clap::value_parser!(u64).range(20_000..))]
    files: u64,
    /// Memory limit of the server, page cache included, in MiB.
    #[arg(long, default_value_t = MEMORY_MIB_DEFAULT)]
    memory_mib: u64,
    /// Bytes per file.
    #[arg(long, default_value_t = 0)]
    size: u64,
}

/// A tenth of the files.
struct Tenth {
    create: Phase,
    ceiling: f64,
}

/// One restart, and what came after it.
struct Restart {
    how: &'static str,
    stop_seconds: f64,
    start_seconds: f64,
    stat: f64,
    read: f64,
    anonymous_mib: f64,
}

struct Scale<'a> {
    bench: &'a Bench,
    arguments: &'a Arguments,
    servers: ControlGroup,
    clients: ControlGroup,
}

impl Arguments {
    pub(super) fn standard(shared: Shared) -> Self {
        Self { shared, files: FILES_DEFAULT, memory_mib: MEMORY_MIB_DEFAULT, size: 0 }
    }

    pub(super) fn run(&self, bench: &Bench, report: &mut Report) -> anyhow::Result<()> {
        bench.insist_on_disk()?;
        report.begin(
            &format!("{} files, server limited to {} MiB", self.files, self.memory_mib),
            &bench.directory,
        )?;
        let scale = Scale {
            bench,
            arguments: self,
            servers: ControlGroup::of_memory("bench-server", self.memory_mib << 20)?,
            clients: ControlGroup::of_memory("bench-client", self.memory_mib << 20)?,
        };
        let mut server = scale.start()?;
        let tenths = scale.create_all(&server, report)?;
        let mut restarts = Vec::new();
        for how in ["killed", "stopped"] {
            // Right before it ends the server was busy both times: the second time with files beyond those counted.
            if how == "stopped" {
                let more = [scale.tenth(TENTHS), words(&["--phases", "create"])].concat();
                scale.torture(&scale.place(&server), &more).context("more files before the stop")?;
            }
            let begin = Instant::now();
            if how == "stopped" {
                server.stop()?
            } else {
                server.kill()?
            }
            let stop_seconds = begin.elapsed().as_secs_f64();
            scale.servers.drop_page_cache()?;
            server = scale.start()?;
            restarts.push(scale.look(&server, how, stop_seconds)?);
        }
        let peak_mib = scale.servers.peak_mib()?;
        server.stop()?;
        scale.show(report, &tenths, &restarts, peak_mib);
        report.keep("scale", json!({
            "files": self.files, "memory_mib": self.memory_mib, "size_bytes": self.size, "peak_mib": peak_mib,
            "tenths": tenths.iter().map(|tenth| json!({ "files_per_second": tenth.create.operations_per_second,
                "ceiling": tenth.ceiling, "anonymous_mib": tenth.create.server_anonymous_mib,
                "cpu_seconds_per_10k": tenth.create.cpu_seconds_per_10k() })).collect::<Vec<_>>(),
            "restarts": restarts.iter().map(|restart| json!({ "how": restart.how, "stop_seconds": restart.stop_seconds,
                "start_seconds": restart.start_seconds, "stat_per_second": restart.stat, "read_per_second": restart.read,
                "anonymous_mib": restart.anonymous_mib })).collect::<Vec<_>>(),
        }))
    }
}

impl Scale<'_> {
    fn start(&self) -> anyhow::Result<Server> {
        let at = |name: &str| self.bench.directory.join(name);
        Server::ashlar(self.bench, &at("mnt"), &at("data"), Some(&self.servers))
    }

    fn place(&self, server: &Server) -> Place {
        let directory = self.bench.directory.join("mnt");
        Place { name: ASHLAR.to_owned(), directory, server: Some(server.pid()) }
    }

    /// The words for one tenth; all who come to it later must use the same.
    fn tenth(&self, number: u64) -> Vec<String> {
        let (files, root) = (self.arguments.files / TENTHS / THREADS, format!("tenth-{number}"));
        let (files, size) = (files.to_string(), self.arguments.size.to_string());
        let threads = THREADS.to_string();
        words(&[
            "metabench",
            "--threads",
            &threads,
            "--files",
            &files,
            "--size",
            &size,
            "--per-directory",
            PER_DIRECTORY,
            "--root",
            &root,
        ])
    }

    fn torture(&self, place: &Place, words: &[String]) -> anyhow::Result<Vec<Phase>> {
        self.bench.torture_in(place, words, Some(&self.clients))
    }

    fn create_all(&self, server: &Server, report: &mut Report) -> anyhow::Result<Vec<Tenth>> {
        let ceiling = self.bench.directory.join(CEILING);
        let reference = Server::ceiling(self.bench, &ceiling)?;
        let ceiling = Place { name: CEILING.to_owned(), directory: ceiling, server: Some(reference.pid()) };
        let probe = words(&["metabench", "--threads", "2", "--files", "10000", "--phases", "create,remove"]);
        let mut tenths = Vec::new();
        for number in 0..TENTHS {
            let of_ceiling = first(self.torture(&ceiling, &probe)?)?.operations_per_second;
            let create = [self.tenth(number), words(&["--phases", "create"])].concat();
            let create = first(self.torture(&self.place(server), &create)?)
                .with_context(|| format!("tenth {} of {TENTHS}", number + 1))?;
            println!(
                "tenth {}: {:.0} files/s, {:.0} MiB anonymous",
                number + 1,
                create.operations_per_second,
                create.server_anonymous_mib.unwrap_or(0.0)
            );
            tenths.push(Tenth { create, ceiling: of_ceiling });
        }
        reference.stop()?;
        if tenths.iter().any(|tenth| tenth.create.server_anonymous_mib.is_none()) {
            bail!("the memory of the server was not measured");
        }
        report.say(&format!(
            "Files of {} bytes, {PER_DIRECTORY} in a directory, made by {THREADS} threads.\n",
            self.arguments.size
        ));
        Ok(tenths)
    }

    /// stat and read of files drawn at random from all tenths, by a kernel that knows none of them.
    fn look(&self, server: &Server, how: &'static str, stop_seconds: f64) -> anyhow::Result<Restart> {
        let (mut operations, mut seconds, mut anonymous_mib) = ([0.0; 2], [0.0; 2], 0.0);
        for (at, phase) in ["stat", "read"].into_iter().enumerate() {
            for number in 0..TENTHS {
                let look = [self.tenth(number), words(&["--phases", phase, "--sample", SAMPLE])].concat();
                let phase = first(self.torture(&self.place(server), &look)?)?;
                operations[at] += phase.operations;
                seconds[at] += phase.seconds;
                anonymous_mib = phase.server_anonymous_mib.context("the memory of the server")?;
            }
        }
        let rate = |at: usize| operations[at] / seconds[at];
        let start_seconds = server.start_time.as_secs_f64();
        println!("{how}, started again in {start_seconds:.2} s");
        Ok(Restart { how, stop_seconds, start_seconds, stat: rate(0), read: rate(1), anonymous_mib })
    }

    fn show(&self, report: &mut Report, tenths: &[Tenth], restarts: &[Restart], peak_mib: f64) {
        let head = ["tenth", "files/s", "ceiling", "of ceiling", "CPU s per 10,000", "anonymous MiB"]
            .map(str::to_owned);
        let of_ceiling = |tenth: &Tenth| tenth.create.operations_per_second / tenth.ceiling;
        let anonymous = |tenth: &Tenth| tenth.create.server_anonymous_mib.unwrap_or(0.0);
        let row = |(number, tenth): (usize, &Tenth)| {
            vec![
                (number + 1).to_string(),
                format!("{:.0}", tenth.create.operations_per_second),
                format!("{:.0}", tenth.ceiling),
                format!("{:.0} %", 100.0 * of_ceiling(tenth)),
                tenth.create.cpu_seconds_per_10k().map_or_else(|| "-".to_owned(), |cpu| format!("{cpu:.2}")),
                format!("{:.0}", anonymous(tenth)),
            ]
        };
        report.table(&head, &tenths.iter().enumerate().map(row).collect::<Vec<_>>());
        let head =
            ["restart", "stop s", "start to mounted s", "stat/s", "open+read+close/s", "anonymous MiB"]
                .map(str::to_owned);
        let row = |restart: &Restart| {
            vec![
                restart.how.to_owned(),
                format!("{:.2}", restart.stop_seconds),
                format!("{:.2}", restart.start_seconds),
                format!("{:.0}", restart.stat),
                format!("{:.0}", restart.read),
                format!("{:.0}", restart.anonymous_mib),
            ]
        };
        report.table(&head, &restarts.iter().map(row).collect::<Vec<_>>());
        report.say(&format!(
            "Killed right after the last tenth; stopped right after as many files more. Started with nothing of the data in the page cache. stat and read are of files drawn at random that the kernel does not know. \
             The server's group used at most {peak_mib:.0} MiB of {}, page cache included.\n",
            self.arguments.memory_mib
        ));
        report.targets(&self.targets(tenths, restarts));
    }

    fn targets(&self, tenths: &[Tenth], restarts: &[Restart]) -> Vec<Target> {
        let (Some(begin), Some(end)) = (tenths.first(), tenths.last()) else { return Vec::new() };
        let rate = |tenth: &Tenth| tenth.create.operations_per_second;
        let last_of_first =
            |of: &dyn Fn(&Tenth) -> f64| ratios(&[of(end)], &[of(begin)]).first().copied().unwrap_or(0.0);
        let most = tenths.iter().filter_map(|tenth| tenth.create.server_anonymous_mib).fold(0.0, f64::max);
        let mut targets = vec![
            Target::percent(
                "create rate of the last tenth, of the first",
                last_of_first(&rate),
                Wanted::AtLeast(0.8),
            ),
            Target::percent(
                "the same, each as part of the ceiling at that time",
                last_of_first(&|tenth| rate(tenth) / tenth.ceiling),
                Wanted::AtLeast(0.8),
            ),
            Target {
                what: format!("anonymous memory at most, to {} files", self.arguments.files),
                measured: most,
                wanted: Wanted::AtMost(200.0),
                unit: " MiB",
            },
        ];
        targets.extend(restarts.iter().map(|restart| Target {
            what: format!("start to mounted, after being {}", restart.how),
            measured: restart.start_seconds,
            wanted: Wanted::AtMost(10.0),
            unit: " s",
        }));
        targets
    }
}

fn first(phases: Vec<Phase>) -> anyhow::Result<Phase> {
    phases.into_iter().next().context("the program measured nothing")
}
