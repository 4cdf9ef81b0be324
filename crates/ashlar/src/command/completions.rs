//! `ashlar completions`: a completion script on standard output.

use crate::cli::{Cli, CompletionsArgs};
use anyhow::Result;
use clap::CommandFactory;
use std::process::ExitCode;

pub fn run(args: &CompletionsArgs) -> Result<ExitCode> {
    clap_complete::generate(args.shell, &mut Cli::command(), "ashlar", &mut std::io::stdout());
    Ok(ExitCode::SUCCESS)
}
