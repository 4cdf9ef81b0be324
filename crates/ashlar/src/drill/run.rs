//! The course of a drill.

use super::broken::Broken;
use super::call::Calls;
use super::emulate::{self, Made};
use super::failure;
use super::ledger::Diary;
use super::load::{Dirs, Load, Worker};
use super::make_lab::OwnLab;
use super::markdown::Report;
use super::operator::{Answer, Operator};
use super::outcome::{Entry, Limits, Outcome, Verdict};
use super::place::Place;
use super::redundancy::{self, Redundancy};
use super::verify::{Verified, verify};
use crate::cli::{DrillLoad, DrillRunArgs};
use crate::terminal::{say, shown};
use anyhow::{Context, Result, anyhow, bail};
use ashlar_env::Env;
use failure::Failure;
use parking_lot::Mutex;
use serde_json::Value;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Time between two looks at the copies.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// For how long they must be there: who has just gone is missed after 5 s.
const SETTLED: Duration = Duration::from_secs(7);
/// Time between two looks whether the drill is told to stop.
const TURN: Duration = Duration::from_millis(50);
/// LIMIT: for how long a mount that shows changes late may take to show a directory.
const SEEN_MAX: Duration = Duration::from_secs(10);

/// Runs a drill and writes its report; tells whether every failure that was run was survived.
pub fn run(args: &DrillRunArgs) -> Result<bool> {
    let chosen = failure::chosen(&args.only)?;
    let is_told_to_stop = told_by_signals()?;
    let own = args
        .lab
        .as_ref()
        .filter(|_| args.make_lab)
        .map(|dir| OwnLab::make(dir, args.load.copies))
        .transpose()?;
    let place = Place::find(args)?;
    let (ledger, diary) = keep_a_diary(&place, &args.load, &args.report)?;
    let mut drill = Drill::begin(place, &args.load, diary.clone(), is_told_to_stop)?;
    drill.lasts = seconds(args.load_seconds);
    let mut entries: Vec<Entry> = Vec::new();
    for failure in chosen {
        for _ in 0..args.repeat {
            let entry = drill.next(failure);
            let is_run = !matches!(entry.verdict, Verdict::NotRun(_));
            entries.push(entry);
            // Nor would it be the next time.
            if !is_run {
                break;
            }
        }
    }
    let mut report = drill.report(args, entries);
    (report.ledger, report.ledger_trouble) = (shown(&ledger), diary.trouble());
    write(&args.report, &report.text())?;
    if let Some(path) = &args.load.json {
        write(path, &serde_json::to_string_pretty(&report.object())?)?;
    }
    drill.clear(report.is_good());
    say(format_args!("{}; the report is {}", report.summary(), shown(&args.report)));
    own.map_or(Ok(()), OwnLab::remove)?;
    Ok(report.is_good())
}

/// Whether a signal has said that it is enough.
pub fn told_by_signals() -> Result<Arc<AtomicBool>> {
    let is_told_to_stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, is_told_to_stop.clone()).context("cannot take signals")?;
    }
    Ok(is_told_to_stop)
}

/// The ledger, once it is known that neither it nor a report would be in the file system under test.
pub fn keep_a_diary(place: &Place, load: &DrillLoad, report: &PathBuf) -> Result<(PathBuf, Arc<Diary>)> {
    let ledger = load.ledger.clone().unwrap_or_else(|| beside(report));
    let files = [Some(report), Some(&ledger), load.json.as_ref()];
    files.into_iter().flatten().try_for_each(|file| refuse_inside(file, &place.mounts))?;
    let diary = Arc::new(Diary::make(&ledger)?);
    Ok((ledger, diary))
}

fn seconds(seconds: u32) -> Duration {
    Duration::from_secs(seconds.into())
}

fn beside(report: &Path) -> PathBuf {
    let mut name = report.as_os_str().to_owned();
    name.push(".ledger");
    name.into()
}

