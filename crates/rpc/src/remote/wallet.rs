//! The capabilities that a client has, and which storage servers have seen them.

use crate::wire::Under;
use ashlar_types::{
    Capability, GrantedCapability, InodeId, NodeId, Rights, Seal, SealedCapability, SessionId,
};
use parking_lot::RwLock;
use rustc_hash::FxHashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// Most files whose capability is kept; when there are more, those that are used are asked for anew.
// LIMIT: of a mount.
const FILES_MAX: usize = 131_072;

/// What a call to a storage server needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    pub session: SessionId,
    pub inode: InodeId,
    pub generation: u32,
    pub rights: Rights,
    pub server: NodeId,
}

/// What is shown for a call.
#[derive(Debug)]
pub(super) struct Shown {
    pub under: Under,
    /// Standing and time of its seal.
    pub sealed: (u64, u64),
}

struct Kept {
    capability: Capability,
    /// By server; whether it has seen it.
    seals: Vec<(Seal, AtomicBool)>,
}

/// See the module.
#[derive(Default)]
pub(super) struct Wallet {
    files: RwLock<FxHashMap<InodeId, Kept>>,
    asked: AtomicU64,
    refused: AtomicU64,
}

impl Wallet {
    /// Keeps what metadata has given.
    pub fn keep(&self, granted: GrantedCapability) {
        let GrantedCapability { capability, seals } = granted;
        let mut files = self.files.write();
        if files.len() >= FILES_MAX && !files.contains_key(&capability.inode) {
            files.clear();
        }
        let unseen = |seal: Seal| (seal, AtomicBool::new(false));
        let kept = files.entry(capability.inode).or_insert_with(|| Kept { capability, seals: Vec::new() });
        if kept.capability != capability {
            let is_less = kept.capability.session == capability.session
                && kept.capability.generation == capability.generation
                && kept.capability.granter == capability.granter
                && kept.capability.rights.has(capability.rights);
            let is_missed = |seal: &Seal| !kept.seals.iter().any(|(known, _)| known.server == seal.server);
            // Two answers may come in the other order. But what is asked for because nothing is good any more is less if the file is only read by now.
            if is_less && !seals.iter().any(is_missed) {
                return;
            }
            (kept.capability, kept.seals) = (capability, Vec::new());
        }
        for seal in seals {
            match kept.seals.binary_search_by_key(&seal.server, |(known, _)| known.server) {
                Ok(at) => {
                    let known = &kept.seals[at].0;
                    // One that is about as good is not shown anew.
                    let half_ms = Capability::TERM.as_millis() as u64 / 2;
                    let is_as_good = known.standing == seal.standing
                        && known.key_epoch == seal.key_epoch
                        && seal.since_ms.saturating_sub(known.since_ms) < half_ms;
                    if !is_as_good {
                        kept.seals[at] = unseen(seal);
                    }
                }
                Err(at) => kept.seals.insert(at, unseen(seal)),
            }
        }
    }

    /// What to show for a call; `None` when there is nothing good.
    /// `granter` is the metadata server that the file is at: what another one has given, which had its shard before, is worth nothing any more.
    pub fn shown(&self, wanted: &Wanted, granter: NodeId) -> Option<Shown> {
        let files = self.files.read();
        let Kept { capability, seals } = files.get(&wanted.inode)?;
        let is_for_it = capability.granter == granter
            && capability.session == wanted.session
            && capability.generation == wanted.generation
            && capability.rights.has(wanted.rights);
        if !is_for_it {
            return None;
        }
        let at = seals.binary_search_by_key(&wanted.server, |(seal, _)| seal.server).ok()?;
        let (seal, is_seen) = &seals[at];
        let under = match is_seen.load(Relaxed) {
            true => Under::Session(capability.session),
            false => Under::Capability(Box::new(SealedCapability { capability: *capability, seal: *seal })),
        };
        Some(Shown { under, sealed: (seal.standing, seal.since_ms) })
    }

    /// The storage server has carried out what `shown` was for.
    pub fn note_seen(&self, wanted: &Wanted, shown: &Shown) {
        if matches!(shown.under, Under::Capability(_)) {
            self.with(wanted, shown, |_, is_seen| is_seen.store(true, Relaxed));
        }
    }

    /// The storage server has refused what `shown` was for. If it has forgotten what it had seen, it is to see it once more; else it is worth nothing.
    /// Tells whether it is.
    pub fn note_refused(&self, wanted: &Wanted, shown: &Shown) -> bool {
        self.refused.fetch_add(1, Relaxed);
        if let Under::Session(_) = shown.under {
            self.with(wanted, shown, |_, is_seen| is_seen.store(false, Relaxed));
            return true;
        }
        let mut files = self.files.write();
        if let Some(kept) = files.get_mut(&wanted.inode) {
            kept.seals.retain(|(seal, _)| !is_that(seal, wanted, shown));
        }
        false
    }

    fn with(&self, wanted: &Wanted, shown: &Shown, note: impl Fn(&Seal, &AtomicBool)) {
        if let Some(kept) = self.files.read().get(&wanted.inode) {
            let same = kept.seals.iter().find(|(seal, _)| is_that(seal, wanted, shown));
            if let Some((seal, is_seen)) = same.filter(|_| kept.capability.session == wanted.session) {
                note(seal, is_seen);
            }
        }
    }

    /// Metadata is asked for a capability.
    pub fn note_asked(&self) {
        self.asked.fetch_add(1, Relaxed);
    }

