//! The programs must find errors. Each test plants one in a directory that is otherwise right and expects it to be named.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use ashlar_torture::differential::generate::Generator;
use ashlar_torture::differential::op::Step;
use ashlar_torture::differential::run::{Class, Settings, Source, Tally, run_steps};
use ashlar_torture::ledger::block::{BLOCK_BYTES, BlockId};
use ashlar_torture::ledger::expect::Mode;
use ashlar_torture::ledger::verify::{Tolerance, verify};
use ashlar_torture::ledger::writer::{Ending, Job, run as write};
use ashlar_torture::report::Report;

/// A tree written by one writer, with its ledger.
struct Written {
    directory: tempfile::TempDir,
}

impl Written {
    fn new(mode: Mode) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let (tree, ledgers) = (directory.path().join("tree"), directory.path().join("ledgers"));
        fs::create_dir(&tree).expect("tree");
        fs::create_dir(&ledgers).expect("ledgers");
        let job = Job { tree, ledgers, writer: 0, seed: 5, ops_max: 600, mode };
        let ending = write(&job, &AtomicBool::new(false)).expect("the ledger works");
        assert!(matches!(ending, Ending::Finished { .. }), "{ending:?}");
        Self { directory }
    }

    fn verify(&self, mode: Mode) -> Report {
        let (tree, ledgers) = (self.directory.path().join("tree"), self.directory.path().join("ledgers"));
        verify(&tree, &ledgers, 1, mode, Tolerance::None, &mut 0).expect("the ledger is readable")
    }

    /// A file with at least two blocks.
    fn victim(&self) -> PathBuf {
        let mut found = Vec::new();
        collect(&self.directory.path().join("tree"), &mut found);
        found.sort();
        found
            .into_iter()
            .find(|path| path.metadata().expect("stat").len() >= 2 * BLOCK_BYTES as u64)
            .expect("a file")
    }
}

fn collect(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).expect("readable") {
        let path = entry.expect("an entry").path();
        if path.is_dir() { collect(&path, found) } else { found.push(path) }
    }
}

fn fails_with(report: &Report, text: &str) {
    assert!(
        report.failures().iter().any(|failure| failure.contains(text)),
        "no failure says {text:?}: {report}"
    );
}

#[test]
fn an_untouched_tree_holds_all_promises() {
    for mode in [Mode::Returned, Mode::Fsynced] {
        let report = Written::new(mode).verify(mode);
        assert_eq!(report.failed(), 0, "{report}");
        assert!(report.passed() > 100, "{report}");
    }
}

#[test]
fn a_lost_file_is_found() {
    let written = Written::new(Mode::Returned);
    fs::remove_file(written.victim()).expect("unlink");
    fails_with(&written.verify(Mode::Returned), "is lost");
}

#[test]
fn a_file_that_was_never_made_is_found() {
    let written = Written::new(Mode::Returned);
    fs::write(written.directory.path().join("tree/w0/f9999"), b"").expect("write");
    fails_with(&written.verify(Mode::Returned), "never made");
}

#[test]
fn a_second_name_left_by_half_a_rename_is_found() {
    let written = Written::new(Mode::Returned);
    let victim = written.victim();
    fs::copy(&victim, victim.with_file_name("r9998")).expect("copy");
    assert!(written.verify(Mode::Returned).failed() > 0);
}

#[test]
fn damaged_stale_and_misplaced_blocks_are_found() {
    let block = |path: &Path, bytes: &[u8]| {
        use std::os::unix::fs::FileExt;
        fs::File::options().write(true).open(path).expect("open").write_all_at(bytes, 4096).expect("write");
    };
    let written = Written::new(Mode::Returned);
    block(&written.victim(), b"garbage");
    fails_with(&written.verify(Mode::Returned), "Damaged");
    let written = Written::new(Mode::Returned);
    let stale = BlockId { writer: 0, object: 2, index: 1, version: 999_999 }.encode();
    block(&written.victim(), &stale);
    assert!(written.verify(Mode::Returned).failed() > 0);
    let written = Written::new(Mode::Returned);
    let victim = written.victim();
    let other = fs::read(&victim).expect("read");
    block(&victim, &other[..BLOCK_BYTES]);
    assert!(written.verify(Mode::Returned).failed() > 0);
}

#[test]
fn a_cut_file_is_found() {
    let written = Written::new(Mode::Returned);
    fs::File::options().write(true).open(written.victim()).expect("open").set_len(4096).expect("cut");
    fails_with(&written.verify(Mode::Returned), "bytes; expected");
}

/// Random steps; before one of them something changes behind the back of the right side.
struct Saboteur {
    generator: Generator,
    left: u32,
    sabotage_at: u32,
    right: PathBuf,
}

impl Source for Saboteur {
    fn next(&mut self) -> Option<Step> {
        self.left = self.left.checked_sub(1)?;
        if self.left == self.sabotage_at {
            let arena =
                fs::read_dir(&self.right).expect("readable").next().expect("one epoch").expect("an entry");
            fs::write(arena.path().join("planted"), b"x").expect("plant");
        }
        Some(self.generator.step())
    }