/// What is said of a file system is not kept in it.
fn refuse_inside(file: &Path, mounts: &[PathBuf; 2]) -> Result<()> {
    let absolute = std::path::absolute(file).with_context(|| format!("cannot use {}", shown(file)))?;
    let dir = absolute.parent().with_context(|| format!("{} is no file", shown(file)))?;
    let device = |path: &Path| {
        path.metadata().map(|known| known.dev()).with_context(|| format!("cannot use {}", shown(path)))
    };
    let found = device(dir)?;
    for mount in mounts {
        if device(mount)? == found {
            bail!("{} would be in the file system that is drilled: name a file elsewhere", shown(file));
        }
    }
    Ok(())
}

pub fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {}", shown(path)))
}

/// A drill under way.
pub struct Drill {
    pub place: Place,
    dirs: Dirs,
    pub calls: Arc<Calls>,
    pub workers: Vec<Worker>,
    pub count: usize,
    pub limits: Limits,
    /// For how long a failure lasts, as asked.
    lasts: Duration,
    operator: Option<Operator>,
    pub is_told_to_stop: Arc<AtomicBool>,
    pub weak: Vec<String>,
    /// Why nothing more is run.
    ended: Option<String>,
}

impl Drill {
    /// A directory for it, once all copies are there.
    pub fn begin(
        place: Place,
        args: &DrillLoad,
        diary: Arc<Diary>,
        is_told_to_stop: Arc<AtomicBool>,
    ) -> Result<Drill> {
        let limits =
            Limits { stall: seconds(args.stall_max), redundant_within: seconds(args.redundant_within) };
        let operator = if place.lab.is_none() { Operator::at_terminal()? } else { None };
        let count = usize::from(args.workers);
        let calls = Arc::new(Calls::new(diary, count));
        let mut drill = Drill {
            dirs: Dirs(place.mounts.clone()),
            place,
            calls,
            workers: Vec::new(),
            count,
            limits,
            lasts: Duration::ZERO,
            operator,
            is_told_to_stop,
            weak: Vec::new(),
            ended: None,
        };
        let chains = redundancy::look(&drill.place.asker)?.chains;
        if chains == 0 {
            bail!(
                "no pool of this file system keeps copies: `ashlar pool copies default 2` has one keep them"
            );
        }
        if drill.wait_until_full(Instant::now(), SETTLED).is_none() {
            bail!(
                "not all copies are there, so nothing may fail now: see `ashlar chain list --short` and `ashlar copies list`"
            );
        }
        drill.weak = drill.without_copies()?;
        drill.make_directories(args.copies)?;
        Ok(drill)
    }

    /// Metadata servers that have no copies to go on with.
    fn without_copies(&self) -> Result<Vec<String>> {
        let nodes = self.place.asker.ask(&["node", "list", "--json"])?;
        let copies = self.place.asker.ask(&["copies", "list", "--json"])?;
        let copied = |name: &str| {
            copies.as_array().is_some_and(|all| {
                all.iter().any(|one| one["server"]["name"] == name && one["wanted"].as_u64() > Some(1))
            })
        };
        let nodes = nodes.as_array().cloned().unwrap_or_default();
        let names = nodes.iter().filter(|node| node["listening"].get("meta").is_some());
        let names = names.filter_map(|node| node["name"].as_str()).filter(|name| !copied(name));
        Ok(names.map(|name| format!("the metadata of {name} (`ashlar copies set {name} 2`)")).collect())
    }

