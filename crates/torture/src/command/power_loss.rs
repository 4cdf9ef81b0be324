//! `ashlar-torture power-loss`: cut the power of the disk under the server, bring both back, check everything that was synced.

use std::time::Duration;

use anyhow::Context;
use clap::Args;

use crate::cycles::Cycles;
use crate::ledger::expect::Mode;
use crate::loop_disk::{FileSystem, LoopDisk};
use crate::report::Report;
use crate::rng::Rng;
use crate::server::Launch;

/// Forcibly shut down the ext4 or XFS file system under the data directory at random moments; verify all that was fsynced.
#[derive(Args, Debug)]
pub struct Arguments {
    #[command(flatten)]
    launch: Launch,
    /// Power cuts.
    #[arg(long, default_value_t = 20)]
    cycles: u64,
    /// The file system under the data directory.
    #[arg(long, value_enum, default_value = "ext4")]
    fs: FileSystem,
    /// Size of the disk in MiB.
    #[arg(long, default_value_t = 4096)]
    disk_mib: u64,
    /// Writer threads.
    #[arg(long, default_value_t = 4)]
    writers: u32,
    /// Fixes the operations and the moments of the cuts.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The longest time between two cuts, in milliseconds.
    #[arg(long, default_value_t = 3000)]
    life_ms_max: u64,
}

/// Runs the command.
///
/// # Errors
/// When the disk or the server cannot be started, or a ledger cannot be used.
pub fn run(arguments: &Arguments) -> anyhow::Result<Report> {
    let work = &arguments.launch.work;
    std::fs::create_dir_all(work).with_context(|| format!("create {}", work.display()))?;
    let disk = LoopDisk::create(
        &work.join("disk.image"),
        &work.join("disk"),
        arguments.disk_mib << 20,
        arguments.fs,
    )?;
    let mut launch = arguments.launch.clone();
    launch.data = vec![disk.mountpoint().join("data")];
    launch.prepare()?;
    let cycles = Cycles { launch, writers: arguments.writers, seed: arguments.seed, mode: Mode::Fsynced };
    let mut rng = Rng::new(arguments.seed);
    let mut report = Report::new();
    let mut operations = 0;
    for cycle in 0..=arguments.cycles {
        let mut server = cycles.launch.start().with_context(|| format!("start of cycle {cycle}"))?;
        if let Some(before) = cycle.checked_sub(1) {
            report.absorb(cycles.verify(before)?);
        }
        if report.failed() > 0 {
            report.fail(format!(
                "after power cut {cycle}, seed {}; image, ledgers and the server's log are kept in {}",
                arguments.seed,
                work.display()
            ));
            return Ok(report);
        }
        if cycle == arguments.cycles {
            server.stop()?;
            break;
        }
        if let Some(before) = cycle.checked_sub(1) {
            cycles.retire(before)?;
        }
        let writers = cycles.start_writers(cycle)?;
        std::thread::sleep(Duration::from_millis(rng.between(100, arguments.life_ms_max.max(100))));
        let failed_early = writers.any_ended();
        writers.stop();
        disk.cut_power()?;
        let probe = {
            let cycles = cycles.clone();
            std::thread::spawn(move || cycles.sync_succeeds(cycle))
        };
        std::thread::sleep(Duration::from_millis(rng.between(50, 300)));
        let lied = probe.is_finished() && probe.join().unwrap_or(false);
        report.check(!lied, || format!("cycle {cycle}: fsync succeeded although the disk was gone"));
        server.kill()?;
        server.detach()?;
        operations += writers.join(failed_early, &mut report);
        drop(server);
        disk.unmount()?;
        disk.mount()?;
    }
    println!("{} power cuts, {operations} operations acknowledged", arguments.cycles);
    Ok(report)
}
