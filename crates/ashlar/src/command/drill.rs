//! `ashlar drill`: failures on purpose, under load, with a report.

use crate::cli::{DrillAction, DrillArgs};
use crate::drill;
use anyhow::Result;
use std::process::ExitCode;

pub fn run(args: &DrillArgs) -> Result<ExitCode> {
    match &args.action {
        DrillAction::List { json } => {
            drill::list(*json)?;
            Ok(ExitCode::SUCCESS)
        }
        DrillAction::Run(args) => Ok(if drill::run(args)? { ExitCode::SUCCESS } else { ExitCode::FAILURE }),
    }
}
