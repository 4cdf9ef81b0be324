//! `ashlar lab`: a file system of many servers on this machine alone.

use crate::cli::{LabAction, LabArgs};
use crate::lab;
use anyhow::Result;
use std::process::ExitCode;

pub fn run(args: &LabArgs) -> Result<ExitCode> {
    match &args.action {
        LabAction::Up(up) => lab::up(&args.dir, up)?,
        LabAction::Down => lab::down(&args.dir)?,
        LabAction::Status { json } => lab::status(&args.dir, *json)?,
        LabAction::Gateway { to } => match lab::gateway(*to)? {},
        LabAction::Exec { node, command } => match lab::exec(&args.dir, node, command)? {},
    }
    Ok(ExitCode::SUCCESS)
}
