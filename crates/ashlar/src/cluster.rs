//! The roles of a cluster, each a process of its own: wiring of the same services that `ashlar up` runs together.

mod announce;
mod background;
mod first_node;
pub mod init;
pub mod join;
mod manager;
mod member;
mod meta;
mod mount;
mod node_directory;
pub mod promote;
mod renewal;
mod storage;
mod store;

pub use manager::run as run_manager;
pub use member::Member;
pub use meta::run as run_meta;
pub use mount::run as run_mount;
pub use node_directory::NodeDirectory;
pub use storage::run as run_storage;
