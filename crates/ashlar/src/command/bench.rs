//! `ashlar bench`: what a machine can do; one file per part.

mod memory;

use crate::cli::{Bench, BenchArgs};
use anyhow::Result;
use std::process::ExitCode;

pub fn run(args: &BenchArgs) -> Result<ExitCode> {
    match &args.what {
        Bench::Memory(args) => memory::run(args),
    }
}
