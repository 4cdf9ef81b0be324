//! Streams and random requests, beside the ceiling and the local file system.

use super::place::words;
use super::report::{Report, Target, Wanted};
use super::throughput::{Case, Rows};
use super::{Bench, Shared};

const MIB_DEFAULT: u64 = 256;
const SECONDS_DEFAULT: u64 = 3;

/// Options of `bench data`.
#[derive(clap::Args, Debug)]
pub(super) struct Arguments {
    #[command(flatten)]
    pub(super) shared: Shared,
    /// MiB per thread.
    #[arg(long, default_value_t = MIB_DEFAULT)]
    mib: u64,
    /// Seconds per phase of random requests.
    #[arg(long, default_value_t = SECONDS_DEFAULT)]
    seconds: u64,
    /// Only cases whose name contains this.
    #[arg(long)]
    only: Option<String>,
}

const N_N: &str = "sequential N-N";
const N_1: &str = "sequential N-1";
const ONE: &str = "sequential, one stream";
const N_N_DIRECT: &str = "sequential N-N, direct";
const N_1_DIRECT: &str = "sequential N-1, direct";
const RANDOM_1: &str = "random 4 KiB, depth 1";
const RANDOM_16: &str = "random 4 KiB, depth 16";

const SEQUENTIAL: &[(&str, &[&str])] = &[
    (N_N, &["--threads", "2"]),
    (N_1, &["--threads", "2", "--shared"]),
    (ONE, &["--threads", "1"]),
    (N_N_DIRECT, &["--threads", "2", "--direct", "--depth", "4"]),
    (N_1_DIRECT, &["--threads", "2", "--shared", "--direct", "--depth", "4"]),
];

const RANDOM: &[(&str, &[&str])] = &[
    (RANDOM_1, &["--random", "--threads", "2", "--depth", "1", "--direct"]),
    (RANDOM_16, &["--random", "--threads", "2", "--depth", "16", "--direct"]),
];

impl Arguments {
    pub(super) fn standard(shared: Shared) -> Self {
        Self { shared, mib: MIB_DEFAULT, seconds: SECONDS_DEFAULT, only: None }
    }

    pub(super) fn run(&self, bench: &Bench, report: &mut Report) -> anyhow::Result<()> {
        report.begin("Data", &bench.directory)?;
        let (mib, seconds) = (self.mib.to_string(), self.seconds.to_string());
        let common = ["databench", "--mib", &mib, "--seconds", &seconds];
        let case = |counts_bytes: bool| {
            move |(name, options): &(&'static str, &[&str])| Case {
                name,
                words: words(&[&common[..], options].concat()),
                counts_bytes,
            }
        };
        let mut cases: Vec<Case> = SEQUENTIAL.iter().map(case(true)).collect();
        cases.extend(RANDOM.iter().map(case(false)));
        cases.retain(|case| self.only.as_ref().is_none_or(|only| case.name.contains(only)));
        let rows = Rows::measure(bench, &cases, report)?;
        let targets: Vec<Target> =
            targets(&rows).into_iter().filter(|target| target.measured > 0.0).collect();
        report.targets(&targets);
        report.keep("data", rows.json())
    }
}

fn targets(rows: &Rows) -> Vec<Target> {
    let mut targets = Vec::new();
    let mut add = |what: String, ratio: f64, least: f64| {
        targets.push(Target::percent(what, ratio, Wanted::AtLeast(least)));
    };
    for case in [N_N, N_1, N_N_DIRECT, N_1_DIRECT] {
        for phase in ["write", "read"] {
            add(format!("{case}: {phase}, of the ceiling"), rows.of_ceiling(case, phase), 0.6);
        }
    }
    for case in [RANDOM_1, RANDOM_16] {
        for phase in ["random write", "random read"] {
            add(format!("{case}: {phase}, of the ceiling"), rows.of_ceiling(case, phase), 0.5);
        }
    }
    for phase in ["write", "read"] {
        add(format!("{phase}: N-1, of N-N"), rows.between((N_1, phase), (N_N, phase)), 0.8);
        let direct = rows.between((N_1_DIRECT, phase), (N_N_DIRECT, phase));
        add(format!("{phase}, direct: N-1, of N-N"), direct, 0.8);
        add(format!("{phase}: one stream, of two"), rows.between((ONE, phase), (N_N, phase)), 0.6);
    }
    targets
}
