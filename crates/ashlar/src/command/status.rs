//! `ashlar status`: what runs here and how it is.

use crate::admin::{Status, TargetCondition, find_running};
use crate::cli::StatusArgs;
use crate::terminal::shown;
use anyhow::{Context, Result};
use std::fmt::Write as _;
use std::io::Write as _;
use std::process::ExitCode;

pub fn run(args: &StatusArgs) -> Result<ExitCode> {
    let running: Vec<Status> =
        find_running(args.mountpoint.as_deref())?.into_iter().map(|(_, status)| status).collect();
    let mut text = if args.json { serde_json::to_string_pretty(&running)? + "\n" } else { String::new() };
    if !args.json {
        running.iter().try_for_each(|status| describe(&mut text, status))?;
    }
    match std::io::stdout().write_all(text.as_bytes()) {
        // `ashlar status | head`: whoever reads has seen enough.
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error).context("cannot print"),
        _ => Ok(ExitCode::SUCCESS),
    }
}

fn describe(text: &mut String, status: &Status) -> std::fmt::Result {
    writeln!(
        text,
        "file system {}  (ashlar {}, process {}, map epoch {})",
        status.cluster, status.version, status.pid, status.epoch
    )?;
    for mount in &status.mounts {
        writeln!(text, "  mounted at {}", shown(mount))?;
    }
    match status.inodes_used {
        Some(inodes) => writeln!(text, "  metadata in {}, {inodes} inodes", shown(&status.meta))?,
        None => writeln!(text, "  metadata in {}", shown(&status.meta))?,
    }
    if let Some(reason) = &status.meta_stopped {
        writeln!(text, "  metadata has stopped, nothing can be changed until the next start: {reason}")?;
    }
    writeln!(text, "  {} of {} free", human(status.bytes_free), human(status.bytes_total))?;
    writeln!(
        text,
        "  {:<10} {:<10} {:<11} {:>10} {:>10}  directory",
        "target", "pool", "state", "size", "free"
    )?;
    for target in &status.targets {
        let state = state_name(target.state);
        let (total, free) = (human(target.bytes_total), human(target.bytes_free));
        writeln!(
            text,
            "  {:<10} {:<10} {state:<11} {total:>10} {free:>10}  {}",
            target.id, target.pool, target.path
        )?;
    }
    for target in &status.targets {
        if let Some(reason) = &target.reason {
            writeln!(text, "  target {} is {}: {reason}", target.id, state_name(target.state))?;
        }
    }
    Ok(())
}

fn state_name(state: TargetCondition) -> &'static str {
    match state {
        TargetCondition::Online => "online",
        TargetCondition::Missing => "missing",
        TargetCondition::Stopped => "stopped",
        TargetCondition::Unreachable => "unreachable",
    }
}

/// Bytes with a binary unit and at most one decimal.
fn human(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

#[cfg(test)]
mod tests {
    use super::human;

    #[test]
    fn sizes_are_for_people() {
        assert_eq!((human(0), human(1023), human(1536)), ("0 B".into(), "1023 B".into(), "1.5 KiB".into()));
        assert_eq!(human(u64::MAX), "16384.0 PiB");
    }
}
