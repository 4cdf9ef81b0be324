//! `ashlar bench metadata`.

use super::workload::{Session, cancelled_by_signals};
use crate::cli::BenchMetadataArgs;
use anyhow::Result;
use ashlar_bench::metadata::{MetadataPlan, Step};
use ashlar_bench::run::Unit;
use std::process::ExitCode;

pub fn run(args: &BenchMetadataArgs) -> Result<ExitCode> {
    let cancel = cancelled_by_signals()?;
    let session = Session::begin(&args.run, Unit::Operations, &cancel)?;
    let steps: Vec<Step> = args.steps.iter().map(|step| Step::from(*step)).collect();
    let plans: Vec<MetadataPlan> = (args.run.threads.0.iter())
        .map(|&threads| MetadataPlan {
            threads,
            thread_files: args.files.div_ceil(threads as u64),
            file_bytes: args.size,
            is_shared: args.shared,
            looks_at_neighbour: args.neighbour,
            depth: args.depth,
            branches: args.branches,
            has_fsync: args.fsync,
        })
        .collect();
    session.run(&plans, |workload, plan| workload.metadata(plan, &steps))
}
