//! `ashlar-torture with-disk`: run any command with a fresh ext4 or XFS on a loop device, for example as a reference.
//!
//! It prints nothing of its own when all is well, so that the last line is that of the command.

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::Args;

use super::with_mount::substitute;
use crate::loop_disk::{FileSystem, LoopDisk};

/// Mount a new file system from an image file and run a command; `{DISK}` in it stands for the mount point.
#[derive(Args, Debug)]
pub struct Arguments {
    /// A directory for the image and the mount point. Made if missing.
    #[arg(long)]
    work: PathBuf,
    /// The file system.
    #[arg(long, value_enum, default_value = "ext4")]
    fs: FileSystem,
    /// Its size in MiB.
    #[arg(long, default_value_t = 1024)]
    mib: u64,
    /// The command and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

/// Runs the command.
///
/// # Errors
/// When the disk cannot be made or unmounted, or the command fails.
pub fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let work = &arguments.work;
    std::fs::create_dir_all(work).with_context(|| format!("create {}", work.display()))?;
    let disk = LoopDisk::create(&work.join("image"), &work.join("disk"), arguments.mib << 20, arguments.fs)?;
    let mut command = substitute(&arguments.command, "{DISK}", disk.mountpoint())?;
    let status =
        command.status().with_context(|| format!("start {}", command.get_program().to_string_lossy()))?;
    disk.unmount()?;
    if !status.success() {
        bail!("{} ended with {status}", command.get_program().to_string_lossy());
    }
    Ok(())
}
