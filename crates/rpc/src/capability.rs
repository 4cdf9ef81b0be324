//! Keys and seals of capabilities: who has which key, and what it makes.
//!
//! ```text
//! root of the file system ── epoch ──► key of an epoch ── storage server ──► key of that server in that epoch ──► seals
//! managers                             metadata servers                      that storage server
//!         │
//!         └──────────► key of what is open ──► proofs of opens
//!                      metadata servers
//! ```
//!
//! Each key is the HMAC-SHA-256 of what is beside the arrow under the key before it, so nobody finds one that is left of his own.

use ashlar_types::{Capability, ClusterId, KeySet, NodeId, OpenProof, ProvenOpen, Seal, SecretKey};
use ring::hmac;

fn derive(key: &SecretKey, label: &[u8], of: &[u8]) -> SecretKey {
    let mut context = hmac::Context::with_key(&hmac::Key::new(hmac::HMAC_SHA256, &key.0));
    context.update(label);
    context.update(of);
    let mut out = [0; 32];
    out.copy_from_slice(context.sign().as_ref());
    SecretKey(out)
}

/// The root of the keys of `cluster`, made of a secret that only managers have.
pub fn root_key(secret: &[u8], cluster: ClusterId) -> SecretKey {
    let mut context = hmac::Context::with_key(&hmac::Key::new(hmac::HMAC_SHA256, secret));
    context.update(b"ashlar capability root 1");
    context.update(&cluster.0);
    let mut out = [0; 32];
    out.copy_from_slice(context.sign().as_ref());
    SecretKey(out)
}

/// The keys of metadata servers while `newest` is the newest epoch.
pub fn sealing_keys(root: &SecretKey, newest: u64) -> KeySet {
    let epochs = newest.saturating_sub(KeySet::EPOCHS - 1).max(1)..=newest.max(1);
    KeySet(epochs.map(|epoch| (epoch, derive(root, b"ashlar key epoch 1", &epoch.to_le_bytes()))).collect())
}

/// The key of a storage server in an epoch, of the key of that epoch.
pub fn server_key(of_epoch: &SecretKey, server: NodeId) -> SecretKey {
    derive(of_epoch, b"ashlar storage server 1", &server.0.to_le_bytes())
}

/// The keys of a storage server, of those of metadata servers.
pub fn checking_keys(sealing: &KeySet, server: NodeId) -> KeySet {
    KeySet(sealing.0.iter().map(|(epoch, key)| (*epoch, server_key(key, server))).collect())
}

/// The key by which opens are proven. It has no epoch: what is open may be so for longer than any.
pub fn open_key(root: &SecretKey) -> SecretKey {
    derive(root, b"ashlar open files 1", &[])
}

/// Proves that `opened` was let happen.
pub fn prove(key: &hmac::Key, opened: &ProvenOpen) -> OpenProof {
    let mut mac = [0; 32];
    mac.copy_from_slice(hmac::sign(key, &opened.sealed_bytes()).as_ref());
    OpenProof { write: opened.write, mac }
}

/// Whether whoever made `proof` had `key`, and made it for `opened`. Takes the same time whichever byte is wrong.
pub fn is_proven(key: &hmac::Key, opened: &ProvenOpen, proof: &OpenProof) -> bool {
    opened.write == proof.write && hmac::verify(key, &opened.sealed_bytes(), &proof.mac).is_ok()
}

/// Seals `capability`: fills in the hash of `seal` under the key of its server.
pub fn seal(key: &hmac::Key, capability: &Capability, seal: Seal) -> Seal {
    let mut mac = [0; 32];
    mac.copy_from_slice(hmac::sign(key, &capability.sealed_bytes(&seal)).as_ref());
    Seal { mac, ..seal }
}

/// A key, ready to seal and check with.
pub fn ready(key: &SecretKey) -> hmac::Key {
    hmac::Key::new(hmac::HMAC_SHA256, &key.0)
}

