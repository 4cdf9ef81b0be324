//! Create, stat, read and remove, beside the ceiling and the local file system.

use super::figures::median;
use super::place::{ASHLAR, CEILING, words};
use super::report::{Report, Target, Wanted};
use super::throughput::{Case, Rows};
use super::{Bench, Shared};

const FILES_DEFAULT: u64 = 10_000;

/// Options of `bench metadata`.
#[derive(clap::Args, Debug)]
pub(super) struct Arguments {
    #[command(flatten)]
    pub(super) shared: Shared,
    /// Files per thread.
    #[arg(long, default_value_t = FILES_DEFAULT)]
    files: u64,
    /// Only cases whose name contains this.
    #[arg(long)]
    only: Option<String>,
}

const TWO: &str = "empty files, 2 threads";
const EIGHT: &str = "empty files, 8 threads";
const SHARED: &str = "empty files, shared directory";
const KIB_3: &str = "3 KiB files";
const KIB_4: &str = "4 KiB files";

const CASES: &[(&str, &[&str])] = &[
    (TWO, &["--threads", "2"]),
    (EIGHT, &["--threads", "8"]),
    (SHARED, &["--threads", "2", "--shared"]),
    (KIB_3, &["--threads", "2", "--size", "3072"]),
    (KIB_4, &["--threads", "2", "--size", "4096"]),
];

impl Arguments {
    pub(super) fn standard(shared: Shared) -> Self {
        Self { shared, files: FILES_DEFAULT, only: None }
    }

    pub(super) fn run(&self, bench: &Bench, report: &mut Report) -> anyhow::Result<()> {
        report.begin("Metadata", &bench.directory)?;
        let files = self.files.to_string();
        let cases: Vec<Case> = CASES
            .iter()
            .filter(|(name, _)| self.only.as_ref().is_none_or(|only| name.contains(only)))
            .map(|(name, options)| Case {
                name,
                words: words(&[&["metabench", "--unverified", "--files", &files], *options].concat()),
                counts_bytes: false,
            })
            .collect();
        let rows = Rows::measure(bench, &cases, report)?;
        let targets: Vec<Target> =
            targets(&rows).into_iter().filter(|target| target.measured > 0.0).collect();
        report.targets(&targets);
        report.keep("metadata", rows.json())
    }
}

/// The best rate of six parallel file systems with FUSE clients (JuiceFS, GlusterFS, MooseFS, CephFS, SeaweedFS, OrangeFS) in the same phases on
/// a quiet machine with 2 processors and data in memory, November 2026; 2 and 8 processes of mdtest.
const BEST_PEERS: &[(&str, &str, f64)] = &[
    (TWO, "create", 3_700.0),
    (TWO, "read", 16_000.0),
    (TWO, "remove", 4_200.0),
    (EIGHT, "create", 6_300.0),
    (EIGHT, "read", 22_000.0),
    (EIGHT, "remove", 6_900.0),
    (KIB_4, "create", 1_000.0),
    (KIB_4, "read", 3_100.0),
];
/// How far ahead of the best peer a rate is to be.
const OF_PEER: f64 = 4.0;
const OF_CEILING: f64 = 0.6;

/// A rate is to be 60 % of the ceiling or 4 times the best peer's, whichever is lower.
fn rate_target(rows: &Rows, case: &str, phase: &str) -> Option<Target> {
    let rates = &rows.find(case, phase)?.rates;
    let (measured, ceiling) = (rates.median(ASHLAR), rates.median(CEILING));
    let peer = BEST_PEERS.iter().find(|(of, at, _)| (*of, *at) == (case, phase)).map(|(.., rate)| *rate);
    let least = (OF_CEILING * ceiling).min(peer.map_or(f64::INFINITY, |peer| OF_PEER * peer));
    let of_peer = peer.map_or_else(String::new, |peer| format!(", {:.1}x the best peer", measured / peer));
    let what = format!("{case}: {phase} ({:.0} % of the ceiling{of_peer})", 100.0 * measured / ceiling);
    Some(Target { what, measured, wanted: Wanted::AtLeast(least), unit: " op/s" })
}

fn targets(rows: &Rows) -> Vec<Target> {
    let mut targets = Vec::new();
    for case in [TWO, EIGHT, SHARED, KIB_4] {
        targets
            .extend(["create", "read", "remove"].iter().filter_map(|phase| rate_target(rows, case, phase)));
        let what = format!("{case}: stat, of the ceiling");
        targets.push(Target::percent(what, rows.of_ceiling(case, "stat"), Wanted::AtLeast(0.8)));
    }
    for phase in ["create", "read"] {
        let ratio = rows.between((KIB_4, phase), (KIB_3, phase));
        let what = format!("{phase} of 4 KiB files, of that of 3 KiB files");
        targets.push(Target::percent(what, ratio, Wanted::AtLeast(0.9)));
    }
    targets.push(Target {
        what: "processor seconds of the server per 10,000 creates, 2 threads".to_owned(),
        measured: rows.find(TWO, "create").map_or(0.0, |row| median(row.cpu.of(ASHLAR))),
        wanted: Wanted::AtMost(0.25),
        unit: "",
    });
    targets
}
