//! What a storage server lets clients do: what metadata has given them a capability for. Why it is so: `docs/adr/0015-capabilities-and-fencing.md`.
//!
//! | a client's call | what becomes of it |
//! |---|---|
//! | with a capability | the seal is checked, once; the capability is remembered for the session and file |
//! | in the name of a session | it is looked up; no cryptography |
//! | anything that is not good | `EACCES`, and nothing was done |

use super::attached::{Attached, AttachedTable, Need};
use super::gate::Gates;
use super::primary::{Primaries, UnderWay};
use super::standing::Standings;
use crate::capability::is_sealed;
use crate::net::Peer;
use crate::wire::{Attend, Attended, Under, needed};
use ashlar_env::Env;
use ashlar_types::message::StorageRequest;
use ashlar_types::node::SessionOwner;
use ashlar_types::{ClusterMap, Errno, KeySet, NodeId, SealedCapability};
use parking_lot::RwLock;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// For how long what is under way for a session that is over, or for a metadata server that was replaced, is waited for before metadata is told that it has to ask once more.
const FENCE_MAX: Duration = Duration::from_millis(500);

/// See the module.
pub struct Access {
    server: NodeId,
    env: Env,
    map: Arc<RwLock<Arc<ClusterMap>>>,
    keys: RwLock<KeySet>,
    /// Somebody has shown a capability under a key that is not here.
    wants_keys: AtomicBool,
    standings: Standings,
    primaries: Primaries,
    gates: Gates,
    attached: AttachedTable,
    attached_count: AtomicU64,
    refused_count: AtomicU64,
}

impl Access {
    /// Of the storage server on node `server` of the file system of `map`, with the keys it was given.
    pub fn new(server: NodeId, map: Arc<RwLock<Arc<ClusterMap>>>, keys: KeySet, env: Env) -> Access {
        Access {
            server,
            env,
            map,
            keys: RwLock::new(keys),
            wants_keys: AtomicBool::new(false),
            standings: Standings::default(),
            primaries: Primaries::default(),
            gates: Gates::default(),
            attached: AttachedTable::default(),
            attached_count: AtomicU64::new(0),
            refused_count: AtomicU64::new(0),
        }
    }

    /// Keys that a manager has given since.
    pub fn set_keys(&self, keys: KeySet) {
        *self.keys.write() = keys;
    }

    /// Whether somebody has shown a capability under a newer key since this was asked last.
    pub fn wants_keys(&self) -> bool {
        self.wants_keys.swap(false, Relaxed)
    }

    /// How many capabilities were shown and good, and how many calls of clients were refused for lack of one.
    pub fn counts(&self) -> (u64, u64) {
        (self.attached_count.load(Relaxed), self.refused_count.load(Relaxed))
    }

    fn now_ms(&self) -> u64 {
        self.env.clock.monotonic().as_millis() as u64
    }

    /// Does `work` for a client, if it may have it done.
    ///
    /// # Errors
    /// `EACCES` when it may not, and what `work` answers.
    pub(super) fn run<T>(
        &self,
        peer: &Peer,
        under: &Under,
        request: &StorageRequest,
        work: impl FnOnce() -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let Some(need) = need_of(request) else { return work() };
        let refused = |errno| {
            self.refused_count.fetch_add(1, Relaxed);
            tracing::debug!(node = %peer.id.node, inode = %need.inode, "a client has no capability for what it asks for");
            errno
        };
        let attached = self.find(peer, under, &need).map_err(refused)?;
        let _under_way = attached.gate.enter().map_err(refused)?;
        // ORDER: looked at when whoever ends the session waits for this call.
        let seal = &attached.shown.seal;
        if !attached.standing.is_good(seal.standing, self.now_ms()) {
            return Err(refused(Errno::EACCES));
        }
        work()
    }

    fn find(&self, peer: &Peer, under: &Under, need: &Need) -> Result<Attached, Errno> {
        let map = self.map.read().clone();
        if map.node(peer.id.node).is_none() {
            return Err(Errno::EACCES);
        }
        let session = match under {
            Under::Role | Under::Move(_) | Under::Copy(_) => return Err(Errno::EACCES),
            Under::Session(session) => *session,
            Under::Capability(shown) => {
                self.attach(peer, shown)?;
                shown.capability.session
            }
        };
        let oldest_key = self.keys.read().epochs().ok_or(Errno::EACCES)?.0;
        let attached = self.attached.find(session, owner_of(peer), need, (self.now_ms(), oldest_key))?;
        // Who has the shard now ends sessions there, and may not know that this one was given something before.
        match map.primary(need.inode.home()) == Some(attached.shown.capability.granter) {
            true => Ok(attached),
            false => Err(Errno::EACCES),
        }
    }

