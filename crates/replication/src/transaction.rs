//! Operations that change two or more shards (`design.md` D3: cross-directory rename and link, mkdir elsewhere, rmdir): two-phase commit between
//! shards whose logs are replicated, with presumed abort (Mohan, Lindsay, Obermarck: *Transaction Management in the R\* Distributed
//! Database Management System*, 1986; as in Gray and Lamport: *Consensus on Transaction Commit*, 2006, with fault-tolerant
//! participants, so that nobody blocks for longer than a fail-over takes).
//!
//! ```text
//!  coordinator's shard                     participant's shard
//!     │ locks its own keys (in memory)         │
//!     │ Prepare(part)                          │
//!     ├───────────────────────────────────────▶│ locks the part's keys; log: Prepared
//!     │                           Vote(ticket) │
//!     │◀───────────────────────────────────────┤
//!     │ log: Decided, with its own writes      │
//!     │ ── the operation has happened ──       │ (readers of locked keys wait)
//!     │ Commit(ticket)                         │
//!     ├───────────────────────────────────────▶│ log: Finished, with the part's writes; unlocks
//!     │                               Finished │
//!     │◀───────────────────────────────────────┤
//!     │ log: Forgotten                         │
//! ```
//!
//! What holds, and why:
//! - *One log entry decides*: `Decided`, with the coordinator's own writes, is there or is not. There is no entry for an abort: a
//!   coordinator that knows nothing of a transaction answers that it did not happen.
//! - *An observer sees all or nothing*: from `Prepared` on readers of a participant's keys wait ([`Transactions::is_read_blocked`]).
//! - *A message is sent when the entry it speaks of is committed* ([`Transactions::logged`]), so what a shard has said survives its primary.
//! - *A transaction's id is of one life of its coordinator* ([`TransactionId::era`]). Whoever took over answers for earlier lives; nobody
//!   answers for later ones, so the word of a primary that was replaced and does not know does no harm.
//! - *A vote has a ticket of one life of its participant, and the decision names it.* So a `Prepare` that arrives again after all is over
//!   locks its part for nothing and is told so; it is not done twice. And only who can know says that a part is finished.
//! - *Nobody waits for a lock while he holds one*: a key that is locked is a vote against. So there is no deadlock; the caller tries again.
//! - *Directory moves take the one move key of the file system first*, by a transaction of their own without writes, look for loops then, and
//!   give it back when the move is decided in the log. So the ancestors that were looked at stay. The key is locked in a log like any
//!   other; should its holder fail, its transaction is aborted with the move, or the move is committed and its keys make others wait.
//!
//! A shard's own machine is rebuilt from its log. With all shards on one lane (ADR 0005) none of this runs.

mod machine;
mod message;
mod recover;

pub use machine::{Busy, Transactions};
pub use message::{Command, Message, Part, Participants, Record, Ticket, TransactionId};
