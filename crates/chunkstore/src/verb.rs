//! The calls of a store, one per file.

mod allocate;
mod delete;
mod extent;
mod list;
mod read;
mod seek;
mod suspects;
mod truncate;
mod write;
mod zero;

pub use delete::Deleted;
pub use extent::Extent;
pub(crate) use list::successor;
pub use list::{ChunkPage, ListedChunk};
pub use suspects::SuspectPage;
pub use write::Written;
