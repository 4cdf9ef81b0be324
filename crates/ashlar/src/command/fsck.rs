//! `ashlar fsck`: checks a stopped file system, and repairs it.

use crate::cli::{DataArgs, FsckArgs};
use crate::fsck::{self, Place};
use anyhow::{Result, bail};
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
    let checked = place(args).and_then(|place| fsck::run(&place, &options));
    Ok(ExitCode::from(checked.unwrap_or_else(|error| {
        eprintln!("ashlar: cannot check: {error:#}");
        COULD_NOT_RUN
    })))
}

fn place(args: &FsckArgs) -> Result<Place> {
    if let Some(dir) = &args.backup {
        return Ok(Place::Backup(dir.clone()));
    }
    if let Some(state) = &args.state {
        if args.accept_older_metadata {
            bail!(
                "targets of many servers do not tell whether metadata is older than they are: leave --accept-older-metadata out"
            );
        }
        if args.give_up_log_from.is_some() && args.meta.len() > 1 {
            bail!(
                "a position is one of a single log: what is behind it would be lost in that of one server alone; restore a backup of all"
            );
        }
        return Ok(Place::Servers {
            state: state.clone(),
            metas: args.meta.clone(),
            data: args.data.clone(),
            identity: args.identity.clone(),
        });
    }
    if let [_, second, ..] = args.meta.as_slice() {
        bail!(
            "{} is a second metadata directory; for those of a file system of many servers, name the directory of a manager with --state, too",
            second.display()
        );
    }
    Ok(Place::One(DataArgs { data: args.data.clone(), meta: args.meta.first().cloned() }))
}
