//! The programs of the papers, run with the same parameters as our own workloads, so that their figures stand beside ours.
//!
//! | program | parts | what it does not tell |
//! |---|---|---|
//! | fio | content | nothing |
//! | iozone | content but the shared file and queues | latencies |
//! | ior | sequential content | latencies |
//! | mdtest | metadata but utime | latencies |
//!
//! Files that are read are laid out, and caches emptied, by us; each program only makes the load that is timed, and times it itself.

mod fio;
mod ior;
mod iozone;
mod mdtest;
mod process;

use crate::data::{Action, DataFiles, DataPlan, Order};
use crate::figure::{Caution, Figure};
use crate::metadata::{MetadataPlan, Step};
use crate::place::Place;
use crate::run::{Part, Tool, Work};
use crate::workload::Rules;
use crate::{BenchError, cache};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::Instant;

/// Programs run in the place: its path may have what they take for something else (a colon separates names for fio).
const HERE: &str = ".";

/// What a program says it did.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Claim {
    operations: u64,
    bytes: u64,
    seconds: f64,
    /// 0 where it does not tell.
    p50_us: f64,
    p99_us: f64,
    max_us: f64,
}

impl Claim {
    fn figure(&self, what: &str, threads: usize, cautions: Vec<Caution>) -> Figure {
        Figure {
            what: what.to_owned(),
            threads,
            repetition: 1,
            operations: self.operations,
            bytes: self.bytes,
            seconds: self.seconds.max(1e-9),
            p50_us: self.p50_us,
            p99_us: self.p99_us,
            max_us: self.max_us,
            cautions,
        }
    }
}

/// Whether `tool` can do what `part` is.
pub fn does(tool: Tool, part: Part) -> bool {
    match tool {
        Tool::Ashlar => true,
        Tool::Fio => !part.is_metadata(),
        Tool::Iozone => !part.is_metadata() && !part.is_shared() && part.depth() == 1,
        Tool::Ior => matches!(part, Part::SequentialNN | Part::SequentialN1),
        Tool::Mdtest => part.is_metadata(),
    }
}

/// Whether `tool` is installed, with what it needs to start.
///
/// # Errors
/// [`BenchError::Unfit`] with what is missing.
pub fn check(tool: Tool) -> Result<(), BenchError> {
    let needed: &[&str] = match tool {
        Tool::Ashlar => &[],
        Tool::Fio => &["fio"],
        Tool::Iozone => &["iozone"],
        Tool::Ior => &["ior", "mpirun"],
        Tool::Mdtest => &["mdtest", "mpirun"],
    };
    match needed.iter().find(|program| !process::is_installed(program)) {
        None => Ok(()),
        Some(missing) => Err(BenchError::Unfit(format!(
            "--with {tool}: the program `{missing}` is not installed (not in PATH); install it or leave {tool} out"
        ))),
    }
}

/// The command lines of all phases, with `DIR` for the directory; empty if `tool` does not do it.
pub fn commands(tool: Tool, work: &Work) -> Vec<String> {
    let folder = Path::new("DIR");
    let lines: Vec<Vec<String>> = match work {
        Work::Data(plan) => {
            ACTIONS.iter().map(|action| data_arguments(tool, plan, folder, *action)).collect()
        }
        Work::Metadata(plan) if tool == Tool::Mdtest => {
            mdtest::steps().map(|step| mdtest::arguments(plan, folder, step)).collect()
        }
        Work::Metadata(_) => Vec::new(),
    };
    let quoted = |word: &String| if word.contains('$') { format!("'{word}'") } else { word.clone() };
    let lines = lines.iter().filter(|line| !line.is_empty());
    lines.map(|line| line.iter().map(quoted).collect::<Vec<_>>().join(" ")).collect()
}

const ACTIONS: [Action; 2] = [Action::Write, Action::Read];

/// The command line of one phase in `folder`; empty if `tool` does not do it.
fn data_arguments(tool: Tool, plan: &DataPlan, folder: &Path, action: Action) -> Vec<String> {
    match tool {
        Tool::Fio => fio::arguments(plan, folder, action),
        Tool::Iozone => iozone::arguments(plan, folder, action),
        Tool::Ior => ior::arguments(plan, folder, action),
        Tool::Mdtest | Tool::Ashlar => Vec::new(),
    }
}

/// Hears of each phase, and when its program was started.
type Tell<'a> = &'a dyn Fn(&Figure, Instant);

