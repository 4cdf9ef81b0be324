//! `ashlar backup`: saves the metadata of a stopped file system.

use crate::backup::back_up;
use crate::cli::BackupArgs;
use crate::terminal::{say, shown};
use anyhow::Result;
use std::process::ExitCode;

pub fn run(args: &BackupArgs) -> Result<ExitCode> {
    let summary = back_up(&args.place, &args.file)?;
    say(format_args!("{} records in {} bytes saved to {}", summary.pairs, summary.bytes, shown(&args.file)));
    Ok(ExitCode::SUCCESS)
}
