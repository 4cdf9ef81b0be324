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
        /// Print JSON: a list of objects with `id`, `name`, `targets` (numbers), `chains` and `is_rebalancing`.
        #[arg(long)]
        json: bool,
    },
    /// Make a pool. Targets are made in it with `ashlar storage --pool`, and directories use it with `ashlar layout set --pool`.
    Add {
        /// Its name.
        name: String,
    },
    /// Take a pool out of the file system that was never used.
    Remove {
        /// Its name.
        name: String,
    },
}
