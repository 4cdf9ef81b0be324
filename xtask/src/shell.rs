//! Running other programs: what is run is printed first, a failure names it.

use std::ffi::OsStr;
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

/// The command as one readable line.
#[must_use]
pub fn show(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(OsStr::to_string_lossy).collect::<Vec<_>>().join(" ")
}

/// Prints and runs the command; its output goes where ours goes.
///
/// # Errors
/// When it cannot be started or fails.
pub fn run(command: &mut Command) -> anyhow::Result<()> {
    println!("$ {}", show(command));
    let status = command.status().with_context(|| format!("start {}", show(command)))?;
    if !status.success() {
        bail!("{} ended with {status}", show(command));
    }
    Ok(())
}

/// Runs the command and returns what it printed on stdout.
///
/// # Errors
/// When it cannot be started or fails.
pub fn output(command: &mut Command) -> anyhow::Result<String> {
    let output =
        command.stderr(Stdio::inherit()).output().with_context(|| format!("start {}", show(command)))?;
    if !output.status.success() {
        bail!("{} ended with {}", show(command), output.status);
    }
    String::from_utf8(output.stdout).with_context(|| format!("{} printed no UTF-8", show(command)))
}

/// Whether a program can be found.
#[must_use]
pub fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // Daemons and formatting programs live where a user's path need not lead.
    let system = ["/usr/sbin", "/sbin"].map(std::path::PathBuf::from);
    std::env::split_paths(&path).chain(system).any(|directory| directory.join(program).is_file())
}
