//! The suites of `ashlar-torture`, with the mount and the reference disk they need.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::masked_kernel::MaskedKernel;
use crate::repository::{Repository, Work};
use crate::shell;

/// Builds everything, makes a working directory, and runs the command that `make` returns.
fn run_in_work(
    repository: &Repository,
    task: &str,
    release: bool,
    make: impl FnOnce(&Path, &Path) -> Command,
) -> anyhow::Result<()> {
    let programs = repository.build(release)?;
    let work = Work::create(task)?;
    let torture = programs.join("ashlar-torture");
    // Traces of failures are kept with the rest.
    let result = shell::run(make(&torture, work.path()).current_dir(work.path()));
    work.finish(result)
}

/// `ashlar-torture with-mount --work WORK/mount -- ashlar-torture`, to be followed by a subcommand that uses `{MOUNT}`.
fn on_mount(torture: &Path, work: &Path, kernel: &MaskedKernel) -> Command {
    on_mounts(torture, work, &[], kernel)
}

/// The same with further mounts at `others`.
fn on_mounts(torture: &Path, work: &Path, others: &[PathBuf], kernel: &MaskedKernel) -> Command {
    let mut command = Command::new(torture);
    command.arg("with-mount").arg("--work").arg(work.join("mount"));
    for other in others {
        command.arg("--also-mount").arg(other);
    }
    kernel.pass_to_server(&mut command);
    command.arg("--").arg(torture);
    command
}

/// A subcommand on one mount and `more` of them.
fn on_several(torture: &Path, work: &Path, more: u32, subcommand: &str, kernel: &MaskedKernel) -> Command {
    let others: Vec<PathBuf> = (0..more).map(|other| work.join(format!("also-{other}"))).collect();
    let mut command = on_mounts(torture, work, &others, kernel);
    command.args([subcommand, "--dir", "{MOUNT}"]);
    for other in &others {
        command.arg("--also-dir").arg(other);
    }
    command
}

/// The same as [`on_mount`] with a reference disk `{DISK}` around it.
fn on_mount_with_disk(torture: &Path, work: &Path, mib: &str, kernel: &MaskedKernel) -> Command {
    let mut command = Command::new(torture);
    command
        .arg("with-disk")
        .arg("--work")
        .arg(work.join("reference"))
        .args(["--mib", mib, "--"])
        .arg(torture);
    command.arg("with-mount").arg("--work").arg(work.join("mount"));
    kernel.pass_to_server(&mut command);
    command.arg("--").arg(torture);
    command
}

/// Options of `differential`.
#[derive(clap::Args, Debug)]
pub struct Differential {
    /// Operations.
    #[arg(long, default_value_t = 2_000_000)]
    ops: u64,
    /// The seed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Run the steps of a trace instead.
    #[arg(long)]
    replay: Option<PathBuf>,
    #[command(flatten)]
    kernel: MaskedKernel,
}

impl Differential {
    /// As in continuous integration.
    #[must_use]
    pub fn short() -> Self {
        Self { ops: 5000, seed: 1, replay: None, kernel: MaskedKernel::default() }
    }

    /// Runs it.
    ///
    /// # Errors
    /// When the sides differ.
    pub fn run(&self, repository: &Repository) -> anyhow::Result<()> {
        let replay = self.replay.as_deref().map(Path::canonicalize).transpose()?;
        run_in_work(repository, "differential", self.ops > 100_000, |torture, work| {
            let mut command = on_mount_with_disk(torture, work, "2048", &self.kernel);
            command.args(["differential", "--left", "{DISK}", "--right", "{MOUNT}", "--users"]);
            command.arg("--ops").arg(self.ops.to_string()).arg("--seed").arg(self.seed.to_string());
            if self.kernel.lacks_tmpfile() {
                command.arg("--without-tmpfile");
            }
            if let Some(trace) = &replay {
                command.arg("--replay").arg(trace);
            }
            command
        })
    }
}

/// Options of `fsx`.
#[derive(clap::Args, Debug)]
pub struct Fsx {
    /// Operations per file.
    #[arg(long, default_value_t = 200_000)]
    ops: u64,
    /// The seed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    kernel: MaskedKernel,
}

impl Fsx {
    /// As in continuous integration.
    #[must_use]
    pub fn short() -> Self {
        Self { ops: 5000, seed: 1, kernel: MaskedKernel::default() }
    }

