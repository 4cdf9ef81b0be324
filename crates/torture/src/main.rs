//! `ashlar-torture`: the black-box test programs of the library as subcommands.
//!
//! The last line is always `N passed, N failed`; the exit status is 0 only when nothing failed.

use std::process::ExitCode;

use ashlar_torture::command;
use ashlar_torture::report::Report;
use clap::{Parser, Subcommand};

#[derive(Parser, Debug)]
#[command(version, about = "Test programs that run against any mounted directory")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    Differential(command::differential::Arguments),
    Fsx(command::fsx::Arguments),
}

fn run(cli: &Cli) -> anyhow::Result<Report> {
    match &cli.command {
        Command::Differential(arguments) => command::differential::run(arguments),
        Command::Fsx(arguments) => command::fsx::run(arguments),
    }
}

fn main() -> ExitCode {
    match run(&Cli::parse()) {
        Ok(report) => {
            println!("{report}");
            if report.failed() == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            eprintln!("error: {error:#}");
            println!("0 passed, 1 failed");
            ExitCode::FAILURE
        }
    }
}