    /// Checks a capability, and remembers it.
    fn attach(&self, peer: &Peer, shown: &SealedCapability) -> Result<(), Errno> {
        let SealedCapability { capability, seal } = shown;
        let is_for_here = capability.cluster == peer.id.cluster && seal.server == self.server;
        if !is_for_here || capability.owner != owner_of(peer) {
            return Err(Errno::EACCES);
        }
        {
            let keys = self.keys.read();
            let newest = keys.epochs().map_or(0, |(_, newest)| newest);
            self.wants_keys.fetch_or(seal.key_epoch > newest, Relaxed);
            let key = keys.key(seal.key_epoch).ok_or(Errno::EACCES)?;
            if !is_sealed(key, capability, seal) {
                tracing::warn!(node = %peer.id.node, inode = %capability.inode, "a client has shown a capability that nobody has given it");
                return Err(Errno::EACCES);
            }
        }
        let now_ms = self.now_ms();
        let expires_ms = seal.since_ms.saturating_add(u64::from(capability.term_s) * 1000);
        let standing = self.standings.of(capability.granter).ok_or(Errno::EACCES)?;
        if now_ms >= expires_ms || !standing.is_good(seal.standing, now_ms) {
            return Err(Errno::EACCES);
        }
        let owner = owner_of(peer);
        let gate = self.gates.open(capability.session, owner, self.env.clock.monotonic())?;
        self.attached.attach(Attached { owner, shown: *shown, expires_ms, standing, gate }, now_ms)?;
        self.attached_count.fetch_add(1, Relaxed);
        Ok(())
    }

    /// A metadata server, which is the process `peer`, says that it is there. `start`: which of its starts it is, if several machines can serve it.
    ///
    /// # Errors
    /// `EACCES` when another process has taken its place, `EAGAIN` when something of one whose place it has taken is under way.
    pub(super) fn attend_by(
        &self,
        peer: &Peer,
        start: Option<u64>,
        attend: &Attend,
    ) -> Result<Attended, Errno> {
        let _under_way = match start {
            Some(start) => self.primaries.claim(owner_of(peer), start, FENCE_MAX)?,
            None => self.primaries.enter(owner_of(peer))?,
        };
        Ok(self.attend(peer.id.node, attend))
    }

    /// Whether calls of a process of a metadata server are carried out at this moment.
    ///
    /// # Errors
    /// `EACCES` when another one has taken its place.
    pub(super) fn require_newest(&self, peer: &Peer) -> Result<(), Errno> {
        self.primaries.require_newest(owner_of(peer))
    }

    /// Begins a call of a process of a metadata server, which is under way for as long as what is returned lives.
    ///
    /// # Errors
    /// As [`Access::require_newest`].
    pub(super) fn enter(&self, peer: &Peer) -> Result<UnderWay, Errno> {
        self.primaries.enter(owner_of(peer))
    }

    /// A metadata server, `granter`, says that it is there, and which sessions are over.
    fn attend(&self, granter: NodeId, attend: &Attend) -> Attended {
        // ORDER: sessions that are over first; what else it has given counts for longer then.
        let fenced = self.gates.close(&attend.fences, self.env.clock.monotonic(), FENCE_MAX);
        let now_ms = self.now_ms();
        let standing = self.standings.heed(granter, attend.echo, now_ms, &*self.env.entropy);
        let epochs = self.keys.read().epochs().unwrap_or_default();
        Attended { standing, now_ms, epochs, fenced }
    }

    /// A metadata server has asked for something: chunks of a generation that it has deleted are nobody's any more.
    pub(super) fn note(&self, request: &StorageRequest) {
        // With a later index it is a cut.
        if let StorageRequest::DeleteGeneration { inode, generation, from_index: 0, .. } = request {
            self.attached.deleted(*inode, *generation, self.now_ms());
        }
    }

    /// A process is not expected back. If it is the newest of a metadata server, it stays that.
    pub(super) fn forget(&self, peer: &Peer) {
        self.gates.forget(owner_of(peer));
    }
}

fn owner_of(peer: &Peer) -> SessionOwner {
    SessionOwner { node: peer.id.node, instance: peer.instance }
}

fn need_of(request: &StorageRequest) -> Option<Need> {
    needed(request).map(|(inode, generation, rights)| Need { inode, generation, rights })
}

#[cfg(test)]
mod access_test;
