//! What has one copy goes from one server to another while it is used: who decides that it has another server, and who answers meanwhile.
//!
//! | module | what goes | who is asked |
//! |---|---|---|
//! | [`chain`] | a chain of chunks, between targets (ADR 0017) | a manager, which proves what it tells by a compare-and-set |
//! | [`shard`] | a metadata shard, between servers (ADR 0016) | a manager, by the epoch of a map that both servers have seen |
//!
//! The giver closes what it gives before it asks, and answers again only if it is certain that no question of its own can be carried out any more. The
//! taker answers when its map says so. How content gets from one to the other is the services' business; what is here is what must not be got wrong by
//! either of them, and the services go by it.
//!
//! Invariants:
//! - At no moment do two servers answer for the same thing.
//! - What was acknowledged before the giver closed, the taker has when it answers.
//! - Once managers answer and servers run, somebody answers again.
//!
//! `crates/model` explores both (`docs/models.md`).

pub mod chain;
pub mod shard;
