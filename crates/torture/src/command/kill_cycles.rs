//! `ashlar-torture kill-cycles`: kill the server under load, restart it, and check everything it had answered.

use std::time::Duration;

use anyhow::Context;
use clap::Args;

use crate::cycles::Cycles;
use crate::ledger::expect::Mode;
use crate::report::Report;
use crate::rng::Rng;
use crate::server::Launch;

/// Kill -9 the server at random moments under load; after each restart verify all acknowledged operations.
#[derive(Args, Debug)]
pub struct Arguments {
    #[command(flatten)]
    launch: Launch,
    /// Kills.
    #[arg(long, default_value_t = 200)]
    cycles: u64,
    /// Writer threads.
    #[arg(long, default_value_t = 4)]
    writers: u32,
    /// Fixes the operations and the moments of the kills.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The longest a server lives, in milliseconds.
    #[arg(long, default_value_t = 1500)]
    life_ms_max: u64,
}

/// Runs the command.
///
/// # Errors
/// When the server cannot be started or stopped, or a ledger cannot be used.
pub fn run(arguments: &Arguments) -> anyhow::Result<Report> {
    let cycles = Cycles {
        launch: arguments.launch.clone(),
        writers: arguments.writers,
        seed: arguments.seed,
        mode: Mode::Returned,
    };
    cycles.launch.prepare()?;
    let mut rng = Rng::new(arguments.seed);
    let mut report = Report::new();
    let mut operations = 0;
    for cycle in 0..arguments.cycles {
        let mut server = cycles.launch.start().with_context(|| format!("start of cycle {cycle}"))?;
        if let Some(before) = cycle.checked_sub(1) {
            report.absorb(cycles.verify(before)?);
            if report.failed() > 0 {
                return Ok(at_cycle(report, arguments, before));
            }
            cycles.retire(before)?;
        }
        let writers = cycles.start_writers(cycle)?;
        std::thread::sleep(Duration::from_millis(rng.between(20, arguments.life_ms_max.max(20))));
        // A writer only ends by a failure; before the kill that is one of the server's.
        let failed_early = writers.any_ended();
        server.kill()?;
        server.detach()?;
        operations += writers.join(failed_early, &mut report);
        if report.failed() > 0 {
            return Ok(at_cycle(report, arguments, cycle));
        }
        if (cycle + 1) % 20 == 0 {
            println!("{} kills, {operations} operations, {} checks", cycle + 1, report.passed());
        }
    }
    let last = arguments.cycles.saturating_sub(1);
    for _ in 0..2 {
        // The second time after a clean stop.
        let server = cycles.launch.start().context("start after the last cycle")?;
        report.absorb(cycles.verify(last)?);
        server.stop()?;
        if report.failed() > 0 {
            return Ok(at_cycle(report, arguments, last));
        }
    }
    println!("{} kills, {operations} operations acknowledged", arguments.cycles);
    Ok(report)
}

fn at_cycle(mut report: Report, arguments: &Arguments, cycle: u64) -> Report {
    report.fail(format!(
        "cycle {cycle}, seed {}; data, ledgers and the server's log are kept in {}",
        arguments.seed,
        arguments.launch.work.display()
    ));
    report
}
