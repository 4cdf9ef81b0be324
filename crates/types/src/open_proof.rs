//! What a client shows a metadata server that does not know what it has open: the seal of the server that let it open the file.
//!
//! Why it is so: `docs/adr/0023-what-a-mount-has-open-is-proven-by-a-seal.md`.

use crate::{ClusterId, InodeId, NodeId, Timespec};
use serde::{Deserialize, Serialize};
use std::fmt;

/// What an [`OpenProof`] is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProvenOpen {
    /// The file system.
    pub cluster: ClusterId,
    /// The machine that has it open, as its certificate says.
    pub node: NodeId,
    /// The file or directory.
    pub inode: InodeId,
    /// When that was made: a power cut of metadata, or a backup that is brought back, can have its number be given once more.
    pub born: Timespec,
    /// Whether it is open for writing.
    pub write: bool,
}

impl ProvenOpen {
    /// Length of [`ProvenOpen::sealed_bytes`].
    pub const SEALED_BYTES: usize = 49;

    /// What the hash is of: every field, each at its place.
    pub fn sealed_bytes(&self) -> [u8; Self::SEALED_BYTES] {
        let mut out = [0; Self::SEALED_BYTES];
        let mut at = 0;
        let mut put = |bytes: &[u8]| {
            out[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        };
        put(b"ASHLOPN1");
        put(&self.cluster.0);
        put(&self.node.0.to_le_bytes());
        put(&self.inode.0.to_le_bytes());
        put(&self.born.secs.to_le_bytes());
        put(&self.born.nanos.to_le_bytes());
        put(&[u8::from(self.write)]);
        out
    }
}

/// That a metadata server has let a machine open a file. Good for as long as the file system has its authority: a file may be open for weeks.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenProof {
    /// Whether it is of an open for writing. Such a one is good for reading, too.
    pub write: bool,
    /// HMAC-SHA-256 of [`ProvenOpen::sealed_bytes`].
    pub mac: [u8; 32],
}

impl OpenProof {
    /// The one of two proofs of the same file that is good for more; else the newer one: the earlier is no good any more if servers have got another key since.
    #[must_use]
    pub fn stronger(earlier: Option<OpenProof>, newer: Option<OpenProof>) -> Option<OpenProof> {
        match (earlier, newer) {
            (Some(earlier), Some(newer)) if earlier.write && !newer.write => Some(earlier),
            (earlier, newer) => newer.or(earlier),
        }
    }
}

// Who has it may say that he has the file open, so it is not for a log.
impl fmt::Debug for OpenProof {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "OpenProof {{ write: {}, .. }}", self.write)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_is_under_the_seal_at_a_place_of_its_own() {
        let (cluster, node, inode) = (ClusterId([1; 16]), NodeId(2), InodeId(3));
        let first = ProvenOpen { cluster, node, inode, born: Timespec { secs: 4, nanos: 5 }, write: false };
        let changed = [
            ProvenOpen { cluster: ClusterId([9; 16]), ..first }.sealed_bytes(),
            ProvenOpen { node: NodeId(9), ..first }.sealed_bytes(),
            ProvenOpen { inode: InodeId(9), ..first }.sealed_bytes(),
            ProvenOpen { born: Timespec { secs: 9, nanos: 5 }, ..first }.sealed_bytes(),
            ProvenOpen { born: Timespec { secs: 4, nanos: 9 }, ..first }.sealed_bytes(),
            ProvenOpen { write: true, ..first }.sealed_bytes(),
        ];
        for (at, one) in changed.iter().enumerate() {
            assert_ne!(*one, first.sealed_bytes(), "field {at}");
            assert!(changed[..at].iter().all(|other| other != one), "field {at} is where another one is");
        }
        // The whole length is used: a hole at the end would be a field that was forgotten.
        let last = ProvenOpen { write: true, ..first }.sealed_bytes();
        assert_eq!(last[ProvenOpen::SEALED_BYTES - 1], 1);
    }

    #[test]
    fn the_stronger_proof_is_kept_and_none_is_shown() {
        let proof = |write| OpenProof { write, mac: [0xab; 32] };
        assert_eq!(OpenProof::stronger(None, Some(proof(false))), Some(proof(false)));
        assert_eq!(OpenProof::stronger(Some(proof(false)), Some(proof(true))), Some(proof(true)));
        assert_eq!(OpenProof::stronger(Some(proof(true)), Some(proof(false))), Some(proof(true)));
        assert_eq!(OpenProof::stronger(Some(proof(true)), None), Some(proof(true)));
        for write in [false, true] {
            let newer = OpenProof { write, mac: [1; 32] };
            assert_eq!(
                OpenProof::stronger(Some(proof(write)), Some(newer)),
                Some(newer),
                "as good, and newer"
            );
        }
        let shown = format!("{:?}", proof(true));
        assert!(!shown.contains("ab") && !shown.contains("171"), "{shown}");
    }
}
