//! `ashlar bench sequential` and `ashlar bench random`.

use super::workload::{Session, cancelled_by_signals};
use crate::cli::{BenchAction, BenchDataArgs, BenchRandomArgs, BenchSequentialArgs};
use anyhow::{Result, bail};
use ashlar_bench::data::{Action, DataPlan, Files, Order};
use ashlar_bench::run::Unit;
use std::process::ExitCode;
use std::time::Duration;

/// Part of the free space that is used when nobody says how much, percent.
const FREE_PERCENT: u64 = 40;

pub fn sequential(args: &BenchSequentialArgs) -> Result<ExitCode> {
    run(&args.data, Unit::Bytes, |plan| DataPlan { record_bytes: args.record, ..plan })
}

pub fn random(args: &BenchRandomArgs) -> Result<ExitCode> {
    let time_max = (args.seconds > 0).then(|| Duration::from_secs(args.seconds));
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
    let session = Session::begin(&args.run, unit, &cancel)?;
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
    session.run(&plans, |workload, plan| workload.data(plan, actions))
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
