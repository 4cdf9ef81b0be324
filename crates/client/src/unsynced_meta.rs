//! What this client has changed of metadata and not synced since, so that an fsync knows whether a metadata server has lost it meanwhile.
//!
//! A metadata server that was started anew is told what this client has, and tells before anything else whether it may have lost what it had answered. What was changed there before may be
//! gone from then on, and whoever syncs it next is told. As of chunks ([`crate::unsynced`]), an inode is remembered from its first change until its next sync, also after it was closed.

use crate::client::Client;
use ashlar_types::message::{MetaReply, MetaRequest, Reclaim};
use ashlar_types::{Errno, InodeId, NodeId, SessionId};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::collections::BTreeMap;

/// Inodes that are remembered. Of one that was forgotten a sync tells nothing of what was lost before; those that were changed last are kept.
// LIMIT: 8 MiB.
const INODES_MAX: usize = 65_536;

/// Inodes of one call.
pub(crate) type Inodes = SmallVec<[InodeId; 2]>;

/// An inode of which something is not synced.
#[derive(Clone, Copy, Debug)]
struct Changed {
    /// Who has it.
    server: NodeId,
    /// Grows with each change.
    changes: u64,
    /// Some of it may be lost, and nobody was told.
    is_lost: bool,
}

/// What was noted of an inode when a sync of it began.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Noted(Option<u64>);

/// See the module.
#[derive(Default)]
pub(crate) struct UnsyncedMeta(Mutex<State>);

#[derive(Default)]
struct State {
    inodes: FxHashMap<InodeId, Changed>,
    /// By the number of the last change.
    by_age: BTreeMap<u64, InodeId>,
    changes: u64,
    /// How often each server has lost something.
    // LIMIT: as metadata servers.
    losses: FxHashMap<NodeId, u64>,
}

impl UnsyncedMeta {
    /// How often `server` has lost something: asked before something is changed there.
    pub fn losses(&self, server: NodeId) -> u64 {
        self.0.lock().losses.get(&server).copied().unwrap_or(0)
    }

    /// `inode` was changed at `server`, after [`UnsyncedMeta::losses`] was `before`.
    pub fn note(&self, inode: InodeId, (server, before): (NodeId, u64)) {
        let mut state = self.0.lock();
        // Answered before the loss was heard of, or after: nobody knows.
        let is_lost = state.losses.get(&server).copied().unwrap_or(0) != before;
        state.changes += 1;
        let changes = state.changes;
        let was_lost = state.forget(inode).is_some_and(|changed| changed.is_lost);
        if state.inodes.len() >= INODES_MAX
            && let Some((_, oldest)) = state.by_age.pop_first()
        {
            state.inodes.remove(&oldest);
        }
        state.by_age.insert(changes, inode);
        state.inodes.insert(inode, Changed { server, changes, is_lost: is_lost || was_lost });
    }

    /// What is noted of an inode, before that is made durable.
    pub fn noted(&self, inode: InodeId) -> Noted {
        Noted(self.0.lock().inodes.get(&inode).map(|changed| changed.changes))
    }

    /// What was noted when a sync began is durable; tells, once, whether some of it may be lost.
    #[must_use]
    pub fn synced(&self, inode: InodeId, Noted(noted): Noted) -> bool {
        let mut state = self.0.lock();
        let Some(changed) = state.inodes.get_mut(&inode).filter(|_| noted.is_some()) else { return false };
        let (is_lost, changes) = (std::mem::take(&mut changed.is_lost), changed.changes);
        if Some(changes) == noted {
            state.forget(inode);
        }
        is_lost
    }

    /// `server` may have lost what was changed there until now.
    pub fn lose(&self, server: NodeId) {
        let mut state = self.0.lock();
        *state.losses.entry(server).or_default() += 1;
        let there = state.inodes.values_mut().filter(|changed| changed.server == server);
        there.for_each(|changed| changed.is_lost = true);
    }
}

impl State {
    fn forget(&mut self, inode: InodeId) -> Option<Changed> {
        let changed = self.inodes.remove(&inode)?;
        self.by_age.remove(&changed.changes);
        Some(changed)
    }
}

/// The inodes that `request` changes, or whose names; not the one that it makes.
fn changed_by(request: &MetaRequest<'_>) -> Inodes {
    match request {
        MetaRequest::Create { parent, .. }
        | MetaRequest::Mkdir { parent, .. }
        | MetaRequest::Mknod { parent, .. }
        | MetaRequest::Symlink { parent, .. }
        | MetaRequest::Unlink { parent, .. }
        | MetaRequest::Rmdir { parent, .. } => Inodes::from_slice(&[*parent]),
        MetaRequest::Link { inode, parent, .. } => Inodes::from_slice(&[*inode, *parent]),
        MetaRequest::Rename { from_parent, to_parent, .. } => Inodes::from_slice(&[*from_parent, *to_parent]),
        MetaRequest::Setattr { inode, .. }
        | MetaRequest::Open { inode, truncate: true, .. }
        | MetaRequest::Setxattr { inode, .. }
        | MetaRequest::Removexattr { inode, .. }
        | MetaRequest::WriteInline { inode, .. }
        | MetaRequest::AllocateInline { inode, .. }
        | MetaRequest::SetLayout { inode, .. }
        | MetaRequest::LayoutSet { inode, .. }
        | MetaRequest::SetFileset { inode, .. }
        | MetaRequest::CommitWrite { inode, .. } => Inodes::from_slice(&[*inode]),
        _ => Inodes::new(),
    }
}

