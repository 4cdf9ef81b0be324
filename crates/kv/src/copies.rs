//! What a lane tells, and asks of, whoever keeps copies of it on other machines.

use crate::{GroupNumber, KvError};
use ashlar_types::Epoch;
use bytes::Bytes;
use std::time::Duration;

/// A group of a lane's log, as it goes to a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Which.
    pub number: GroupNumber,
    /// Frames in it, at least one.
    pub frames: u32,
    /// The frames as they are in the log ([`crate::format::decode_frames`]).
    // LIMIT: `format::GROUP_BYTES_MAX`.
    pub body: Bytes,
}

impl Group {
    /// Memory that it holds, bytes.
    pub fn bytes(&self) -> usize {
        size_of::<Group>() + self.body.len()
    }
}

/// Keeps copies of a lane.
pub trait Copies: Send + Sync {
    /// Waits, a bounded time, until it is decided whether this machine decides what the next group is. Asked without the lane's lock, by whoever has found it undecided under that,
    /// or waits for room that nobody makes before it is.
    /// Nothing is promised by it: [`Copies::epoch`] tells.
    fn await_turn(&self);

    /// Whether [`Copies::await_turn`] is worth being called: this machine is to decide, cannot yet, and is waited for. Asked under the lane's lock.
    fn is_undecided(&self) -> bool;

    /// The epoch of the next group. Asked under the lane's lock, so it must not wait, nor call the lane.
    ///
    /// # Errors
    /// [`KvError::NotPrimary`]; nothing is changed.
    fn epoch(&self) -> Result<Epoch, KvError>;

    /// `group` is in the log, behind the one before. Called under the lane's lock, in the order of groups; must not wait, nor call the lane.
    fn appended(&self, group: Group);

    /// The last group that is surely in all copies that count, so that nothing takes it back. Groups behind it enter no checkpoint.
    fn committed(&self) -> u64;

    /// Has the copies begin to make durable what they have, up to group `sequence`.
    fn begin_flush(&self, sequence: u64);

    /// Waits until all copies that count have groups up to `sequence` durably.
    ///
    /// # Errors
    /// [`KvError::NotPrimary`]: whether they have is not known.
    fn end_flush(&self, sequence: u64) -> Result<(), KvError>;

    /// What is stored here is damaged, as `what` says. Whether others have all of it, and answer in place of this machine from now on. Asked under the lane's lock or without, so it must not wait, nor
    /// call the lane.
    fn give_up_damaged(&self, what: &str) -> bool;

    /// When something that was to be told was held up for long the last time, as copies had not what it tells of; of the monotonic clock, zero for never. Whoever waits for an answer to what is told
    /// counts from then on.
    fn held_up_at(&self) -> Duration {
        Duration::ZERO
    }
}
