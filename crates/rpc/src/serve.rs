//! The services behind the network: calls that come in are made of the traits of this crate.

mod clients;
mod copies;
mod meta;
mod storage;

pub use clients::{ClientCount, ClientCounts};
pub use copies::{CopiesEndpoint, HearsCopies};
pub use meta::{MetaEndpoint, Proofs};
pub use storage::{Access, StorageEndpoint};
