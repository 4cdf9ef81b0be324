//! Content on 1, 2, 4 and 8 storage servers behind slow links, beside what plain TCP carries over the same links; N-1 beside N-N.
//!
//! Every node of the lab has a link of its own that tbf makes slow, so that the links and not the processors of this machine are the limit. There are
//! twice as many clients as storage servers (four at the least): the servers' links are what is full.

use anyhow::Context;
use serde_json::{Value, json};

use super::figures::{Figures, median, show, show_percent};
use super::goodput::{self, Direction};
use super::lab_agents;
use super::report::{Report, Target, Wanted};
use super::{Bench, Shared};
use crate::shell;
use crate::suite::cluster::lab::Lab;

const LINK_MBIT_DEFAULT: u32 = 100;
const SERVER_MIB_DEFAULT: u64 = 192;
const SECONDS_DEFAULT: u64 = 10;
const CLIENTS_MIN: usize = 4;

/// Options of `bench cluster-data`.
#[derive(clap::Args, Debug)]
pub(super) struct Arguments {
    #[command(flatten)]
    pub(super) shared: Shared,
    /// Numbers of storage servers.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2, 4, 8], value_parser = clap::value_parser!(u16).range(1..=32))]
    servers: Vec<u16>,
    /// What each link carries, each way.
    #[arg(long, default_value_t = LINK_MBIT_DEFAULT, value_parser = clap::value_parser!(u32).range(10..))]
    link_mbit: u32,
    /// MiB that are written and read per storage server: enough for every part that clients write in turn to have a record.
    #[arg(long, default_value_t = SERVER_MIB_DEFAULT, value_parser = clap::value_parser!(u64).range(16..))]
    server_mib: u64,
    /// For how long clients write and read at the most, as flows of `iperf3` do: each has less than its part of the bytes done by then. 0: until the slowest has
    /// done its part, while links of others are idle.
    #[arg(long, default_value_t = SECONDS_DEFAULT)]
    seconds: u64,
    /// Bytes on one server before the next one's turn (`ashlar layout set --chunk-size`): small enough for one request of 1 MiB to be at all of eight servers.
    #[arg(long, default_value = "128k")]
    chunk_size: String,
    /// Copies of content, beside one: a file per client is written and read with each.
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u8).range(2..=3))]
    copies: Vec<u8>,
    /// Nothing but a file per client.
    #[arg(long)]
    separate_only: bool,
}

/// How content is spread over files.
struct Case {
    name: &'static str,
    words: &'static [&'static str],
}

const SEPARATE: &str = "a file per client (N-N)";
const SHARED: &str = "one file (N-1)";
const STRIDED: &str = "one file, records of 47,008 bytes in turn";

/// The last is what a checkpoint of many small unaligned pieces does.
const CASES: [Case; 3] = [
    Case { name: SEPARATE, words: &["--record", "1m"] },
    Case { name: SHARED, words: &["--record", "1m", "--shared"] },
    Case { name: STRIDED, words: &["--record", "47008", "--shared", "--segments", "64"] },
];

const PHASES: [(&str, Direction); 2] =
    [("sequential write", Direction::Write), ("sequential read", Direction::Read)];
const GOODPUT: &str = "goodput";

/// What one number of servers has come to: MiB/s per phase, of goodput and of each case.
struct Row {
    servers: u16,
    rates: [Figures; 2],
}

impl Arguments {
    pub(super) fn run(&self, bench: &Bench, report: &mut Report) -> anyhow::Result<()> {
        bench.insist_on_disk()?;
        report.begin("Storage servers behind slow links", &bench.directory)?;
        let mut rows = Vec::new();
        for servers in &self.servers {
            rows.push(self.measure(bench, *servers).with_context(|| format!("{servers} storage servers"))?);
        }
        self.show(report, &rows);
        let kept = rows.iter().map(|row| {
            json!({ "servers": row.servers, "write": row.rates[0].json(), "read": row.rates[1].json() })
        });
        report.keep("cluster-data", Value::Array(kept.collect()))
    }

    fn measure(&self, bench: &Bench, servers: u16) -> anyhow::Result<Row> {
        let count = usize::from(servers);
        let clients = CLIENTS_MIN.max(2 * count);
        let dir = bench.directory.join(format!("lab{servers}"));
        let mbit = self.link_mbit.to_string();
        let lab = Lab::up(&bench.programs.join("ashlar"), &dir, count, clients, &["--link-mbit", &mbit])?;
        let first = lab.mounts().into_iter().next().context("a lab without clients")?;
        let set_layout = |copies: u8| {
            let mut layout = std::process::Command::new(lab.binary());
            // Small files are not what is measured; a stripe over all targets is what one large file gets the most from.
            let words = ["layout", "set", "--stripe-count", "0", "--chunk-size", &self.chunk_size];
            let copies =
                if self.copies.is_empty() { vec![] } else { vec!["--copies".to_owned(), copies.to_string()] };
            shell::run(layout.args(words).args(copies).arg(&first))
        };
        for copies in &self.copies {
            let copies = copies.to_string();
            shell::output(&mut lab.administer(&["pool", "copies", "default", &copies]))?;
        }
        let mut row = Row { servers, rates: Default::default() };
        for _ in 0..bench.shared.rounds {
            for ((_, direction), rates) in PHASES.iter().zip(&mut row.rates) {
                rates.push(GOODPUT, goodput::measure(&lab, count, *direction)?);
            }
            set_layout(1)?;
            let cases = if self.separate_only { &CASES[..1] } else { &CASES };
            for case in cases {
                for ((phase, direction), rates) in PHASES.iter().zip(&mut row.rates) {
                    let words = self.words(case, *direction, servers, clients);
                    let figures =
                        lab_agents::run(&lab, &bench.directory, "run", &words).with_context(|| case.name)?;
                    let figure = figures.iter().find(|figure| figure.what == *phase);
                    rates.push(case.name, figure.context("a phase was not measured")?.mib_per_second);
                }
            }
            for &copies in &self.copies {
                set_layout(copies)?;
                for ((phase, direction), rates) in PHASES.iter().zip(&mut row.rates) {
                    let words = self.words(&CASES[0], *direction, servers, clients);
                    let figures = lab_agents::run(&lab, &bench.directory, "run", &words)?;
                    let figure = figures.iter().find(|figure| figure.what == *phase);
                    rates.push(&with(copies), figure.context("a phase was not measured")?.mib_per_second);
                }
            }
        }
        lab.stop_and_check()?;
        Ok(row)
    }

