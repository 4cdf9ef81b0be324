//! `ashlar bench sequential` and `ashlar bench random`.

use super::workload::{Session, cancelled_by_signals};
use crate::cli::{BenchAction, BenchDataArgs, BenchRandomArgs, BenchSequentialArgs};
use anyhow::{Result, bail};
use ashlar_bench::data::{Action, DataPlan, Files, Order};
use ashlar_bench::place::Place;
use ashlar_bench::run::Unit;
use ashlar_bench::workload::Origin;
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Part of the free space that is used when nobody says how much, percent.
const FREE_PERCENT: u64 = 40;

pub fn sequential(args: &BenchSequentialArgs) -> Result<ExitCode> {
    let time_max = time_max(args.seconds);
    run(&args.data, Unit::Bytes, |plan| DataPlan { record_bytes: args.record, time_max, ..plan })
}

/// After how long to end; 0: when all is done.
fn time_max(seconds: u64) -> Option<Duration> {
    (seconds > 0).then(|| Duration::from_secs(seconds))
}

pub fn random(args: &BenchRandomArgs) -> Result<ExitCode> {
    let time_max = time_max(args.seconds);
    let order = Order::Random { seed: args.seed };
    run(&args.data, Unit::Operations, |plan| DataPlan {
        order,
        record_bytes: args.record,
        depth: args.depth,
        time_max,
        ..plan
    })
}

fn run(args: &BenchDataArgs, unit: Unit, make: impl Fn(DataPlan) -> DataPlan) -> Result<ExitCode> {
    let cancel = cancelled_by_signals()?;
    if args.use_kept {
        return read_kept(args, unit, make, &cancel);
    }
    if args.keep_files && args.run.threads.0.len() != 1 {
        bail!("--keep-files leaves the files of one number of threads: name one with --threads");
    }
    if args.keep_files {
        Place::check_none_kept(&args.run.directory)?;
    }
    let mut session = Session::begin(&args.run, unit, &cancel)?;
    let actions: &[Action] = match args.only {
        None => &[Action::Write, Action::Read],
        Some(BenchAction::Write) => &[Action::Write],
        Some(BenchAction::Read) => &[Action::Read],
    };
    let total = match args.total {
        Some(total) => total,
        None => {
            let free = session.free_bytes()?;
            session.rules.enough_bytes().min(free / 100 * FREE_PERCENT)
        }
    };
    let plans: Vec<DataPlan> = args
        .run
        .threads
        .0
        .iter()
        .map(|&threads| {
            let plan = make(DataPlan {
                threads,
                files: if args.shared { Files::Shared { segments: args.segments } } else { Files::PerThread },
                order: Order::Sequential,
                record_bytes: 1,
                thread_bytes: args.thread_bytes.unwrap_or(total / threads as u64),
                depth: 1,
                is_direct: args.direct,
                counts_fsync: !args.without_fsync,
                time_max: None,
            });
            whole_records(plan, args.segments)
        })
        .collect::<Result<_>>()?;
    session.keeps = plans.first().filter(|_| args.keep_files).cloned();
    let origin = Origin::Made { is_kept: args.keep_files };
    session.run(&plans, |workload, plan| workload.data_of(plan, actions, origin))
}

/// Reads what an earlier command has kept, in the order of this one.
fn read_kept(
    args: &BenchDataArgs,
    unit: Unit,
    make: impl Fn(DataPlan) -> DataPlan,
    cancel: &AtomicBool,
) -> Result<ExitCode> {
    let (place, kept) = Place::kept(&args.run.directory)?;
    let record_bytes = kept.record_bytes;
    let asked = make(DataPlan { order: Order::Sequential, depth: 1, time_max: None, ..kept });
    // The stamps in the files are those of their records.
    let plan = DataPlan { record_bytes, is_direct: args.direct, ..asked };
    plan.check()?;
    let session = Session::begin_in(place, &args.run, unit, cancel)?;
    session.run(&[plan], |workload, plan| workload.data_of(plan, &[Action::Read], Origin::Found))
}

/// Takes off what does not fill a record of each segment, or large pieces of it if there are many.
fn whole_records(plan: DataPlan, segments: u64) -> Result<DataPlan> {
    let piece = plan.record_bytes.saturating_mul(segments);
    let large = piece.max((1 << 20) / piece.max(1) * piece);
    let step = if plan.thread_bytes >= 8 * large { large } else { piece };
    let thread_bytes = plan.thread_bytes / step.max(1) * step;
    if thread_bytes == 0 {
        bail!(
            "{} threads have {} bytes each, which is less than a record of {} in each of {segments} segments: ask for more with --total or --thread-bytes",
            plan.threads,
            plan.thread_bytes,
            plan.record_bytes
        );
    }
    let plan = DataPlan { thread_bytes, ..plan };
    plan.check()?;
    Ok(plan)
}
