//! Replication of a metadata shard's log: primary and backups, after PacificA (see [`crate::membership`]).
//!
//! The primary gives each entry the next sequence number and its epoch. An entry is committed when every replica in
//! [`crate::membership::Member::required`] has it as durable as the setting asks, the primary included; then it is acknowledged.
//! Backups take whole entries (write sets), in order, and decide nothing.
//!
//! ```text
//!  service        primary                     backup                      disk of each
//!     │  append      │                           │
//!     ├─────────────▶│ Prepare(previous, runs)   │
//!     │              ├──────────────────────────▶│ Append ─────────────────▶ write
//!     │              │◀──────────────────────────┤◀──────────────────────── stored
//!     │ Acknowledge  │          Prepared(through)│
//!     │◀─────────────┤ (all required have it)    │
//! ```
//!
//! What holds, and why:
//! - *A position names an entry*: sequence and epoch. An epoch has one primary, which writes each sequence number at most once in
//!   it (a restarted primary gets a new epoch, unless it is alone). So two logs that have one position in common are equal up to
//!   it, as in Raft's log matching.
//! - *A new primary commits all it has before it answers.* It was in sync, so that includes everything acknowledged; it may include
//!   what was not. `Prepare` names the end of its log at the start of the epoch, its `base`.
//! - *A backup drops what the primary does not have*: entries of older epochs behind `base`, and entries that differ. Neither was
//!   acknowledged. What is committed is never dropped; it is asserted.
//! - *A replica counts only what it has compared at this epoch.* It compares at the position before the entries of a `Prepare`; if
//!   that differs, it names what it knows to be committed, which is common to all, and the primary goes on from there.
//! - *A replica that is catching up* is sent the same; when it has all that may have been acknowledged, the primary counts it as
//!   required and then asks for its promotion, which the host passes on once that is durable there. Entries the primary no longer has in its log are behind a checkpoint, which is sent instead.
//!
//! One copy: nobody is sent anything, and an entry is committed when it is stored; the cost is a comparison.

mod backup;
mod index;
mod message;
mod position;
mod primary;
mod replica;

pub use index::LogIndex;
pub use message::{Command, Message};
pub use position::{EntryRun, EntryRuns, LogPosition, Sequence};
pub use replica::{LogReplica, Recovered};
