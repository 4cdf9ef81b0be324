//! What this client has changed of metadata and not synced since, so that an fsync knows whether a metadata server has lost it meanwhile.
//!
//! Of each change it is noted which start of which server has answered it. A server that was started anew tells, before anything else, the last of its starts after which something may be missing
//! that was answered before: what was changed in an earlier one may be gone then, and whoever syncs it next is told. As of chunks ([`crate::unsynced`]), an inode is remembered from its first
//! change until its next sync, also after it was closed.

use crate::client::Client;
use crate::reclaim::NEWEST;
use ashlar_types::message::{Addressee, MetaReply, MetaRequest, Reclaim};
use ashlar_types::{Durability, Errno, InodeId, NodeId, SessionId};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use std::collections::{BTreeMap, BTreeSet};

/// Inodes that are remembered. Of one that was forgotten a sync tells nothing of what was lost before; those that were changed last are kept.
// LIMIT: 8 MiB.
const INODES_MAX: usize = 65_536;

/// A server, and which start of it has answered.
type Start = (NodeId, u64);

/// An inode of which something is not synced.
#[derive(Clone, Debug, Default)]
struct Changed {
    /// Who has changed it, each with the oldest start.
    // LIMIT: metadata servers.
    by: SmallVec<[Start; 1]>,
    /// Grows with each change.
    changes: u64,
    /// Some of it may be lost, and nobody was told.
    is_lost: bool,
}

/// The same for the next process of a mount.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnsyncedInode {
    inode: InodeId,
    by: Vec<Start>,
    is_lost: bool,
}

/// How much had been changed when a sync began.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Before(u64);

/// Where a sync has made everything durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DurableAt {
    Server(NodeId),
    All,
}

impl DurableAt {
    fn has(self, server: NodeId) -> bool {
        self == DurableAt::All || self == DurableAt::Server(server)
    }
}

/// See the module.
#[derive(Default)]
pub(crate) struct UnsyncedMeta(Mutex<State>);

#[derive(Default)]
struct State {
    inodes: FxHashMap<InodeId, Changed>,
    /// By the number of the last change.
    by_age: BTreeMap<u64, InodeId>,
    changes: u64,
    /// The last start of each server after which something may be missing, as far as was heard.
    // LIMIT: as metadata servers.
    lost_since: FxHashMap<NodeId, u64>,
    /// Servers that may have been started anew without this client having been told of it.
    unknown: BTreeSet<NodeId>,
}

impl UnsyncedMeta {
    /// `inode` was changed, which this start of a server has answered, or a later one.
    pub fn note(&self, inode: InodeId, start: Start) {
        let mut state = self.0.lock();
        let mut changed = state.forget(inode).unwrap_or_default();
        // Heard of before the answer was noted.
        changed.is_lost |= state.lost_since.get(&start.0).is_some_and(|since| start.1 < *since);
        if !changed.by.iter().any(|(server, _)| *server == start.0) {
            changed.by.push(start);
        }
        state.keep(inode, changed);
    }

    /// A sync begins.
    pub fn begin(&self) -> Before {
        Before(self.0.lock().changes)
    }

    /// What was changed before a sync began is durable at `place`. Tells, once, whether something of `inode` may be lost.
    #[must_use]
    pub fn synced(&self, inode: InodeId, before: Before, place: DurableAt) -> bool {
        let mut state = self.0.lock();
        let is_lost =
            state.inodes.get_mut(&inode).is_some_and(|changed| std::mem::take(&mut changed.is_lost));
        state.durable(before, place);
        is_lost
    }

    /// As [`UnsyncedMeta::synced`], of nothing in particular.
    pub fn durable(&self, before: Before, place: DurableAt) {
        self.0.lock().durable(before, place);
    }

    /// `server` may lack what was changed there before its start `since`.
    pub fn lose(&self, server: NodeId, since: u64) {
        let mut state = self.0.lock();
        let known = state.lost_since.entry(server).or_default();
        *known = since.max(*known);
        for changed in state.inodes.values_mut() {
            let of_server = changed.by.iter_mut().filter(|(by, start)| *by == server && *start < since);
            for (_, start) in of_server {
                *start = since;
                changed.is_lost = true;
            }
        }
    }

