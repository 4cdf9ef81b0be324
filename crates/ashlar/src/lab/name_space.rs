//! Network name spaces: those that ip-netns(8) knows, so that people can use it, too.

use crate::program::run_within;
use anyhow::{Context, Result};
use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Where ip-netns(8) keeps them.
const DIRECTORY: &str = "/run/netns";
/// LIMIT: for how long a change of the network may take.
const PROGRAM_MAX: Duration = Duration::from_secs(30);

/// Where the name space of this name is.
pub fn path_of(name: &str) -> PathBuf {
    PathBuf::from(DIRECTORY).join(name)
}

/// Has `command` run in the name space `name`. Only its network is another one: with `ip netns exec` it would have mounts of its own, too, and
/// nobody else would see what it mounts.
pub fn enter(command: &mut Command, name: &str) -> Result<()> {
    let path = path_of(name);
    let space = File::open(&path).with_context(|| format!("cannot open {}", path.display()))?;
    // SAFETY: prctl and setns are async-signal-safe, and take no pointer; the descriptor is open in the child until it executes.
    unsafe {
        command.pre_exec(move || {
            // Until it is in the name space, by which it can be found, it ends with whoever starts it.
            let is_done = libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) == 0
                && libc::setns(space.as_raw_fd(), libc::CLONE_NEWNET) == 0
                && libc::prctl(libc::PR_SET_PDEATHSIG, 0) == 0;
            if is_done { Ok(()) } else { Err(std::io::Error::last_os_error()) }
        });
    }
    Ok(())
}

/// Runs `ip`.
pub fn ip<S: AsRef<OsStr>>(args: &[S]) -> Result<()> {
    run("ip", args)
}

/// Runs `tc`.
pub fn tc<S: AsRef<OsStr>>(args: &[S]) -> Result<()> {
    run("tc", args)
}

/// Refuses a machine without the programs.
pub fn require_programs() -> Result<()> {
    for program in ["ip", "tc"] {
        let mut command = Command::new(program);
        command.arg("-V").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().with_context(|| format!("cannot run {program}; install the package iproute2"))?;
    }
    Ok(())
}

fn run<S: AsRef<OsStr>>(program: &str, args: &[S]) -> Result<()> {
    let words: Vec<_> = args.iter().map(|arg| arg.as_ref().to_string_lossy()).collect();
    let shown = format!("{program} {}", words.join(" "));
    run_within(Command::new(program).args(args).stdin(Stdio::null()), &shown, PROGRAM_MAX).map(drop)
}
