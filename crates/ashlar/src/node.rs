//! A running file system on one machine: every role in one process, wired through in-process calls. [`State`] and [`targets`] also
//! serve the commands that work on a stopped one.

mod directories;
mod first_start;
mod lock;
mod mount_facts;
mod mount_root;
mod mount_turn;
mod mounts;
pub mod open_files;
pub mod place;
mod read_only;
mod scratch;
pub mod services;
pub mod starts;
pub mod state;
pub mod targets;
pub mod tending;
mod trouble;
mod usable;

pub use directories::{Directories, PROMOTED_FILE};
pub use lock::{LOCK_FILE, MetaLock};
pub use mount_facts::TEXT_BYTES_MAX;
pub use mount_root::MountRoot;
pub use mounts::{Inherited, MountConfig, Mounted, Site, mount};
pub use scratch::Scratch;
pub use services::{Services, ServicesConfig};
pub use state::State;
pub use usable::require_owner;
