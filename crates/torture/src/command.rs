//! The subcommands of `ashlar-torture`, one file each.

pub mod corrupt;
pub mod databench;
pub mod differential;
pub mod fsx;
pub mod full;
pub mod kill_cycles;
pub mod ledger;
pub mod limits;
pub mod linear;
pub mod litmus;
pub mod metabench;
pub mod pass_locks;
pub mod power_loss;
pub mod racer;
pub mod share;
pub mod with_disk;
pub mod with_mount;
