//! fio with verification and stress-ng's file-system class, on a mount.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

use super::Tally;
use crate::repository::{Repository, Work};
use crate::shell;

/// Options of the task.
#[derive(clap::Args, Debug)]
pub struct Arguments {
    /// Run in this directory instead of mounting Ashlar.
    #[arg(long)]
    on: Option<PathBuf>,
    /// Seconds per stressor.
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// MiB per fio job.
    #[arg(long, default_value_t = 256)]
    mib: u64,
}

/// fio jobs: name and what distinguishes them.
const FIO_JOBS: &[(&str, &[&str])] = &[
    ("random-buffered", &["--rw=randwrite", "--bsrange=4k-256k", "--ioengine=psync"]),
    ("sequential-buffered", &["--rw=write", "--bs=1m", "--ioengine=psync"]),
    ("random-mixed", &["--rw=randrw", "--bsrange=512-64k", "--ioengine=psync", "--fsync=64"]),
    ("mapped", &["--rw=randwrite", "--bs=4k", "--ioengine=mmap"]),
    ("direct-queued", &["--rw=randwrite", "--bs=4k", "--ioengine=libaio", "--iodepth=16", "--direct=1"]),
    ("direct-large", &["--rw=write", "--bs=1m", "--ioengine=libaio", "--iodepth=4", "--direct=1"]),
];

/// Runs the task.
///
/// # Errors
/// When a job fails.
pub fn run(repository: &Repository, arguments: &Arguments) -> anyhow::Result<()> {
    match &arguments.on {
        Some(mount) => run_on(repository, arguments, mount),
        None => {
            let programs = repository.build(true)?;
            let work = Work::create("stress")?;
            let mut command = Command::new(programs.join("ashlar-torture"));
            command.arg("with-mount").arg("--work").arg(work.path()).arg("--").arg(std::env::current_exe()?);
            command.args(["stress", "--on", "{MOUNT}", "--seconds", &arguments.seconds.to_string()]);
            command.args(["--mib", &arguments.mib.to_string()]);
            let result = shell::run(command.current_dir(&repository.root));
            work.finish(result)
        }
    }
}

fn run_on(repository: &Repository, arguments: &Arguments, mount: &Path) -> anyhow::Result<()> {
    let mut tally = Tally::default();
    for (name, options) in FIO_JOBS {
        tally.note(&format!("fio {name}"), fio(name, options, arguments, mount));
    }
    tally.note("stress-ng", stress_ng(repository, arguments, mount));
    tally.finish()
}

fn fio(name: &str, options: &[&str], arguments: &Arguments, mount: &Path) -> anyhow::Result<()> {
    let directory = mount.join(format!("fio-{name}"));
    fs::create_dir_all(&directory)?;
    let mut command = Command::new("fio");
    command.arg(format!("--name={name}")).arg(format!("--directory={}", directory.display()));
    command.arg(format!("--size={}m", arguments.mib)).args(options);
    command.args([
        "--numjobs=2",
        "--group_reporting",
        "--verify=crc32c",
        "--verify_fatal=1",
        "--do_verify=1",
    ]);
    // fio leaves its state of verification in the working directory.
    command.args(["--verify_state_save=0", "--output-format=terse"]).current_dir(&directory);
    println!("$ {}", shell::show(&command));
    shell::output(&mut command)?;
    fs::remove_dir_all(&directory).with_context(|| format!("remove {}", directory.display()))
}

fn stress_ng(repository: &Repository, arguments: &Arguments, mount: &Path) -> anyhow::Result<()> {
    let list = fs::read_to_string(repository.root.join("tests/exclusions/stress-ng.txt"))
        .context("read tests/exclusions/stress-ng.txt")?;
    let excluded: Vec<&str> = list
        .lines()
        .filter_map(|line| line.split('#').next())
        .map(str::trim)
        .filter(|n| !n.is_empty())
        .collect();
    let directory = mount.join("stress-ng");
    fs::create_dir_all(&directory)?;
    let mut command = Command::new("stress-ng");
    command.args(["--class", "filesystem", "--sequential", "2", "--verify", "--metrics-brief"]);
    command.arg("--timeout").arg(format!("{}s", arguments.seconds)).arg("--temp-path").arg(&directory);
    if !excluded.is_empty() {
        command.arg("--exclude").arg(excluded.join(","));
    }
    println!("$ {}", shell::show(&command));
    let output = command.output().context("start stress-ng")?;
    let text =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let complaints: Vec<&str> =
        text.lines().filter(|line| line.contains(" fail:") || line.contains(" error:")).collect();
    if !output.status.success() || !complaints.is_empty() {
        bail!("stress-ng ended with {}:\n{}", output.status, complaints.join("\n"));
    }
    fs::remove_dir_all(&directory).with_context(|| format!("remove {}", directory.display()))
}
