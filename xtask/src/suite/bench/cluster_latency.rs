//! What one operation at a time takes on an idle mount of a cluster, beside the round trips that it costs.
//!
//! A round trip to a metadata server is timed by a program that has a call answered which nothing is done for, one from the kernel to the mount process by closing
//! a copy of a descriptor, of which nobody else is told. How many of both an operation costs the mount counts itself; those that nobody waits for are left
//! out. What an operation takes over the sum of them is work, and waiting for a processor.

mod operation;
mod requests;

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde_json::json;

use self::operation::{OPERATIONS, Operation, Place};
use self::requests::Requests;
use super::figures::{Figures, median, show};
use super::report::{Report, Target, Wanted};
use super::{Bench, Shared};
use crate::repository::Repository;
use crate::shell;
use crate::suite::cluster::lab::Lab;

const REPETITIONS_DEFAULT: usize = 200;
/// Calls of a round that nothing is done for.
const CALLS: usize = 1_000;
/// Until the kernel has told of the last close, and the mount its servers.
const SETTLED_MAX: Duration = Duration::from_secs(20);
const SETTLED_PAUSE: Duration = Duration::from_millis(100);
/// Where the mount that is measured shows what it counts, in its own network.
const METRICS: &str = "127.0.0.1:9101";

/// Where metadata servers of a lab listen.
const META_PORT: u16 = 7401;

/// Before each round trip of the second kind.
const PAUSE: Duration = Duration::from_micros(200);

/// Options of `bench cluster-latency`.
#[derive(clap::Args, Debug)]
pub(super) struct Arguments {
    #[command(flatten)]
    pub(super) shared: Shared,
    /// How often each operation is done in a round.
    #[arg(long, default_value_t = REPETITIONS_DEFAULT)]
    repetitions: usize,
}

/// What was measured of an operation, a figure per round.
#[derive(Debug, Default)]
struct Measured {
    figures: Figures,
    /// Per operation, of the last round: calls and requests that are waited for, and calls that are not.
    calls: f64,
    requests: f64,
    later: f64,
}

impl Arguments {
    pub(super) fn run(
        &self,
        repository: &Repository,
        bench: &Bench,
        report: &mut Report,
    ) -> anyhow::Result<()> {
        let round_trip = build_round_trip(repository, bench)?;
        report.begin("Operations on an idle mount of a cluster, one at a time", &bench.directory)?;
        let dir = bench.directory.join("lab");
        let lab = Lab::up(&bench.programs.join("ashlar"), &dir, 2, 2, &["--meta", "2"])?;
        lab.replace_with("client1", &bench.programs.join("ashlar"), &["--metrics", METRICS])?;
        let mut all: Vec<Measured> = OPERATIONS.iter().map(|_| Measured::default()).collect();
        let mut raw = Figures::default();
        for round in 0..bench.shared.rounds {
            let place = Place::prepare(&lab, round, self.repetitions)?;
            measure_raw(&lab, &dir, &round_trip, &place, &mut raw)?;
            for (operation, measured) in OPERATIONS.iter().zip(&mut all) {
                measure(&lab, operation, &place, (measured, &raw))
                    .with_context(|| operation.what.to_owned())?;
            }
            place.clear()?;
        }
        self.show(report, &raw, &all);
        let kept = OPERATIONS.iter().zip(&all).map(|(operation, measured)| {
            json!({ "operation": operation.what, "calls": measured.calls, "requests": measured.requests, "later": measured.later,
                "microseconds": measured.figures.json() })
        });
        report.keep("cluster-latency", json!({ "raw": raw.json(), "operations": kept.collect::<Vec<_>>() }))
    }

    fn show(&self, report: &mut Report, raw: &Figures, all: &[Measured]) {
        report.say(&format!(
            "Two metadata servers, two storage servers, two mounts, of which one is idle; {} of each operation in a round. Microseconds, median of the rounds with \
             least and greatest. \"Calls\" and \"requests\" are those that the program waits for, calls to servers and requests of the kernel, per operation as the \
             mount counts them; \"later\" are calls that it does not wait for. \"Of the sum\" is the median over calls times a round trip to a server and \
             requests times one from the kernel, as they are one right after the other; \"with pauses\" the same after pauses, in which who answers falls \
             asleep.\n",
            self.repetitions
        ));
        let raw_row = |what: &str, name: &str| {
            let of = |part: &str| show(raw.of(&format!("{name} {part}")), 0);
            vec![what.to_owned(), of("p50"), of("p99")]
        };
        let head = ["round trip", "median", "99 %"].map(str::to_owned);
        let rows = [
            raw_row("to a metadata server and back (a call that nothing is done for)", "call"),
            raw_row("from the kernel to the mount and back (FLUSH)", "request"),
            raw_row("the first, each after a pause of 200 us", "paused call"),
            raw_row("the second, each after a pause of 200 us", "paused request"),
            raw_row("4 KiB appended to a file beside the logs, and fdatasync", "fsync"),
        ];
        report.table(&head, &rows);
        let head = ["operation", "median", "99 %", "calls", "requests", "later", "of the sum", "with pauses"];
        let rows: Vec<Vec<String>> =
            OPERATIONS.iter().zip(all).map(|(of, measured)| row(of, measured)).collect();
        report.table(&head.map(str::to_owned), &rows);
        let targets = OPERATIONS.iter().zip(all).filter(|(operation, _)| operation.is_target);
        let targets = targets.map(|(operation, measured)| Target {
            what: format!("{} over the sum of its round trips", operation.what),
            measured: median(measured.figures.of("ratio")),
            wanted: Wanted::AtMost(1.3),
            unit: "",
        });
        report.targets(&targets.collect::<Vec<_>>());
    }
}