    /// A directory of the drill's own, whose files have copies, with one for each worker in it.
    fn make_directories(&mut self, copies: u8) -> Result<()> {
        let name = format!("ashlar-drill-{:08x}", Env::os().entropy.next_u64() as u32);
        let [first, second] = self.place.mounts.each_ref().map(|mount| mount.join(&name));
        fs::create_dir(&first).with_context(|| format!("cannot make {}", shown(&first)))?;
        let program = std::env::current_exe().context("cannot find the ashlar binary")?;
        let mut command = std::process::Command::new(program);
        command.args(["layout", "set", "--copies", &copies.to_string()]).arg(&first);
        let output = command.output().context("cannot start ashlar")?;
        if !output.status.success() {
            let _ = fs::remove_dir(&first);
            bail!("{}", String::from_utf8_lossy(&output.stderr).trim());
        }
        for of in 0..self.count {
            let dir = first.join(format!("w{of}"));
            fs::create_dir(&dir).with_context(|| format!("cannot make {}", shown(&dir)))?;
        }
        let (last, deadline) = (second.join(format!("w{}", self.count - 1)), Instant::now() + SEEN_MAX);
        while !last.exists() {
            if Instant::now() >= deadline {
                let [one, other] = &self.place.mounts;
                bail!("{} and {} are not of the same file system", shown(one), shown(other));
            }
            std::thread::sleep(TURN);
        }
        self.dirs = Dirs([first, second]);
        self.workers =
            (0..self.count).map(|of| Worker::new(of, self.dirs.clone(), self.calls.clone())).collect();
        Ok(())
    }

    /// One failure; what could not be done is in what it tells.
    fn next(&mut self, failure: &'static Failure) -> Entry {
        if self.is_told_to_stop.load(Relaxed) {
            self.ended = Some("the drill was told to stop".into());
        }
        let why_not = match (&self.ended, &self.place.lab) {
            (Some(why), _) => Some(why.clone()),
            (None, Some(lab)) => emulate::why_not(lab, failure.means),
            (None, None) if self.operator.is_none() => {
                Some("it needs an operator, and there is no terminal".into())
            }
            (None, None) => None,
        };
        let entry = match why_not {
            Some(why) => Entry::not_run(failure, why),
            None => self.one(failure).unwrap_or_else(|error| {
                let trouble = format!("{error:#}");
                self.ended = Some(format!("the drill ended at {}", failure.name));
                Entry { failure, verdict: Verdict::Failed(vec![trouble]), outcome: None }
            }),
        };
        tell(&entry);
        entry
    }

    fn one(&mut self, failure: &'static Failure) -> Result<Entry> {
        if self.wait_until_full(Instant::now(), Duration::ZERO).is_none() {
            return Ok(Entry::not_run(failure, "not all copies were there before it"));
        }
        say(format_args!("{}: {}", failure.name, failure.title));
        self.calls.mark(failure.name, "load");
        let serving = redundancy::serves_most(&self.place.asker)?;
        let load = Load::start(std::mem::take(&mut self.workers))?;
        self.pause(self.calm());
        let mut outcome = Outcome { before: self.calls.take(), ..Outcome::default() };
        let watch = Watch::start(&self.place)?;
        let begun = Instant::now();
        self.calls.mark(failure.name, "begins");
        let right_since = if self.place.lab.is_some() {
            self.in_lab(failure, serving.as_deref(), &mut outcome)
        } else {
            match self.by_operator(failure, &mut outcome)? {
                Some(since) => since,
                None => {
                    self.workers = load.stop(self.limits.redundant_within);
                    let why = self.ended.clone().unwrap_or_else(|| "the operator left it out".into());
                    return Ok(Entry::not_run(failure, why));
                }
            }
        };
        outcome.lasted = right_since - begun;
        self.calls.mark(failure.name, "was put right");
        outcome.full_after = self.wait_until_full(right_since, SETTLED);
        self.pause(self.calm());
        outcome.is_stopped = self.is_told_to_stop.load(Relaxed);
        outcome.worst = watch.end();
        let workers = load.stop(self.limits.redundant_within);
        if workers.len() < self.count {
            (outcome.unfinished, outcome.unfinished_for) = self.calls.under_way();
            self.ended = Some(format!("calls of programs have not ended since {}", failure.name));
        }
        outcome.seen = self.calls.take();
        if let Some(why) = outcome.not_here {
            self.workers = workers;
            return Ok(Entry::not_run(failure, why));
        }
        (self.workers, outcome.verified) = self.verify(workers)?;
        Ok(Entry::of(failure, outcome, &self.limits))
    }

