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
        /// Print JSON: a list of objects with `id`, `node` (`id`, `name`), `away_s` (for how many seconds nothing was heard of that, if it is away), and `moving`: null, or where it goes and how far it is (`to`, `state`: `waiting`,
        /// `copying`, `deciding` or `failed`, `sent` and `total` keys, `reason` of a failure).
        #[arg(long)]
        json: bool,
    },
    /// Move shards to another metadata server, while they are used; waits until they are there.
    Move {
        /// Their numbers.
        #[arg(required = true, value_name = "SHARD")]
        shards: Vec<u16>,
        /// The node that is to have them.
        #[arg(long, value_name = "NODE")]
        to: String,
        /// Print JSON when it is done: a list of objects with `id`, `from` and `to` (`id`, `name`).
        #[arg(long)]
        json: bool,
    },
    /// Move all shards of a metadata server to the others, evenly; after that it can be stopped, and removed with `ashlar node remove`.
    Drain {
        /// The node that is to have none.
        #[arg(value_name = "NODE")]
        name: String,
        /// Print JSON when it is done, as of `move`.
        #[arg(long)]
        json: bool,
    },
    /// Move shards until all metadata servers have as many as each other.
    Balance {
        /// Print JSON when it is done, as of `move`.
        #[arg(long)]
        json: bool,
    },
}
