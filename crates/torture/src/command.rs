//! The subcommands of `ashlar-torture`, one file each.

pub mod differential;
pub mod fsx;
