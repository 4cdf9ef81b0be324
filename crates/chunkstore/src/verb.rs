//! The calls of a store, one per file.

mod allocate;
mod chain;
mod chain_note;
mod copies;
mod damage;
mod delete;
mod extent;
mod files;
mod list;
mod map;
mod read;
mod seek;
mod suspects;
mod truncate;
mod write;
mod zero;

pub use chain::{ChainPage, DeletedOfChain};
pub use chain_note::ChainNote;
pub use copies::{Lack, LackNotes};
pub use damage::{BlockSum, Damage, Digest};
pub use delete::Deleted;
pub use extent::Extent;
pub(crate) use list::successor;
pub use list::{ChunkPage, ListedChunk};
pub use map::{ChunkMap, Run};
pub use suspects::SuspectPage;
pub use write::Written;
