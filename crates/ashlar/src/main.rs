//! The `ashlar` binary: one command line for every role and every task. This crate only wires; what things mean is below it.

mod admin;
mod backup;
mod cli;
mod cluster;
mod command;
mod drill;
mod fsck;
mod guard;
mod keeper;
mod lab;
mod metrics;
mod mount_program;
mod node;
mod program;
mod terminal;

use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut args = std::env::args_os();
    let program = args.next();
    if mount_program::is_asked_for(program.as_deref()) {
        return mount_program::run(args);
    }
    if guard::is_asked_for(program.as_deref()) {
        return guard::run();
    }
    if keeper::is_asked_for(program.as_deref()) {
        return keeper::run(args.map(|arg| arg.to_string_lossy().into_owned()));
    }
    let cli = cli::Cli::parse();
    let outcome = cli::init_logging(&cli).and_then(|()| command::run(cli));
    match outcome {
        Ok(_) if terminal::has_failed() => ExitCode::FAILURE,
        Ok(code) => code,
        Err(error) => {
            // The chain of causes on one line: what failed, why, and what to do about it.
            eprintln!("ashlar: {error:#}");
            ExitCode::FAILURE
        }
    }
}
