//! A running file system on one machine: every role in one process, wired through in-process calls.

mod directories;
mod mounts;
mod services;

pub use directories::Directories;
pub use mounts::{MountConfig, Mounted, mount};
pub use services::{Services, ServicesConfig};
