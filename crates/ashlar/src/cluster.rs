//! The roles of a cluster, each a process of its own: wiring of the same services that `ashlar up` runs together.

mod affinity;
mod announce;
mod background;
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
mod mount;
mod node_directory;
pub mod promote;
mod renewal;
mod restored;
mod storage;
pub mod store;
pub mod subtree;

pub use affinity::DataPlace;
pub use console::{log_in as log_in_to_console, run as run_console};
pub use manager::run as run_manager;
pub use member::Member;
pub use meta::{read_uuid, run as run_meta, write_uuid};
pub use mount::run as run_mount;
pub use node_directory::NodeDirectory;
pub use restored::RestoredNote;
pub use storage::run as run_storage;
