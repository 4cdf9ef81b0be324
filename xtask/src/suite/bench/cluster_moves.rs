//! How long calls of programs take while a target is emptied, and while it gets content of another one.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use serde_json::{Value, json};

use super::report::{Report, Target, Wanted};
use super::timed_load::{self, Latencies};
use super::{Bench, Shared};
use crate::shell;
use crate::suite::cluster::lab::Lab;

/// Mounts, each with some programs.
const CLIENTS: usize = 2;
const PROGRAMS: usize = 4;
/// For how long programs work while nothing moves.
const QUIET: Duration = Duration::from_secs(30);
/// LIMIT: for how long a target may take to be emptied or filled.
const MOVES_MAX: Duration = Duration::from_secs(3600);
/// Time between two looks.
const LOOK: Duration = Duration::from_millis(200);
/// Bytes of each file that is moved.
const FILE_BYTES: u64 = 64 << 20;
/// `field.md`, pains 14 to 16.
const STALL_MAX_MS: f64 = 1000.0;

/// Options of `bench cluster-moves`.
#[derive(clap::Args, Debug)]
pub(super) struct Arguments {
    #[command(flatten)]
    pub(super) shared: Shared,
    /// Storage servers, each with one target.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(2..=16))]
    servers: u16,
    /// GiB that are stored before.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..))]
    gib: u64,
    /// Megabits per second of each machine's link, if links are to be slow.
    #[arg(long, value_parser = clap::value_parser!(u32).range(10..))]
    link_mbit: Option<u32>,
    /// Chunk size of all files.
    #[arg(long, default_value = "512k")]
    chunk_size: String,
    /// Copies of all content.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=3))]
    copies: u8,
    /// Have a server be killed, and its copies be made anew elsewhere, in the place of emptying targets; others wait for it for ten minutes first.
    #[arg(long)]
    lose: bool,
    /// MiB per second that each server may copy, if that is to be limited (`ashlar target moves --rate`).
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    rate: Option<u32>,
}

/// What one phase has come to.
struct Phase {
    name: &'static str,
    took: Duration,
    /// Bytes that have moved, as targets tell their space.
    moved: u64,
    latencies: Latencies,
}

impl Arguments {
    pub(super) fn run(&self, bench: &Bench, report: &mut Report) -> anyhow::Result<()> {
        bench.insist_on_disk()?;
        report.begin("Calls while content moves", &bench.directory)?;
        let (dir, servers) = (bench.directory.join("lab"), usize::from(self.servers));
        let mbit = self.link_mbit.map(|mbit| mbit.to_string());
        let shaped: Vec<&str> = mbit.iter().flat_map(|mbit| ["--link-mbit", mbit]).collect();
        let lab = Lab::up(&bench.programs.join("ashlar"), &dir, servers, CLIENTS, &shaped)?;
        let mut phases = self.measure(&lab)?;
        // Not where a server was killed: the lab does not know who is in its place, and what was stored was compared.
        if !self.lose {
            lab.stop_and_check()?;
        }
        self.show(report, &mut phases);
        let kept = phases.iter_mut().map(|phase| {
            let [half, p99, longest] = [500, 990, 1000].map(|part| phase.latencies.milliseconds(part));
            json!({
                "phase": phase.name, "seconds": phase.took.as_secs_f64(), "bytes_moved": phase.moved,
                "calls": phase.latencies.calls(), "p50_ms": half, "p99_ms": p99, "longest_ms": longest,
            })
        });
        report.keep("cluster-moves", Value::Array(kept.collect()))
    }