    fn learn(&mut self, step: &Step) {
        self.generator.learn(&step.op);
    }
}

fn settings(left: &Path, right: &Path) -> Settings {
    Settings {
        left: left.to_owned(),
        right: right.to_owned(),
        right_also: Vec::new(),
        users: false,
        without_tmpfile: false,
        compare_every: 100,
        stall: Duration::from_secs(60),
    }
}

#[test]
fn a_file_that_appears_on_one_side_only_is_found() {
    if !ashlar_torture::sys::cred::can_switch() {
        println!("SKIPPED: needs root");
        return;
    }
    let (left, right) = (tempfile::tempdir().expect("left"), tempfile::tempdir().expect("right"));
    let mut source = Saboteur {
        generator: Generator::new(4, 1),
        left: 300,
        sabotage_at: 20,
        right: right.path().to_owned(),
    };
    let settings = settings(left.path(), right.path());
    let divergence = run_steps(&settings, &mut source, &mut Tally::default())
        .expect("set up")
        .expect_err("the planted file must be found");
    assert!(divergence.what.contains("planted") || divergence.class != Class::Tree, "{divergence}");
}

#[test]
fn equal_sides_stay_equal_over_thousands_of_steps() {
    if !ashlar_torture::sys::cred::can_switch() {
        println!("SKIPPED: needs root");
        return;
    }
    let (left, right) = (tempfile::tempdir().expect("left"), tempfile::tempdir().expect("right"));
    let mut source = Saboteur {
        generator: Generator::new(9, 1),
        left: 3000,
        sabotage_at: u32::MAX,
        right: PathBuf::new(),
    };
    let result = run_steps(&settings(left.path(), right.path()), &mut source, &mut Tally::default());
    assert!(result.expect("set up").is_ok());
}

/// Runs `ashlar-torture` and returns what it printed; it must have failed.
fn finds(arguments: &[&str]) -> String {
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_ashlar-torture"))
        .args(arguments)
        .output()
        .expect("the program starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(!output.status.success(), "{arguments:?} found nothing: {text}");
    text
}

#[test]
fn every_litmus_program_finds_a_client_with_an_old_copy() {
    if !ashlar_torture::sys::cred::can_switch() {
        println!("SKIPPED: needs root");
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let text = finds(&["litmus", "--stale", "--runs", "2000", "--dir", &directory.path().to_string_lossy()]);
    let rows = ashlar_torture::litmus::table::rows().count();
    assert!(text.lines().any(|line| line == format!("0 passed, {rows} failed")), "{text}");
    // All by an outcome that the row forbids, none because a call failed.
    let forbidden = text.lines().filter(|line| line.contains(": forbidden: ")).count();
    let shown = text.lines().filter(|line| line.starts_with("FAILED: ")).count();
    assert!(forbidden == shown && shown > 40, "{text}");
    let weaker = ["litmus", "--close-to-open", "--stale", "--runs", "2000", "--dir"];
    let dir = directory.path().to_string_lossy();
    let text = finds(&[&weaker[..], &[&dir]].concat());
    let rows = ashlar_torture::litmus::table::close_to_open_rows().count();
    assert!(text.lines().any(|line| line == format!("0 passed, {rows} failed")), "{text}");
}

#[test]
fn two_directories_that_are_not_one_are_found_by_their_history() {
    let (one, other) = (tempfile::tempdir().expect("one"), tempfile::tempdir().expect("other"));
    let (one, other) = (one.path().to_string_lossy(), other.path().to_string_lossy());
    let text = finds(&["linear", "--histories", "50", "--dir", &one, "--also-dir", &other]);
    assert!(text.contains("there is no order of these calls"), "{text}");
}

#[test]
fn locks_that_two_have_at_a_time_are_found() {
    let (one, other) = (tempfile::tempdir().expect("one"), tempfile::tempdir().expect("other"));
    let (one, other) = (one.path().to_string_lossy(), other.path().to_string_lossy());
    let text = finds(&["pass-locks", "--turns", "50", "--dir", &one, "--also-dir", &other]);
    // Which of the two is seen first is up to the scheduler.
    let signs = ["passed on before it was let go", "was given to somebody else"];
    assert!(signs.iter().any(|sign| text.contains(sign)), "{text}");
}

#[test]
fn a_side_that_takes_turns_between_directories_that_are_not_one_is_found() {
    if !ashlar_torture::sys::cred::can_switch() {
        println!("SKIPPED: needs root");
        return;
    }
    let (left, right, other) = (
        tempfile::tempdir().expect("left"),
        tempfile::tempdir().expect("right"),
        tempfile::tempdir().expect("other"),
    );
    let trace = left.path().join("trace");
    let arguments = [
        ("--left", left.path()),
        ("--right", right.path()),
        ("--right-also", other.path()),
        ("--trace", &trace),
    ]
    .map(|(option, path)| [option.to_owned(), path.to_string_lossy().into_owned()]);
    let mut words: Vec<&str> = vec!["differential", "--ops", "500", "--shrink-seconds", "0"];
    words.extend(arguments.iter().flatten().map(String::as_str));
    assert!(finds(&words).contains("right"));
}
