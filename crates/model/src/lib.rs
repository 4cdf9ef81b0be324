//! Models of the replication state machines: every order of events, messages and failures within stated bounds, explored over
//! the production types of `ashlar-replication`.
//!
//! | module | what is explored |
//! |---|---|
//! | [`explorer`] | nothing by itself: the search |
//! | [`network`] | messages under way, and requests to the manager |
//! | [`chain`] | a chain of replicas that overwrite in place, one change of a chunk at a time, and reads from any of them |
//! | [`log`] | log replication under any change of membership, losing disks, and joins |
//! | [`chain_move`], [`shard_move`] | what has one copy and goes to another server while it is used: who decides, who answers |
//! | [`shared_disk`] | a disk that several servers reach: who may have it mounted |
//! | [`membership`] | leases, epochs and compare-and-set under clocks that run at different rates |
//! | [`transaction`] | moves between two shards whose primaries are replaced |
//!
//! A model's parties call the production step functions; what is modelled is only what is around them: network, disk, clocks, the
//! manager's compare-and-set, crashes, and an observer who remembers what was acknowledged. Each model can break one of the rules that
//! the machines rest on (its `Broken`), and a test per rule shows that the exploration then finds a violation.
//!
//! What this crate is not: it is not part of the file system, and it shows nothing about code around the machines.
//! `docs/models.md` says which bounds were explored. Tests have small bounds; `cargo xtask model` has the wide ones.

pub mod chain;
pub mod chain_move;
pub mod explorer;
pub mod log;
pub mod membership;
pub mod network;
pub mod shard_move;
pub mod shared_disk;
pub mod transaction;
