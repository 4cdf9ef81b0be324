//! `ashlar bench device`.

use super::workload::cancelled_by_signals;
use crate::cli::BenchDeviceArgs;
use crate::terminal::{say, shown};
use anyhow::{Result, bail};
use ashlar_bench::device::{DeviceFigure, DevicePlan, Sharing};
use ashlar_bench::figure::{Figure, summarize};
use ashlar_bench::place::Place;
use std::path::PathBuf;
use std::process::ExitCode;

/// Refuses a directory that is named twice.
fn check_apart(directories: &[PathBuf]) -> Result<()> {
    let mut known = Vec::new();
    for directory in directories {
        // What cannot be found is refused for that later.
        let Ok(real) = directory.canonicalize() else { continue };
        if known.contains(&real) {
            bail!("{} is named twice: name a directory on each device", shown(directory));
        }
        known.push(real);
    }
    Ok(())
}

pub fn run(args: &BenchDeviceArgs) -> Result<ExitCode> {
    let plan = DevicePlan {
        threads: usize::from(args.threads),
        bytes: args.bytes,
        depth: args.depth,
        random_seconds: args.seconds,
        repetitions: args.repetitions,
    };
    plan.check()?;
    check_apart(&args.directories)?;
    let cancel = cancelled_by_signals()?;
    let places: Vec<Place> = (args.directories.iter())
        .map(|directory| Place::make(directory, args.beside_others))
        .collect::<Result<_, _>>()?;
    let figures = plan.measure(&places, &cancel, &|told| super::workload::log(&told.figure))?;
    if args.json {
        let all = serde_json::json!({
            "directories": args.directories, "plan": plan, "figures": figures, "sharing": Sharing::of(&figures),
        });
        say(serde_json::to_string_pretty(&all)?);
        return Ok(ExitCode::SUCCESS);
    }
    for (at, directory) in args.directories.iter().enumerate() {
        show(&directory.display().to_string(), Some(at), &figures);
    }
    if places.len() > 1 {
        show(&format!("all {} together", places.len()), None, &figures);
    }
    for sharing in Sharing::of(&figures).iter().filter(|sharing| sharing.is_limited()) {
        say(format!(
            "{}: together {:.0} % of the sum of each alone: they share a disk, a controller or a bus that limits them",
            sharing.what,
            sharing.together / sharing.sum * 100.0
        ));
    }
    Ok(ExitCode::SUCCESS)
}

fn show(name: &str, target: Option<usize>, figures: &[DeviceFigure]) {
    let own: Vec<Figure> =
        figures.iter().filter(|told| told.target == target).map(|told| told.figure.clone()).collect();
    say(name);
    say(format!(
        "  {:<14} {:>10} {:>10} {:>7} {:>10} {:>10}",
        "phase", "MiB/s", "ops/s", "+- %", "p50 us", "p99 us"
    ));
    for row in summarize(&own) {
        let (rate, mib) = (row.operations_per_second, row.bytes_per_second.mean / f64::from(1 << 20));
        let percent = if rate.mean > 0.0 { rate.deviation / rate.mean * 100.0 } else { 0.0 };
        say(format!(
            "  {:<14} {mib:>10.0} {:>10.0} {percent:>7.1} {:>10.1} {:>10.1}",
            row.what, rate.mean, row.p50_us, row.p99_us
        ));
    }
}
