//! Arguments of `ashlar pool`.

use super::NodePlace;
use clap::{Args, Subcommand};

/// `ashlar pool`
#[derive(Debug, Args)]
pub struct PoolArgs {
    /// What to do.
    #[command(subcommand)]
    pub action: PoolAction,
    #[command(flatten)]
    pub node: NodePlace,
}

/// What can be done about pools.
#[derive(Debug, Subcommand)]
pub enum PoolAction {
    /// Show the pools of the file system and their targets.
    List {
        /// Print JSON: a list of objects with `id`, `name`, `targets` (numbers), `chains`, `chains_by_copies` (a list of objects with `copies`, `chains`, and `short`: how many of these have fewer copies at
        /// the moment) and `is_rebalancing`.
        #[arg(long)]
        json: bool,
    },
    /// Show one pool, its targets and their space.
    Show {
        /// Its name.
        name: String,
        /// Print JSON: what `list` tells of each, `targets_told` (how many servers have told the space of) with the sums `bytes_total`, `bytes_used` and `bytes_free`
        /// of those, `chains_moving`, `rebalance` (null, or how far it is, as `drain` of a target), `rebuild` (null, or how far it is that lost copies are made good: `chains_short`, `chains_under_way`,
        /// `bytes_lacking`, at the most, `chains_untold`, of which no target tells, `bytes_copied`, `bytes_per_s` and `seconds_left`, null where nobody knows, and `waits_s`, for how long those that had one are waited for
        /// at the most, or null), and `members`, a list of objects as of `ashlar target list`.
        #[arg(long)]
        json: bool,
    },
    /// Make a pool. Targets are made in it with `ashlar storage --pool`, and directories use it with `ashlar layout set --pool`.
    Add {
        /// Its name.
        name: String,
        /// Print JSON: the pool, as `list` does for each.
        #[arg(long)]
        json: bool,
    },
    /// Have a pool keep chains of so many copies, each on another server: for directories with `ashlar layout set --copies`.
    Copies {
        /// Its name.
        name: String,
        /// How many copies.
        #[arg(value_parser = clap::value_parser!(u8).range(2..=3))]
        count: u8,
        /// Print JSON: the pool, as `list` does for each.
        #[arg(long)]
        json: bool,
    },
    /// Take a pool out of the file system that was never used.
    Remove {
        /// Its name.
        name: String,
        /// Print JSON: the pool as it was, as `list` does for each.
        #[arg(long)]
        json: bool,
    },
}
