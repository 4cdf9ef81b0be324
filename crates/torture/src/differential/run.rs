//! Running steps on both sides and comparing as they go.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, bail};

use super::allowed::{moves_agree, outcomes_agree};
use super::generate::{Generator, users};
use super::observe::{Observation, Outcome};
use super::op::Step;
use super::side::Side;
use super::tree::TreeCompare;
use crate::rng::split_mix;
use crate::sys::attr::fstat;
use crate::sys::cred::can_switch;
use crate::sys::data;

/// What a run works on and how thoroughly.
#[derive(Clone, Debug)]
pub struct Settings {
    /// A directory on the reference file system.
    pub left: PathBuf,
    /// A directory on the file system under test.
    pub right: PathBuf,
    /// The same through further mounts: each step goes through the next one.
    pub right_also: Vec<PathBuf>,
    /// Act as several users, not only as root.
    pub users: bool,
    /// Leave `O_TMPFILE` out.
    pub without_tmpfile: bool,
    /// Steps between two comparisons of the whole trees.
    pub compare_every: usize,
    /// The longest a single step may take.
    pub stall: Duration,
}

/// How the sides came to differ.
#[derive(Clone, Debug)]
pub struct Divergence {
    /// Index of the last step done.
    pub at: usize,
    /// What kind of difference it is; a shorter sequence must lead to the same kind.
    pub class: Class,
    /// What was expected and what was seen.
    pub what: String,
}

/// The kinds of difference; the operation is named where it matters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Class {
    /// Two answers to one call.
    Outcome(&'static str),
    /// Times that moved on one side only.
    Times(&'static str),
    /// The trees.
    Tree,
    /// No answer in time.
    Hang,
}

impl fmt::Display for Divergence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "after step {}: {}", self.at, self.what)
    }
}

/// Operations between two lines of progress.
const PROGRESS_OPS: u64 = 100_000;

/// How often each operation succeeded and failed: a generator whose operations mostly fail tests little.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    succeeded: BTreeMap<&'static str, u64>,
    failed: BTreeMap<&'static str, BTreeMap<String, u64>>,
}