/// Has `tool` do `work` in `place` once; `tell` hears of each phase right after its end, and when its program was started.
///
/// # Errors
/// What a call answers; [`BenchError::Unfit`] with what the program said when it failed or was not understood; [`BenchError::Stopped`].
pub fn run(
    tool: Tool,
    work: &Work,
    place: &Place,
    rules: Rules,
    cancel: &AtomicBool,
    tell: Tell<'_>,
) -> Result<(), BenchError> {
    match work {
        Work::Data(plan) => data(tool, plan, place, rules, cancel, tell),
        Work::Metadata(plan) => metadata(plan, place, rules, cancel, tell),
    }
}

fn data(
    tool: Tool,
    plan: &DataPlan,
    place: &Place,
    rules: Rules,
    cancel: &AtomicBool,
    tell: Tell<'_>,
) -> Result<(), BenchError> {
    place.check_room(plan.bytes(), plan.threads as u64)?;
    let files = DataFiles::new(plan, place.path(), cancel);
    let is_random = plan.order != Order::Sequential;
    if is_random {
        files.lay_out()?;
        files.evict()?;
    }
    for action in ACTIONS {
        if rules.drops_caches {
            cache::drop_all();
        }
        let cached = if action == Action::Read { evict(place)? } else { 0.0 };
        let arguments = data_arguments(tool, plan, Path::new(HERE), action);
        let begun = Instant::now();
        let said = process::run(&arguments, place.path(), cancel)?;
        let claim = match tool {
            Tool::Fio => fio::claim(&said, action),
            Tool::Iozone => iozone::claim(&said, plan, action),
            _ => ior::claim(&said, plan, action),
        };
        let claim = claim.ok_or_else(|| not_understood(tool, &said))?;
        let mut cautions = Vec::new();
        if action == Action::Read && !plan.is_direct && cached > crate::workload::CACHED_PART_MAX {
            cautions.push(Caution::WasCached(cached));
        }
        if plan.bytes() < rules.enough_bytes() {
            cautions.push(Caution::FewBytes);
        }
        tell(&claim.figure(plan.name(action), plan.threads, cautions), begun);
    }
    clear(place)
}

/// What is there, by whatever name a program gave it.
fn entries(place: &Place) -> Result<Vec<PathBuf>, BenchError> {
    let entries = fs::read_dir(place.path()).and_then(Iterator::collect::<Result<Vec<fs::DirEntry>, _>>);
    let entries = entries.map_err(BenchError::io("list", place.path()))?;
    Ok(entries.into_iter().map(|entry| entry.path()).collect())
}

/// As [`DataFiles::evict`].
fn evict(place: &Place) -> Result<f64, BenchError> {
    let mut worst: f64 = 0.0;
    for path in entries(place)? {
        worst = worst.max(cache::evict(&path)?);
    }
    Ok(worst)
}

/// Removes what a program has left in the place, which is ours.
fn clear(place: &Place) -> Result<(), BenchError> {
    for path in entries(place)? {
        let removed = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        removed.map_err(BenchError::io("remove", &path))?;
    }
    Ok(())
}

fn metadata(
    plan: &MetadataPlan,
    place: &Place,
    rules: Rules,
    cancel: &AtomicBool,
    tell: Tell<'_>,
) -> Result<(), BenchError> {
    place.check_room(plan.bytes(), plan.files())?;
    for step in mdtest::steps() {
        let has_dropped = rules.drops_caches && step != Step::Create && cache::drop_all();
        let begun = Instant::now();
        let said = process::run(&mdtest::arguments(plan, Path::new(HERE), step), place.path(), cancel)?;
        let claim = mdtest::claim(&said, plan, step).ok_or_else(|| not_understood(Tool::Mdtest, &said))?;
        // Whoever looks at a neighbour's files looks at files of this machine.
        let looks = matches!(step, Step::Stat | Step::Read);
        let cautions = if looks && !has_dropped { vec![Caution::NamesWereKnown] } else { Vec::new() };
        tell(&claim.figure(step.name(), plan.threads, cautions), begun);
    }
    clear(place)
}

