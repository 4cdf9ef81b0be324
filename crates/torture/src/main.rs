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
    LedgerWrite(command::ledger::WriteArguments),
    LedgerVerify(command::ledger::VerifyArguments),
    KillCycles(command::kill_cycles::Arguments),
    PowerLoss(command::power_loss::Arguments),
    Corrupt(command::corrupt::Arguments),
    Racer(command::racer::Arguments),
    Share(command::share::Arguments),
    Litmus(command::litmus::Arguments),
    Linear(command::linear::Arguments),
    PassLocks(command::pass_locks::Arguments),
    Full(command::full::Arguments),
    Limits(command::limits::Arguments),
    Metabench(command::metabench::Arguments),
    Databench(command::databench::Arguments),
    WithMount(command::with_mount::Arguments),
    WithDisk(command::with_disk::Arguments),
}

/// The report of a test; `None` for commands that only run others, which report themselves.
fn run(cli: &Cli) -> anyhow::Result<Option<Report>> {
    let report = match &cli.command {
        Command::Differential(arguments) => command::differential::run(arguments),
        Command::Fsx(arguments) => command::fsx::run(arguments),
        Command::LedgerWrite(arguments) => command::ledger::write(arguments),
        Command::LedgerVerify(arguments) => command::ledger::check(arguments),
        Command::KillCycles(arguments) => command::kill_cycles::run(arguments),
        Command::PowerLoss(arguments) => command::power_loss::run(arguments),
        Command::Corrupt(arguments) => command::corrupt::run(arguments),
        Command::Racer(arguments) => command::racer::run(arguments),
        Command::Share(arguments) => command::share::run(arguments),
        Command::Litmus(arguments) => command::litmus::run(arguments),
        Command::Linear(arguments) => command::linear::run(arguments),
        Command::PassLocks(arguments) => command::pass_locks::run(arguments),
        Command::Full(arguments) => command::full::run(arguments),
        Command::Limits(arguments) => command::limits::run(arguments),
        Command::Metabench(arguments) => return command::metabench::run(arguments).map(|()| None),
        Command::Databench(arguments) => return command::databench::run(arguments).map(|()| None),
        Command::WithMount(arguments) => return command::with_mount::run(arguments).map(|()| None),
        Command::WithDisk(arguments) => return command::with_disk::run(arguments).map(|()| None),
    };
    report.map(Some)
}

fn main() -> ExitCode {
    match run(&Cli::parse()) {
        Ok(None) => ExitCode::SUCCESS,
        Ok(Some(report)) => {
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
