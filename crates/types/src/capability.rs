//! What a client shows a storage server to be let at the chunks of a file: a capability that metadata has given it, and what makes it
//! unforgeable.
//!
//! A [`Capability`] says who may do what with which content. It is worth something only with a [`Seal`], which is for one storage server: a keyed hash
//! that only metadata servers and that storage server can make. So a storage server can forge for itself alone. Why it is so:
//! `docs/adr/0015-capabilities-and-fencing.md`.

use crate::node::SessionOwner;
use crate::{ClusterId, InodeId, NodeId, SessionId};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

/// What may be done with the chunks of a file. Bits combine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rights(pub u8);

impl Rights {
    /// Read, and look where data is.
    pub const READ: Rights = Rights(1);
    /// Write, reserve and punch.
    pub const WRITE: Rights = Rights(2);

    /// Whether all of `other` is in it.
    pub fn has(self, other: Rights) -> bool {
        self.0 & other.0 == other.0
    }

    /// With `other`.
    #[must_use]
    pub const fn with(self, other: Rights) -> Rights {
        Rights(self.0 | other.0)
    }

    /// Of a session that has a file open, for writing or not.
    pub fn of_open(may_write: bool) -> Rights {
        if may_write { Rights::READ.with(Rights::WRITE) } else { Rights::READ }
    }
}

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capability {
    /// The file system.
    pub cluster: ClusterId,
    /// The metadata server that gave it.
    pub granter: NodeId,
    /// The session it was given to.
    pub session: SessionId,
    /// Whose that session is: the machine, as its certificate says, and which of its processes.
    pub owner: SessionOwner,
    /// The file.
    pub inode: InodeId,
    /// The generation of its chunks.
    pub generation: u32,
    /// What may be done with them.
    pub rights: Rights,
    /// For how long it is good, seconds: on the clock of the storage server, from [`Seal::since_ms`] on.
    pub term_s: u32,
}

/// What makes a capability good at one storage server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seal {
    /// That server.
    pub server: NodeId,
    /// The number under which it heeds the metadata server: another one after every start of the storage server, and whenever it had not heard of the
    /// metadata server for too long.
    pub standing: u64,
    /// The clock of the storage server when the metadata server last heard of it, milliseconds.
    pub since_ms: u64,
    /// Which key.
    pub key_epoch: u64,
    /// HMAC-SHA-256 of [`Capability::sealed_bytes`].
    pub mac: [u8; 32],
}

impl Capability {
    /// For how long capabilities are good. A client asks for another one when it is told that one has run out.
    pub const TERM: Duration = Duration::from_secs(5 * 60);

    /// What the hash of `seal` is of: every field of both but the hash, each at its place.
    pub fn sealed_bytes(&self, seal: &Seal) -> [u8; Self::SEALED_BYTES] {
        let mut out = [0; Self::SEALED_BYTES];
        let mut at = 0;
        let mut put = |bytes: &[u8]| {
            out[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        };
        put(b"ASHLCAP1");
        put(&self.cluster.0);
        put(&self.granter.0.to_le_bytes());
        put(&self.session.0.to_le_bytes());
        put(&self.owner.node.0.to_le_bytes());
        put(&self.owner.instance);
        put(&self.inode.0.to_le_bytes());
        put(&self.generation.to_le_bytes());
        put(&self.term_s.to_le_bytes());
        put(&[self.rights.0]);
        put(&seal.server.0.to_le_bytes());
        put(&seal.standing.to_le_bytes());
        put(&seal.since_ms.to_le_bytes());
        put(&seal.key_epoch.to_le_bytes());
        out
    }

    /// Length of [`Capability::sealed_bytes`].
    pub const SEALED_BYTES: usize = 101;
}

/// A capability with its seal, as it is shown to a storage server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SealedCapability {
    /// What it says.
    pub capability: Capability,
    /// What makes it good there.
    pub seal: Seal,
}

/// A capability with a seal for each storage server that has chunks of the file, as metadata gives it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrantedCapability {
    /// What it says.
    pub capability: Capability,
    /// One of each server, by server. One that the metadata server has not heard of lately is left out.
    pub seals: Vec<Seal>,
}

/// A secret of 256 bits.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SecretKey(pub [u8; 32]);

