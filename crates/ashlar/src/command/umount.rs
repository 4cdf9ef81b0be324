//! `ashlar umount`: takes a mount away, also one whose process has died.

use crate::cli::UmountArgs;
use anyhow::{Context, Result, bail};
use std::process::{Command, ExitCode};

pub fn run(args: &UmountArgs) -> Result<ExitCode> {
    // SAFETY: geteuid has no preconditions and cannot fail.
    let is_root = unsafe { libc::geteuid() } == 0;
    let (program, flag) = if is_root { ("umount", "-l") } else { ("fusermount3", "-uz") };
    let status = Command::new(program).arg(flag).arg(&args.mountpoint).status().with_context(|| {
        format!("cannot run {program}; install the package {}", if is_root { "mount" } else { "fuse3" })
    })?;
    if !status.success() {
        bail!("{program} could not unmount {}", args.mountpoint.display());
    }
    Ok(ExitCode::SUCCESS)
}