    fn measure(&self, lab: &Lab) -> anyhow::Result<Vec<Phase>> {
        let mounts = lab.mounts();
        let mut layout = std::process::Command::new(lab.binary());
        let words = ["layout", "set", "--stripe-count", "0", "--chunk-size", &self.chunk_size];
        let copies = self.copies.to_string();
        if self.copies > 1 {
            shell::output(&mut lab.administer(&["pool", "copies", "default", &copies]))?;
            layout.args(words).args(["--copies", &copies]);
        } else {
            layout.args(words);
        }
        if let Some(rate) = self.rate {
            shell::output(&mut lab.administer(&["target", "moves", "--rate", &rate.to_string()]))?;
        }
        shell::run(layout.arg(&mounts[0]))?;
        let stored = store(&mounts[0].join("still"), self.gib << 30)?;
        let mut dirs = Vec::new();
        for number in 0..PROGRAMS {
            let dir = mounts[number % CLIENTS].join(format!("busy{number}"));
            fs::create_dir(&dir)?;
            dirs.push(dir);
        }
        let target = targets(lab)?.pop().context("a lab without targets")?;
        let id = target["id"].as_u64().context("a target without a number")?;
        let number = id.to_string();
        let administer = |words: &[&str]| shell::output(&mut lab.administer(words)).map(drop);
        let mut phases = Vec::new();
        let mut phase = |name, change: &mut dyn FnMut() -> anyhow::Result<u64>| -> anyhow::Result<()> {
            let begun = Instant::now();
            let (moved, latencies) = timed_load::during(&dirs, change).context(name)?;
            phases.push(Phase { name, took: begun.elapsed(), moved, latencies });
            Ok(())
        };
        phase("nothing moves", &mut || {
            std::thread::sleep(QUIET);
            Ok(0)
        })?;
        if self.lose {
            let moved = bytes_of(lab, id)?;
            let server = format!("storage{}", self.servers);
            let process = lab.process(&server)?.with_context(|| format!("{server} does not run"))?;
            shell::output(std::process::Command::new("kill").args(["-KILL", &process.to_string()]))?;
            wait(|| Ok(copies_of(lab)?.is_being_made))?;
            phase("a server is lost", &mut || {
                wait(|| Ok(copies_of(lab)?.are_whole))?;
                Ok(moved)
            })?;
            lab.replace(&server, lab.binary())?;
            check(&stored)?;
            return Ok(phases);
        }
        phase("a target is drained", &mut || {
            let before = bytes_of(lab, id)?;
            administer(&["target", "drain", &number])?;
            wait(|| Ok(find(lab, id)?["chains"] == 0))?;
            Ok(before)
        })?;
        // Of a disk as large as this one a few GiB are no imbalance, and nothing would be rebalanced: another one is emptied.
        let another = targets(lab)?.first().and_then(|target| target["id"].as_u64()).context("no target")?;
        phase("another is drained, to it as well", &mut || {
            let before = bytes_of(lab, another)?;
            administer(&["target", "undrain", &number])?;
            administer(&["target", "drain", &another.to_string()])?;
            wait(|| Ok(find(lab, another)?["chains"] == 0))?;
            Ok(before)
        })?;
        ensure!(find(lab, id)?["chains"] != 0, "nothing came back to target {id}");
        check(&stored)?;
        Ok(phases)
    }

    fn show(&self, report: &mut Report, phases: &mut [Phase]) {
        let links = self.link_mbit.map_or_else(String::new, |mbit| format!(", links of {mbit} Mbit/s"));
        let rate =
            self.rate.map_or_else(String::new, |rate| format!(", {rate} MiB/s for each server that copies"));
        report.say(&format!(
            "{} GiB in files of {} chunks over {} servers, one target each, copies: {}{links}{rate}; {PROGRAMS} programs on {CLIENTS} mounts read, write, sync, make and remove all the time. \
             Everything on one disk and on the processors of this machine.\n",
            self.gib, self.chunk_size, self.servers, self.copies
        ));
        let head =
            ["", "s", "MiB moved", "MiB/s", "calls", "calls/s of quiet", "p50 ms", "p99 ms", "longest ms"];
        let per_second = |phase: &Phase| phase.latencies.calls() as f64 / phase.took.as_secs_f64();
        let quiet = phases.first().map_or(0.0, per_second);
        let row = |phase: &mut Phase| {
            let [half, p99, longest] = [500, 990, 1000].map(|part| phase.latencies.milliseconds(part));
            let (seconds, calls) = (phase.took.as_secs(), phase.latencies.calls());
            vec![
                phase.name.to_owned(),
                seconds.to_string(),
                (phase.moved >> 20).to_string(),
                format!("{:.1}", phase.moved as f64 / 1_048_576.0 / phase.took.as_secs_f64()),
                calls.to_string(),
                format!("{:.0} %", 100.0 * per_second(phase) / quiet),
                format!("{half:.2}"),
                format!("{p99:.1}"),
                format!("{longest:.0}"),
            ]
        };
        let rows: Vec<_> = phases.iter_mut().map(row).collect();
        report.table(&head.map(str::to_owned), &rows);
        let wanted = |phase: &mut Phase| Target {
            what: format!("p99 of calls while {}", phase.name),
            measured: phase.latencies.milliseconds(990),
            wanted: Wanted::AtMost(STALL_MAX_MS),
            unit: " ms",
        };
        let mut targets: Vec<Target> = phases[1..].iter_mut().map(wanted).collect();
        let lost = self.lose.then(|| &phases[1]);
        targets.extend(lost.map(|phase| {
            let share = per_second(phase) / quiet;
            Target::percent("calls while a server is lost, of quiet".to_owned(), share, Wanted::AtLeast(0.7))
        }));
        targets.extend(lost.zip(self.rate).map(|(phase, rate)| {
            let given = f64::from(rate) * f64::from(self.servers - 1);
            let made = phase.moved as f64 / 1_048_576.0 / phase.took.as_secs_f64();
            Target::percent(
                "copies made anew, of the rate of all that send".to_owned(),
                made / given,
                Wanted::AtLeast(0.8),
            )
        }));
        report.targets(&targets);
    }
}