    /// How often metadata was asked for a capability by itself, and how often a storage server has refused a call.
    pub fn counts(&self) -> (u64, u64) {
        (self.asked.load(Relaxed), self.refused.load(Relaxed))
    }
}

fn is_that(seal: &Seal, wanted: &Wanted, shown: &Shown) -> bool {
    seal.server == wanted.server && (seal.standing, seal.since_ms) == shown.sealed
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use ashlar_types::ClusterId;
    use ashlar_types::node::SessionOwner;

    fn granted(rights: Rights, servers: &[u32], standing: u64) -> GrantedCapability {
        let capability = Capability {
            cluster: ClusterId([1; 16]),
            granter: NodeId(2),
            session: SessionId(3),
            owner: SessionOwner { node: NodeId(4), instance: [4; 16] },
            inode: InodeId(5),
            generation: 6,
            rights,
            term_s: 300,
        };
        let seal =
            |&server| Seal { server: NodeId(server), standing, since_ms: 9, key_epoch: 1, mac: [0; 32] };
        GrantedCapability { capability, seals: servers.iter().map(seal).collect() }
    }

    fn wanted(rights: Rights, server: u32) -> Wanted {
        let (session, inode, generation) = (SessionId(3), InodeId(5), 6);
        Wanted { session, inode, generation, rights, server: NodeId(server) }
    }

    #[test]
    fn it_is_shown_once_to_each_server() {
        let wallet = Wallet::default();
        let read = wanted(Rights::READ, 7);
        assert!(wallet.shown(&read, NodeId(2)).is_none());
        wallet.keep(granted(Rights::READ, &[7, 9], 1));
        let first = wallet.shown(&read, NodeId(2)).unwrap();
        assert!(matches!(first.under, Under::Capability(_)));
        wallet.note_seen(&read, &first);
        assert_eq!(wallet.shown(&read, NodeId(2)).unwrap().under, Under::Session(SessionId(3)));
        assert!(matches!(
            wallet.shown(&wanted(Rights::READ, 9), NodeId(2)).unwrap().under,
            Under::Capability(_)
        ));
        // Given once more, with the next open: nothing new.
        wallet.keep(granted(Rights::READ, &[7, 9], 1));
        assert_eq!(wallet.shown(&read, NodeId(2)).unwrap().under, Under::Session(SessionId(3)));
        // A server that was started anew is shown another one.
        wallet.keep(granted(Rights::READ, &[7], 2));
        assert!(matches!(wallet.shown(&read, NodeId(2)).unwrap().under, Under::Capability(_)));
        assert!(
            wallet.shown(&wanted(Rights::READ, 9), NodeId(2)).is_some(),
            "the other server's is as it was"
        );
    }

    #[test]
    fn what_a_server_has_forgotten_is_shown_once_more_and_what_it_refuses_is_gone() {
        let wallet = Wallet::default();
        let read = wanted(Rights::READ, 7);
        wallet.keep(granted(Rights::READ, &[7], 1));
        wallet.note_seen(&read, &wallet.shown(&read, NodeId(2)).unwrap());
        assert!(wallet.note_refused(&read, &wallet.shown(&read, NodeId(2)).unwrap()));
        let again = wallet.shown(&read, NodeId(2)).unwrap();
        assert!(matches!(again.under, Under::Capability(_)));
        assert!(!wallet.note_refused(&read, &again));
        assert!(wallet.shown(&read, NodeId(2)).is_none());
        assert_eq!(wallet.counts(), (0, 2));
    }

    #[test]
    fn only_what_allows_the_call_is_shown() {
        let wallet = Wallet::default();
        wallet.keep(granted(Rights::READ, &[7], 1));
        assert!(wallet.shown(&wanted(Rights::WRITE, 7), NodeId(2)).is_none());
        wallet.keep(granted(Rights::of_open(true), &[7], 1));
        assert!(wallet.shown(&wanted(Rights::WRITE, 7), NodeId(2)).is_some());
        wallet.keep(granted(Rights::READ, &[7], 1));
        assert!(
            wallet.shown(&wanted(Rights::WRITE, 7), NodeId(2)).is_some(),
            "an answer that was overtaken takes nothing away"
        );
        // The file is only read by now, and what let it be written was refused.
        let write = wanted(Rights::WRITE, 7);
        wallet.note_refused(&write, &wallet.shown(&write, NodeId(2)).unwrap());
        wallet.keep(granted(Rights::READ, &[7], 2));
        assert!(
            wallet.shown(&write, NodeId(2)).is_none()
                && wallet.shown(&wanted(Rights::READ, 7), NodeId(2)).is_some()
        );
        assert!(
            wallet.shown(&Wanted { session: SessionId(4), ..wanted(Rights::READ, 7) }, NodeId(2)).is_none()
        );
        assert!(wallet.shown(&Wanted { generation: 7, ..wanted(Rights::READ, 7) }, NodeId(2)).is_none());
        // The shard has moved: what its new server gives counts, also if it allows less, and what the other one gave does not.
        wallet.keep(granted(Rights::of_open(true), &[7], 2));
        let mut moved = granted(Rights::READ, &[7], 2);
        moved.capability.granter = NodeId(5);
        wallet.keep(moved);
        assert!(wallet.shown(&wanted(Rights::READ, 7), NodeId(5)).is_some());
        assert!(wallet.shown(&wanted(Rights::READ, 7), NodeId(2)).is_none());
    }
}
