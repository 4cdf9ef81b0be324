//! Arguments of `ashlar session`.

use super::NodePlace;
use clap::{Args, Subcommand};

/// `ashlar session`
#[derive(Debug, Args)]
pub struct SessionArgs {
    /// What to do.
    #[command(subcommand)]
    pub action: SessionAction,
    #[command(flatten)]
    pub node: NodePlace,
}

/// What can be done about sessions.
#[derive(Debug, Subcommand)]
pub enum SessionAction {
    /// Show the sessions that metadata servers have: one for each mount.
    List {
        /// Print JSON: an object with `sessions` and `unanswered`. The first is a list of objects with `id` (`id_text`: the same as a text, for programs whose
        /// numbers are not exact), `servers` (all that know it) and `server` (the one that has known it longest) and `node` (`id`, `name` each), `since` (seconds
        /// since 1970; of one that was there before the metadata server was started: since then), `heard_ms` (milliseconds since it was last heard of), `leases`,
        /// `opens`, `locks` (at all of these servers together), and `is_ending`. The second are metadata servers that did not answer, whose sessions are not
        /// among these: `id`, `name`, `away_s` (null when it is not known to be away) and `reason`.
        #[arg(long)]
        json: bool,
    },
    /// Show one session, and what each metadata server has of it.
    Show {
        /// Its number.
        #[arg(value_parser = parse_session)]
        id: u64,
        /// Print JSON: what `list` tells of each, with `instance` (of the process that mounts, as hexadecimal digits), `by_server`, a list of objects with `server`, `since`,
        /// `heard_ms`, `leases`, `opens`, `locks` and `is_ending`, and `unanswered` as of `list`. `ashlar mount show` on the machine tells which of its mounts it is.
        #[arg(long)]
        json: bool,
    },
    /// End a session as if its mount had fallen silent: its locks and leases go to others. A mount that is alive loses its locks and what it
    /// had not written, and comes back with another session.
    Remove {
        /// Its number.
        #[arg(value_parser = parse_session)]
        id: u64,
        /// Print JSON: the session as it was, as `list` does for each, and `unanswered`: where there are such, it may go on, and the exit status is 1.
        #[arg(long)]
        json: bool,
    },
}

fn parse_session(text: &str) -> Result<u64, String> {
    let number = text.strip_prefix("session-").unwrap_or(text);
    number.parse().map_err(|_| {
        format!("`{}` is not the number of a session; `ashlar session list` shows all", text.escape_debug())
    })
}