fn not_understood(tool: Tool, said: &str) -> BenchError {
    let last: Vec<&str> = said.lines().rev().filter(|line| !line.trim().is_empty()).take(3).collect();
    let last: Vec<&str> = last.into_iter().rev().collect();
    BenchError::Unfit(format!(
        "{tool} printed no figures that are understood here; its last lines: {}",
        last.join(" | ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::{Amount, Point};
    use std::cell::RefCell;

    fn point(part: Part) -> Point {
        let amount = Amount { bytes: 4 << 20, files: 20, seconds: 0.3 };
        Point { part, threads: 2, amount, expected_seconds: 1.0 }
    }

    /// Has `tool` do `part` in a place whose path has what programs take for something else, and looks that nothing is left.
    fn done(tool: Tool, part: Part) -> Vec<Figure> {
        let root = crate::test_disk::folder();
        // A colon separates names for fio.
        let odd = root.path().join("a:b c");
        fs::create_dir(&odd).unwrap();
        let place = Place::make(&odd, false).unwrap();
        let rules = Rules { repetitions: 1, drops_caches: false, memory_bytes: 1 << 40 };
        let told = RefCell::new(Vec::new());
        let begun = Instant::now();
        let tell = |figure: &Figure, since: Instant| {
            assert!(since >= begun && since.elapsed().as_secs_f64() > 0.0);
            told.borrow_mut().push(figure.clone());
        };
        run(tool, &point(part).work(false), &place, rules, &AtomicBool::new(false), &tell).unwrap();
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 0, "{tool}, {part}");
        told.into_inner()
    }

    #[test]
    fn fio_does_the_same_and_leaves_nothing() {
        if check(Tool::Fio).is_err() {
            eprintln!("skipped: fio is not installed");
            return;
        }
        for part in [Part::SequentialNN, Part::SequentialN1, Part::Random4kDeep, Part::Random1k] {
            let told = done(Tool::Fio, part);
            assert_eq!(told.len(), 2, "{part}");
            for figure in &told {
                assert_eq!(figure.cautions, [Caution::FewBytes], "{part}");
                assert!(
                    figure.seconds > 0.0 && figure.p50_us > 0.0 && figure.p99_us >= figure.p50_us,
                    "{figure:?}"
                );
            }
            if !part.is_random() {
                assert!(
                    told.iter().all(|figure| figure.bytes == 8 << 20 && figure.operations == 8),
                    "{told:?}"
                );
            }
        }
    }

    #[test]
    fn iozone_ior_and_mdtest_do_the_same_and_leave_nothing() {
        for (tool, parts) in [
            (Tool::Iozone, &[Part::SequentialNN, Part::Random4k][..]),
            (Tool::Ior, &[Part::SequentialNN, Part::SequentialN1]),
            (Tool::Mdtest, &[Part::Metadata0, Part::Metadata3kShared]),
        ] {
            if check(tool).is_err() {
                eprintln!("skipped: {tool} is not installed");
                continue;
            }
            assert_ne!(crate::inventory::version_of(tool).unwrap(), "it does not tell");
            for part in parts {
                let told = done(tool, *part);
                let phases = if part.is_metadata() { mdtest::steps().count() } else { ACTIONS.len() };
                assert_eq!(told.len(), phases, "{tool}, {part}");
                let wanted = if part.is_metadata() {
                    40
                } else {
                    (8 << 20) / told[0].bytes.div_ceil(told[0].operations)
                };
                for figure in &told {
                    assert_eq!(figure.operations, wanted, "{figure:?}");
                    assert!(
                        figure.seconds > 0.0 && figure.seconds < 60.0 && figure.p50_us == 0.0,
                        "{figure:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_program_that_fails_or_is_missing_is_told_with_what_it_said() {
        let root = tempfile::tempdir().unwrap();
        let go_on = AtomicBool::new(false);
        let sh = |script: &str| ["sh", "-c", script].map(str::to_owned);
        let failed =
            process::run(&sh("echo first; echo it broke >&2; exit 3"), root.path(), &go_on).unwrap_err();
        assert!(failed.to_string().contains("it broke") && failed.to_string().contains("3"), "{failed}");
        let stopped = process::run(&sh("sleep 100"), root.path(), &AtomicBool::new(true));
        assert!(matches!(stopped, Err(BenchError::Stopped)));
        assert!(!process::is_installed("no-such-program-anywhere"));
    }

    #[test]
    fn each_part_is_done_by_those_who_can() {
        assert!(does(Tool::Fio, Part::SequentialN1) && !does(Tool::Fio, Part::Metadata0));
        assert!(does(Tool::Mdtest, Part::Metadata4kShared) && !does(Tool::Mdtest, Part::Random4k));
        assert!(does(Tool::Iozone, Part::Random4k) && !does(Tool::Iozone, Part::Random4kDeep));
        assert!(does(Tool::Ior, Part::SequentialN1) && !does(Tool::Ior, Part::Random1k));
        let lines = commands(Tool::Fio, &point(Part::Random4kDeep).work(true));
        let [write, read] = lines.as_slice() else { panic!("{lines:?}") };
        assert!(write.starts_with("fio ") && write.contains("--rw=randwrite "), "{write}");
        assert!(read.contains("'--filename_format=data.$jobnum'"), "{read}");
        assert!(commands(Tool::Mdtest, &point(Part::Random4k).work(true)).is_empty());
        assert_eq!(commands(Tool::Mdtest, &point(Part::Metadata0).work(true)).len(), 4);
        assert!(commands(Tool::Fio, &point(Part::Metadata0).work(true)).is_empty());
    }
}
