//! `ashlar backup`: saves the metadata of a stopped file system, or of a running one of many servers.

use crate::backup::{back_up, back_up_running};
use crate::cli::BackupArgs;
use crate::cluster::NodeDirectory;
use crate::node::Directories;
use crate::terminal::{say, shown};
use anyhow::Result;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Where a machine keeps who it is, unless it says otherwise.
const IDENTITY: &str = "/etc/ashlar";

pub fn run(args: &BackupArgs) -> Result<ExitCode> {
    if let Some(identity) = identity(args) {
        let summary = back_up_running(&identity, &args.file)?;
        say(format_args!(
            "{} records in {} bytes of {} metadata servers saved to {}; calls waited for {} ms",
            summary.pairs,
            summary.bytes,
            summary.parts,
            shown(&args.file),
            summary.closed.as_millis()
        ));
        return Ok(ExitCode::SUCCESS);
    }
    let summary = back_up(&args.place, &args.file)?;
    say(format_args!("{} records in {} bytes saved to {}", summary.pairs, summary.bytes, shown(&args.file)));
    Ok(ExitCode::SUCCESS)
}

fn identity(args: &BackupArgs) -> Option<PathBuf> {
    let is_named = !args.place.data.is_empty() || args.place.meta.is_some();
    // The one of this machine alone, where there is one, is meant by who names nothing.
    let is_alone = || Directories::find_stopped(&args.place).is_ok();
    let usual = || Some(PathBuf::from(IDENTITY)).filter(|path| !is_named && is_node(path) && !is_alone());
    args.identity.clone().or_else(usual)
}

fn is_node(path: &Path) -> bool {
    NodeDirectory::new(path).load().is_ok()
}