/// The inode that a call has made, if it is told.
fn made_by(reply: &MetaReply) -> Option<InodeId> {
    match reply {
        MetaReply::Attr { attr, .. } => Some(attr.inode),
        MetaReply::Opened { open, created: true } => Some(open.attr.inode),
        MetaReply::Elsewhere { inode, .. } => Some(*inode),
        _ => None,
    }
}

/// What a call is about to change: each inode, its server, and how often that had lost something before.
pub(crate) type Changing = SmallVec<[(InodeId, (NodeId, u64)); 2]>;

impl Client {
    /// What `request` is about to change, to be noted when it is answered. Nothing where the servers lose their power together with this client.
    pub(crate) fn changing(&self, request: &MetaRequest<'_>) -> Changing {
        if !self.comes_back {
            return Changing::new();
        }
        let of = |inode: InodeId| {
            let server = self.server_of(inode);
            (inode, (server, self.unsynced_meta.losses(server)))
        };
        changed_by(request).into_iter().map(of).collect()
    }

    /// It was answered.
    pub(crate) fn note_changed(&self, changing: &Changing, reply: &MetaReply) {
        let Some((_, (server, before))) = changing.first() else { return };
        for (inode, at) in changing {
            self.unsynced_meta.note(self.split_directories.shown(*inode), *at);
        }
        if let Some(made) = made_by(reply).filter(|made| changing.iter().all(|(inode, _)| inode != made)) {
            let home = self.server_of(made);
            let before = if home == *server { *before } else { self.unsynced_meta.losses(home) };
            self.unsynced_meta.note(made, (home, before));
        }
    }

    /// Asks `server`, which was started anew, whether it may have lost what it had answered before. To be called before anybody else is answered there.
    ///
    /// # Errors
    /// `EAGAIN` when it was started once more.
    pub(crate) fn ask_for_losses(&self, session: SessionId, server: NodeId) -> Result<(), Errno> {
        let part = Reclaim::Losses;
        let incarnation = crate::reclaim::NEWEST;
        match self.call_in(session, MetaRequest::Reclaim { server, incarnation, part }) {
            Ok(MetaReply::LostSince(0)) => Ok(()),
            Ok(MetaReply::LostSince(_)) => {
                tracing::warn!(%server, "a metadata server has lost what was changed last and not synced: the next sync of each inode that was changed says so");
                self.unsynced_meta.lose(server);
                Ok(())
            }
            Err(errno @ (Errno::EAGAIN | Errno::ENOTCONN)) => Err(errno),
            // It is of a version that does not tell.
            other => {
                tracing::debug!(?other, %server, "a metadata server does not tell what it has lost");
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: InodeId = InodeId(7);
    const HERE: NodeId = NodeId(1);
    const THERE: NodeId = NodeId(2);

    fn sync(unsynced: &UnsyncedMeta, inode: InodeId) -> bool {
        unsynced.synced(inode, unsynced.noted(inode))
    }

    #[test]
    fn a_loss_is_told_once_of_what_was_changed_there_and_not_synced() {
        let unsynced = UnsyncedMeta::default();
        let (synced, elsewhere) = (InodeId(8), InodeId(9));
        for (inode, server) in [(FILE, HERE), (synced, HERE), (elsewhere, THERE)] {
            unsynced.note(inode, (server, 0));
        }
        assert!(!sync(&unsynced, synced));
        unsynced.lose(HERE);
        assert!(!sync(&unsynced, synced) && !sync(&unsynced, elsewhere));
        // Changed once more it is still to be told.
        unsynced.note(FILE, (HERE, 1));
        assert!(sync(&unsynced, FILE) && !sync(&unsynced, FILE));
        assert!(unsynced.0.lock().inodes.is_empty() && unsynced.0.lock().by_age.is_empty());
    }

    #[test]
    fn a_change_that_a_loss_has_overtaken_counts_as_lost() {
        let unsynced = UnsyncedMeta::default();
        let before = unsynced.losses(HERE);
        unsynced.lose(HERE);
        unsynced.note(FILE, (HERE, before));
        assert!(sync(&unsynced, FILE));
        unsynced.note(FILE, (HERE, unsynced.losses(HERE)));
        assert!(!sync(&unsynced, FILE));
    }

    #[test]
    fn what_is_changed_while_a_sync_is_under_way_is_for_the_next_one() {
        let unsynced = UnsyncedMeta::default();
        unsynced.note(FILE, (HERE, 0));
        let noted = unsynced.noted(FILE);
        unsynced.note(FILE, (HERE, 0));
        assert!(!unsynced.synced(FILE, noted));
        unsynced.lose(HERE);
        assert!(sync(&unsynced, FILE));
    }

    #[test]
    fn the_inode_that_was_not_changed_for_longest_is_forgotten_for_one_too_many() {
        let unsynced = UnsyncedMeta::default();
        let change = |inode: u64| unsynced.note(InodeId(inode), (HERE, 0));
        (0..INODES_MAX as u64).for_each(change);
        change(0);
        change(INODES_MAX as u64);
        let is_noted = |inode: u64| unsynced.noted(InodeId(inode)).0.is_some();
        assert!(is_noted(0) && !is_noted(1) && is_noted(2) && is_noted(INODES_MAX as u64));
    }
}