    /// Runs it: small files that live in metadata for a while, then large ones, then direct I/O; then through two and three mounts in turns.
    ///
    /// # Errors
    /// When content is wrong.
    pub fn run(&self, repository: &Repository) -> anyhow::Result<()> {
        let variants: [(u32, u64, &[&str]); 5] = [
            (0, 1, &["--files", "3", "--size-max", "100000"]),
            (0, 4, &["--files", "2", "--size-max", "9000000"]),
            (0, 4, &["--files", "2", "--size-max", "3000000", "--direct"]),
            (1, 1, &["--files", "4", "--size-max", "14000"]),
            (2, 2, &["--files", "3", "--size-max", "1500000"]),
        ];
        for (more_mounts, divisor, variant) in variants {
            run_in_work(repository, "fsx", self.ops > 50_000, |torture, work| {
                let mut command = on_several(torture, work, more_mounts, "fsx", &self.kernel);
                command.args(variant);
                command.arg("--ops").arg((self.ops / divisor).to_string());
                command.arg("--seed").arg(self.seed.to_string());
                command
            })?;
        }
        Ok(())
    }
}

/// Options of `kill-cycles`.
#[derive(clap::Args, Debug)]
pub struct KillCycles {
    /// Kills.
    #[arg(long, default_value_t = 200)]
    cycles: u64,
    /// The seed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

impl KillCycles {
    /// As in continuous integration.
    #[must_use]
    pub fn short() -> Self {
        Self { cycles: 8, seed: 1 }
    }

    /// Runs it.
    ///
    /// # Errors
    /// When something acknowledged is missing.
    pub fn run(&self, repository: &Repository) -> anyhow::Result<()> {
        run_in_work(repository, "kill-cycles", self.cycles > 50, |torture, work| {
            let mut command = Command::new(torture);
            command.arg("kill-cycles").arg("--work").arg(work);
            command.arg("--cycles").arg(self.cycles.to_string()).arg("--seed").arg(self.seed.to_string());
            command
        })
    }
}

/// Options of `power-loss`.
#[derive(clap::Args, Debug)]
pub struct PowerLoss {
    /// Power cuts per file system.
    #[arg(long, default_value_t = 40)]
    cycles: u64,
    /// The seed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

impl PowerLoss {
    /// Runs it over ext4 and over XFS.
    ///
    /// # Errors
    /// When something synced is missing.
    pub fn run(&self, repository: &Repository) -> anyhow::Result<()> {
        for file_system in ["ext4", "xfs"] {
            run_in_work(repository, "power-loss", false, |torture, work| {
                let mut command = Command::new(torture);
                command.arg("power-loss").arg("--work").arg(work).args(["--fs", file_system]);
                command.arg("--cycles").arg(self.cycles.to_string()).arg("--seed").arg(self.seed.to_string());
                command
            })?;
        }
        Ok(())
    }
}

/// Options of `corrupt`.
#[derive(clap::Args, Debug)]
pub struct Corrupt {
    /// Damages after a clean stop; half as many after a kill.
    #[arg(long, default_value_t = 200)]
    trials: u64,
    /// The seed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

impl Corrupt {
    /// Runs it.
    ///
    /// # Errors
    /// When wrong content is returned or the server crashes.
    pub fn run(&self, repository: &Repository) -> anyhow::Result<()> {
        for (trials, more) in [(self.trials, None), (self.trials / 2, Some("--killed"))] {
            run_in_work(repository, "corrupt", false, |torture, work| {
                let mut command = Command::new(torture);
                command.arg("corrupt").arg("--work").arg(work).args(more);
                command.arg("--trials").arg(trials.to_string()).arg("--seed").arg(self.seed.to_string());
                command
            })?;
        }
        Ok(())
    }
}

/// Options of `racer`.
#[derive(clap::Args, Debug)]
pub struct Racer {
    /// Seconds of racing.
    #[arg(long, default_value_t = 300)]
    seconds: u64,
    /// Race on one mount only; by default half of the threads use a second mount of the same file system.
    #[arg(long)]
    one_mount: bool,
    /// The seed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    kernel: MaskedKernel,
}

impl Racer {
    /// As in continuous integration.
    #[must_use]
    pub fn short() -> Self {
        Self { seconds: 10, one_mount: false, seed: 1, kernel: MaskedKernel::default() }
    }

