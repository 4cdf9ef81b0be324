//! `ashlar bench metadata`.

use super::workload::{Session, cancelled_by_signals};
use crate::cli::BenchMetadataArgs;
use crate::terminal::say;
use anyhow::Result;
use ashlar_bench::metadata::{MetadataPlan, Step};
use ashlar_bench::run::Unit;
use std::process::ExitCode;

pub fn run(args: &BenchMetadataArgs) -> Result<ExitCode> {
    let cancel = cancelled_by_signals()?;
    let session = Session::begin(&args.run, Unit::Operations, &cancel)?;
    let steps: Vec<Step> = args.steps.iter().map(|step| Step::from(*step)).collect();
    let plans: Vec<MetadataPlan> = args.run.threads.0.iter().map(|&threads| plan(args, threads)).collect();
    if let Some(files) = args.files_per_directory.filter(|_| !args.run.json) {
        say(format!("threads  directories of each, with {files} files"));
        plans.iter().for_each(|plan| say(format!("{:>7}  {:>19}", plan.threads, plan.branches)));
    }
    session.run(&plans, |workload, plan| workload.metadata(plan, &steps))
}

fn plan(args: &BenchMetadataArgs, threads: usize) -> MetadataPlan {
    let thread_files = args.files.div_ceil(threads as u64);
    // More than can be counted is more than a plan may have, which is looked at later.
    let directories = |files: u64| u32::try_from(thread_files.div_ceil(files)).unwrap_or(u32::MAX);
    let (depth, branches) =
        args.files_per_directory.map_or((args.depth, args.branches), |files| (1, directories(files)));
    MetadataPlan {
        threads,
        thread_files,
        file_bytes: args.size,
        is_shared: args.shared,
        looks_at_neighbour: args.neighbour,
        depth,
        branches,
        has_fsync: args.fsync,
    }
}
