//! What copies of a metadata server's log say to each other. Frames travel beside it, one behind the other.

use ashlar_kv::{GroupNumber, Import};
use ashlar_replication::log::{LogPosition, Message, Sequence};
use ashlar_types::Epoch;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// From copy to copy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Say {
    /// Asks for a lease.
    Beacon {
        /// The sender's epoch.
        epoch: Epoch,
        /// By the sender's clock.
        sent_at: Duration,
    },
    /// From the primary: entries, whose frames come with it.
    Entries {
        /// A [`Message::Prepare`].
        message: Message,
        /// Of each entry how many frames, and how many bytes they are.
        // LIMIT: as many entries as a message may have.
        groups: Vec<(u32, u32)>,
    },
    /// What has no frames.
    Messages(
        // LIMIT: of the outbox of a peer.
        Vec<Message>,
    ),
    /// From the primary: make durable what there is, up to an entry.
    Flush {
        /// The sender's epoch.
        epoch: Epoch,
        /// Which entry.
        through: Sequence,
    },
    /// From the primary: a part of all that its lane holds.
    Page {
        /// The sender's epoch.
        epoch: Epoch,
        /// The last entry in it.
        at: LogPosition,
        /// Which part, from 0.
        number: u64,
        /// Of each pair, in key order, how many bytes its key and its value are. They come with it, one behind the other.
        // LIMIT: PAGE_BYTES, and one pair.
        pairs: Vec<(u32, u32)>,
    },
    /// From the primary: all parts were sent.
    Checkpoint {
        /// A [`Message::Checkpoint`].
        message: Message,
        /// What belongs to the lane besides.
        import: Import,
        /// How many parts there are.
        pages: u64,
    },
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Heard {
    /// A lease is granted.
    Grant {
        /// The epoch of both.
        epoch: Epoch,
        /// From the beacon.
        sent_at: Duration,
    },
    /// What was taken, and what is said to it.
    Messages(Vec<Message>),
    /// To a checkpoint that came without what it has: all of it is needed.
    NeedsAll,
    /// Durable up to here.
    Flushed {
        /// The epoch of both.
        epoch: Epoch,
        /// Which entry.
        through: Sequence,
    },
    /// Nothing could be done now.
    Later,
}

/// A number as the log has it, as the machine has it.
pub(super) fn position_of(number: GroupNumber) -> LogPosition {
    LogPosition { sequence: Sequence(number.sequence), epoch: number.epoch }
}

/// The other way.
pub(super) fn number_of(position: LogPosition) -> GroupNumber {
    GroupNumber { sequence: position.sequence.0, epoch: position.epoch }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ashlar_types::testing::schema::{Schema, require_written_down};

    /// A copy is brought up to date by a server of the version before, while servers are replaced one after the other.
    #[test]
    fn what_copies_say_has_the_form_that_is_written_down() {
        let mut schema = Schema::default();
        schema.add::<Say>();
        schema.add::<Heard>();
        let written = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/formats/messages-of-copies.txt");
        require_written_down(&schema, written, "copies of logs");
    }
}
