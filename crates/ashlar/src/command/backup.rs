//! `ashlar backup`: saves the metadata of a stopped file system.

use crate::backup::back_up;
use crate::cli::BackupArgs;
use anyhow::Result;
use std::process::ExitCode;

pub fn run(args: &BackupArgs) -> Result<ExitCode> {
    let summary = back_up(&args.place, &args.file)?;
    println!("{} records in {} bytes saved to {}", summary.pairs, summary.bytes, args.file.display());
    Ok(ExitCode::SUCCESS)
}
