//! `ashlar bench`: what a machine or a file system can do; one file per part.

mod agent;
mod compare;
mod data;
mod device;
mod memory;
mod metadata;
mod network;
mod report;
mod run;
mod table;
mod team;
mod workload;

use crate::cli::{Bench, BenchArgs};
use anyhow::Result;
use std::process::ExitCode;

pub fn run(args: &BenchArgs) -> Result<ExitCode> {
    match &args.what {
        Bench::Run(args) => run::run(args),
        Bench::Report(args) => report::run(args),
        Bench::Compare(args) => compare::run(args),
        Bench::Memory(args) => memory::run(args),
        Bench::Device(args) => device::run(args),
        Bench::Network(args) => network::run(args),
        Bench::Sequential(args) => data::sequential(args),
        Bench::Random(args) => data::random(args),
        Bench::Metadata(args) => metadata::run(args),
        Bench::Agent(args) => agent::run(args),
    }
}