    /// The same with the oldest kernel.
    #[must_use]
    pub fn short_on_oldest_kernel() -> Self {
        Self { kernel: MaskedKernel::oldest(), ..Self::short() }
    }

    /// Runs it on two mounts of one file system.
    ///
    /// # Errors
    /// When the tree is inconsistent afterwards, or the mounts differ.
    pub fn run(&self, repository: &Repository) -> anyhow::Result<()> {
        run_in_work(repository, "racer", self.seconds > 60, |torture, work| {
            let more = if self.one_mount { 0 } else { 1 };
            let mut command = on_several(torture, work, more, "racer", &self.kernel);
            command.arg("--seconds").arg(self.seconds.to_string());
            command.arg("--seed").arg(self.seed.to_string());
            command
        })
    }
}

/// Options of `share`.
#[derive(clap::Args, Debug)]
pub struct Share {
    /// Seconds of racing.
    #[arg(long, default_value_t = 300)]
    seconds: u64,
    /// Mounts.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=16))]
    mounts: u32,
    /// The seed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    kernel: MaskedKernel,
}

impl Share {
    /// As in continuous integration.
    #[must_use]
    pub fn short() -> Self {
        Self { seconds: 10, mounts: 3, seed: 1, kernel: MaskedKernel::default() }
    }

    /// The same with the oldest kernel.
    #[must_use]
    pub fn short_on_oldest_kernel() -> Self {
        Self { kernel: MaskedKernel::oldest(), ..Self::short() }
    }

    /// Runs it on several mounts of one file system.
    ///
    /// # Errors
    /// When a mount does not show what another has written, or a call fails or takes too long.
    pub fn run(&self, repository: &Repository) -> anyhow::Result<()> {
        run_in_work(repository, "share", self.seconds > 60, |torture, work| {
            let mut command = on_several(torture, work, self.mounts - 1, "share", &self.kernel);
            if self.kernel.lacks_shared_mappings() {
                command.arg("--mappings-may-be-refused");
            }
            command.arg("--seconds").arg(self.seconds.to_string());
            command.arg("--seed").arg(self.seed.to_string());
            command
        })
    }
}

/// Options of `limits`.
#[derive(clap::Args, Debug)]
pub struct Limits {
    /// Entries in one directory.
    #[arg(long, default_value_t = 50_000)]
    entries: u64,
    /// Links to one file: more than any limit, so that EMLINK is seen.
    #[arg(long, default_value_t = 1_100_000)]
    links: u64,
}

impl Limits {
    /// As in continuous integration.
    #[must_use]
    pub fn short() -> Self {
        Self { entries: 5000, links: 70_000 }
    }

    /// Runs it.
    ///
    /// # Errors
    /// When a limit is not what it should be.
    pub fn run(&self, repository: &Repository) -> anyhow::Result<()> {
        run_in_work(repository, "limits", false, |torture, work| {
            let mut command = on_mount(torture, work, &MaskedKernel::default());
            command.args(["limits", "--dir", "{MOUNT}", "--entries"]).arg(self.entries.to_string());
            command.arg("--links").arg(self.links.to_string());
            command
        })
    }
}

/// Options of `full`.
#[derive(clap::Args, Debug)]
pub struct Full {
    /// Size of the disk under the server in MiB.
    #[arg(long, default_value_t = 1024)]
    mib: u64,
}

impl Full {
    /// As in continuous integration.
    #[must_use]
    pub fn short() -> Self {
        Self { mib: 1024 }
    }

    /// Runs it with the data directory on a small disk.
    ///
    /// # Errors
    /// When anything but ENOSPC is seen, or content is wrong.
    pub fn run(&self, repository: &Repository) -> anyhow::Result<()> {
        run_in_work(repository, "full", false, |torture, work| {
            let mut command = Command::new(torture);
            command.arg("with-disk").arg("--work").arg(work.join("disk")).arg("--mib");
            command.arg(self.mib.to_string()).arg("--").arg(torture);
            command.arg("with-mount").arg("--work").arg(work.join("mount")).args([
                "--data",
                "{DISK}/data",
                "--",
            ]);
            command.arg(torture).args(["full", "--dir", "{MOUNT}"]);
            command
        })
    }
}
