//! `ashlar restore`: makes a metadata directory of a backup.

use crate::backup::{restore, restore_state};
use crate::cli::RestoreArgs;
use anyhow::Result;
use std::process::ExitCode;

pub fn run(args: &RestoreArgs) -> Result<ExitCode> {
    if args.state_only {
        restore_state(&args.file, &args.meta)?;
        println!("secrets and cluster-state restored to {}", args.meta.display());
    } else {
        let summary = restore(&args.file, &args.meta)?;
        println!("{} records restored to {}", summary.pairs, args.meta.display());
    }
    println!(
        "start with: ashlar up MOUNTPOINT --meta {} --data ... (every data directory)",
        args.meta.display()
    );
    Ok(ExitCode::SUCCESS)
}
