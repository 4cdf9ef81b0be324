//! `ashlar status`: what runs here and how it is.

use crate::admin::{Status, find_running};
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
    writeln!(text, "  metadata in {}, {} inodes", shown(&status.meta), status.inodes_used)?;
    writeln!(text, "  {} of {} free", human(status.bytes_free), human(status.bytes_total))?;
    writeln!(
        text,
        "  {:<10} {:<10} {:<8} {:>10} {:>10}  directory",
        "target", "pool", "state", "size", "free"
    )?;
    for target in &status.targets {
        let state = if target.online { "online" } else { "missing" };
        let (total, free) = (human(target.bytes_total), human(target.bytes_free));
        writeln!(
            text,
            "  {:<10} {:<10} {state:<8} {total:>10} {free:>10}  {}",
            target.id, target.pool, target.path
        )?;
    }
    Ok(())
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
