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
        /// `copying`, `stalled` (where it goes does not answer), `deciding` or `failed`, `sent` and `total` keys, `reason` of a failure or of being stalled).
        #[arg(long)]
        json: bool,
    },
    /// Show one shard: which server answers for it and where that listens, and whether it moves.
    Show {
        /// Its number.
        #[arg(value_name = "SHARD", value_parser = parse_number)]
        id: u16,
        /// Print JSON: what `list` tells of each, with `addresses` (of its server) and `epoch` (of the map that says so).
        #[arg(long)]
        json: bool,
    },
    /// Move shards to another metadata server, while they are used; waits until they are there. Or withdraw such moves.
    Move {
        /// Their numbers; with --cancel also `all`.
        #[arg(required = true, value_name = "SHARD", value_parser = parse_shard)]
        shards: Vec<ShardChoice>,
        /// The node that is to have them.
        #[arg(long, value_name = "NODE", required_unless_present = "cancel")]
        to: Option<String>,
        /// Have shards stay that are to be moved, or are being copied. One that is just being handed over cannot stay any more.
        #[arg(long, conflicts_with = "to")]
        cancel: bool,
        /// Print JSON when it is done: a list of objects with `id`, `from` and `to` (`id`, `name`); with --cancel: `id`, `to` (null when it was not on its way)
        /// and `outcome` (`withdrawn`, `too late` or `not moving`).
        #[arg(long)]
        json: bool,
    },
    /// Show shards that are being moved or are to be, or have them stay where they are for now. That holds for all metadata servers, and until it is taken back.
    Moves {
        /// Move nothing for now. One that is just being handed over comes to its end, which takes a moment; one that is being copied begins anew later.
        #[arg(long, conflicts_with = "resume")]
        pause: bool,
        /// Go on.
        #[arg(long)]
        resume: bool,
        /// Print JSON, also after a change: an object with `is_paused` and `moves`, a list of objects with `id` and `node` (as `list` has them) and `to`, `state`, `sent`, `total` and `reason` (as
        /// its `moving`), and `unanswered`, a list of metadata servers (`id`, `name`) that did not tell theirs.
        #[arg(long)]
        json: bool,
    },
    /// Move all shards of a metadata server to the others, evenly; after that it can be stopped, and removed with `ashlar node remove`.
    Drain {
        /// The node that is to have none.
        #[arg(value_name = "NODE")]
        name: String,
        /// Print JSON when it is done: as of `move`.
        #[arg(long)]
        json: bool,
    },
    /// Move shards until all metadata servers have as many as each other. Those that are away are left out, which is said on standard error.
    Balance {
        /// Print JSON when it is done: as of `move`.
        #[arg(long)]
        json: bool,
    },
}

/// A shard, or all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShardChoice {
    One(u16),
    All,
}

fn parse_shard(text: &str) -> Result<ShardChoice, String> {
    if text == "all" {
        return Ok(ShardChoice::All);
    }
    parse_number(text).map(ShardChoice::One)
}

fn parse_number(text: &str) -> Result<u16, String> {
    let number = text.strip_prefix("shard-").unwrap_or(text);
    number.parse().map_err(|_| {
        format!("`{}` is not the number of a shard; `ashlar shard list` shows all", text.escape_debug())
    })
}
