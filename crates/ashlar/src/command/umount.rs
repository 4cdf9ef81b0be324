//! `ashlar umount`: takes a mount away, also one whose process has died.

use crate::cli::UmountArgs;
use crate::terminal::shown;
use anyhow::{Context, Result, bail};
use ashlar_env::Disk;
use ashlar_env::os::OsDisk;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// LIMIT: how long a mount may take to tell its free space; a server that lives needs no lease for that, and does it at once.
const ANSWER_MAX: Duration = Duration::from_secs(5);

pub fn run(args: &UmountArgs) -> Result<ExitCode> {
    let path = resolved(&args.mountpoint);
    refuse_others(&args.mountpoint, &path)?;
    if !answers(&path, ANSWER_MAX) {
        eprintln!("ashlar: {} does not answer", shown(&args.mountpoint));
        // A server that was killed while a thread of it waited for a page of the kernel does not end before the page is free, and whoever
        // has the page waits for the server: with a lazy unmount alone both would be there until the machine is started anew, and the
        // server's locks with them.
        match ashlar_fuse::give_up(&path) {
            Ok(()) => {
                eprintln!("ashlar: whoever waited for it was told so");
                if ashlar_fuse::file_system_type_at(&path).is_ok_and(|there| there.is_none()) {
                    return Ok(ExitCode::SUCCESS);
                }
            }
            Err(error) => tracing::warn!(%error, "the kernel was not told to give the mount up"),
        }
    }
    let is_root = rustix::process::geteuid().is_root();
    let (program, flag) = if is_root { ("umount", "-l") } else { ("fusermount3", "-uz") };
    let status = Command::new(program).arg(flag).arg(&args.mountpoint).status().with_context(|| {
        format!("cannot run {program}; install the package {}", if is_root { "mount" } else { "fuse3" })
    })?;
    if !status.success() {
        let whose = match ashlar_fuse::mount_user_at(&path) {
            Ok(Some(user)) if !is_root => format!(": user {user} has mounted it, and only they and root may"),
            _ => String::new(),
        };
        bail!("{program} could not unmount {}{whose}", shown(&args.mountpoint));
    }
    Ok(ExitCode::SUCCESS)
}

/// Whether somebody serves the mount at `path`, or the kernel knows that nobody does.
pub(super) fn answers(path: &Path, wait: Duration) -> bool {
    let disk = OsDisk::new(path);
    let (sender, answered) = channel();
    // It ends with this process if it gets no answer.
    std::thread::spawn(move || sender.send(disk.space().is_ok()));
    answered.recv_timeout(wait) != Err(RecvTimeoutError::Timeout)
}

/// A lazy unmount of something else than a mount of ours would take a disk away from those who use it.
pub(super) fn refuse_others(mountpoint: &Path, path: &Path) -> Result<()> {
    match ashlar_fuse::file_system_type_at(path).context("cannot read the mount table")? {
        Some(name) if name == "fuse.ashlar" => Ok(()),
        Some(name) => bail!("{} is a mount of {name}, not of Ashlar; use umount", shown(mountpoint)),
        None => bail!("nothing is mounted at {}", shown(mountpoint)),
    }
}

/// The path as the mount table has it. The last step of one whose server has died cannot be looked at.
pub(super) fn resolved(mountpoint: &Path) -> PathBuf {
    let absolute = std::path::absolute(mountpoint).unwrap_or_else(|_| mountpoint.to_owned());
    absolute.canonicalize().unwrap_or_else(|_| match (absolute.parent(), absolute.file_name()) {
        (Some(parent), Some(name)) => {
            parent.canonicalize().map_or_else(|_| absolute.clone(), |parent| parent.join(name))
        }
        _ => absolute.clone(),
    })
}