    fn words(&self, case: &Case, direction: Direction, servers: u16, clients: usize) -> Vec<String> {
        let (threads, total) = (clients.to_string(), format!("{}m", self.server_mib * u64::from(servers)));
        let (only, seconds) =
            (if direction == Direction::Write { "write" } else { "read" }, self.seconds.to_string());
        let words = ["sequential", "--threads", &threads, "--total", &total, "--repetitions", "1"];
        let words = words.into_iter().chain(["--only", only, "--seconds", &seconds]);
        words.chain(case.words.iter().copied()).map(str::to_owned).collect()
    }

    fn show(&self, report: &mut Report, rows: &[Row]) {
        report.say(&format!(
            "Links of {} Mbit/s for every node, {} MiB per server, {} s at the most, as many threads as clients, files striped over all targets in chunks of {}; fsync and \
             close are in the time of writing, caches are dropped before reading. Goodput: plain TCP between the same nodes. MiB/s, median of {} rounds with least and \
             greatest, and the part of goodput.\n",
            self.link_mbit,
            self.server_mib,
            self.seconds,
            self.chunk_size,
            rows.first().map_or(0, |row| row.rates[0].of(GOODPUT).len())
        ));
        let head = ["servers", "phase", GOODPUT, SEPARATE, "of goodput", SHARED, "of N-N", STRIDED, "of N-N"];
        let mut lines = Vec::new();
        for row in rows {
            for ((phase, _), rates) in PHASES.iter().zip(&row.rates) {
                lines.push(vec![
                    row.servers.to_string(),
                    (*phase).to_owned(),
                    show(rates.of(GOODPUT), 1),
                    show(rates.of(SEPARATE), 1),
                    show_percent(&rates.ratios(SEPARATE, GOODPUT)),
                    show(rates.of(SHARED), 1),
                    show_percent(&rates.ratios(SHARED, SEPARATE)),
                    show(rates.of(STRIDED), 1),
                    show_percent(&rates.ratios(STRIDED, SEPARATE)),
                ]);
            }
        }
        report.table(&head.map(str::to_owned), &lines);
        self.show_copies(report, rows);
        if self.separate_only {
            return;
        }
        let targets = rows.iter().flat_map(|row| {
            let target = |what: &str, phase: usize, case: &str, reference: &str, least: f64| {
                let ratio = median(&row.rates[phase].ratios(case, reference));
                Target::percent(format!("{} servers: {what}", row.servers), ratio, Wanted::AtLeast(least))
            };
            [
                target("write of goodput", 0, SEPARATE, GOODPUT, 0.95),
                target("read of goodput", 1, SEPARATE, GOODPUT, 0.98),
                target("N-1 write of N-N", 0, SHARED, SEPARATE, 0.8),
                target("N-1 read of N-N", 1, SHARED, SEPARATE, 0.8),
                target("N-1 unaligned write of N-N", 0, STRIDED, SEPARATE, 0.8),
                target("N-1 unaligned read of N-N", 1, STRIDED, SEPARATE, 0.8),
            ]
        });
        report.targets(&targets.collect::<Vec<_>>());
    }

    fn show_copies(&self, report: &mut Report, rows: &[Row]) {
        if self.copies.is_empty() {
            return;
        }
        let head = ["servers", "phase", "copies", "MiB/s", "of one copy"];
        let (mut lines, mut targets) = (Vec::new(), Vec::new());
        for row in rows {
            for (((phase, _), rates), least) in PHASES.iter().zip(&row.rates).zip([0.45, 1.0]) {
                for copies in &self.copies {
                    let name = with(*copies);
                    let ratios = rates.ratios(&name, SEPARATE);
                    lines.push(vec![
                        row.servers.to_string(),
                        (*phase).to_owned(),
                        copies.to_string(),
                        show(rates.of(&name), 1),
                        show_percent(&ratios),
                    ]);
                    if *copies == 2 {
                        let what = format!("{} servers: {phase} with 2 copies of one", row.servers);
                        targets.push(Target::percent(what, median(&ratios), Wanted::AtLeast(least)));
                    }
                }
            }
        }
        report.table(&head.map(str::to_owned), &lines);
        report.targets(&targets);
    }
}

/// What the figures of a file per client are called with so many copies of content.
fn with(copies: u8) -> String {
    format!("{SEPARATE}, {copies} copies")
}
