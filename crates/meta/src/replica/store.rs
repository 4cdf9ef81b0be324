//! What a copy keeps beside its lane: its membership, and in which span of time the disk shows everything that was written.

use ashlar_env::Continuity;
use ashlar_kv::{Engine, KvError, Lane};
use ashlar_replication::membership::{Content, Stored};
use ashlar_types::NodeId;
use ashlar_types::codec::{crc32c, decode, encode};
use serde::{Deserialize, Serialize};

const MAGIC: &[u8; 8] = b"ASHLCPY1";

/// Where a copy of a metadata server's log is kept.
pub trait CopyStore: Send + Sync {
    /// Opens the lane there is, or makes an empty one; with its log as it is if `keeps_log`.
    ///
    /// # Errors
    /// As [`Lane::open`].
    fn open(&self, keeps_log: bool) -> Result<Lane, KvError>;

    /// An empty engine beside the lane there is. What an earlier attempt has left is gone.
    ///
    /// # Errors
    /// [`KvError::Io`].
    fn begin(&self) -> Result<Box<dyn Engine>, KvError>;

    /// The engine that was begun is complete: from now on, durably, it is the lane's. The lane there was is closed.
    ///
    /// # Errors
    /// [`KvError::Io`]; then it may be either.
    fn replace(&self, engine: Box<dyn Engine>) -> Result<Lane, KvError>;

    /// The file system, and the number of the lane in it, which engines are made for.
    fn identity(&self) -> (ashlar_types::ClusterId, u32);

    /// Keeps `bytes`, durably, in place of what was kept before.
    ///
    /// # Errors
    /// [`KvError::Io`].
    fn keep(&self, bytes: &[u8]) -> Result<(), KvError>;

    /// What was kept last.
    ///
    /// # Errors
    /// [`KvError::Io`].
    fn kept(&self) -> Result<Option<Vec<u8>>, KvError>;

    /// The span of time that the disk is in.
    fn continuity(&self) -> Option<Continuity>;
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Kept {
    pub(super) stored: Stored<NodeId>,
    /// Boot and mount.
    continuity: Option<([u8; 16], u64)>,
    /// The copy was stopped in good order: all of it is durable.
    is_clean: bool,
}

impl Kept {
    pub(super) fn new(stored: Stored<NodeId>, continuity: Option<Continuity>, is_clean: bool) -> Kept {
        Kept { stored, continuity: continuity.map(|found| (found.boot, found.mount)), is_clean }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let body = encode(self);
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&crc32c(0, &body).to_le_bytes());
        bytes.extend_from_slice(&body);
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Kept, KvError> {
        let damaged = || {
            KvError::Corrupt {
            what: "what a copy of metadata has kept of its membership is damaged: remove the copy, and it is made anew".to_owned(),
        }
        };
        let body = bytes.strip_prefix(MAGIC.as_slice()).ok_or_else(damaged)?;
        let (crc, body) = body.split_first_chunk::<4>().ok_or_else(damaged)?;
        if crc32c(0, body).to_le_bytes() != *crc {
            return Err(damaged());
        }
        decode(body, "membership of a copy").map_err(|_| damaged())
    }

    /// What the disk has of what was reported, in the span of time `now`.
    pub(super) fn content(self, now: Option<Continuity>) -> Stored<NodeId> {
        let is_same = now.is_some_and(|now| self.continuity == Some((now.boot, now.mount)));
        let is_whole = is_same || self.is_clean || self.stored.content != Content::Whole;
        Stored { content: if is_whole { self.stored.content } else { Content::Short }, ..self.stored }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use ashlar_types::Epoch;
    use ashlar_types::membership::Membership;

    #[test]
    fn what_is_kept_is_read_again_and_a_power_cut_is_told_from_a_kill() {
        let stored =
            Stored { membership: Membership::new(Epoch(7), [NodeId(1), NodeId(2)]), content: Content::Whole };
        let here = Continuity { boot: [3; 16], mount: 9 };
        let kept = Kept::new(stored.clone(), Some(here), false);
        let bytes = kept.encode();
        assert_eq!(Kept::decode(&bytes).unwrap(), kept);
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 4;
            assert!(Kept::decode(&damaged).is_err() && Kept::decode(&bytes[..at]).is_err(), "byte {at}");
        }
        let content = |kept: &Kept, now| kept.clone().content(now).content;
        assert_eq!(content(&kept, Some(here)), Content::Whole);
        assert_eq!(content(&kept, Some(Continuity { mount: 10, ..here })), Content::Short);
        assert_eq!(content(&kept, None), Content::Short);
        let clean = Kept::new(stored, Some(here), true);
        assert_eq!(content(&clean, None), Content::Whole);
    }
}
