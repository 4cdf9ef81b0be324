//! `ashlar-torture with-mount`: run any command with the file system mounted, and insist on a clean start and end.
//!
//! It prints nothing of its own when all is well, so that the last line is that of the command.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail};
use clap::Args;

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
pub fn run(arguments: &Arguments) -> anyhow::Result<()> {
    arguments.launch.prepare()?;
    let mut server = arguments.launch.start()?;
    let mount = arguments.launch.mountpoint();
    let mut command = substitute(&arguments.command, "{MOUNT}", &mount)?;
    let status = command
        .env("MOUNT", &mount)
        .env("MOUNT_SERVER_PID", server.pid().to_string())
        .status()
        .with_context(|| format!("start {}", command.get_program().to_string_lossy()))?;
    if let Some(ended) = server.ended()? {
        bail!(
            "the server ended with {ended} while the command ran; see {}",
            arguments.launch.log().display()
        );
    }
    server.stop()?;
    if !status.success() {
        bail!("{} ended with {status}", command.get_program().to_string_lossy());
    }
    Ok(())
}

/// The command of `words` with every `placeholder` in them replaced by `path`.
///
/// # Errors
/// When there is no word.
pub(crate) fn substitute(words: &[OsString], placeholder: &str, path: &Path) -> anyhow::Result<Command> {
    let mut words = words.iter().map(|word| match word.to_str() {
        Some(text) => OsString::from(text.replace(placeholder, &path.to_string_lossy())),
        None => word.clone(),
    });
    let mut command = Command::new(words.next().context("a command is required")?);
    command.args(words);
    Ok(command)
}
