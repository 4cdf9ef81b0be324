//! `ashlar man`: one man page for the program and one per command.

use crate::cli::{Cli, ManArgs};
use anyhow::{Context, Result};
use clap::CommandFactory;
use std::process::ExitCode;

pub fn run(args: &ManArgs) -> Result<ExitCode> {
    std::fs::create_dir_all(&args.directory)
        .with_context(|| format!("cannot make directory {}", args.directory.display()))?;
    clap_mangen::generate_to(Cli::command(), &args.directory)
        .with_context(|| format!("cannot write man pages into {}", args.directory.display()))?;
    Ok(ExitCode::SUCCESS)
}
