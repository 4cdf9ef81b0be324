//! Replication of the chunks of one chain: every target writes, the head orders, any target in sync answers reads.
//!
//! After chain replication with apportioned queries (van Renesse and Schneider: *Chain Replication for Supporting High Throughput
//! and Availability*, 2004; Terrace and Freedman: *Object Storage on a Craq*, 2009), with overwrites in place (`design.md` D5): a
//! write that was begun cannot be taken back. Instead of versions there is one change of a chunk at a time, which ADR 0030 weighs.
//!
//! ```text
//!  caller        head                 middle                tail
//!    │  change    │                     │                     │   each has the chunk locked from before its own
//!    ├───────────▶│ makes it            │                     │   change until all behind it have made theirs
//!    │            ├────────────────────▶│ makes it            │
//!    │            │                     ├────────────────────▶│ makes it
//!    │            │                     │◀────────────────────┤
//!    │            │◀────────────────────┤                     │
//!    │◀───────────┤                     │                     │
//! ```
//!
//! What holds, and why:
//! - *Whoever is in front has made every change that one behind him has made*: he makes it before he passes it on. So what is read behind stays
//!   true whoever becomes head, and what is in front counts where two differ.
//! - *A change is acknowledged when everybody in sync has made it*, and so does one whose promotion was asked for.
//! - *A chunk is read where it is not locked*: a change that is not everywhere behind is not seen here, unless who is in front has it, too.
//! - *A chunk is unsettled* in front of a link if the target behind may lack a change of it: it was not answered, or a new epoch has begun meanwhile. It is
//!   sent whole before it is read or changed here. That it is under way is noted so that the death of the process does not take the note away.
//! - *A chunk is doubtful* at a target that was stopped in the middle of a change of it, or of a copy, until who is in front has sent it.
//!   The head's content counts, so there it is only unsettled.
//! - *Who is not in sync any more lacks what was changed since*: each target in sync notes which chunks that are, from the moment at which it knows. With that, and
//!   with the chunks that he himself has noted, he is brought up to date. Without one of both he begins with nothing.
//!
//! One target alone: a change is acknowledged when it is made.

mod link;
mod replica;

pub use replica::{Begun, ChainReplica, Command, InFront, Mender, Outcome, Refused, Whole};
