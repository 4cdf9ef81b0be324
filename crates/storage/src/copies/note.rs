//! What a target keeps on its disk of its part in a chain of several copies (`docs/formats/target.md`, table `k`).

use ashlar_replication::membership::Stored;
use ashlar_types::codec::{self, CodecError};
use ashlar_types::{Epoch, TargetId};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// Of one chain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct CopyNote {
    /// What its part in the group is.
    pub stored: Stored<TargetId>,
    /// The last epoch at which it was in sync, if it has all that it has acknowledged up to then; `None`: it may have anything.
    pub in_sync_at: Option<Epoch>,
}

impl CopyNote {
    pub fn encode(&self) -> Bytes {
        codec::encode_exact(self)
    }

    pub fn decode(bytes: &[u8]) -> Result<CopyNote, CodecError> {
        codec::decode(bytes, "note about a copy")
    }
}

/// Of another target that lacks something of a chain: it lacks no more than what is noted if it was in sync at one of these epochs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LackNote {
    /// The first.
    pub from: Epoch,
    /// The last.
    pub to: Epoch,
}

impl LackNote {
    pub fn encode(&self) -> Bytes {
        codec::encode_exact(self)
    }

    pub fn decode(bytes: &[u8]) -> Result<LackNote, CodecError> {
        codec::decode(bytes, "note about a target that was away")
    }

    /// Whether what is noted is all that one lacks who was in sync at `epoch`, and has had everything up to then.
    pub fn covers(&self, epoch: Epoch) -> bool {
        (self.from..=self.to).contains(&epoch)
    }
}