    /// Another session takes the place of the one in which all was changed: what servers were started anew before it is told to nobody.
    pub fn begin_session(&self) {
        let mut state = self.0.lock();
        let servers = state.inodes.values().flat_map(|changed| changed.by.iter().map(|(server, _)| *server));
        let servers: Vec<NodeId> = servers.collect();
        state.unknown.extend(servers);
    }

    /// Those at `place` of which that is not known.
    fn unknown(&self, place: DurableAt) -> Vec<NodeId> {
        let state = self.0.lock();
        state.unknown.iter().copied().filter(|server| place.has(*server)).collect()
    }

    /// All that is noted, for the next process.
    pub fn all(&self) -> Vec<UnsyncedInode> {
        let state = self.0.lock();
        let in_order = state.by_age.values().filter_map(|inode| Some((*inode, state.inodes.get(inode)?)));
        let left = |(inode, changed): (InodeId, &Changed)| UnsyncedInode {
            inode,
            by: changed.by.to_vec(),
            is_lost: changed.is_lost,
        };
        in_order.map(left).collect()
    }

    /// Goes on with what the process before has left.
    pub fn take_up(&self, left: &[UnsyncedInode]) {
        let mut state = self.0.lock();
        for UnsyncedInode { inode, by, is_lost } in left {
            let changed = Changed { by: SmallVec::from_slice(by), changes: 0, is_lost: *is_lost };
            state.forget(*inode);
            state.keep(*inode, changed);
        }
    }
}

impl State {
    fn keep(&mut self, inode: InodeId, changed: Changed) {
        self.changes += 1;
        if self.inodes.len() >= INODES_MAX
            && let Some((_, oldest)) = self.by_age.pop_first()
        {
            self.inodes.remove(&oldest);
        }
        self.by_age.insert(self.changes, inode);
        self.inodes.insert(inode, Changed { changes: self.changes, ..changed });
    }

    fn forget(&mut self, inode: InodeId) -> Option<Changed> {
        let changed = self.inodes.remove(&inode)?;
        self.by_age.remove(&changed.changes);
        Some(changed)
    }

    /// The log of a server is durable as a whole: nothing is left to be lost of what was changed there alone.
    fn durable(&mut self, Before(before): Before, place: DurableAt) {
        let mut durable = Vec::new();
        for inode in self.by_age.range(..=before).map(|(_, inode)| *inode) {
            let Some(changed) = self.inodes.get_mut(&inode) else { continue };
            changed.by.retain(|(server, _)| !place.has(*server));
            if changed.by.is_empty() && !changed.is_lost {
                durable.push(inode);
            }
        }
        durable.into_iter().for_each(|inode| drop(self.forget(inode)));
    }
}

/// The inodes that `request` changes, or whose names; not the one that it makes.
fn changed_by(request: &MetaRequest<'_>) -> SmallVec<[InodeId; 2]> {
    let of = SmallVec::from_slice;
    match request {
        MetaRequest::Create { parent, .. }
        | MetaRequest::Mkdir { parent, .. }
        | MetaRequest::Mknod { parent, .. }
        | MetaRequest::Symlink { parent, .. }
        | MetaRequest::Unlink { parent, .. }
        | MetaRequest::Rmdir { parent, .. } => of(&[*parent]),
        MetaRequest::Link { inode, parent, .. } => of(&[*inode, *parent]),
        MetaRequest::Rename { from_parent, to_parent, .. } => of(&[*from_parent, *to_parent]),
        // A lease that is given back, and when it was read, are nothing that a sync is for.
        MetaRequest::CommitWrite { inode, .. } if request.is_change() => of(&[*inode]),
        MetaRequest::Setattr { inode, .. }
        | MetaRequest::Open { inode, truncate: true, .. }
        | MetaRequest::Setxattr { inode, .. }
        | MetaRequest::Removexattr { inode, .. }
        | MetaRequest::WriteInline { inode, .. }
        | MetaRequest::AllocateInline { inode, .. }
        // Of an empty file it binds the layout.
        | MetaRequest::ProposeLayout { inode }
        | MetaRequest::SetLayout { inode, .. }
        | MetaRequest::LayoutSet { inode, .. }
        | MetaRequest::SetFileset { inode, .. } => of(&[*inode]),
        _ => SmallVec::new(),
    }
}

/// What a call is about to change: the inodes, and which start of whom it was sent to.
pub(crate) struct Changing {
    inodes: SmallVec<[InodeId; 2]>,
    to: NodeId,
    start: u64,
    session: SessionId,
    /// A file that is there is emptied.
    truncates: bool,
}

