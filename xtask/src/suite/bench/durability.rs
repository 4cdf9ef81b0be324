//! What `async` buys: the same work in directories with either durability, and through a mount all of whose changes are durable, taking turns on one cluster.
//!
//! A second directory that is `async` has its turn as well: what it differs from the first by is the noise of the machine.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::Context;

use super::figures::{median, show, show_percent};
use super::place::{Place, take_turns, words};
use super::report::{Report, Target, Wanted};
use super::throughput::{Case, Rows};
use super::{Bench, Shared};
use crate::shell;
use crate::suite::cluster::lab::Lab;

const MIB_DEFAULT: u64 = 256;
const SECONDS_DEFAULT: u64 = 5;
const FILES_DEFAULT: u64 = 2_000;
/// Storage servers; copies of content are on different ones.
const STORAGE: usize = 3;

const ASYNC: &str = "async";
const AGAIN: &str = "async again";
const SYNC: &str = "sync";
const MOUNT: &str = "sync mount";

const SEQUENTIAL: &str = "sequential, 2 streams, fsync at the end";
const RANDOM: &str = "random 4 KiB, 2 threads, depth 16";
const NAMES: &str = "empty files, 8 threads";
const SMALL: &str = "1 KiB files, 8 threads";

/// Phases that change something, and what `async` is to be over `sync`; of all others both are to be the same.
const CHANGES: &[(&str, &str)] =
    &[(RANDOM, "random write"), (NAMES, "create"), (NAMES, "remove"), (SMALL, "create"), (SMALL, "remove")];
const SAME: &[(&str, &str)] = &[
    (SEQUENTIAL, "write"),
    (SEQUENTIAL, "read"),
    (RANDOM, "random read"),
    (NAMES, "stat"),
    (NAMES, "read"),
    (SMALL, "stat"),
    (SMALL, "read"),
];

/// Options of `bench durability`.
#[derive(clap::Args, Debug)]
pub(super) struct Arguments {
    #[command(flatten)]
    pub(super) shared: Shared,
    /// Copies of content and of metadata: with two, either is durable on two servers.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=2))]
    copies: u16,
    /// MiB per thread.
    #[arg(long, default_value_t = MIB_DEFAULT)]
    mib: u64,
    /// Seconds per phase of random requests.
    #[arg(long, default_value_t = SECONDS_DEFAULT)]
    seconds: u64,
    /// Files per thread.
    #[arg(long, default_value_t = FILES_DEFAULT)]
    files: u64,
    /// Only cases whose name contains this.
    #[arg(long)]
    only: Option<String>,
}

impl Arguments {
    pub(super) fn run(&self, bench: &Bench, report: &mut Report) -> anyhow::Result<()> {
        bench.insist_on_disk()?;
        report.begin("Directories with either durability", &bench.directory)?;
        let binary = bench.programs.join("ashlar");
        let copies = self.copies.to_string();
        let more = ["--meta", "2", "--copies", &copies];
        let lab = Lab::up(&binary, &bench.directory.join("lab"), STORAGE, 2, &more)?;
        lab.wait_for_copies(self.copies)?;
        if self.copies > 1 {
            shell::output(&mut lab.administer(&["pool", "copies", "default", &copies]))?;
        }
        lab.replace_with("client2", &binary, &["--durability", "sync"])?;
        let places = self.places(&lab)?;
        let mut rows = Rows::default();
        take_turns(bench.shared.rounds, &self.cases(), &places, |case, place| {
            rows.run(bench, case, place).context(case.name)
        })?;
        self.show(report, &rows);
        report.keep("durability", rows.json())
    }

