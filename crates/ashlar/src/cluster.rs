//! The roles of a cluster, each a process of its own: wiring of the same services that `ashlar up` runs together.

mod affinity;
mod announce;
mod background;
mod claim;
mod console;
mod doors;
pub mod etcd;
mod first_node;
pub mod init;
pub mod join;
mod keys;
mod manager;
mod member;
mod meta;
mod meta_directory;
mod mount;
mod node_directory;
mod older_copy;
mod open_targets;
pub mod promote;
mod renewal;
mod restored;
mod shard_pause;
mod storage;
pub mod store;
pub mod subtree;

pub use affinity::DataPlace;
pub use console::{log_in as log_in_to_console, run as run_console};
pub use manager::run as run_manager;
pub use member::Member;
pub use meta::run as run_meta;
pub use meta_directory::{read_uuid, write_uuid};
pub use mount::run as run_mount;
pub use node_directory::NodeDirectory;
pub use restored::RestoredNote;
pub use storage::run as run_storage;
