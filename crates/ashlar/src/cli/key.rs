//! Arguments of `ashlar key`.

use super::NodePlace;
use clap::{Args, Subcommand};

/// `ashlar key`
#[derive(Debug, Args)]
pub struct KeyArgs {
    /// What to do.
    #[command(subcommand)]
    pub action: KeyAction,
    #[command(flatten)]
    pub node: NodePlace,
}

/// What can be done about keys.
#[derive(Debug, Subcommand)]
pub enum KeyAction {
    /// Use new keys for what clients are let do on storage servers. It happens by itself every hour; twice makes what was given before worth nothing.
    /// Mounts go on.
    Rotate {
        /// Print JSON: an object with `is_rotated`, which is true.
        #[arg(long)]
        json: bool,
    },
}