fn row(operation: &Operation, measured: &Measured) -> Vec<String> {
    let of = |part: &str, digits| show(measured.figures.of(part), digits);
    let count = |count: f64| format!("{count:.2}");
    vec![
        operation.what.to_owned(),
        of("p50", 0),
        of("p99", 0),
        count(measured.calls),
        count(measured.requests),
        count(measured.later),
        of("ratio", 2),
        of("paused ratio", 2),
    ]
}

/// Builds the program that times calls, unless it is to be among the programs.
fn build_round_trip(repository: &Repository, bench: &Bench) -> anyhow::Result<std::path::PathBuf> {
    if bench.shared.programs.is_none() {
        let words = ["build", "--quiet", "--release", "-p", "ashlar-rpc", "--example", "round_trip"];
        shell::run(&mut repository.cargo(&words))?;
    }
    let program = bench.programs.join("examples/round_trip");
    if !program.exists() {
        bail!("{} is not there: build the example round_trip of ashlar-rpc", program.display());
    }
    Ok(program)
}

fn measure_raw(
    lab: &Lab,
    dir: &Path,
    round_trip: &Path,
    place: &Place,
    raw: &mut Figures,
) -> anyhow::Result<()> {
    let address = format!("{}:{META_PORT}", lab.address("meta1")?);
    let file = fs::File::open(place.warm_file())?;
    for (name, pause) in [("", Duration::ZERO), ("paused ", PAUSE)] {
        let mut command = lab.at("client1");
        command.arg(round_trip).arg(dir.join("identity/client1")).arg(&address);
        command.arg(CALLS.to_string()).arg(pause.as_micros().to_string());
        let text = shell::output(&mut command)?;
        let calls: Result<Vec<u64>, _> = text.lines().map(str::parse).collect();
        keep(raw, &format!("{name}call "), calls.context("parse what calls took")?);
        let requests = (0..CALLS).map(|_| {
            let copy = file.try_clone()?;
            if !pause.is_zero() {
                std::thread::sleep(pause);
            }
            let begun = Instant::now();
            drop(copy);
            Ok(begun.elapsed().as_nanos() as u64)
        });
        keep(raw, &format!("{name}request "), requests.collect::<std::io::Result<_>>()?);
    }
    let mut beside = fs::File::create(dir.join("beside"))?;
    let syncs = (0..100).map(|_| {
        let begun = Instant::now();
        std::io::Write::write_all(&mut beside, &[7; 4096])?;
        beside.sync_data()?;
        Ok(begun.elapsed().as_nanos() as u64)
    });
    keep(raw, "fsync ", syncs.collect::<std::io::Result<_>>()?);
    Ok(())
}

/// Keeps median and 99th percentile of times in nanoseconds.
fn keep(figures: &mut Figures, name: &str, mut nanoseconds: Vec<u64>) {
    const PER_MICROSECOND: f64 = 1000.0;
    nanoseconds.sort_unstable();
    let of = |hundredths: usize| {
        let at = nanoseconds.len().saturating_sub(1) * hundredths / 100;
        nanoseconds.get(at).copied().unwrap_or_default() as f64 / PER_MICROSECOND
    };
    figures.push(&format!("{name}p50"), of(50));
    figures.push(&format!("{name}p99"), of(99));
}

fn measure(
    lab: &Lab,
    operation: &Operation,
    place: &Place,
    (measured, raw): (&mut Measured, &Figures),
) -> anyhow::Result<()> {
    let count = place.count(operation);
    // What it finds was there before it, and is not counted: so it is got ready for all of them at first.
    for at in 0..count {
        (operation.ready)(place, at)?;
    }
    let before = settled(lab)?;
    let mut took = Vec::with_capacity(count);
    for at in 0..count {
        took.push((operation.run)(place, at)?.as_nanos() as u64);
    }
    let made = settled(lab)?.since(&before);
    keep(&mut measured.figures, "", took);
    let per_operation = |number: u64| number as f64 / count as f64;
    measured.calls = per_operation(made.calls_waited_for());
    measured.later = per_operation(made.calls_later());
    measured.requests = per_operation(made.requests_waited_for());
    let last = |figures: &Figures, name: &str| figures.of(name).last().copied().unwrap_or_default();
    for (name, ratio) in [("", "ratio"), ("paused ", "paused ratio")] {
        let of = |what: &str| last(raw, &format!("{name}{what} p50"));
        let sum = measured.calls * of("call") + measured.requests * of("request");
        if sum > 0.0 {
            let over = last(&measured.figures, "p50") / sum;
            measured.figures.push(ratio, over);
        }
    }
    Ok(())
}

/// What the mount counts, once nothing comes any more.
fn settled(lab: &Lab) -> anyhow::Result<Requests> {
    let begun = Instant::now();
    let mut before = Requests::of(lab, METRICS)?;
    loop {
        std::thread::sleep(SETTLED_PAUSE);
        let now = Requests::of(lab, METRICS)?;
        if now == before {
            return Ok(now);
        }
        if begun.elapsed() > SETTLED_MAX {
            bail!("calls of the mount do not end");
        }
        before = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_those_of_the_times() {
        let mut figures = Figures::default();
        keep(&mut figures, "x ", (1..=101).rev().map(|time| time * 1000).collect());
        assert_eq!((figures.of("x p50"), figures.of("x p99")), (&[51.0][..], &[100.0][..]));
        keep(&mut figures, "none ", Vec::new());
        assert_eq!(figures.of("none p50"), [0.0]);
    }
}
