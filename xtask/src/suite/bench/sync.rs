//! Threads that create, write 1 KiB, sync and close, from 1 to 32, on a disk: does one sync serve many?
//!
//! Beside it the local file system, and both without syncing.

use std::collections::BTreeMap;

use anyhow::Context;
use serde_json::json;

use super::figures::{Figures, median, ratios, show};
use super::place::{ASHLAR, LOCAL, Places, take_turns};
use super::report::{Report, Target, Wanted};
use super::{Bench, Shared};

const FILES_DEFAULT: u64 = 1_024;
const UNSYNCED_FILES: u64 = 16_384;
const SIZE_BYTES: u64 = 1_024;
const THREADS: &[u64] = &[1, 2, 4, 8, 16, 32];

/// Options of `bench sync`.
#[derive(clap::Args, Debug)]
pub(super) struct Arguments {
    #[command(flatten)]
    pub(super) shared: Shared,
    /// Files that are synced per turn, all threads together.
    #[arg(long, default_value_t = FILES_DEFAULT, value_parser = clap::value_parser!(u64).range(32..))]
    files: u64,
}

/// Number of threads, and whether synced, to files per second.
type Rates = BTreeMap<(u64, bool), Figures>;

impl Arguments {
    pub(super) fn standard(shared: Shared) -> Self {
        Self { shared, files: FILES_DEFAULT }
    }

    pub(super) fn run(&self, bench: &Bench, report: &mut Report) -> anyhow::Result<()> {
        bench.insist_on_disk()?;
        report.begin("Create, write 1 KiB, fsync, close", &bench.directory)?;
        let places = Places::mount(bench, false)?;
        let mut rates = Rates::new();
        take_turns(bench.shared.rounds, THREADS, places.all(), |threads, place| {
            for synced in [true, false] {
                let phases = bench.torture(place, &self.words(*threads, synced));
                for phase in phases.with_context(|| format!("{threads} threads"))? {
                    if phase.name == "create" {
                        let figures = rates.entry((*threads, synced)).or_default();
                        figures.push(&place.name, phase.operations_per_second);
                    }
                }
            }
            Ok(())
        })?;
        places.end()?;
        show_rates(report, &rates);
        let figures: Vec<_> = rates
            .iter()
            .map(|((threads, synced), figures)| json!({ "threads": threads, "synced": synced, "rates": figures.json() }))
            .collect();
        report.keep("sync", json!(figures))
    }

    fn words(&self, threads: u64, synced: bool) -> Vec<String> {
        let files = if synced { self.files } else { UNSYNCED_FILES } / threads;
        let options = [("--threads", threads), ("--files", files), ("--size", SIZE_BYTES)];
        let mut words = vec!["metabench".to_owned(), "--phases".to_owned(), "create,remove".to_owned()];
        words.extend(options.into_iter().flat_map(|(name, value)| [name.to_owned(), value.to_string()]));
        words.extend(synced.then(|| "--fsync".to_owned()));
        words
    }
}

fn show_rates(report: &mut Report, rates: &Rates) {
    let of = |threads: u64, synced: bool, name: &str| {
        rates.get(&(threads, synced)).map_or(&[][..], |f| f.of(name))
    };
    let head = [
        "threads",
        "local, synced",
        "Ashlar, synced",
        "local, unsynced",
        "Ashlar, unsynced",
        "Ashlar of local, synced",
    ];
    let rows: Vec<Vec<String>> = THREADS
        .iter()
        .map(|threads| {
            let rate = |synced: bool, name: &str| show(of(*threads, synced, name), 0);
            let of_local = ratios(of(*threads, true, ASHLAR), of(*threads, true, LOCAL));
            vec![
                threads.to_string(),
                rate(true, LOCAL),
                rate(true, ASHLAR),
                rate(false, LOCAL),
                rate(false, ASHLAR),
                show(&of_local, 2),
            ]
        })
        .collect();
    report.say("Files per second:\n");
    report.table(&head.map(str::to_owned), &rows);
    let over = |of: &[f64], reference: &[f64]| median(&ratios(of, reference));
    let target = |name: &str| {
        let many = of(32, true, name);
        [
            Target {
                what: format!("{name}: 32 threads over one, both synced"),
                measured: over(many, of(1, true, name)),
                wanted: Wanted::AtLeast(10.0),
                unit: "",
            },
            Target::percent(
                format!("{name}: 32 threads synced, of unsynced"),
                over(many, of(32, false, name)),
                Wanted::AtLeast(0.5),
            ),
        ]
    };
    report.targets(&[target(ASHLAR), target(LOCAL)].into_iter().flatten().collect::<Vec<_>>());
    report.say("One of the two is enough; the local file system is there to compare.\n");
}
