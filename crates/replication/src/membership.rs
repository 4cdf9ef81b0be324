//! Membership of a replica group: who is in sync, who is primary, at which epoch, and until when a replica may answer.
//!
//! After PacificA (Lin, Yang, Zhang, Zhou: *PacificA: Replication in Log-Based Distributed Storage Systems*, 2008), with one
//! change: leases are between all members of a group, not only between primary and backups, so that any in-sync replica of a chain
//! may answer reads.
//!
//! | what | decided by | file |
//! |---|---|---|
//! | the next membership | compare-and-set on the cluster map, from the epoch a change was made at; the rules are a pure function | `change.rs` |
//! | until when a replica may answer | leases that its peers grant it, by clocks whose rates differ by a stated bound | `lease.rs` |
//! | what one replica does about both | a state machine: events in, commands out | `member.rs` |
//!
//! Rules that everything else rests on:
//! 1. *A membership never changes; its epoch does.* Whoever carries an older epoch is refused.
//! 2. *Only a replica in sync at the last epoch can be primary*, and the order of replicas is kept: the primary is the first.
//! 3. *A replica answers only while every other member of its epoch grants it a lease*, those that are catching up included: they
//!    may have been promoted since, and then they may remove whoever does not know of it.
//! 4. *Whoever asks for the removal of a peer grants it nothing more*, and asks only when what it granted has surely run out.
//! 5. *A replica that was restarted takes no part at the epoch it stopped in*: it has forgotten what it asked for and what it
//!    sent there. It asks for a new epoch. Only a replica that is alone goes on, because nobody else was told anything.
//! 6. *An epoch is stored before it is acted on*, so that an older map, read after a restart, changes nothing.
//! 7. *A replica whose disk has lost what it had reported* takes no part while it is in sync with others, asks for its own removal as soon as one of them is heard, and comes
//!    back by catching up. Until then it asks them whether they are there: what it has may be all there is. Only the operator can know that others never come back; it has them removed
//!    then, once what it may have granted them has run out. The last one in sync goes on with what is left, which is the loss that `async` durability allows; with an empty disk it does not.

mod change;
mod lease;
mod member;

pub use ashlar_types::membership::Change;
pub use change::{Proposer, Refusal, plan};
pub use lease::LeaseTerms;
pub use member::{Command, Commands, Content, IS_ANYBODY_THERE, Member, Stored};

use std::fmt::Debug;
use std::hash::Hash;

/// What names a replica: the node of a shard's copy, or the target of a chain's.
pub trait ReplicaId: Copy + Ord + Hash + Debug {}

impl ReplicaId for ashlar_types::NodeId {}
impl ReplicaId for ashlar_types::TargetId {}
