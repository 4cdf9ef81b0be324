//! Unit and integration tests: every test program of the workspace, twice as many at a time as there are processors. Those with clusters of real processes wait
//! most of the time, for leases to run out and servers to come back: with one for each processor, half of the machine is idle.

use std::ffi::CString;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde_json::Value;

use crate::repository::Repository;
use crate::shell;

/// A test program.
struct Program {
    name: String,
    executable: PathBuf,
    /// The directory of its crate, where cargo would run it.
    directory: PathBuf,
}

/// Programs that take minutes each beside others: clusters whose disks, servers and power fail. `cargo xtask failures` runs them, and [`run`] does not.
const LONG: &[&str] = &[
    "a_drill_breaks_a_lab_and_tells_what_was_seen",
    "a_shared_disk_goes_to_the_other_server",
    "servers_that_never_come_back_after_a_power_cut_are_given_up",
    "the_power_of_all_servers_is_cut_at_once",
];

/// Builds those that take long, and runs one after the other.
///
/// # Errors
/// When one cannot be built, or fails; its output is printed.
pub fn run_long(repository: &Repository) -> anyhow::Result<()> {
    let programs = build(repository)?;
    let mut failed = 0;
    for name in LONG {
        let program = programs.iter().find(|program| program.name == *name);
        let program = program.with_context(|| format!("there is no test program {name}"))?;
        if let Err(error) = program.run() {
            println!("{error:#}");
            failed += 1;
        }
    }
    println!("{} passed, {failed} failed", LONG.len() - failed);
    if failed > 0 {
        bail!("{failed} of {} test programs have failed, see above", LONG.len());
    }
    Ok(())
}

