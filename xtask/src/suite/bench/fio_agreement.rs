//! Our load generator beside fio: the same requests on the same disk, in pairs that take turns at going first.
//!
//! A generator that costs too much tells figures that are too low. What is wanted is the same within 5 %, as the median of the pairs' ratios.

use std::collections::BTreeMap;
use std::process::Command;

use anyhow::Context;
use serde_json::{Value, json};

use super::figures::{median, ratios, show, show_percent};
use super::report::{Report, Target, Wanted};
use super::{Bench, Shared};
use crate::shell;

/// What is compared: streams, and random requests one at a time and 16 under way.
const PARTS: &str = "sequential-n-n,random-4k,random-4k-deep";
/// How far the median of the ratios may lie from one.
const APART_MAX: f64 = 0.05;

/// Options of `bench fio-agreement`.
#[derive(clap::Args, Debug)]
pub(super) struct Arguments {
    #[command(flatten)]
    pub(super) shared: Shared,
    /// Seconds for all pairs.
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u32).range(30..))]
    seconds: u32,
}

/// Part, phase and program, to the rate of each round.
type Rates = BTreeMap<(String, String), BTreeMap<String, Vec<f64>>>;

impl Arguments {
    pub(super) fn run(&self, bench: &Bench, report: &mut Report) -> anyhow::Result<()> {
        bench.insist_on_disk()?;
        report.begin("Our generator beside fio, one thread, past the page cache", &bench.directory)?;
        let place = bench.directory.join("place");
        std::fs::create_dir(&place).with_context(|| format!("create {}", place.display()))?;
        let name = bench.directory.join("report");
        let mut command = Command::new(bench.programs.join("ashlar"));
        command.args(["bench", "run"]).arg(&place).args([
            "--threads",
            "1",
            "--with",
            "fio",
            "--parts",
            PARTS,
        ]);
        command.args(["--repetitions", &self.shared.rounds.to_string()]);
        command.args(["--budget", &format!("{}s", self.seconds)]);
        command.arg("--output").arg(&name);
        shell::run(&mut command)?;
        let path = name.with_extension("json");
        let text = std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        let told: Value = serde_json::from_str(&text).context("read the report")?;
        let rates = rates(&told["measured"]).context("the report has another form")?;
        tell(report, &rates);
        let all: Vec<Value> = rates
            .iter()
            .map(|((part, phase), rates)| json!({ "part": part, "phase": phase, "rates": rates }))
            .collect();
        report.keep("fio-agreement", json!(all))
    }
}

/// Operations per second of each round; rounds are in order in a report.
fn rates(measured: &Value) -> Option<Rates> {
    let mut all = Rates::new();
    for one in measured.as_array()? {
        let figure = &one["figure"];
        let rate = figure["operations"].as_f64()? / figure["seconds"].as_f64()?;
        let key = (one["part"].as_str()?.to_owned(), figure["what"].as_str()?.to_owned());
        all.entry(key).or_default().entry(one["tool"].as_str()?.to_owned()).or_default().push(rate);
    }
    Some(all)
}

fn tell(report: &mut Report, rates: &Rates) {
    let (mut rows, mut targets) = (Vec::new(), Vec::new());
    for ((part, phase), rates) in rates {
        let of = |tool: &str| rates.get(tool).map_or(&[][..], Vec::as_slice);
        let ratios = ratios(of("ashlar"), of("fio"));
        rows.push(vec![
            part.clone(),
            phase.clone(),
            show(of("fio"), 0),
            show(of("ashlar"), 0),
            show_percent(&ratios),
        ]);
        let apart = (median(&ratios) - 1.0).abs();
        // A difference of nothing at all is the best there is, and not a missing figure.
        let apart = if ratios.is_empty() { 0.0 } else { apart.max(1e-6) };
        targets.push(Target::percent(format!("{part}, {phase}: apart"), apart, Wanted::AtMost(APART_MAX)));
    }
    report.say("Operations per second, median with least and greatest:\n");
    report.table(&["part", "phase", "fio", "ours", "ours of fio"].map(str::to_owned), &rows);
    report.targets(&targets);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_of_both_programs_are_paired() {
        let one = |tool: &str, repetition: u32, operations: u32| {
            let figure = json!({ "what": "random read", "repetition": repetition, "operations": operations, "seconds": 2.0 });
            json!({ "part": "random-4k", "tool": tool, "figure": figure })
        };
        let measured =
            json!([one("ashlar", 1, 190), one("fio", 1, 200), one("ashlar", 2, 210), one("fio", 2, 200)]);
        let rates = rates(&measured).unwrap();
        let of = &rates[&("random-4k".to_owned(), "random read".to_owned())];
        assert_eq!(of["ashlar"], [95.0, 105.0]);
        assert_eq!(ratios(&of["ashlar"], &of["fio"]), [0.95, 1.05]);
        assert!(super::rates(&json!([{ "part": 1 }])).is_none());
    }
}