/// What is so with copies of chains.
struct Copies {
    are_whole: bool,
    /// Somebody is given one.
    is_being_made: bool,
}

fn copies_of(lab: &Lab) -> anyhow::Result<Copies> {
    let text = shell::output(&mut lab.administer(&["chain", "list", "--json"]))?;
    let chains: Vec<Value> = serde_json::from_str(&text).context("parse the chains")?;
    let count = |chain: &Value, what: &str| chain[what].as_array().map_or(0, Vec::len) as u64;
    Ok(Copies {
        are_whole: chains
            .iter()
            .all(|chain| count(chain, "in_sync") >= chain["wanted"].as_u64().unwrap_or(0)),
        is_being_made: chains.iter().any(|chain| count(chain, "catching_up") > 0),
    })
}

fn targets(lab: &Lab) -> anyhow::Result<Vec<Value>> {
    let text = shell::output(&mut lab.administer(&["target", "list", "--json"]))?;
    serde_json::from_str(&text).context("parse the targets")
}

fn find(lab: &Lab, id: u64) -> anyhow::Result<Value> {
    let found = targets(lab)?.into_iter().find(|target| target["id"].as_u64() == Some(id));
    found.with_context(|| format!("there is no target {id}"))
}

/// What the directory of a target takes: all targets of the machine are on one disk, so none knows its own part.
fn bytes_of(lab: &Lab, id: u64) -> anyhow::Result<u64> {
    let path = find(lab, id)?["path"].as_str().map(PathBuf::from).context("a target without a path")?;
    let text = shell::output(std::process::Command::new("du").args(["-s", "--block-size=1"]).arg(&path))?;
    text.split_whitespace().next().and_then(|bytes| bytes.parse().ok()).context("du tells no number")
}

fn wait(mut is_done: impl FnMut() -> anyhow::Result<bool>) -> anyhow::Result<()> {
    let deadline = Instant::now() + MOVES_MAX;
    while !is_done()? {
        if Instant::now() >= deadline {
            bail!("moves have not ended after {} s", MOVES_MAX.as_secs());
        }
        std::thread::sleep(LOOK);
    }
    Ok(())
}

/// Stores so many bytes in files that nobody changes.
fn store(dir: &Path, bytes: u64) -> anyhow::Result<Vec<PathBuf>> {
    fs::create_dir(dir).with_context(|| format!("make {}", dir.display()))?;
    let paths: Vec<PathBuf> = (0..bytes / FILE_BYTES).map(|number| dir.join(number.to_string())).collect();
    for (number, path) in paths.iter().enumerate() {
        let mut file = File::create(path).with_context(|| format!("make {}", path.display()))?;
        for piece in 0..FILE_BYTES >> 20 {
            file.write_all(&mebibyte(number as u64, piece))?;
        }
        file.sync_all()?;
    }
    Ok(paths)
}

fn mebibyte(file: u64, piece: u64) -> Vec<u8> {
    let mut random = (file * 4096 + piece + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut word = || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random.to_le_bytes()
    };
    (0..1 << 17).flat_map(|_| word()).collect()
}

/// All of them are as they were.
fn check(paths: &[PathBuf]) -> anyhow::Result<()> {
    fs::write("/proc/sys/vm/drop_caches", "3").context("drop caches")?;
    for (number, path) in paths.iter().enumerate() {
        let found = fs::read(path).with_context(|| format!("read {}", path.display()))?;
        let pieces = found.chunks(1 << 20).enumerate();
        let is_right = found.len() as u64 == FILE_BYTES
            && pieces.into_iter().all(|(piece, bytes)| bytes == mebibyte(number as u64, piece as u64));
        ensure!(is_right, "{} is not what was stored", path.display());
    }
    Ok(())
}
