//! Arguments of `ashlar shard`.

use super::NodePlace;
use clap::{Args, Subcommand};

/// `ashlar shard`
#[derive(Debug, Args)]
pub struct ShardArgs {
    /// What to do.
    #[command(subcommand)]
    pub action: ShardAction,
    #[command(flatten)]
    pub node: NodePlace,
}

/// What can be done about shards.
#[derive(Debug, Subcommand)]
pub enum ShardAction {
    /// Show which metadata server answers for which shards.
    List {
        /// Print JSON: a list of objects with `id` and `node` (`id`, `name`).
        #[arg(long)]
        json: bool,
    },
}
