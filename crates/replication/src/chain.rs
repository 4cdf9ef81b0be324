//! Replication of the chunks of one chain: every replica writes, the head orders, any in-sync replica reads.
//!
//! After chain replication with apportioned queries (van Renesse and Schneider: *Chain Replication for Supporting High Throughput
//! and Availability*, 2004; Terrace and Freedman: *Object Storage on a Craq*, 2009), with overwrites in place (`design.md` D5), where a
//! write that was begun cannot be taken back. The chain is the members of the group in order: in sync, then catching up.
//!
//! ```text
//!  client        head                 middle                tail
//!    │  write     │ Write(version)      │ Write(version)      │
//!    ├───────────▶├────────────────────▶├────────────────────▶│  each applies, in the order of versions
//!    │            │       Applied       │       Applied       │
//!    │◀───────────┤◀────────────────────┤◀────────────────────┤  when its own copy and all behind it have it
//!    │ Acknowledge│       Committed     │       Committed     │
//!    │            ├────────────────────▶├────────────────────▶│  the chunk is certain: it may be read
//! ```
//!
//! What holds, and why:
//! - *A version names content*: the head gives each write of a chunk the next number, at its epoch. A restarted head has a new
//!   epoch, unless it is alone.
//! - *A write is acknowledged when every member has applied it*, those that catch up included. So whoever becomes head has it, and a
//!   promotion changes nothing about what is on disk.
//! - *A chunk is uncertain* on a replica from before it is first overwritten until the write is known to be committed. That is a
//!   durable mark; uncertain chunks are not read. All others are equal on all replicas in sync.
//! - *At a new epoch the head's content counts.* It gives its uncertain chunks a new version, so that content which a crash tore
//!   has a name of its own. Each replica tells its predecessor what is uncertain there (a replica that catches up: all it has), and
//!   is sent those chunks, and those that are uncertain at the predecessor, whole.
//! - *A write goes to a successor as bytes only if the chunk was compared* at this epoch; until then the whole chunk goes, so writes
//!   need not wait for a resync.
//!
//! Between two neighbours messages of an epoch travel over one ordered connection; when it breaks, either asks for a new epoch, which
//! sends again what may be missing. (Messages that come late, twice or out of order are refused or change nothing.)
//!
//! One copy: the head is alone, and a write is acknowledged when it is applied.

mod epoch;
mod message;
mod replica;
mod version;
mod write;

pub use message::{Command, Message};
pub use replica::ChainReplica;
pub use version::{ChunkVersion, Holding, Holdings};
