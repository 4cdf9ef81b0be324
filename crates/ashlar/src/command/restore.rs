//! `ashlar restore`: makes a metadata directory of a backup.

use crate::backup::{restore, restore_state};
use crate::cli::RestoreArgs;
use crate::terminal::{say, shown};
use anyhow::Result;
use std::process::ExitCode;

pub fn run(args: &RestoreArgs) -> Result<ExitCode> {
    if args.state_only {
        restore_state(&args.file, &args.meta)?;
        say(format_args!("secrets and cluster-state restored to {}", shown(&args.meta)));
    } else {
        let summary = restore(&args.file, &args.meta)?;
        say(format_args!("{} records restored to {}", summary.pairs, shown(&args.meta)));
    }
    say(format_args!(
        "start with: ashlar up MOUNTPOINT --meta {} --data ... (every data directory)",
        shown(&args.meta)
    ));
    Ok(ExitCode::SUCCESS)
}