/// Whether whoever made `seal` of `capability` had `key`. Takes the same time whichever byte is wrong.
pub fn is_sealed(key: &SecretKey, capability: &Capability, seal: &Seal) -> bool {
    hmac::verify(&ready(key), &capability.sealed_bytes(seal), &seal.mac).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ashlar_types::node::SessionOwner;
    use ashlar_types::{InodeId, Rights, SessionId, Timespec};

    const CLUSTER: ClusterId = ClusterId([1; 16]);

    fn capability() -> Capability {
        Capability {
            cluster: CLUSTER,
            granter: NodeId(2),
            session: SessionId(3),
            owner: SessionOwner { node: NodeId(4), instance: [4; 16] },
            inode: InodeId(5),
            generation: 6,
            rights: Rights::READ,
            term_s: 300,
        }
    }

    fn unsealed(server: NodeId, key_epoch: u64) -> Seal {
        Seal { server, standing: 8, since_ms: 9, key_epoch, mac: [0; 32] }
    }

    #[test]
    fn a_seal_is_good_at_its_server_in_its_epoch_only() {
        let sealing = sealing_keys(&root_key(b"secret", CLUSTER), 5);
        let key = server_key(sealing.key(5).unwrap(), NodeId(7));
        let sealed = seal(&ready(&key), &capability(), unsealed(NodeId(7), 5));
        assert!(is_sealed(&key, &capability(), &sealed));
        assert!(!is_sealed(&server_key(sealing.key(5).unwrap(), NodeId(8)), &capability(), &sealed));
        assert!(!is_sealed(&server_key(sealing.key(4).unwrap(), NodeId(7)), &capability(), &sealed));
        let other = sealing_keys(&root_key(b"secret", ClusterId([2; 16])), 5);
        assert!(!is_sealed(&server_key(other.key(5).unwrap(), NodeId(7)), &capability(), &sealed));
    }

    #[test]
    fn no_bit_of_seal_or_capability_can_be_changed() {
        let key = server_key(&sealing_keys(&root_key(b"secret", CLUSTER), 1).0[0].1, NodeId(7));
        let sealed = seal(&ready(&key), &capability(), unsealed(NodeId(7), 1));
        for at in 0..sealed.mac.len() * 8 {
            let mut forged = sealed;
            forged.mac[at / 8] ^= 1 << (at % 8);
            assert!(!is_sealed(&key, &capability(), &forged), "bit {at} of the hash");
        }
        assert!(!is_sealed(&key, &Capability { rights: Rights::of_open(true), ..capability() }, &sealed));
        assert!(!is_sealed(&key, &capability(), &Seal { since_ms: 10, ..sealed }));
    }

    #[test]
    fn an_open_is_proven_to_one_machine_for_one_file_and_access() {
        let root = root_key(b"secret", CLUSTER);
        let key = ready(&open_key(&root));
        let (cluster, node, inode) = (CLUSTER, NodeId(4), InodeId(5));
        let opened = ProvenOpen { cluster, node, inode, born: Timespec { secs: 6, nanos: 7 }, write: false };
        let proof = prove(&key, &opened);
        assert!(is_proven(&key, &opened, &proof));
        assert!(!is_proven(&key, &ProvenOpen { node: NodeId(5), ..opened }, &proof));
        assert!(!is_proven(&key, &ProvenOpen { inode: InodeId(4), ..opened }, &proof));
        assert!(!is_proven(&key, &ProvenOpen { cluster: ClusterId([2; 16]), ..opened }, &proof));
        assert!(!is_proven(&key, &ProvenOpen { born: Timespec { secs: 6, nanos: 8 }, ..opened }, &proof));
        let writing = ProvenOpen { write: true, ..opened };
        assert!(!is_proven(&key, &writing, &proof));
        assert!(!is_proven(&key, &writing, &OpenProof { write: true, ..proof }));
        for at in 0..proof.mac.len() * 8 {
            let mut forged = proof;
            forged.mac[at / 8] ^= 1 << (at % 8);
            assert!(!is_proven(&key, &opened, &forged), "bit {at} of the hash");
        }
        // Nobody who has another key of the file system can make one.
        for (_, key) in sealing_keys(&root, 5).0 {
            let forged = prove(&ready(&key), &opened);
            assert!(!is_proven(&ready(&open_key(&root)), &opened, &forged));
        }
    }

    #[test]
    fn two_epochs_are_good_at_a_time_and_keys_stay_the_same() {
        let root = root_key(b"secret", CLUSTER);
        assert_eq!(sealing_keys(&root, 1).epochs(), Some((1, 1)));
        assert_eq!(sealing_keys(&root, 2).epochs(), Some((1, 2)));
        assert_eq!(sealing_keys(&root, 9).epochs(), Some((8, 9)));
        assert_eq!(sealing_keys(&root, 9).key(8), sealing_keys(&root, 8).key(8));
        assert_ne!(sealing_keys(&root, 9).key(8), sealing_keys(&root, 9).key(9));
        assert!(sealing_keys(&root, 9).is_sound());
        let checking = checking_keys(&sealing_keys(&root, 9), NodeId(3));
        assert_eq!(checking.epochs(), Some((8, 9)));
        assert!(
            checking.key(9) != sealing_keys(&root, 9).key(9),
            "a storage server does not have the key of all"
        );
    }
}
