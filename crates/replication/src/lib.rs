//! Replication as sans-IO state machines: events in, commands out, nothing else (`design.md` D6).
//!
//! | module | what | a group is |
//! |---|---|---|
//! | [`membership`] | who is in sync, who is primary, at which epoch, until when a replica may answer | any |
//! | [`log`] | a metadata shard: primary and backups, log entries in one order | nodes |
//! | [`chain`] | the chunks of a chain: write all in order, read any | targets |
//! | [`hand_over`] | what has one copy and goes to another server while it is used | targets, nodes |
//! | [`shared_disk`] | a disk that several servers reach, one of which has it mounted | nodes |
//! | [`transaction`] | operations that change several shards: two-phase commit over their logs | — |
//!
//! A machine is a value. Its methods take what happened (a message, a completed write, the time) and push commands onto a
//! vector that the caller keeps, so that a step allocates nothing; the caller sends, stores, and reports back. Payloads never
//! pass through: a machine knows positions and versions, the caller has the bytes.
//!
//! What this crate is not: it has no network, no disk, no clock, no threads, and it does not know what is replicated.
//!
//! Invariants: same inputs, same outputs. The machines are explored exhaustively, as they are, by `crates/model`
//! (`docs/models.md` has what and how far; ADR 0009 has why they are as they are); a change here is explored again with
//! `cargo xtask model`.

pub mod chain;
pub mod hand_over;
pub mod log;
pub mod membership;
pub mod shared_disk;
pub mod transaction;
