//! The services behind the network: calls that come in are made of the traits of this crate.

mod meta;
mod storage;

pub use meta::MetaEndpoint;
pub use storage::StorageEndpoint;
