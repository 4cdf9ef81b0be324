//! `ashlar-torture corrupt`: damage the stored bytes while the server is down and see what a reader gets.
//!
//! The damage knows none of the formats. After each one every read must give the right bytes or EIO, or the server must refuse to start and
//! name the damaged file or the directory that holds it. Wrong bytes, a vanished file or a crash are failures. The data is restored between trials.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, bail};
use clap::Args;

use crate::ledger::expect::Mode;
use crate::ledger::verify::{Tolerance, verify};
use crate::ledger::writer::{Ending, Job, run as write};
use crate::report::Report;
use crate::rng::Rng;
use crate::server::{Launch, StartFailure, crashed};

const BLOCK: u64 = 4096;

/// Damage files below the data directories while the server is down; reads must be right or EIO.
#[derive(Args, Debug)]
pub struct Arguments {
    #[command(flatten)]
    launch: Launch,
    /// Damages tried, one at a time.
    #[arg(long, default_value_t = 40)]
    trials: u64,
    /// Operations that make the content, per writer.
    #[arg(long, default_value_t = 1500)]
    ops: u64,
    /// Writer threads.
    #[arg(long, default_value_t = 3)]
    writers: u32,
    /// Kill the server, right after the last operation, instead of stopping it, and damage chunks only: what the log had not flushed yet
    /// is lost with the damaged place, as after a power cut.
    #[arg(long)]
    killed: bool,
    /// Fixes the content and the damages.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

#[derive(Clone, Copy, Debug)]
enum Damage {
    FlipBit,
    ZeroBlock,
    SwapBlocks,
    Truncate,
}

/// Runs the command.
///
/// # Errors
/// When the undamaged server does not work, or files cannot be handled.
pub fn run(arguments: &Arguments) -> anyhow::Result<Report> {
    let launch = &arguments.launch;
    launch.prepare()?;
    let tree = launch.mountpoint().join("corpus");
    let ledgers = launch.work.join("ledgers");
    fs::create_dir_all(&ledgers)?;
    make_corpus(arguments, &tree, &ledgers)?;
    let saved = launch.work.join("saved");
    copy_dirs(&launch.data_dirs(), &saved, Direction::Save)?;
    let mut rng = Rng::new(arguments.seed);
    let mut report = Report::new();
    let mut tally = [0u64; 3];
    for trial in 0..arguments.trials {
        let damage = *rng.pick(&[Damage::FlipBit, Damage::ZeroBlock, Damage::SwapBlocks, Damage::Truncate]);
        let (file, what) = inflict(&files_to_damage(arguments)?, damage, &mut rng)?;
        let outcome = judge(arguments, &tree, &ledgers, &file)?;
        tally[outcome.kind as usize] += 1;
        for failure in outcome.failures {
            report.fail(format!("seed {}, trial {trial}: {what}: {failure}", arguments.seed));
        }
        report.pass_many(outcome.passed);
        copy_dirs(&launch.data_dirs(), &saved, Direction::Restore)?;
    }
    let [refused, eio, unnoticed] = tally;
    println!(
        "{} damages: start refused {refused}, reads with EIO {eio}, nothing reported {unnoticed}",
        arguments.trials
    );
    Ok(report)
}

fn make_corpus(arguments: &Arguments, tree: &Path, ledgers: &Path) -> anyhow::Result<()> {
    let mut server = arguments.launch.start().context("first start")?;
    fs::create_dir(tree).with_context(|| format!("create {}", tree.display()))?;
    for writer in 0..arguments.writers {
        let job = Job {
            tree: tree.to_owned(),
            ledgers: ledgers.to_owned(),
            writer,
            seed: arguments.seed,
            ops_max: arguments.ops,
            mode: Mode::Returned,
        };
        if let Ending::Failed { what, .. } = write(&job, &AtomicBool::new(false))? {
            bail!("making the content: {what}");
        }
    }
    if arguments.killed {
        server.kill()?;
        return server.detach();
    }
    server.stop().context("first stop")
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Save,
    Restore,
}

fn copy_dirs(data: &[PathBuf], saved: &Path, direction: Direction) -> anyhow::Result<()> {
    for (number, directory) in data.iter().enumerate() {
        let copy = saved.join(number.to_string());
        let (from, to) = match direction {
            Direction::Save => (directory.clone(), copy),
            Direction::Restore => (copy, directory.clone()),
        };
        if to.exists() {
            fs::remove_dir_all(&to).with_context(|| format!("remove {}", to.display()))?;
        }
        if let Some(parent) = to.parent() {
            fs::create_dir_all(parent)?;
        }
        // `cp` keeps holes, which slab files consist of mostly.
        let status = Command::new("cp").arg("-a").arg("--sparse=always").arg(&from).arg(&to).status()?;
        if !status.success() {
            bail!("copying {} to {} failed", from.display(), to.display());
        }
    }
    Ok(())
}

/// All regular, non-empty files below the data directories.
fn files_below(directory: &Path, found: &mut Vec<(PathBuf, u64)>) -> anyhow::Result<()> {
    let entries = fs::read_dir(directory).with_context(|| format!("read {}", directory.display()))?;
    for entry in entries {
        let entry = entry?;
        let stat = entry.metadata()?;
        if stat.is_dir() {
            files_below(&entry.path(), found)?;
        } else if stat.is_file() && stat.len() > 0 {
            found.push((entry.path(), stat.len()));
        }
    }
    Ok(())
}

/// The files that may be damaged, with their lengths in bytes.
fn files_to_damage(arguments: &Arguments) -> anyhow::Result<Vec<(PathBuf, u64)>> {
    let mut files = Vec::new();
    for directory in arguments.launch.data_dirs() {
        files_below(&directory, &mut files)?;
    }
    if arguments.killed {
        files.retain(|(path, _)| path.extension().is_some_and(|kind| kind == "slab"));
    }
    files.sort();
    if files.is_empty() {
        bail!("there is no file to damage below the data directories");
    }
    Ok(files)
}

/// Damages one random file; returns it and a description.
fn inflict(files: &[(PathBuf, u64)], damage: Damage, rng: &mut Rng) -> anyhow::Result<(PathBuf, String)> {
    let (path, len) = rng.pick(files).clone();
    let file = OpenOptions::new().read(true).write(true).open(&path)?;
    let offset = used_offset(&file, len, rng);
    let block = offset / BLOCK * BLOCK;
    let place = match damage {
        Damage::FlipBit => {
            let mut byte = [0u8];
            file.read_exact_at(&mut byte, offset)?;
            byte[0] ^= 1 << rng.below(8);
            file.write_all_at(&byte, offset)?;
            format!("at byte {offset}")
        }
        Damage::ZeroBlock => {
            file.write_all_at(&vec![0; BLOCK.min(len - block) as usize], block)?;
            format!("at byte {block}")
        }
        Damage::SwapBlocks => {
            let other = used_offset(&file, len, rng) / BLOCK * BLOCK;
            let piece = BLOCK.min(len - block).min(len - other) as usize;
            let (mut first, mut second) = (vec![0; piece], vec![0; piece]);
            file.read_exact_at(&mut first, block)?;
            file.read_exact_at(&mut second, other)?;
            file.write_all_at(&second, block)?;
            file.write_all_at(&first, other)?;
            format!("at bytes {block} and {other}")
        }
        Damage::Truncate => {
            file.set_len(offset)?;
            format!("to {offset} of {len} bytes")
        }
    };
    Ok((path.clone(), format!("{damage:?} of {} {place}", path.display())))
}

/// A random offset, in a part of the file that is not a hole if one is found quickly.
fn used_offset(file: &fs::File, len: u64, rng: &mut Rng) -> u64 {
    let mut offset = rng.below(len);
    for _ in 0..50 {
        let mut piece = vec![0u8; BLOCK.min(len - offset) as usize];
        if file.read_exact_at(&mut piece, offset).is_ok() && piece.iter().any(|byte| *byte != 0) {
            break;
        }
        offset = rng.below(len);
    }
    offset
}

#[derive(Clone, Copy)]
enum Kind {
    Refused = 0,
    Eio = 1,
    Unnoticed = 2,
}

struct Verdict {
    kind: Kind,
    passed: u64,
    failures: Vec<String>,
}

fn judge(arguments: &Arguments, tree: &Path, ledgers: &Path, file: &Path) -> anyhow::Result<Verdict> {
    let mut server = match arguments.launch.start() {
        Ok(server) => server,
        Err(error) => return judge_refusal(error, &arguments.launch.data_dirs(), file),
    };
    let mut unreadable = 0;
    let checked = verify(tree, ledgers, arguments.writers, Mode::Returned, Tolerance::Eio, &mut unreadable)?;
    let mut failures = checked.failures().to_vec();
    match server.ended()? {
        Some(status) => failures.push(format!("the server ended with {status} while files were read")),
        // A server that saw damage may report it at the end, but must end by itself.
        None => {
            if let Err(error) = server.stop() {
                failures.push(format!("{error:#}"));
            }
        }
    }
    let kind = if unreadable > 0 { Kind::Eio } else { Kind::Unnoticed };
    Ok(Verdict { kind, passed: checked.passed(), failures })
}

/// A refusal must name the damaged file, or a directory around it below the data directory: what an operator has to look at.
fn judge_refusal(error: anyhow::Error, data: &[PathBuf], file: &Path) -> anyhow::Result<Verdict> {
    let inside = |path: &&Path| data.iter().any(|directory| path.starts_with(directory) && path != directory);
    let places: Vec<String> =
        file.ancestors().take_while(inside).map(|path| path.to_string_lossy().into_owned()).collect();
    let names_it = |output: &str| places.iter().any(|place| output.contains(place.as_str()));
    let mut failures = Vec::new();
    match error.downcast::<StartFailure>()? {
        StartFailure::Exited(status, output) if crashed(status) => {
            failures.push(format!("the server crashed with {status}:\n{output}"));
        }
        StartFailure::Exited(_, output) if !names_it(&output) => {
            failures.push(format!(
                "start was refused without naming {} or what holds it:\n{output}",
                file.display()
            ));
        }
        StartFailure::Exited(..) => {}
        StartFailure::TimedOut(output) => failures.push(format!("start hangs:\n{output}")),
    }
    Ok(Verdict { kind: Kind::Refused, passed: 1, failures })
}
