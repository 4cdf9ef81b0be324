//! Backups of metadata: what they look like ([`mod@format`]), making one ([`mod@write`]) and making metadata of one ([`mod@read`]).
//!
//! A backup has the identity, the secrets, the cluster map and every metadata record; it has no data of chunks. The format is in
//! `docs/formats/backup.md`.

mod format;
mod read;
mod write;

pub use read::{restore, restore_state};
pub use write::back_up;
