//! Creates and stats on 1, 2 and 4 metadata servers, each of which gets the same small share of a processor.
//!
//! So the servers are the limit, as they are on machines of their own, and not the clients, which share the rest of this machine.

use anyhow::Context;
use serde_json::{Value, json};

use super::control_group::{ControlGroup, keep_on_processor};
use super::figures::{Figures, median, ratios, show};
use super::lab_agents;
use super::report::{Report, Target, Wanted};
use super::{Bench, Shared};
use crate::suite::cluster::lab::Lab;

const PERCENT_DEFAULT: u32 = 5;
const CLIENTS_DEFAULT: u16 = 4;
const SERVER_FILES_DEFAULT: u32 = 4_000;
const THREADS_PER_CLIENT_DEFAULT: u32 = 8;
const PHASES: [&str; 3] = ["create", "stat", "remove"];

/// Options of `bench cluster-metadata`.
#[derive(clap::Args, Debug)]
pub(super) struct Arguments {
    #[command(flatten)]
    pub(super) shared: Shared,
    /// Numbers of metadata servers; the first is what the others are compared with.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2, 4], value_parser = clap::value_parser!(u16).range(1..=16))]
    servers: Vec<u16>,
    /// How many servers keep the metadata of each, itself among them. Numbers of servers that are below are left out.
    #[arg(long, value_delimiter = ',', default_values_t = [1], value_parser = clap::value_parser!(u16).range(1..=3))]
    copies: Vec<u16>,
    /// Percent of one processor for each metadata server.
    #[arg(long, default_value_t = PERCENT_DEFAULT, value_parser = clap::value_parser!(u32).range(1..=100))]
    percent: u32,
    /// Clients.
    #[arg(long, default_value_t = CLIENTS_DEFAULT, value_parser = clap::value_parser!(u16).range(1..=32))]
    clients: u16,
    /// Threads of each client, each with a directory of its own.
    #[arg(long, default_value_t = THREADS_PER_CLIENT_DEFAULT, value_parser = clap::value_parser!(u32).range(1..))]
    client_threads: u32,
    /// Files per metadata server.
    #[arg(long, default_value_t = SERVER_FILES_DEFAULT, value_parser = clap::value_parser!(u32).range(100..))]
    server_files: u32,
}

/// Operations per second of each phase, by the numbers of servers and copies.
type Rates = Vec<((u16, u16), Figures)>;

impl Arguments {
    pub(super) fn run(&self, bench: &Bench, report: &mut Report) -> anyhow::Result<()> {
        report.begin("Metadata servers with a share of a processor", &bench.directory)?;
        let mut rates = Rates::new();
        let all =
            self.servers.iter().flat_map(|servers| self.copies.iter().map(move |copies| (*servers, *copies)));
        for (servers, copies) in all.filter(|(servers, copies)| copies <= servers) {
            let figures = self
                .measure(bench, servers, copies)
                .with_context(|| format!("{servers} metadata servers, {copies} copies"))?;
            rates.push(((servers, copies), figures));
        }
        self.show(report, &rates);
        let kept = rates.iter().map(|((servers, copies), figures)| {
            json!({ "servers": servers, "copies": copies, "rates": figures.json() })
        });
        report.keep("cluster-metadata", Value::Array(kept.collect()))
    }

    fn measure(&self, bench: &Bench, servers: u16, copies: u16) -> anyhow::Result<Figures> {
        let dir = bench.directory.join(format!("lab{servers}-{copies}"));
        let (count, kept) = (servers.to_string(), copies.to_string());
        let more = ["--meta", &count, "--copies", &kept];
        let lab = Lab::up(&bench.programs.join("ashlar"), &dir, 1, usize::from(self.clients), &more)?;
        lab.wait_for_copies(copies)?;
        let mut groups = Vec::new();
        let processors = std::thread::available_parallelism()?.get();
        for (name, pid) in lab.processes()?.into_iter().filter(|(name, _)| name.starts_with("meta")) {
            let pid = pid.with_context(|| format!("{name} has ended"))?;
            let group = ControlGroup::of_processor(&format!("bench-{name}"), self.percent)?;
            group.take(pid)?;
            keep_on_processor(pid, groups.len() % processors)?;
            groups.push(group);
        }
        let mut figures = Figures::default();
        for _ in 0..bench.shared.rounds {
            for figure in lab_agents::run(&lab, &bench.directory, "run", &self.words(servers))? {
                figures.push(&figure.what, figure.operations_per_second);
            }
        }
        lab.stop_and_check()?;
        Ok(figures)
    }

    fn words(&self, servers: u16) -> Vec<String> {
        let threads = u32::from(self.clients) * self.client_threads;
        let (threads, files) = (threads.to_string(), (self.server_files * u32::from(servers)).to_string());
        let words = ["metadata", "--threads", &threads, "--files", &files, "--repetitions", "1", "--steps"];
        words.into_iter().map(str::to_owned).chain([PHASES.join(",")]).collect()
    }

    fn show(&self, report: &mut Report, rates: &Rates) {
        report.say(&format!(
            "{} clients with {} threads each, every thread in a directory of its own; {} % of a processor for each metadata server, {} empty files per \
             server. Operations per second, median of the rounds with least and greatest, and times the rate of {} of them.\n",
            self.clients,
            self.client_threads,
            self.percent,
            self.server_files,
            rates.first().map_or(0, |((servers, _), _)| *servers)
        ));
        let Some((_, first)) = rates.first() else { return };
        let mut head = vec!["servers".to_owned(), "copies".to_owned()];
        head.extend(PHASES.iter().flat_map(|phase| [(*phase).to_owned(), "times".to_owned()]));
        let lines = rates.iter().map(|((servers, copies), figures)| {
            let cells = PHASES.iter().flat_map(|phase| {
                [show(figures.of(phase), 0), show(&ratios(figures.of(phase), first.of(phase)), 2)]
            });
            [servers.to_string(), copies.to_string()].into_iter().chain(cells).collect()
        });
        report.table(&head, &lines.collect::<Vec<_>>());
        let more = rates.iter().skip(1).filter(|((_, copies), _)| *copies == 1);
        let targets = more.flat_map(|((servers, _), figures)| {
            PHASES.iter().map(move |phase| Target {
                what: format!("{phase}: {servers} servers over the first"),
                measured: median(&ratios(figures.of(phase), first.of(phase))),
                // Four servers shall do 3.5 times what one does.
                wanted: Wanted::AtLeast(0.875 * f64::from(*servers) / f64::from(rates[0].0.0)),
                unit: "",
            })
        });
        let alone =
            |servers: u16| rates.iter().find(|(of, _)| *of == (servers, 1)).map(|(_, figures)| figures);
        let with_copies = rates.iter().filter(|((_, copies), _)| *copies == 2);
        let of_copies = with_copies.filter_map(|((servers, _), figures)| {
            let alone = alone(*servers)?;
            Some(Target {
                what: format!("create: {servers} servers with two copies over the same without"),
                measured: median(&ratios(figures.of("create"), alone.of("create"))),
                wanted: Wanted::AtLeast(0.7),
                unit: "",
            })
        });
        report.targets(&targets.chain(of_copies).collect::<Vec<_>>());
    }
}