impl Tally {
    /// Counts one step; true when it succeeded.
    fn count(&mut self, step: &Step, outcome: &Outcome) -> bool {
        let reason = match outcome {
            Outcome::Failed(errno) => format!("{errno:?}"),
            Outcome::Empty => "no file".to_owned(),
            _ => {
                *self.succeeded.entry(step.op.verb()).or_default() += 1;
                return true;
            }
        };
        *self.failed.entry(step.op.verb()).or_default().entry(reason).or_default() += 1;
        false
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (verb, count) in &self.succeeded {
            write!(f, "{verb:24} {count:9} succeeded, failed:")?;
            for (reason, count) in self.failed.get(verb).into_iter().flatten() {
                write!(f, " {reason} {count}")?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

/// Where steps come from.
pub trait Source {
    /// The next step, or `None` at the end.
    fn next(&mut self) -> Option<Step>;
    /// Told about each step that succeeded.
    fn learn(&mut self, step: &Step);
}

/// Steps recorded earlier.
impl Source for std::slice::Iter<'_, Step> {
    fn next(&mut self) -> Option<Step> {
        Iterator::next(self).cloned()
    }

    fn learn(&mut self, _step: &Step) {}
}

/// Random steps, remembered (LIMIT: one epoch) so that a failure can be replayed and shortened.
struct Random {
    generator: Generator,
    left: usize,
    takes_turns: bool,
    drawn: Vec<Step>,
}

impl Source for Random {
    fn next(&mut self) -> Option<Step> {
        self.left = self.left.checked_sub(1)?;
        let mut step = self.generator.step();
        if self.takes_turns {
            step.op = step.op.with_locks_of_descriptions();
        }
        self.drawn.push(step.clone());
        Some(step)
    }

    fn learn(&mut self, step: &Step) {
        self.generator.learn(&step.op);
    }
}

/// The two working directories of one epoch, removed at its end.
#[derive(Debug)]
struct Arena {
    left: PathBuf,
    right: PathBuf,
    right_also: Vec<PathBuf>,
}

impl Arena {
    fn create(settings: &Settings) -> anyhow::Result<Self> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let name = format!("differential-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let arena = Self {
            left: settings.left.join(&name),
            right: settings.right.join(&name),
            right_also: settings.right_also.iter().map(|dir| dir.join(&name)).collect(),
        };
        for side in [&arena.left, &arena.right] {
            fs::create_dir(side).with_context(|| format!("create {}", side.display()))?;
            fs::set_permissions(side, fs::Permissions::from_mode(0o777))?;
        }
        for other in &arena.right_also {
            // It is there already, unless this is another directory.
            fs::create_dir_all(other).with_context(|| format!("create {}", other.display()))?;
        }
        Ok(arena)
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        let sides = [&self.left, &self.right].into_iter().chain(&self.right_also);
        // Through a second mount a directory is gone when it was removed through the first.
        for side in sides.filter(|side| side.exists()) {
            if let Err(error) = fs::remove_dir_all(side) {
                eprintln!("cannot remove {}: {error}", side.display());
            }
        }
    }
}

/// Whether two changes right after each other get different change times on the file system of `directory`.
fn has_fine_times(directory: &Path) -> anyhow::Result<bool> {
    use std::os::unix::ffi::OsStrExt;
    let path = directory.join(".fine-times");
    let flags = libc::O_CREAT | libc::O_RDWR;
    let fd = data::openat(data::CWD, path.as_os_str().as_bytes(), flags, 0o600)?;
    let mut times = Vec::new();
    for _ in 0..50 {
        data::pwrite(fd.as_fd(), b"x", 0)?;
        times.push(fstat(fd.as_fd())?.ctime);
    }
    fs::remove_file(path)?;
    times.dedup();
    Ok(times.len() == 50)
}

/// Applies `steps` to fresh directories on both sides; `Ok(Err(..))` is a difference, an outer error a broken set-up.
/// Returns the number of comparisons made.
///
/// # Errors
/// When not run as root, or the directories cannot be made.
pub fn run_steps(
    settings: &Settings,
    source: &mut impl Source,
    tally: &mut Tally,
) -> anyhow::Result<Result<u64, Divergence>> {
    if !can_switch() {
        // Steps use `..` and absolute paths; only root can confine them to the working directories.
        bail!("the differential test must run as root");
    }
    let arena = Arena::create(settings)?;
    let fine = has_fine_times(&settings.left)?;
    let table = users(settings.users);
    let left = Side::start("left", arena.left.clone(), &[], table.clone(), settings)?;
    let right = Side::start("right", arena.right.clone(), &arena.right_also, table, settings)?;
    let mut compared = 0;
    let mut last = 0;
    for at in 0.. {
        let Some(step) = source.next() else { break };
        last = at;
        left.send(&step)?;
        right.send(&step)?;
        let answers = left.receive().and_then(|l| Ok((l, right.receive()?)));
        let (l, r) = match answers {
            Ok(pair) => pair,
            Err(hang) => {
                let what = format!("{hang:#}; step was {step:?}");
                return Ok(Err(Divergence { at, class: Class::Hang, what }));
            }
        };
        if let Some((class, what)) = difference(&step, fine, &l, &r) {
            return Ok(Err(Divergence { at, class, what }));
        }
        if tally.count(&step, &l.outcome) {
            source.learn(&step);
        }
        compared += 1;
        if (at + 1) % settings.compare_every == 0 {
            match compare_trees(&arena) {
                Ok(objects) => compared += objects,
                Err(what) => return Ok(Err(Divergence { at, class: Class::Tree, what })),
            }
        }
    }
    // Closing every file releases the unlinked ones; what remains must still agree.
    drop((left, right));
    Ok(compare_trees(&arena).map(|objects| compared + objects).map_err(|what| Divergence {
        at: last,
        class: Class::Tree,
        what,
    }))
}

fn compare_trees(arena: &Arena) -> Result<u64, String> {
    let mut sum = 0;
    for right in std::iter::once(&arena.right).chain(&arena.right_also) {
        let (differences, objects) = TreeCompare::run(&arena.left, right)?;
        if !differences.is_empty() {
            return Err(format!(
                "the trees differ, seen at {}:\n    {}",
                right.display(),
                differences.join("\n    ")
            ));
        }
        sum += objects;
    }
    Ok(sum)
}

fn difference(step: &Step, fine: bool, left: &Observation, right: &Observation) -> Option<(Class, String)> {
    let verb = step.op.verb();
    if !outcomes_agree(&step.op, &left.outcome, &right.outcome) {
        let shown = show_outcomes(&left.outcome, &right.outcome);
        return Some((Class::Outcome(verb), format!("{step:?}\n    {shown}")));
    }
    let mut pairs = left.moved.iter().zip(&right.moved).enumerate();
    let (index, (l, r)) = pairs.find(|(_, (l, r))| !moves_agree(&step.op, fine, **l, **r))?;
    let paths = step.op.touched();
    let object = match paths.get(index) {
        Some(path) => format!("{path:?}"),
        None => "the open file".to_owned(),
    };
    let outcome = brief(&left.outcome);
    let what = format!("{step:?}\n    outcome {outcome} on both; {object} moved: left {l:?}, right {r:?}");
    Some((Class::Times(verb), what))
}

fn brief(outcome: &Outcome) -> String {
    let text = format!("{outcome:?}");
    match text.char_indices().nth(200) {
        Some((cut, _)) => format!("{}...", &text[..cut]),
        None => text,
    }
}

fn show_outcomes(left: &Outcome, right: &Outcome) -> String {
    if let (Outcome::Bytes(l), Outcome::Bytes(r)) = (left, right) {
        let first = l.iter().zip(r).position(|(l, r)| l != r);
        let at = first.unwrap_or(l.len().min(r.len()));
        let piece = |bytes: &[u8]| bytes[at.min(bytes.len())..(at + 8).min(bytes.len())].to_vec();
        return format!(
            "read: left {} bytes, right {} bytes, first difference at {at}: left {:02x?}, right {:02x?}",
            l.len(),
            r.len(),
            piece(l),
            piece(r)
        );
    }
    format!("left {}\n    right {}", brief(left), brief(right))
}

/// One epoch that failed: its seed, its steps up to the failure, and the difference.
#[derive(Debug)]
pub struct Failure {
    /// Seed of the epoch: `--seed` of a run that fails in its first epoch.
    pub seed: u64,
    /// The steps that lead to it.
    pub steps: Vec<Step>,
    /// The difference.
    pub divergence: Divergence,
}

/// Runs `ops` random steps in epochs of `epoch_ops`; stops at the first difference.
/// Returns the number of comparisons made, or the failure.
///
/// # Errors
/// When not run as root, or the directories cannot be made.
pub fn run_random(
    settings: &Settings,
    seed: u64,
    ops: u64,
    epoch_ops: u64,
    tally: &mut Tally,
) -> anyhow::Result<Result<u64, Failure>> {
    let mut done = 0;
    let mut compared = 0;
    let mut epoch_seed = seed;
    while done < ops {
        let count = epoch_ops.min(ops - done);
        let mut source = Random {
            generator: Generator::new(epoch_seed, users(settings.users).len())
                .without_tmpfile(settings.without_tmpfile),
            left: count as usize,
            takes_turns: !settings.right_also.is_empty(),
            drawn: Vec::new(),
        };
        match run_steps(settings, &mut source, tally)? {
            Ok(comparisons) => compared += comparisons,
            Err(divergence) => {
                return Ok(Err(Failure { seed: epoch_seed, steps: source.drawn, divergence }));
            }
        }
        done += count;
        epoch_seed = split_mix(epoch_seed);
        if done / PROGRESS_OPS != (done - count) / PROGRESS_OPS {
            println!("{done} operations");
        }
    }
    Ok(Ok(compared))
}
