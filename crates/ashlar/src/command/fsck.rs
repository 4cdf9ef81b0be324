//! `ashlar fsck`: checks a stopped file system, and repairs it.

use crate::cli::FsckArgs;
use crate::fsck;
use anyhow::Result;
use std::process::ExitCode;

/// Exit status when the check could not be done, as in fsck(8).
const COULD_NOT_RUN: u8 = 8;

pub fn run(args: &FsckArgs) -> Result<ExitCode> {
    let options = fsck::Options {
        is_repairing: args.repair,
        is_quick: args.quick,
        is_json: args.json,
        give_up_log_from: args.give_up_log_from,
        accepts_older_metadata: args.accept_older_metadata,
    };
    Ok(ExitCode::from(fsck::run(&args.place, &options).unwrap_or_else(|error| {
        eprintln!("ashlar: cannot check: {error:#}");
        COULD_NOT_RUN
    })))
}
