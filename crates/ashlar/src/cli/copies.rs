//! Arguments of `ashlar copies`.

use super::NodePlace;
use clap::{Args, Subcommand};

/// `ashlar copies`
#[derive(Debug, Args)]
pub struct CopiesArgs {
    /// What to do.
    #[command(subcommand)]
    pub action: CopiesAction,
    #[command(flatten)]
    pub node: NodePlace,
}

/// What can be done about copies of metadata.
#[derive(Debug, Subcommand)]
pub enum CopiesAction {
    /// Show which servers keep copies of the metadata of which.
    List {
        /// Print JSON: a list of objects with `server` (`id` and `name` of a metadata server), `wanted`, `serves` (the server that serves it; null if none is known), `copies` (servers that
        /// have all of it, the one that serves first), `catching_up` (servers that are being given it) and `epoch`.
        #[arg(long)]
        json: bool,
    },
    /// Keep so many copies of the metadata of a server, each on another server: when one dies, another one goes on.
    Set {
        /// The metadata server: its name or number.
        server: String,
        /// How many copies, its own among them.
        #[arg(value_parser = clap::value_parser!(u8).range(1..=3))]
        count: u8,
        /// Print JSON: the metadata server, as `list` does for each.
        #[arg(long)]
        json: bool,
    },
    /// Say that a server never comes back, after a power cut of several: copies that wait for it, because it may have something that they have not, go on with what they have.
    Lost {
        /// The server that kept copies: its name or number.
        machine: String,
        /// What was done last, and not synced, may be lost. Without this it is told what would be done.
        #[arg(long)]
        accept_loss: bool,
        /// Print JSON: an object with `node`, `servers` (metadata servers that go on without it), `waiting` (those that do not, or wait for another machine) and `alone` (those whose metadata was on it alone before).
        #[arg(long)]
        json: bool,
    },
}
