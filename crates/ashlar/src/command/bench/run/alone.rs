//! A run on this machine alone.

use super::network::Network;
use super::{Run, keep, open, wording};
use crate::cli::BenchSweepArgs;
use crate::terminal::say;
use anyhow::{Context, Result};
use ashlar_bench::agent::draw_run;
use ashlar_bench::cache;
use ashlar_bench::ceiling::Ceilings;
use ashlar_bench::device::DevicePlan;
use ashlar_bench::inventory::Inventory;
use ashlar_bench::place::Place;
use ashlar_bench::run::identity::Identity;
use ashlar_bench::run::journal::Journal;
use ashlar_bench::run::{Plan, Point, Tool};
use ashlar_bench::sample::Sampler;
use ashlar_bench::task::Alone;
use std::sync::atomic::AtomicBool;

/// What is done on each device: requests under way, bytes at least, seconds of random requests at most.
const DEVICE_DEPTH: u32 = 16;
const DEVICE_BYTES_MIN: u64 = 64 << 20;
const DEVICE_SECONDS_MAX: u64 = 5;

pub fn run(
    args: &BenchSweepArgs,
    wanted: Vec<Tool>,
    network: Option<&Network>,
    cancel: &AtomicBool,
) -> Result<()> {
    let network = network.map(|network| network.of_machine(args.network_agent as usize)).transpose()?;
    let inventory = Inventory::collect(&args.directory, &wanted);
    let memory_bytes =
        cache::memory_bytes().context("cannot find out how much memory there is (/proc/meminfo)")?;
    let processors = inventory.hardware.processors;
    let run = Run { args, cancel, inventory, agents: Vec::new(), processors, memory_bytes, network };
    if args.dry_run {
        let place = Place::make(&args.directory, args.beside_others)?;
        let plan = run.planned(&Alone { place: &place, cancel, sampler: None }, wanted)?;
        run.announce(&plan);
        return Ok(());
    }
    let identity = Identity::of(&args.directory, &run.inventory, wording::asked(args))?;
    let mut journal = open(args, &identity)?;
    journal.progress.clean(&args.directory)?;
    match measure(&run, &mut journal, wanted) {
        Ok(()) => Ok(journal.end()?),
        Err(error) => Err(keep(args, journal, error)),
    }
}

fn measure(run: &Run<'_>, journal: &mut Journal, wanted: Vec<Tool>) -> Result<()> {
    let (args, cancel) = (run.args, run.cancel);
    let name = draw_run()?;
    // ORDER: the journal knows the name before the directory is there; should this be killed, the next run removes it.
    journal.place(&name)?;
    let place = Place::make_for(&name, &args.directory, args.beside_others)?;
    let machine = Alone { place: &place, cancel, sampler: None };
    let devices = |ceilings: &mut Ceilings, plan: &Plan| measure_devices(run, ceilings, plan);
    let plan = run.prepared(&machine, journal, wanted, &devices)?;
    let sampler = Sampler::start().context("cannot watch the machine")?;
    let machine = Alone { sampler: Some(&sampler), ..machine };
    run.sweep(&machine, Some(&machine), journal, &plan)?;
    run.write(journal, plan)
}

fn measure_devices(run: &Run<'_>, ceilings: &mut Ceilings, plan: &Plan) -> Result<()> {
    let args = run.args;
    if args.devices.is_empty() {
        return Ok(());
    }
    say(format!("Ceilings: {} devices", args.devices.len()));
    let places: Vec<Place> = (args.devices.iter())
        .map(|directory| Place::make(directory, args.beside_others))
        .collect::<Result<_, _>>()?;
    Ok(ceilings.measure_devices(&device_plan(plan), &places, run.cancel)?)
}

/// As many bytes, and as long, as the sweep's longest points: both are of the same size.
fn device_plan(plan: &Plan) -> DevicePlan {
    let data = || plan.points.iter().filter(|point| !point.part.is_metadata());
    let bytes = data().map(Point::bytes).max().unwrap_or(0);
    let seconds = data().map(|point| point.amount.seconds).fold(1.0, f64::max);
    DevicePlan {
        threads: plan.threads().last().copied().unwrap_or(1).clamp(1, 4),
        bytes: bytes.max(DEVICE_BYTES_MIN),
        depth: DEVICE_DEPTH,
        random_seconds: (seconds.ceil() as u64).min(DEVICE_SECONDS_MAX),
        repetitions: plan.repetitions,
    }
}