    /// A directory for each contestant, on the same metadata server.
    fn places(&self, lab: &Lab) -> anyhow::Result<Vec<Place>> {
        let mounts = lab.mounts();
        let [first, second] = mounts.as_slice() else { anyhow::bail!("a lab without two clients") };
        let copies = self.copies.to_string();
        let make = |directory: &Path, settings: &[&str]| {
            fs::create_dir(directory).with_context(|| format!("create {}", directory.display()))?;
            shell::run(Command::new(lab.binary()).args(["layout", "set"]).args(settings).arg(directory))
        };
        // What is made below is where this one is, and has as many copies.
        let of_copies = ["--directories", "inherit", "--copies", &copies];
        make(&first.join("all"), if self.copies > 1 { &of_copies } else { &of_copies[..2] })?;
        let place = |name: &str, mount: &Path, durability: &str| {
            let directory = mount.join("all").join(name.replace(' ', "-"));
            make(&directory, &["--durability", durability])?;
            Ok(Place { name: name.to_owned(), directory, server: None })
        };
        [(ASYNC, first, "async"), (SYNC, first, "sync"), (AGAIN, first, "async"), (MOUNT, second, "async")]
            .into_iter()
            .map(|(name, mount, durability)| place(name, mount, durability))
            .collect()
    }

    fn cases(&self) -> Vec<Case> {
        let [mib, seconds, files] = [self.mib, self.seconds, self.files].map(|number| number.to_string());
        let sequential = ["databench", "--threads", "2", "--mib", &mib, "--block-kib", "1024", "--fsync"];
        let random = ["databench", "--random", "--threads", "2", "--depth", "16", "--direct"];
        let random = [&random[..], &["--mib", &mib, "--seconds", &seconds]].concat();
        let names = ["metabench", "--threads", "8", "--files", &files];
        let small = [&names[..], &["--size", "1024"]].concat();
        let case = |name, words: Vec<String>, counts_bytes| Case { name, words, counts_bytes };
        let mut cases = vec![
            case(SEQUENTIAL, words(&sequential), true),
            case(RANDOM, words(&random), false),
            case(NAMES, words(&names), false),
            case(SMALL, words(&small), false),
        ];
        cases.retain(|case| self.only.as_ref().is_none_or(|only| case.name.contains(only)));
        cases
    }

    fn show(&self, report: &mut Report, rows: &Rows) {
        report.say(&format!(
            "Two metadata servers, {STORAGE} storage servers, {} of everything, all on one disk; {} MiB per thread, {} files per thread. \"{SYNC}\" is a directory, \"{MOUNT}\" an `async` \
             directory through a mount with `--durability sync`, \"{AGAIN}\" another `async` directory: what it differs from the first by is noise. MiB/s of sequential phases, \
             else operations per second; medians, least and greatest of {} rounds in brackets, ratios taken in each round.\n",
            if self.copies == 1 { "one copy".to_owned() } else { format!("{} copies", self.copies) },
            self.mib,
            self.files,
            rows.all().first().map_or(0, |row| row.rates.of(ASYNC).len())
        ));
        let head =
            ["case", ASYNC, SYNC, MOUNT, "async over sync", "async over sync mount", "async again of async"];
        let lines: Vec<Vec<String>> = rows
            .all()
            .iter()
            .map(|row| {
                let rate = |name: &str| show(row.rates.of(name), 0);
                vec![
                    format!("{}: {}", row.case, row.phase),
                    rate(ASYNC),
                    rate(SYNC),
                    rate(MOUNT),
                    show(&row.rates.ratios(ASYNC, SYNC), 2),
                    show(&row.rates.ratios(ASYNC, MOUNT), 2),
                    show_percent(&row.rates.ratios(AGAIN, ASYNC)),
                ]
            })
            .collect();
        report.table(&head.map(str::to_owned), &lines);
        let ratio = |(case, phase): &(&str, &str)| {
            rows.find(case, phase).map(|row| median(&row.rates.ratios(ASYNC, SYNC)))
        };
        let target = |of: &(&str, &str), measured, wanted| Target {
            what: format!("{}: {}, async over sync", of.0, of.1),
            measured,
            wanted,
            unit: "",
        };
        let faster = CHANGES.iter().filter_map(|of| Some(target(of, ratio(of)?, Wanted::AtLeast(1.5))));
        let same = SAME.iter().filter_map(|of| Some(target(of, ratio(of)?, Wanted::AtMost(1.25))));
        report.targets(&faster.chain(same).collect::<Vec<_>>());
    }
}
