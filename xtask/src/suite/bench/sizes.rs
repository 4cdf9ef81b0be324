//! What a file costs by its size, for several inline limits, so that the default limit can be chosen by measurement.
//!
//! Each limit has a directory on Ashlar of its own; they take turns with the ceiling and the local file system.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use anyhow::Context;
use serde_json::json;

use super::figures::{Figures, median, ratios, show};
use super::place::{ASHLAR, CEILING, LOCAL, Place, Places, take_turns};
use super::report::{Report, Target, Wanted};
use super::{Bench, Shared};
use crate::shell;

const FILES_DEFAULT: u64 = 4_000;
const LIMITS_DEFAULT: &str = "0,4,16,64,256";
const SIZES_DEFAULT: &str = "0,1,2,3,4,8,16,32,64,128,256,512";
/// Up to this size the rule for doublings holds (design.md D4).
const RULE_KIB_MAX: u64 = 256;
const DOUBLING_MAX: f64 = 1.5;
/// LIMIT: data of one turn, so that large files do not take minutes.
const TURN_KIB_MAX: u64 = 128 << 10;

/// Options of `bench sizes`.
#[derive(clap::Args, Debug)]
pub(super) struct Arguments {
    #[command(flatten)]
    pub(super) shared: Shared,
    /// Files per thread; fewer where they would have more than 128 MiB in all.
    #[arg(long, default_value_t = FILES_DEFAULT)]
    files: u64,
    /// Inline limits in KiB.
    #[arg(long, value_delimiter = ',', default_value = LIMITS_DEFAULT)]
    limits: Vec<u64>,
    /// Sizes in KiB.
    #[arg(long, value_delimiter = ',', default_value = SIZES_DEFAULT)]
    sizes: Vec<u64>,
    /// Threads.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..))]
    threads: u64,
}

/// Phase and size in KiB to microseconds per file.
type Costs = BTreeMap<(String, u64), Figures>;

fn list(text: &str) -> Vec<u64> {
    text.split(',').filter_map(|number| number.parse().ok()).collect()
}

fn limit_name(limit_kib: u64) -> String {
    format!("{ASHLAR}, inline {limit_kib} KiB")
}

impl Arguments {
    pub(super) fn standard(shared: Shared) -> Self {
        Self {
            shared,
            files: FILES_DEFAULT,
            limits: list(LIMITS_DEFAULT),
            sizes: list(SIZES_DEFAULT),
            threads: 2,
        }
    }

    pub(super) fn run(&self, bench: &Bench, report: &mut Report) -> anyhow::Result<()> {
        report.begin("Files by size", &bench.directory)?;
        let mounted = Places::mount(bench, true)?;
        let mut places = vec![mounted.get(CEILING)?.clone(), mounted.get(LOCAL)?.clone()];
        for limit in &self.limits {
            places.push(self.limited(bench, mounted.get(ASHLAR)?, *limit)?);
        }
        let mut costs = Costs::new();
        take_turns(bench.shared.rounds, &self.sizes, &places, |size, place| {
            let phases = bench.torture(place, &self.words(*size));
            for phase in phases.with_context(|| format!("files of {size} KiB"))? {
                let cost = 1e6 / phase.operations_per_second;
                costs.entry((phase.name, *size)).or_default().push(&place.name, cost);
            }
            Ok(())
        })?;
        mounted.end()?;
        let names: Vec<String> = places.into_iter().map(|place| place.name).collect();
        for (phase, title) in [("create", "create, write, close"), ("read", "open, read, close")] {
            self.show(report, &costs, &names, phase, title);
        }
        let figures: Vec<_> = costs
            .iter()
            .map(|((phase, size), costs)| json!({ "phase": phase, "size_kib": size, "us_per_file": costs.json() }))
            .collect();
        report.keep("sizes", json!(figures))
    }

    fn limited(&self, bench: &Bench, ashlar: &Place, limit_kib: u64) -> anyhow::Result<Place> {
        let directory = ashlar.directory.join(format!("inline-{limit_kib}"));
        fs::create_dir(&directory).with_context(|| format!("create {}", directory.display()))?;
        let size = (limit_kib * 1024).to_string();
        let mut set = Command::new(bench.programs.join("ashlar"));
        shell::run(set.args(["layout", "set"]).arg(&directory).args(["--inline-size", &size]))?;
        Ok(Place { name: limit_name(limit_kib), directory, server: ashlar.server })
    }

