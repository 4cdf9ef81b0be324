//! Arguments of `ashlar chain`.

use super::NodePlace;
use clap::{Args, Subcommand};

/// `ashlar chain`
#[derive(Debug, Args)]
pub struct ChainArgs {
    /// What to do.
    #[command(subcommand)]
    pub action: ChainAction,
    #[command(flatten)]
    pub node: NodePlace,
}

/// What can be asked of chains.
#[derive(Debug, Subcommand)]
pub enum ChainAction {
    /// Show the chains that keep several copies of what is in them, and on which targets, and how far it is that lost copies are made good.
    List {
        /// Those alone that have fewer copies than they are to have.
        #[arg(long)]
        short: bool,
        /// Those alone of the pool of this name.
        #[arg(long, value_name = "NAME")]
        pool: Option<String>,
        /// Print JSON: a list of objects with `id`, `pool`, `wanted` (how many copies), `in_sync` (targets that have all of it, the one in front first), `catching_up` (targets that are being
        /// given it), `former` (targets that had all of it, and are waited for), each a list of objects with `id` and `node` (`id` and `name`), `is_short`, `epoch` and `progress`: null, or how far the one is that is being given it, with `to`
        /// (a target), `chunks_done`, `bytes_done`, `bytes_total` and `obstacle` (what keeps it from going on, or null).
        #[arg(long)]
        json: bool,
    },
}