    /// Compares all files.
    pub fn verify(&mut self, workers: Vec<Worker>) -> Result<(Vec<Worker>, Verified)> {
        let (workers, verified) = verify(workers, &self.dirs, self.count, self.limits.redundant_within)?;
        if workers.len() < self.count {
            self.ended.get_or_insert_with(|| "files could not be compared".into());
        }
        Ok((workers, verified))
    }

    /// For how long nothing happens before a failure, and after it.
    fn calm(&self) -> Duration {
        (self.lasts / 4).max(Duration::from_secs(2))
    }

    /// Makes a failure and puts it right again; tells since when it was being put right.
    fn in_lab(&mut self, failure: &Failure, serving: Option<&str>, outcome: &mut Outcome) -> Instant {
        let lasts = failure.lasts(self.lasts);
        let is_told_to_stop = self.is_told_to_stop.clone();
        let Some(lab) = &mut self.place.lab else { return Instant::now() };
        let mut broken = Broken::new(lab);
        match emulate::make(&mut broken, failure.means, serving, lasts) {
            Ok(Made::Done(done)) => {
                outcome.done = done;
                pause(lasts, &is_told_to_stop);
            }
            Ok(Made::NotHere(why)) => outcome.not_here = Some(why),
            Err(error) => outcome.troubles.push(format!("it could not be made: {error:#}")),
        }
        let since = Instant::now();
        if let Err(error) = broken.put_right() {
            outcome.troubles.push(format!("it could not be put right: {error:#}"));
        }
        since
    }

    /// Has an operator do it; tells since when it was right again, or nothing if it was left out.
    fn by_operator(&mut self, failure: &Failure, outcome: &mut Outcome) -> Result<Option<Instant>> {
        let operator = self.operator.as_ref().ok_or_else(|| anyhow!("there is no operator"))?;
        match operator.has_it_happen(failure, &self.is_told_to_stop) {
            Ok(Answer::Done) => {}
            Ok(Answer::Skip) => return Ok(None),
            Ok(Answer::End) => {
                self.ended = Some("the operator ended the drill".into());
                return Ok(None);
            }
            // Whether it has happened nobody knows: what was seen is told.
            Err(error) => {
                outcome.troubles.push(format!("the operator has not said that it has happened: {error:#}"));
                return Ok(Some(Instant::now()));
            }
        }
        outcome.done = format!("an operator said to have done it: {}", failure.operator);
        self.pause(failure.lasts(self.lasts));
        if let Err(error) = operator.puts_it_right(failure, &self.is_told_to_stop) {
            outcome.troubles.push(format!("the operator has not said that it is right again: {error:#}"));
        }
        Ok(Some(Instant::now()))
    }

    pub fn pause(&self, most: Duration) {
        pause(most, &self.is_told_to_stop);
    }