impl Client {
    /// What `request` is about to change, to be noted when it is answered. Nothing where servers lose their power together with this client, or what they answer is durable.
    pub(crate) fn changing(&self, session: SessionId, request: &MetaRequest<'_>) -> Option<Changing> {
        if !self.comes_back || session.durability() == Durability::Sync {
            return None;
        }
        let Addressee::Home(home) = request.addressee() else { return None };
        let inodes = changed_by(request);
        if inodes.is_empty() {
            return None;
        }
        let to = self.server_of(home);
        let truncates = matches!(request, MetaRequest::Create { truncate: true, .. });
        Some(Changing { inodes, to, start: self.meta.start_of(session, to), session, truncates })
    }

    /// It was answered.
    pub(crate) fn note_changed(&self, changing: &Changing, reply: &MetaReply) {
        let Changing { inodes, to, start, session, truncates } = changing;
        let (is_new, made) = match reply {
            MetaReply::Attr { attr, .. } => (true, Some(attr.inode)),
            MetaReply::Opened { open, created } => {
                (*created, Some(open.attr.inode).filter(|_| *created || *truncates))
            }
            MetaReply::Elsewhere { inode, .. } => (true, Some(*inode)),
            _ => (true, None),
        };
        let at_first_call = || self.meta.start_of(*session, *to);
        let start = if *start == 0 { at_first_call() } else { *start };
        // A name that was there already is as it was.
        let changed = inodes.iter().filter(|_| is_new).map(|inode| self.split_directories.shown(*inode));
        for inode in changed.chain(made) {
            self.unsynced_meta.note(inode, (*to, start));
            // Who has it takes part, or has the shard by now.
            let home = self.server_of(inode);
            if home != *to {
                self.unsynced_meta.note(inode, (home, self.meta.start_of(*session, home)));
            }
        }
    }

    /// Asks `server`, which was started anew, whether it may lack what it had answered before. To be called before anybody else is answered there.
    ///
    /// # Errors
    /// As of the call: then it is not known.
    pub(crate) fn ask_for_losses(&self, session: SessionId, of: (NodeId, u64)) -> Result<(), Errno> {
        let ((server, incarnation), part) = (of, Reclaim::Losses);
        match self.call_in(session, MetaRequest::Reclaim { server, incarnation, part })? {
            MetaReply::LostSince(since) if since > 0 => {
                tracing::info!(%server, since, "the metadata server has lost what was changed before a start and not synced; syncs say so");
                self.unsynced_meta.lose(server, since);
            }
            // None, or it is of a version that does not tell.
            _ => {}
        }
        Ok(())
    }

