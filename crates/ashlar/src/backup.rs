//! Backups of metadata: what they look like ([`mod@format`]), making one ([`mod@write`]) and making metadata of one ([`mod@read`]).
//!
//! A backup has the identity, the secrets, the cluster map and every metadata record; it has no data of chunks. The format is in
//! `docs/formats/backup.md`.
//!
//! Of many servers it is a directory with a part of each metadata server ([`mod@part`]), made while they are used ([`mod@running`]), and metadata is made of it
//! for each of them ([`mod@restore`]). Secrets and state of managers are not in it.

mod format;
mod part;
mod read;
mod restore;
mod running;
mod write;

pub use part::{PartSet, shown_set};
pub use read::{restore, restore_state};
pub use restore::restore_parts;
pub use running::back_up_running;
pub use write::back_up;