/// Builds all test programs but those of [`LONG`] and runs them, all of them also after a failure, and then the tests in documentation. One that fails is run once more when
/// it has the machine for itself: many say how long something may take. What fails then has failed; what passes is named, to be looked at.
///
/// # Errors
/// When something cannot be built, or a test fails; its output is printed.
pub fn run(repository: &Repository) -> anyhow::Result<()> {
    insist_on_room(&std::env::temp_dir())?;
    let mut programs = build(repository)?;
    programs.retain(|program| !LONG.contains(&program.name.as_str()));
    // Those of the binary and of the simulations take longest; begun first, none is left to run alone at the end.
    let is_long = |program: &Program| {
        ["crates/ashlar", "crates/sim"].iter().any(|directory| program.directory.ends_with(directory))
    };
    programs.sort_by_key(|program| !is_long(program));
    let (next, failed) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..2 * processors {
            scope.spawn(|| {
                while let Some(program) = programs.get(next.fetch_add(1, Ordering::SeqCst)) {
                    if let Err(error) = program.run() {
                        println!("{error:#}");
                        failed.lock().unwrap_or_else(PoisonError::into_inner).push(program);
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
    let mut failed_alone = 0;
    for program in failed {
        println!("once more, alone: {}", program.name);
        if let Err(error) = program.run() {
            failed_alone += 1;
            println!("{error:#}");
        } else {
            println!("  it failed beside others only, see above");
        }
    }
    if failed_alone > 0 {
        bail!("{failed_alone} of {} test programs have failed, see above", programs.len());
    }
    shell::run(&mut repository.cargo(&["test", "--workspace", "--doc", "--quiet"]))
}

/// Tests write here; that a disk was full in the middle of them is hard to see in what they say.
const ROOM_MIN_GIB: u64 = 6;

fn insist_on_room(directory: &Path) -> anyhow::Result<()> {
    let path = CString::new(directory.as_os_str().as_bytes()).context("a path has no zero byte")?;
    // SAFETY: all zeroes is a valid statvfs, and the call gets a path that ends with a zero byte and a structure to fill.
    let (status, answer) = unsafe {
        let mut answer: libc::statvfs = std::mem::zeroed();
        (libc::statvfs(path.as_ptr(), &raw mut answer), answer)
    };
    if status != 0 {
        return Err(std::io::Error::last_os_error())
            .with_context(|| format!("ask for the room in {}", directory.display()));
    }
    let free_gib = (answer.f_bavail * answer.f_frsize) >> 30;
    if free_gib < ROOM_MIN_GIB {
        bail!(
            "{} has {free_gib} GiB free; the tests need {ROOM_MIN_GIB}: make room, or name another directory in TMPDIR",
            directory.display()
        );
    }
    Ok(())
}

fn build(repository: &Repository) -> anyhow::Result<Vec<Program>> {
    let arguments = ["test", "--workspace", "--no-run", "--quiet", "--message-format", "json"];
    let messages = shell::output(&mut repository.cargo(&arguments))?;
    let mut programs = Vec::new();
    for line in messages.lines().filter(|line| line.starts_with('{')) {
        let message: Value = serde_json::from_str(line).context("parse what cargo has built")?;
        if message["reason"] != "compiler-artifact" || message["profile"]["test"] != true {
            continue;
        }
        let Some(executable) = message["executable"].as_str() else { continue };
        let manifest = message["manifest_path"].as_str().context("a test program of no crate")?;
        let directory = PathBuf::from(manifest).parent().context("a crate without a directory")?.to_owned();
        let name = message["target"]["name"].as_str().unwrap_or(executable).to_owned();
        programs.push(Program { name, executable: executable.into(), directory });
    }
    if programs.is_empty() {
        bail!("cargo has built no test");
    }
    Ok(programs)
}

/// A test program that has not ended by then waits for something that does not come; those that do most need a third of it beside others.
const PROGRAM_MAX: Duration = Duration::from_secs(600);

impl Program {
    fn run(&self) -> anyhow::Result<()> {
        let begun = Instant::now();
        let (ended, processor) =
            self.run_within(PROGRAM_MAX).with_context(|| format!("run the tests {}", self.name))?;
        let seconds = begun.elapsed().as_secs();
        if ended.status.success() {
            println!("  {}: {seconds} s, {} s of a processor", self.name, processor.as_secs());
            return Ok(());
        }
        bail!(
            "the tests {} ended with {} after {seconds} s:\n{}\n{}",
            self.name,
            ended.status,
            String::from_utf8_lossy(&ended.stdout),
            String::from_utf8_lossy(&ended.stderr)
        );
    }

    /// Runs it, with all that it starts as a process group of its own; what is left of that when the time is over is killed, so that a test that
    /// hangs is told with what it has printed, and holds up nobody else. What it waited for is added to that. Tells what it has used of a processor, with all
    /// that it has waited for.
    fn run_within(&self, max: Duration) -> anyhow::Result<(Output, Duration)> {
        let (mut stdout, mut stderr) = (tempfile::tempfile()?, tempfile::tempfile()?);
        let child = Command::new(&self.executable)
            .arg("--quiet")
            .current_dir(&self.directory)
            // `cargo xtask setup` has installed what they need: one that lacks a package fails, and is not skipped.
            .env("ASHLAR_TEST_EVERYTHING", "1")
            .stdin(Stdio::null())
            .stdout(stdout.try_clone()?)
            .stderr(stderr.try_clone()?)
            .process_group(0)
            .spawn()?;
        let mut deadline = Instant::now() + max;
        let mut is_killed = false;
        let (status, processor) = loop {
            if let Some(ended) = try_wait(child.id())? {
                break ended;
            }
            if Instant::now() > deadline {
                if is_killed {
                    bail!(
                        "it has not ended in {} s, and SIGKILL does not end it: it waits in the kernel",
                        max.as_secs()
                    );
                }
                writeln!(stderr, "it has not ended in {} s; its processes and what they do:", max.as_secs())?;
                let group = child.id().to_string();
                stderr.write_all(processes_of(&group).as_bytes())?;
                let _ = Command::new("kill").args(["-KILL", "--", &format!("-{group}")]).status();
                (is_killed, deadline) = (true, Instant::now() + Duration::from_secs(10));
            }
            std::thread::sleep(Duration::from_millis(50));
        };
        let (stdout, stderr) = (read_from_start(&mut stdout)?, read_from_start(&mut stderr)?);
        Ok((Output { status, stdout, stderr }, processor))
    }
}

/// How a process has ended, and what it has used of a processor; nothing if it runs. See `wait4(2)`.
fn try_wait(process: u32) -> anyhow::Result<Option<(ExitStatus, Duration)>> {
    let mut status = 0;
    // SAFETY: all zeroes is a valid rusage, and the call gets a status and a structure to fill.
    let (found, usage) = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        (libc::wait4(process.cast_signed(), &raw mut status, libc::WNOHANG, &raw mut usage), usage)
    };
    let duration = |time: libc::timeval| {
        Duration::new(time.tv_sec.unsigned_abs(), time.tv_usec.unsigned_abs() as u32 * 1000)
    };
    match found {
        0 => Ok(None),
        found if found > 0 => {
            let used = duration(usage.ru_utime) + duration(usage.ru_stime);
            Ok(Some((ExitStatus::from_raw(status), used)))
        }
        _ => Err(std::io::Error::last_os_error()).context("wait for a test program"),
    }
}

/// What the threads of a process group do, a line each; as far as that can be told.
fn processes_of(group: &str) -> String {
    let columns = ["-e", "-L", "-o", "pgid=,pid=,stat=,comm=,wchan:32=,args="];
    let told = Command::new("ps").args(columns).output().map(|output| output.stdout).unwrap_or_default();
    let told = String::from_utf8_lossy(&told).into_owned();
    let lines = told.lines().filter(|line| line.split_whitespace().next() == Some(group));
    lines.map(|line| format!("{line}\n")).collect()
}

fn read_from_start(file: &mut File) -> anyhow::Result<Vec<u8>> {
    let mut read = Vec::new();
    file.seek(SeekFrom::Start(0))?;
    file.read_to_end(&mut read)?;
    Ok(read)
}
