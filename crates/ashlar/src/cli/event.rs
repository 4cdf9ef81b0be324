//! Arguments of `ashlar event`.

use super::NodePlace;
use ashlar_types::{EventKind, Timespec};
use clap::{Args, Subcommand};

/// `ashlar event`
#[derive(Debug, Args)]
pub struct EventArgs {
    /// What to do.
    #[command(subcommand)]
    pub action: EventAction,
    #[command(flatten)]
    pub node: NodePlace,
}

/// What can be done about events.
#[derive(Debug, Subcommand)]
pub enum EventAction {
    /// Show what has happened to the file system, the oldest first. The managers keep the newest two thousand or so.
    List {
        /// Go on, and show what happens, until Ctrl-C.
        #[arg(long)]
        follow: bool,
        /// Only from this time on: `2026-11-22T09:24:05Z` (UTC; seconds, time of day and Z may be left out), or so long ago: `90s`, `30m`, `12h`,
        /// `7d`.
        #[arg(long, value_name = "TIME", value_parser = parse_since)]
        since: Option<Since>,
        /// Only of this kind, such as `node-joined`. Repeat for several.
        #[arg(long, value_name = "KIND", value_parser = parse_kind)]
        kind: Vec<EventKind>,
        /// Print JSON: a list of objects with `number`, `time` (UTC), `node` (`id`, `name`), `kind`, `subject` and `text`; with --follow one object per
        /// line.
        #[arg(long)]
        json: bool,
    },
}

/// From when on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Since {
    /// A time.
    At(Timespec),
    /// So many seconds ago.
    Ago(u32),
}

fn parse_since(text: &str) -> Result<Since, String> {
    if let Some(at) = Timespec::parse_utc(text) {
        return Ok(Since::At(at));
    }
    let units = [('s', 1), ('m', 60), ('h', 60 * 60), ('d', 24 * 60 * 60)];
    let ago = units.iter().find_map(|(unit, seconds)| {
        let number: u32 = text.strip_suffix(*unit)?.parse().ok()?;
        number.checked_mul(*seconds)
    });
    ago.map(Since::Ago)
        .ok_or_else(|| format!("`{text}` is no time: write for example 2026-11-22T09:24, 30m, 12h or 7d"))
}

fn parse_kind(text: &str) -> Result<EventKind, String> {
    EventKind::parse(text).ok_or_else(|| {
        let names: Vec<&str> = EventKind::ALL.iter().map(|kind| kind.name()).collect();
        format!("`{text}` is no kind of event; there are {}", names.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_kinds_are_read_or_refused_with_what_to_write() {
        assert_eq!(parse_since("90s"), Ok(Since::Ago(90)));
        assert_eq!(parse_since("7d"), Ok(Since::Ago(604_800)));
        assert!(matches!(parse_since("2026-11-22"), Ok(Since::At(_))));
        for bad in ["", "d", "yesterday", "99999999d", "-1h"] {
            assert!(parse_since(bad).is_err_and(|error| error.contains("for example")), "{bad}");
        }
        assert_eq!(parse_kind("node-joined"), Ok(EventKind::NodeJoined));
        assert!(parse_kind("node").is_err_and(|error| error.contains("node-joined")));
    }
}