    /// Waits until all copies are there and stay for so long; tells how long after `since` that was.
    pub fn wait_until_full(&self, since: Instant, settled: Duration) -> Option<Duration> {
        let mut full_at: Option<Instant> = None;
        loop {
            let looked = Instant::now();
            // Managers may be away, too.
            let is_full = redundancy::look(&self.place.asker).is_ok_and(|found| found.is_full());
            full_at = full_at.or(Some(looked)).filter(|_| is_full);
            if let Some(at) = full_at.filter(|at| at.elapsed() >= settled) {
                return Some(at.saturating_duration_since(since));
            }
            if since.elapsed() >= self.limits.redundant_within || self.is_told_to_stop.load(Relaxed) {
                return None;
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    fn report(&self, args: &DrillRunArgs, entries: Vec<Entry>) -> Report {
        let nodes = self.place.asker.ask(&["node", "list", "--json"]).unwrap_or_default();
        let [one, other] = &self.place.mounts;
        Report {
            cluster: self.place.cluster.clone(),
            place: self.place.name(),
            is_lab: self.place.lab.is_some(),
            version: env!("CARGO_PKG_VERSION"),
            at: Env::os().clock.now().utc(),
            nodes: nodes.as_array().into_iter().flatten().map(node_text).collect(),
            workers: self.count,
            copies: args.load.copies,
            mounts: if one == other { 1 } else { 2 },
            weak: self.weak.clone(),
            limits: self.limits,
            ledger: String::new(),
            ledger_trouble: None,
            entries,
        }
    }

    /// Removes the directory, unless there is something to be looked at.
    pub fn clear(&self, is_good: bool) {
        let [dir, _] = &self.dirs.0;
        if is_good {
            if let Err(error) = fs::remove_dir_all(dir) {
                eprintln!("ashlar: cannot remove {}: {error}", shown(dir));
            }
        } else {
            say(format_args!("what the drill has written is kept in {}", shown(dir)));
        }
    }
}

pub fn node_text(node: &Value) -> String {
    let roles: Vec<&str> = node["roles"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    format!("{} ({})", node["name"].as_str().unwrap_or_default(), roles.join(" "))
}

fn pause(most: Duration, is_told_to_stop: &AtomicBool) {
    let deadline = Instant::now() + most;
    while Instant::now() < deadline && !is_told_to_stop.load(Relaxed) {
        std::thread::sleep(TURN);
    }
}

/// A line for whoever watches.
fn tell(entry: &Entry) {
    match (&entry.verdict, &entry.outcome) {
        (Verdict::NotRun(why), _) => say(format_args!("{}: not run: {why}", entry.failure.name)),
        (_, None) => say(format_args!("{}: {}", entry.failure.name, entry.word())),
        (verdict, Some(outcome)) => {
            let reasons = match verdict {
                Verdict::Failed(reasons) => format!(": {}", reasons.join("; ")),
                _ => String::new(),
            };
            let back =
                outcome.full_after.map_or("never".into(), |after| format!("{:.1} s", after.as_secs_f64()));
            say(format_args!(
                "{}: {}{reasons} (longest call {:.1} s of {}, {} failed, {} files compared, all copies back after {back})",
                entry.failure.name,
                entry.word(),
                outcome.longest_stall().as_secs_f64(),
                outcome.seen.histogram.total(),
                outcome.seen.failed.count,
                outcome.verified.files,
            ));
        }
    }
}

/// Looks at the copies all the time: whoever waits for a failure to last cannot wait for an answer.
pub struct Watch {
    is_over: Arc<AtomicBool>,
    worst: Arc<Mutex<Redundancy>>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    pub fn start(place: &Place) -> Result<Watch> {
        let mut watch = Watch { is_over: Arc::default(), worst: Arc::default(), thread: None };
        let (is_over, worst, asker) = (watch.is_over.clone(), watch.worst.clone(), place.asker.clone());
        let look = move || {
            while !is_over.load(Relaxed) {
                if let Ok(found) = redundancy::look(&asker) {
                    let mut worst = worst.lock();
                    *worst = worst.worse(found);
                }
                std::thread::sleep(LOOK_EVERY);
            }
        };
        let thread = std::thread::Builder::new().name("ashlar-watch".into()).spawn(look);
        watch.thread = Some(thread.context("cannot start a thread")?);
        Ok(watch)
    }

    /// The worst that was seen. It looks no more then, and runs nothing.
    pub fn end(self) -> Redundancy {
        let worst = Arc::clone(&self.worst);
        drop(self);
        // Nobody else has it any more.
        Arc::into_inner(worst).map(Mutex::into_inner).unwrap_or_default()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.is_over.store(true, Relaxed);
        // For as long as its last look may take.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}