    fn words(&self, size_kib: u64) -> Vec<String> {
        let of_all = TURN_KIB_MAX / size_kib.max(1) / self.threads;
        let files = self.files.min(of_all).max(1);
        let fixed = ["metabench", "--unverified", "--phases", "create,read,remove"].map(str::to_owned);
        let variable = [("--threads", self.threads), ("--files", files), ("--size", size_kib * 1024)];
        let variable = variable.into_iter().flat_map(|(name, value)| [name.to_owned(), value.to_string()]);
        fixed.into_iter().chain(variable).collect()
    }

    fn show(&self, report: &mut Report, costs: &Costs, names: &[String], phase: &str, title: &str) {
        let of = |size: u64, name: &str| costs.get(&(phase.to_owned(), size)).map_or(&[][..], |f| f.of(name));
        let head = |first: &str| {
            let mut head = vec![first.to_owned()];
            head.extend(names.iter().cloned());
            head
        };
        report.say(&format!("### {title}: microseconds per file\n"));
        let row = |size: &u64| {
            let mut row = vec![format!("{size} KiB")];
            row.extend(names.iter().map(|name| show(of(*size, name), 1)));
            row
        };
        report.table(&head("size"), &self.sizes.iter().map(row).collect::<Vec<_>>());
        report.say("Each cost over that of half the size:\n");
        let pairs = doublings(&self.sizes);
        let row = |(half, size): &(u64, u64)| {
            let mut row = vec![format!("{half} to {size} KiB")];
            row.extend(names.iter().map(|name| show(&ratios(of(*size, name), of(*half, name)), 2)));
            row
        };
        report.table(&head("doubling"), &pairs.iter().map(row).collect::<Vec<_>>());
        let mut targets = Vec::new();
        for limit in &self.limits {
            let name = limit_name(*limit);
            let ratio = |half: u64, size: u64| median(&ratios(of(size, &name), of(half, &name)));
            let ruled = pairs.iter().filter(|(_, size)| *size <= RULE_KIB_MAX);
            let worst =
                ruled.map(|(half, size)| (ratio(*half, *size), *size)).max_by(|a, b| a.0.total_cmp(&b.0));
            if let Some((worst, size)) = worst {
                targets.push(Target {
                    what: format!("{phase}, {name}: the worst doubling, to {size} KiB"),
                    measured: worst,
                    wanted: Wanted::AtMost(DOUBLING_MAX),
                    unit: "",
                });
            }
            if [3, 4].iter().all(|size| self.sizes.contains(size)) {
                let what = format!("{phase}, {name}: 4 KiB over 3 KiB");
                targets.push(Target::percent(what, ratio(3, 4), Wanted::AtMost(1.1)));
            }
        }
        report.targets(&targets);
    }
}

/// The pairs of sizes of which one is twice the other; nothing to something counts as one.
fn doublings(sizes: &[u64]) -> Vec<(u64, u64)> {
    let smallest = sizes.iter().copied().filter(|size| *size > 0).min();
    let from_zero = smallest.filter(|_| sizes.contains(&0)).map(|smallest| (0, smallest));
    let pairs = sizes.iter().copied().filter(|half| *half > 0 && sizes.contains(&(half * 2)));
    from_zero.into_iter().chain(pairs.map(|half| (half, half * 2))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doublings_are_the_pairs_that_were_measured() {
        assert_eq!(doublings(&[0, 1, 2, 3, 4, 16]), [(0, 1), (1, 2), (2, 4)]);
        assert_eq!(doublings(&[3, 4]), [] as [(u64, u64); 0]);
    }

    #[test]
    fn large_files_are_fewer() {
        let arguments = Arguments {
            files: 4000,
            threads: 2,
            ..Arguments::standard(crate::suite::bench::tests::shared())
        };
        let files = |size| arguments.words(size)[7].parse::<u64>().expect("a number of files");
        assert_eq!((files(0), files(4), files(512)), (4000, 4000, 128));
    }
}
