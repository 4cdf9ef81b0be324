//! Disks that several storage servers reach: one at a time has the file system on it mounted, and the next one gets it when that has let go of it or cannot write any more (`design.md` D6, ADR 0031).
//!
//! | what | decided by | file |
//! |---|---|---|
//! | who may have it mounted | compare-and-set on the state of the file system, by pure functions of the disk | `change.rs` |
//! | what one server does about it | a state machine: what it is told in, one thing to do out | `server.rs` |
//!
//! Rules that everything else rests on:
//! 1. *Nobody mounts it who was not granted it by compare-and-set at a turn* ([`use_by`]), after each start of the server anew. A copy of the state that is old grants nothing.
//! 2. *Who may have it mounted is known until he has said that he has not* ([`heard`]), *at a turn at which he was told to let go of it or later, or has been fenced* ([`fenced`]), or an administrator vouches
//!    for it ([`confirmed`]). Silence alone gives nobody a disk.
//! 3. *A server that has seen a turn does nothing by an earlier one.*

mod change;
mod server;

pub use change::{Refused, confirmed, failed, fenced, heard, is_to_leave, leave, silent, use_by};
pub use server::{AtServer, Do};
