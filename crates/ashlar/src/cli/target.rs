//! Arguments of `ashlar target`.

use super::NodePlace;
use clap::{Args, Subcommand};

/// `ashlar target`
#[derive(Debug, Args)]
pub struct TargetArgs {
    /// What to do.
    #[command(subcommand)]
    pub action: TargetAction,
    #[command(flatten)]
    pub node: NodePlace,
}

/// What can be done about targets.
#[derive(Debug, Subcommand)]
pub enum TargetAction {
    /// Show the targets of the file system, and their space where their server answers.
    List {
        /// Print JSON: a list of objects with `id`, `state` (`online` or `offline`), `node` (`id`, `name`), `path`, `pool`, `chains` (how
        /// many lead to it), `bytes_total`, `bytes_used` and `bytes_free`; the last three are null when its server did not answer.
        #[arg(long)]
        json: bool,
    },
    /// Show one target.
    Show {
        /// Its number.
        id: u32,
        /// Print JSON, as `list` does for each.
        #[arg(long)]
        json: bool,
    },
}
