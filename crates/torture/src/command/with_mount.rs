//! `ashlar-torture with-mount`: run any command with the file system mounted, and insist on a clean start and end.

use std::ffi::OsString;
use std::process::Command;

use anyhow::{Context, bail};
use clap::Args;

use crate::report::Report;
use crate::server::Launch;

/// Mount, run a command with `MOUNT` set to the mount point, unmount; fails if any of the three does.
#[derive(Args, Debug)]
pub struct Arguments {
    #[command(flatten)]
    launch: Launch,
    /// The command and its arguments; `{MOUNT}` in them stands for the mount point.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

/// Runs the command.
///
/// # Errors
/// When the server does not start or stop properly, or died meanwhile.
pub fn run(arguments: &Arguments) -> anyhow::Result<Report> {
    arguments.launch.prepare()?;
    let mut server = arguments.launch.start()?;
    let mount = server.mountpoint().to_owned();
    let mut words = arguments.command.iter().map(|word| match word.to_str() {
        Some(text) => OsString::from(text.replace("{MOUNT}", &mount.to_string_lossy())),
        None => word.clone(),
    });
    let program = words.next().context("a command is required")?;
    let status = Command::new(&program)
        .args(words)
        .env("MOUNT", &mount)
        .env("MOUNT_SERVER_PID", server.pid().to_string())
        .status()
        .with_context(|| format!("start {}", program.to_string_lossy()))?;
    if let Some(ended) = server.ended()? {
        bail!(
            "the server ended with {ended} while the command ran; see {}",
            arguments.launch.log().display()
        );
    }
    server.stop()?;
    let mut report = Report::new();
    report.check(status.success(), || format!("{} ended with {status}", program.to_string_lossy()));
    Ok(report)
}
