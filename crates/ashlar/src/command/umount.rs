//! `ashlar umount`: takes a mount away, also one whose process has died.

use crate::cli::UmountArgs;
use crate::terminal::shown;
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

pub fn run(args: &UmountArgs) -> Result<ExitCode> {
    refuse_others(&args.mountpoint)?;
    // SAFETY: geteuid has no preconditions and cannot fail.
    let is_root = unsafe { libc::geteuid() } == 0;
    let (program, flag) = if is_root { ("umount", "-l") } else { ("fusermount3", "-uz") };
    let status = Command::new(program).arg(flag).arg(&args.mountpoint).status().with_context(|| {
        format!("cannot run {program}; install the package {}", if is_root { "mount" } else { "fuse3" })
    })?;
    if !status.success() {
        bail!("{program} could not unmount {}", shown(&args.mountpoint));
    }
    Ok(ExitCode::SUCCESS)
}

/// A lazy unmount of something else than a mount of ours would take a disk away from those who use it.
fn refuse_others(mountpoint: &Path) -> Result<()> {
    let path = resolved(mountpoint);
    match ashlar_fuse::file_system_type_at(&path).context("cannot read the mount table")? {
        Some(name) if name == "fuse.ashlar" => Ok(()),
        Some(name) => bail!("{} is a mount of {name}, not of Ashlar; use umount", shown(mountpoint)),
        None => bail!("nothing is mounted at {}", shown(mountpoint)),
    }
}

/// The path as the mount table has it. The last step of one whose server has died cannot be looked at.
fn resolved(mountpoint: &Path) -> PathBuf {
    let absolute = std::path::absolute(mountpoint).unwrap_or_else(|_| mountpoint.to_owned());
    absolute.canonicalize().unwrap_or_else(|_| match (absolute.parent(), absolute.file_name()) {
        (Some(parent), Some(name)) => {
            parent.canonicalize().map_or_else(|_| absolute.clone(), |parent| parent.join(name))
        }
        _ => absolute.clone(),
    })
}
