//! POSIX metadata as key-value transactions, one verb per file (`design.md` D3, D4, D10).
//!
//! Every verb is a function `verb(txn, context, arguments) -> Result<Reply, NsError>`: it reads through [`Txn`], decides, and
//! leaves its changes in the transaction; it never commits, blocks, or reads a clock. The caller (the metadata service,
//! the simulator, a test) commits the transaction's write sets, or drops it, in which case nothing has happened.
//! Semantics are written once, here, against the key-value transaction; there is no second implementation for another back end.
//!
//! What this crate is not: it knows no session, no network, no disk. Leases and locks are sans-IO tables beside the verbs.
//!
//! Invariants:
//! - Deterministic: same snapshot, context and arguments give the same reply and the same write sets.
//! - Accounting changes with the inode it accounts for, in the same transaction ([`Txn::finish`] does it for every verb).
//! - A directory's entries, its inode and the inodes of files created in it are in one shard; of a directory that is split each slice is.

pub mod acl;
mod body;
pub mod bootstrap;
pub mod check;
pub mod context;
pub mod elsewhere;
pub mod error;
pub mod key;
pub mod lease;
pub mod lock;
pub mod record;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod txn;
pub mod verb;

pub use context::{OpContext, Placement};
pub use elsewhere::{Charge, Elsewhere, Intent, ShardChange};
pub use error::NsError;
pub use record::{Bucket, BucketEntry, FileData, Inode, Kind};
pub use txn::{Revealed, Txn, TxnOutcome};
