//! One directory with very many entries beside one with few: is an entry of it as cheap?

use std::collections::BTreeMap;

use anyhow::Context;
use serde_json::json;

use super::figures::{Figures, median, show, show_percent};
use super::place::{ASHLAR, LOCAL, Place, Places, take_turns, words};
use super::report::{Report, Target, Wanted};
use super::{Bench, Shared};

const ENTRIES_DEFAULT: u64 = 1_000_000;
const FEW_ENTRIES: u64 = 1_000;
const THREADS: u64 = 2;
/// Files that each thread adds and takes away again per turn.
const ADDED: &str = "5000";
/// Turns per round: one is a second or less.
const TURNS: usize = 7;
/// A listing is of the whole directory: it has its turn while the directory has as many entries as it is to have, and not ten
/// times as many because others are being added.
const PHASES_AT_REST: &[&str] = &["list"];
const PHASES: &[&str] = &["create", "stat", "read", "remove"];

/// Options of `bench directory`.
#[derive(clap::Args, Debug)]
pub(super) struct Arguments {
    #[command(flatten)]
    pub(super) shared: Shared,
    /// Entries of the large directory.
    #[arg(long, default_value_t = ENTRIES_DEFAULT, value_parser = clap::value_parser!(u64).range(10_000..))]
    entries: u64,
}

/// The two directories, by the name of the tree that each is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Size {
    Few,
    Many,
}

impl Size {
    fn root(self) -> &'static str {
        match self {
            Self::Few => "few",
            Self::Many => "many",
        }
    }
}

/// Place and phase to the rates in both directories.
type Rates = BTreeMap<(String, String), Figures>;

impl Arguments {
    pub(super) fn standard(shared: Shared) -> Self {
        Self { shared, entries: ENTRIES_DEFAULT }
    }

    pub(super) fn run(&self, bench: &Bench, report: &mut Report) -> anyhow::Result<()> {
        report.begin(
            &format!("A directory of {} entries beside one of {FEW_ENTRIES}", self.entries),
            &bench.directory,
        )?;
        let places = Places::mount(bench, false)?;
        for place in places.all() {
            for (size, entries) in [(Size::Few, FEW_ENTRIES), (Size::Many, self.entries)] {
                let fill = (entries / THREADS).to_string();
                let fill = [base(size), words(&["--phases", "create", "--files", &fill])].concat();
                bench.torture(place, &fill).with_context(|| format!("fill a directory on {}", place.name))?;
            }
        }
        let mut rates = Rates::new();
        // The two directories take turns within a turn of the place, so that both see the same noise.
        let turns: Vec<Size> = [Size::Few, Size::Many].into_iter().cycle().take(2 * TURNS).collect();
        take_turns(bench.shared.rounds, &turns, places.all(), |size, place| {
            measure(bench, *size, place, &mut rates)
        })?;
        places.end()?;
        show_rates(report, &rates);
        let figures: Vec<_> = rates
            .iter()
            .map(|((place, phase), figures)| json!({ "place": place, "phase": phase, "rates": figures.json() }))
            .collect();
        report.keep("directory", json!({ "entries": self.entries, "rates": figures }))
    }
}

fn base(size: Size) -> Vec<String> {
    words(&["metabench", "--shared", "--threads", &THREADS.to_string(), "--root", size.root()])
}

fn measure(bench: &Bench, size: Size, place: &Place, rates: &mut Rates) -> anyhow::Result<()> {
    for phases in [PHASES_AT_REST, PHASES] {
        let added = ["--existing", "--prefix", "added", "--files", ADDED, "--phases", &phases.join(",")];
        for phase in bench.torture(place, &[base(size), words(&added)].concat())? {
            let figures = rates.entry((place.name.clone(), phase.name)).or_default();
            figures.push(size.root(), phase.operations_per_second);
        }
    }
    Ok(())
}

fn show_rates(report: &mut Report, rates: &Rates) {
    let head = ["phase", "few entries", "many entries", "many of few"].map(str::to_owned);
    let mut targets = Vec::new();
    for place in [LOCAL, ASHLAR] {
        let mut rows = Vec::new();
        for phase in PHASES_AT_REST.iter().chain(PHASES) {
            let Some(figures) = rates.get(&(place.to_owned(), (*phase).to_owned())) else { continue };
            let of_few = figures.ratios(Size::Many.root(), Size::Few.root());
            rows.push(vec![
                (*phase).to_owned(),
                show(figures.of(Size::Few.root()), 0),
                show(figures.of(Size::Many.root()), 0),
                show_percent(&of_few),
            ]);
            if place == ASHLAR {
                let what = format!("{phase} in the large directory, of the small one");
                targets.push(Target::percent(what, median(&of_few), Wanted::AtLeast(0.8)));
            }
        }
        report.say(&format!("Operations (list: entries) per second on {place}:\n"));
        report.table(&head, &rows);
    }
    report.targets(&targets);
}