    /// Asks servers at `place` that may have been started anew unheard, before anything is synced there.
    ///
    /// # Errors
    /// As of [`Client::ask_for_losses`].
    pub(crate) fn ask_where_unknown(&self, place: DurableAt) -> Result<(), Errno> {
        for server in self.unsynced_meta.unknown(place) {
            // LIMIT: a turn per session that this client has had, and one more.
            loop {
                let session = self.session();
                // One that was removed has nothing any more.
                if self.map.read().node(server).is_none() {
                    break;
                }
                match self.ask_for_losses(session, (server, NEWEST)) {
                    Err(Errno::ENOTCONN) if self.has_come_back(session) => {}
                    Err(errno) => return Err(errno),
                    Ok(()) => break,
                }
            }
            self.unsynced_meta.0.lock().unknown.remove(&server);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: InodeId = InodeId(7);
    const HERE: NodeId = NodeId(1);
    const THERE: NodeId = NodeId(2);

    fn sync_at(unsynced: &UnsyncedMeta, inode: InodeId, place: DurableAt) -> bool {
        unsynced.synced(inode, unsynced.begin(), place)
    }

    fn sync(unsynced: &UnsyncedMeta, inode: InodeId) -> bool {
        sync_at(unsynced, inode, DurableAt::Server(HERE))
    }

    fn is_empty(unsynced: &UnsyncedMeta) -> bool {
        let state = unsynced.0.lock();
        assert_eq!(state.inodes.len(), state.by_age.len());
        state.inodes.is_empty()
    }

    #[test]
    fn a_loss_is_told_once_of_what_was_changed_there_before() {
        let unsynced = UnsyncedMeta::default();
        let elsewhere = InodeId(9);
        unsynced.note(FILE, (HERE, 4));
        unsynced.note(elsewhere, (THERE, 4));
        unsynced.lose(HERE, 3);
        assert!(!sync(&unsynced, elsewhere));
        unsynced.note(FILE, (HERE, 4));
        unsynced.lose(HERE, 5);
        unsynced.lose(HERE, 5);
        // Changed once more it is still to be told.
        unsynced.note(FILE, (HERE, 6));
        assert!(sync(&unsynced, FILE) && !sync(&unsynced, FILE));
        assert!(!sync_at(&unsynced, elsewhere, DurableAt::All) && is_empty(&unsynced));
    }

    #[test]
    fn a_sync_covers_all_that_was_changed_at_the_server_before() {
        let unsynced = UnsyncedMeta::default();
        let (directory, both) = (InodeId(8), InodeId(9));
        unsynced.note(directory, (HERE, 1));
        unsynced.note(both, (HERE, 1));
        unsynced.note(both, (THERE, 1));
        unsynced.note(FILE, (HERE, 1));
        let before = unsynced.begin();
        unsynced.note(FILE, (HERE, 1));
        assert!(!unsynced.synced(InodeId(5), before, DurableAt::Server(HERE)));
        unsynced.lose(HERE, 2);
        assert!(!sync(&unsynced, directory) && !sync(&unsynced, both), "it is durable there");
        assert!(sync(&unsynced, FILE), "changed while the sync was under way");
        unsynced.lose(THERE, 2);
        assert!(sync(&unsynced, both) && !sync_at(&unsynced, both, DurableAt::All));
        assert!(is_empty(&unsynced));
    }

    #[test]
    fn each_server_that_has_changed_an_inode_may_lose_it() {
        for loses in [HERE, THERE] {
            let unsynced = UnsyncedMeta::default();
            unsynced.note(FILE, (HERE, 1));
            unsynced.note(FILE, (THERE, 1));
            unsynced.lose(loses, 2);
            assert!(sync_at(&unsynced, FILE, DurableAt::All));
        }
    }

    #[test]
    fn a_change_that_a_loss_has_overtaken_counts_as_lost() {
        let unsynced = UnsyncedMeta::default();
        unsynced.lose(HERE, 3);
        unsynced.note(FILE, (HERE, 2));
        assert!(sync(&unsynced, FILE));
        unsynced.note(FILE, (HERE, 3));
        assert!(!sync(&unsynced, FILE));
    }

    #[test]
    fn another_session_knows_of_no_start_of_servers_at_which_something_was_changed() {
        let unsynced = UnsyncedMeta::default();
        unsynced.note(FILE, (HERE, 1));
        assert!(unsynced.unknown(DurableAt::All).is_empty());
        unsynced.begin_session();
        assert_eq!(unsynced.unknown(DurableAt::All), [HERE]);
        assert_eq!(unsynced.unknown(DurableAt::Server(HERE)), [HERE]);
        assert!(unsynced.unknown(DurableAt::Server(THERE)).is_empty());
    }

    #[test]
    fn the_next_process_goes_on_with_what_was_noted() {
        let (unsynced, next) = (UnsyncedMeta::default(), UnsyncedMeta::default());
        unsynced.note(FILE, (HERE, 1));
        unsynced.note(InodeId(8), (HERE, 1));
        unsynced.lose(HERE, 2);
        unsynced.note(InodeId(9), (HERE, 2));
        next.take_up(&unsynced.all());
        assert_eq!(next.all(), unsynced.all());
        assert!(sync(&next, FILE) && sync(&next, InodeId(8)) && !sync(&next, InodeId(9)));
    }

    #[test]
    fn the_inode_that_was_not_changed_for_longest_is_forgotten_for_one_too_many() {
        let unsynced = UnsyncedMeta::default();
        let change = |inode: u64| unsynced.note(InodeId(inode), (HERE, 0));
        (0..INODES_MAX as u64).for_each(change);
        change(0);
        change(INODES_MAX as u64);
        let is_noted = |inode: u64| unsynced.0.lock().inodes.contains_key(&InodeId(inode));
        assert!(is_noted(0) && !is_noted(1) && is_noted(2) && is_noted(INODES_MAX as u64));
    }
}