// No secret in a log.
impl fmt::Debug for SecretKey {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("SecretKey(..)")
    }
}

/// The keys that are good at this moment, by their epochs, ascending: that of the newest one and the one before.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeySet(pub Vec<(u64, SecretKey)>);

impl KeySet {
    /// How many epochs are good at the same time.
    pub const EPOCHS: u64 = 2;

    /// The oldest and the newest epoch; `None` without keys.
    pub fn epochs(&self) -> Option<(u64, u64)> {
        Some((self.0.first()?.0, self.0.last()?.0))
    }

    /// The key of `epoch`, if it is good.
    pub fn key(&self, epoch: u64) -> Option<&SecretKey> {
        self.0.iter().find(|(known, _)| *known == epoch).map(|(_, key)| key)
    }

    /// Whether it is what it should be: ascending, and not too many.
    pub fn is_sound(&self) -> bool {
        (1..=Self::EPOCHS as usize).contains(&self.0.len())
            && self.0.windows(2).all(|pair| pair[0].0 < pair[1].0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn capability() -> Capability {
        Capability {
            cluster: ClusterId([1; 16]),
            granter: NodeId(2),
            session: SessionId(3),
            owner: SessionOwner { node: NodeId(4), instance: [4; 16] },
            inode: InodeId(5),
            generation: 6,
            rights: Rights::READ,
            term_s: 300,
        }
    }

    #[test]
    fn every_field_is_under_the_seal_at_a_place_of_its_own() {
        let seal = Seal { server: NodeId(7), standing: 8, since_ms: 9, key_epoch: 10, mac: [0; 32] };
        let first = capability();
        let changed = [
            Capability { cluster: ClusterId([2; 16]), ..first }.sealed_bytes(&seal),
            Capability { granter: NodeId(9), ..first }.sealed_bytes(&seal),
            Capability { session: SessionId(9), ..first }.sealed_bytes(&seal),
            Capability { owner: SessionOwner { node: NodeId(9), ..first.owner }, ..first }
                .sealed_bytes(&seal),
            Capability { owner: SessionOwner { instance: [9; 16], ..first.owner }, ..first }
                .sealed_bytes(&seal),
            Capability { inode: InodeId(9), ..first }.sealed_bytes(&seal),
            Capability { generation: 9, ..first }.sealed_bytes(&seal),
            Capability { rights: Rights::WRITE, ..first }.sealed_bytes(&seal),
            Capability { term_s: 9, ..first }.sealed_bytes(&seal),
            first.sealed_bytes(&Seal { server: NodeId(9), ..seal }),
            first.sealed_bytes(&Seal { standing: 99, ..seal }),
            first.sealed_bytes(&Seal { since_ms: 99, ..seal }),
            first.sealed_bytes(&Seal { key_epoch: 99, ..seal }),
        ];
        for (at, one) in changed.iter().enumerate() {
            assert_ne!(*one, first.sealed_bytes(&seal), "field {at}");
            assert!(changed[..at].iter().all(|other| other != one), "field {at} is where another one is");
        }
        // The whole length is used: a hole at the end would be a field that was forgotten.
        assert_eq!(
            first.sealed_bytes(&Seal { key_epoch: u64::MAX, ..seal })[Capability::SEALED_BYTES - 8..],
            [255; 8]
        );
    }

    #[test]
    fn a_key_is_not_shown() {
        let keys = KeySet(vec![(1, SecretKey([0xab; 32]))]);
        let shown = format!("{keys:?}");
        assert!(!shown.contains("ab") && !shown.contains("171"), "{shown}");
    }

    #[test]
    fn a_set_of_keys_has_one_or_two_in_order() {
        let set = |epochs: &[u64]| KeySet(epochs.iter().map(|epoch| (*epoch, SecretKey([0; 32]))).collect());
        assert!(set(&[1]).is_sound() && set(&[1, 2]).is_sound());
        assert!(!set(&[]).is_sound() && !set(&[2, 1]).is_sound() && !set(&[1, 1]).is_sound());
        assert!(!set(&[1, 2, 3]).is_sound());
        assert_eq!(set(&[4, 5]).epochs(), Some((4, 5)));
        assert!(set(&[4, 5]).key(3).is_none() && set(&[4, 5]).key(4).is_some());
    }
}
