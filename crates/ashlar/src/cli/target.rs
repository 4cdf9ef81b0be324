//! Arguments of `ashlar target`.

use super::NodePlace;
use crate::cluster::DataPlace;
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
        /// Print JSON: a list of objects with `id`, `state` (`online` or `offline`, as the map has it), `away_s` (for how many seconds nothing was
        /// heard of its server, if that is away), `domain` (of failure), `is_draining`, `node` (`id`, `name`), `path`, `pool`,
        /// `chains` (how many lead to it), `chains_leaving` and `chains_coming` (how many are just moving), `bytes_total`, `bytes_used` and
        /// `bytes_free` (null when its server did not answer), and `drain`: null when it is not drained, or how far that is (`since`, seconds since 1970, `chains_done`,
        /// `chains_total`, `bytes_done`, `bytes_total` as last counted, `bytes_per_s` and `seconds_left`, null while that is not known, and `is_estimated`, whether the totals are).
        #[arg(long)]
        json: bool,
    },
    /// Show one target.
    Show {
        /// Its number.
        id: u32,
        /// Print JSON: as `list` does for each.
        #[arg(long)]
        json: bool,
    },
    /// Have a directory on a storage server be a target from now on, while the server and everybody goes on. The next starts of the server serve it, too.
    Add {
        /// The directory on the machine of the server, a whole path; `DIR,listen=ADDRESS,numa=NODE` as for `ashlar storage --data`.
        #[arg(value_name = "DIR", value_parser = super::cluster::parse_data_place)]
        dir: DataPlace,
        /// The machine of the server, its name or number. Without it: this one.
        #[arg(long, value_name = "NODE")]
        on: Option<String>,
        /// The pool that it is to be in, if it is no target yet. Without it: the first one.
        #[arg(long, value_name = "NAME")]
        pool: Option<String>,
        /// Print JSON: the target, as `list` does for each.
        #[arg(long)]
        json: bool,
    },
    /// Move what is on targets to the others of their pool, while it is used. New files avoid them from now on.
    Drain {
        /// Their numbers.
        #[arg(required = true)]
        ids: Vec<u32>,
        /// Print JSON: a list of these targets, as of `list`.
        #[arg(long)]
        json: bool,
    },
    /// Use targets again that were to be drained. What has moved stays where it is.
    Undrain {
        /// Their numbers.
        #[arg(required = true)]
        ids: Vec<u32>,
        /// Print JSON: a list of these targets, as of `list`.
        #[arg(long)]
        json: bool,
    },
    /// Take a target out of the file system. It must have been drained. Its server lets go of its directory.
    Remove {
        /// Its number.
        id: u32,
        /// Print JSON: the target as it was, as `list` does for each.
        #[arg(long)]
        json: bool,
    },
    /// Say that a target never comes back, after a power cut of several servers: copies that wait for it, because it may have something that they have not, go on with what they have.
    Lost {
        /// Its number.
        id: u32,
        /// What was written last, and not synced, may be lost. Without this it is told what would be done.
        #[arg(long)]
        accept_loss: bool,
        /// Print JSON: an object with `target`, `chains` (how many go on without it), `waiting` (chains that do not, or wait for another target) and `alone` (chains whose content was on it alone before).
        #[arg(long)]
        json: bool,
    },
    /// Move chains from fuller targets of a pool to emptier ones until they are equally full.
    Rebalance {
        /// The pool.
        #[arg(long, default_value = "default", value_name = "NAME")]
        pool: String,
        /// Stop instead. What has moved stays where it is.
        #[arg(long)]
        stop: bool,
        /// Print JSON: the pool, as `ashlar pool list` does for each.
        #[arg(long)]
        json: bool,
    },
    /// Show moves that are under way, or change how they go on.
    Moves {
        /// Copy nothing for now.
        #[arg(long, conflicts_with = "resume")]
        pause: bool,
        /// Go on copying.
        #[arg(long)]
        resume: bool,
        /// Send at most this many MiB per second from each server; 0: as fast as it goes while nobody else uses a server, and an eighth of the time while somebody does.
        #[arg(long, value_name = "MIB_PER_S")]
        rate: Option<u32>,
        /// Print JSON, also after a change: an object with `is_paused`, `rate_mib_s`, `rebalancing` (names of pools) and `moves`, a list of objects with `chain`,
        /// `from` and `to` (targets), `chunks_done`, `bytes_done`, `bytes_total` (0 until it was counted) and `obstacle` (null when there is none;
        /// the last four are null when the server did not answer), and `works`: how far each drained target and rebalanced pool is, a list of objects with `target` (null of a pool), `pool`, and what
        /// `drain` of `list` has.
        #[arg(long)]
        json: bool,
    },
}
