//! The verbs, one per file, spelled as POSIX spells them. This file holds only the list.

mod entry;
mod lookup;
mod permission;

pub use lookup::{LookupReply, lookup};
