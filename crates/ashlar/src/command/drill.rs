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
        DrillAction::Run(args) => Ok(code(drill::run(args)?)),
        DrillAction::Thrash(args) => Ok(code(drill::thrash(args)?)),
    }
}

fn code(is_good: bool) -> ExitCode {
    if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
