//! Decides whether what clients were answered can be right, and what must be there after a crash.
//!
//! Changes of the namespace happen at the moment their frame enters the log, which [`Oracle::commit`] sees; an answer must be what
//! the model answers at that moment. An operation that commits nothing must answer what the model answered at some moment while
//! it was under way. Content in chunks changes under a lease: nobody else sees the file meanwhile, and a stat sees it before or after.

mod beside;
mod recovered;

use crate::content::Content;
use crate::model::{Actor, Model, Op, Outcome, View};
use ashlar_client::AllocateMode;
use ashlar_kv::Frame;
use ashlar_namespace::{FileData, Inode, Kind, key};
use ashlar_types::{Errno, InodeId, SessionId, Timespec, codec};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Keys and values of a lane.
pub type Pairs = BTreeMap<Vec<u8>, Bytes>;

/// Verbs in log frames (`crates/meta/src/call.rs`; part of the log format).
mod verb {
    pub const CREATE: u8 = 2;
    pub const MKDIR: u8 = 3;
    pub const MKNOD: u8 = 4;
    pub const SYMLINK: u8 = 5;
    pub const LINK: u8 = 6;
    pub const UNLINK: u8 = 7;
    pub const RMDIR: u8 = 8;
    pub const RENAME: u8 = 9;
    pub const TMPFILE: u8 = 10;
    pub const OPEN: u8 = 11;
    pub const RELEASE: u8 = 12;
    pub const SETATTR: u8 = 13;
    pub const SETXATTR: u8 = 14;
    pub const REMOVEXATTR: u8 = 15;
    pub const WRITE_INLINE: u8 = 16;
    pub const ALLOCATE_INLINE: u8 = 17;
    pub const SPLIT: u8 = 36;
}

/// Whose session may be evicted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Evictions {
    #[default]
    Nobody,
    Only(Actor),
    Anybody,
}

/// One group of frames in the log, and the model after it.
struct Commit {
    writes: Vec<(Vec<u8>, Option<Bytes>)>,
    model: Model,
}

/// An operation under way.
struct Pending {
    op: Op,
    /// What it may answer if it commits nothing.
    allowed: Vec<Outcome>,
    may_be_gone: bool,
    /// A target it may need is missing.
    is_about_hidden: bool,
    /// What it must answer since its frame is in the log.
    committed: Option<Vec<Outcome>>,
    /// The model has its effect.
    is_applied: bool,
    /// Bytes of it have gone to storage.
    has_stored: bool,
    /// There was a moment at which there was nothing for it to change.
    was_idle: bool,
    /// Commits and contents when it began: what a sync covers.
    commits_before: u64,
    commit_number: u64,
    contents_before: BTreeMap<u64, usize>,
    /// Number of the content it left.
    content_number: usize,
    beside: beside::Beside,
}

/// See the module.
#[derive(Default)]
pub struct Oracle {
    pub model: Model,
    sessions: BTreeMap<u64, Actor>,
    pending: BTreeMap<Actor, Pending>,
    /// Pairs at the last moment of which everything is durable, and the commits since.
    base: Pairs,
    base_model: Model,
    commits: Vec<Commit>,
    /// Commits before those in `commits`.
    commits_dropped: u64,
    /// Commits that must survive a power cut.
    durable: u64,
    /// The frame that was being written when the disk stopped: it may be there or not.
    attempt: Option<Commit>,
    /// Contents of each file since it was last synced, the synced one first.
    versions: BTreeMap<u64, Vec<Content>>,
    /// How many older ones were dropped.
    versions_dropped: BTreeMap<u64, usize>,
    /// Actors whose session was ended by the service, or whose calls meet a broken disk.
    excused: BTreeSet<Actor>,
    /// Files with data on a target that is missing since the last start.
    pub hidden: BTreeSet<u64>,
    /// What must be there after the last crash, until it was compared.
    expected: Option<Expected>,
    /// A disk has failed: errors are no surprise.
    pub is_disk_broken: bool,
    /// Directories may be split.
    pub may_split: bool,
    /// Files are written by several actors at a time.
    pub may_share: bool,
    /// What may be in a file instead of what the model has.
    doubts: BTreeMap<u64, Vec<beside::Piece>>,
    /// Operations begun.
    writes: u64,
    /// When the newest write of a file that was answered began.
    changed_at: BTreeMap<u64, Timespec>,
    /// How often times that were not told yet have been lost.
    losses: u64,
    /// A client hangs, so that its session may be evicted.
    pub may_evict: Evictions,
    pub failures: Vec<String>,
    /// Answers that were checked.
    pub checked: u64,
}

/// What must be there after a crash.
pub struct Expected {
    pub model: Model,
    /// For each file what its bytes may be; absent: exactly what the model has.
    pub versions: BTreeMap<u64, Vec<Content>>,
    /// Files whose content may be anything: something was appended to them after a write that failed halfway, where nobody can tell.
    pub unknown: BTreeSet<u64>,
}

fn verb_of(op: &Op) -> Option<u8> {
    Some(match op {
        Op::Mkdir { .. } => verb::MKDIR,
        Op::Mknod { .. } => verb::MKNOD,
        Op::Symlink { .. } => verb::SYMLINK,
        Op::Create { .. } => verb::CREATE,
        Op::Tmpfile { .. } => verb::TMPFILE,
        Op::Link { .. } => verb::LINK,
        Op::Unlink { .. } => verb::UNLINK,
        Op::Rmdir { .. } => verb::RMDIR,
        Op::Rename { .. } => verb::RENAME,
        Op::Open { .. } => verb::OPEN,
        Op::Close { .. } => verb::RELEASE,
        Op::Chmod { .. } | Op::Truncate { .. } => verb::SETATTR,
        Op::Split { .. } => verb::SPLIT,
        Op::Setxattr { .. } => verb::SETXATTR,
        Op::Removexattr { .. } => verb::REMOVEXATTR,
        Op::Write { .. } => verb::WRITE_INLINE,
        Op::Allocate { .. } => verb::ALLOCATE_INLINE,
        _ => return None,
    })
}

/// Errors that say that something is broken, not that the call was wrong.
fn is_trouble(errno: Errno) -> bool {
    [Errno::EIO, Errno::ETIMEDOUT, Errno::ENOTCONN, Errno::ENOSPC, Errno::EAGAIN, Errno::ENODEV]
        .contains(&errno)
}

fn push_new<T: PartialEq>(list: &mut Vec<T>, item: T) {
    if !list.contains(&item) {
        list.push(item);
    }
}

impl Oracle {
    /// For a new file system.
    pub fn new() -> Oracle {
        Oracle { model: Model::new(), base_model: Model::new(), ..Oracle::default() }
    }

    fn fail(&mut self, what: String) {
        self.failures.push(what);
    }

    /// A client has opened a session.
    pub fn connected(&mut self, actor: Actor, session: SessionId) {
        self.sessions.retain(|_, known| *known != actor);
        self.sessions.insert(session.0, actor);
        self.excused.remove(&actor);
    }

    /// The service has ended the session of `actor`, or will as soon as somebody needs what it holds.
    pub fn excuse(&mut self, actor: Actor) {
        self.excused.insert(actor);
        // A write that it will not end may be there in part.
        let unfinished =
            self.pending.get(&actor).filter(|pending| pending.op.is_write() && !pending.is_applied);
        if let Some((op, inode)) =
            unfinished.and_then(|pending| Some((pending.op.clone(), pending.op.inode()?)))
        {
            self.make_uncertain(actor, &op, inode);
        }
        self.model.forget_actor(actor);
        self.lose_times();
    }

    /// The service ends the session of `actor`, because it does not answer.
    pub fn evicted(&mut self, actor: Actor) {
        let is_expected = match self.may_evict {
            Evictions::Nobody => false,
            Evictions::Only(hanging) => actor == hanging,
            Evictions::Anybody => true,
        };
        if !is_expected && !self.is_disk_broken {
            self.fail(format!("actor {actor} is evicted although nothing hangs"));
        }
        self.excuse(actor);
    }

    /// Nobody holds an orphan that the model does not know to be open.
    pub fn check_orphans(&mut self) {
        let newest = self.newest();
        let mut held = Vec::new();
        for record in newest.keys().filter(|record| record.get(2) == Some(&b'O')) {
            let session =
                record.get(11..19).and_then(|tail| <[u8; 8]>::try_from(tail).ok()).map(u64::from_be_bytes);
            let actor = session.and_then(|session| self.sessions.get(&session)).copied();
            let inode = key::inode_of(record).map_or(0, |inode| inode.0);
            let is_open =
                |actor| self.model.nodes.get(&inode).is_some_and(|node| node.opens.contains_key(&actor));
            if let Some(actor) = actor.filter(|&actor| !is_open(actor) && !self.is_excused(actor)) {
                held.push(format!("inode {inode:x} is kept for actor {actor}, which has closed it"));
            }
        }
        self.failures.extend(held);
    }

    /// Whether errors are no surprise to `actor`.
    pub fn is_excused(&self, actor: Actor) -> bool {
        self.is_disk_broken || self.excused.contains(&actor)
    }

    /// The models `actor` may see: with and without what others are writing.
    fn outcomes(&self, actor: Actor, op: &Op, new: u64) -> Vec<Outcome> {
        let mut found = vec![self.model.clone().run(actor, op, new)];
        for (&other, pending) in &self.pending {
            if other != actor && pending.op.is_write() && !pending.is_applied {
                let mut model = self.model.clone();
                model.run(other, &pending.op, 0);
                push_new(&mut found, model.run(actor, op, new));
            }
        }
        found
    }

    fn refresh(&mut self) {
        let actors: Vec<Actor> = self.pending.keys().copied().collect();
        for actor in actors {
            if self.may_share {
                self.note_seen(actor);
            }
            let Some(pending) = self.pending.get(&actor) else { continue };
            let op = pending.op.clone();
            if pending.committed.is_some() {
                self.refresh_size(actor, &op);
                continue;
            }
            let (outcomes, may_be_gone) = (self.outcomes(actor, &op, 0), self.model.may_be_gone(actor, &op));
            let is_about_hidden = self.model.is_about_hidden(&op);
            let is_idle = self.is_idle(&op);
            if let Some(pending) = self.pending.get_mut(&actor) {
                pending.is_about_hidden |= is_about_hidden;
                pending.was_idle |= is_idle;
                outcomes.into_iter().for_each(|outcome| push_new(&mut pending.allowed, outcome));
                pending.may_be_gone |= may_be_gone;
            }
        }
    }

    /// Whether there is nothing that `op` could change: a hole behind the end of the file.
    fn is_idle(&self, op: &Op) -> bool {
        let Op::Allocate { inode, mode: AllocateMode::PunchHole, offset, .. } = op else { return false };
        self.model.content(*inode).is_some_and(|content| content.size() <= *offset)
    }

    /// The size in the answer of a call that opens or links a file may be one it got after the commit, while the call was under way: the
    /// client asks again if a report of its own ended meanwhile.
    fn refresh_size(&mut self, actor: Actor, op: &Op) {
        if !matches!(op, Op::Create { .. } | Op::Open { .. } | Op::Link { .. }) {
            return;
        }
        let committed = self.pending.get(&actor).and_then(|pending| pending.committed.clone());
        for outcome in committed.unwrap_or_default() {
            let (Outcome::Opened(view, _) | Outcome::Attr(view)) = &outcome else { continue };
            for now in self.outcomes(actor, &Op::Getattr { inode: view.inode }, 0) {
                let Outcome::Attr(now) = now else { continue };
                let newer = match outcome.clone() {
                    Outcome::Opened(view, created) => {
                        Outcome::Opened(View { size: now.size, ..view }, created)
                    }
                    Outcome::Attr(view) => Outcome::Attr(View { size: now.size, ..view }),
                    other => other,
                };
                if let Some(list) =
                    self.pending.get_mut(&actor).and_then(|pending| pending.committed.as_mut())
                {
                    push_new(list, newer);
                }
            }
        }
    }

    /// Contents that `inode` has had.
    fn content_number(&self, inode: u64) -> usize {
        self.versions_dropped.get(&inode).unwrap_or(&0) + self.versions.get(&inode).map_or(0, Vec::len)
    }

    /// `actor` begins `op`.
    pub fn invoke(&mut self, actor: Actor, op: Op) {
        // Of what is in doubt all that it may be is what a sync covers.
        let number = |inode: u64| if self.is_in_doubt(inode) { 0 } else { self.content_number(inode) };
        let contents_before = match &op {
            Op::Sync => self.versions.keys().map(|inode| (*inode, number(*inode))).collect(),
            op => {
                let inode = op.inode().unwrap_or(0);
                BTreeMap::from([(inode, number(inode))])
            }
        };
        let beside = self.begin_beside(&op);
        let commits_before = self.commits_dropped + self.commits.len() as u64;
        self.pending.insert(
            actor,
            Pending {
                op,
                allowed: Vec::new(),
                may_be_gone: false,
                is_about_hidden: false,
                committed: None,
                is_applied: false,
                has_stored: false,
                was_idle: false,
                commits_before,
                commit_number: 0,
                contents_before,
                content_number: 0,
                beside,
            },
        );
        self.refresh();
    }

    /// Carries out the operation of `actor` in the model; `is_alone` if no write of others to the same file can be under way.
    fn apply(&mut self, actor: Actor, new: u64, is_alone: bool) {
        self.note_written(actor, is_alone);
        let Some(pending) = self.pending.get_mut(&actor) else { return };
        pending.is_applied = true;
        let op = pending.op.clone();
        self.model.run(actor, &op, new);
        if !is_alone {
            self.put_back(actor);
        }
        if let Op::Write { inode, .. }
        | Op::Allocate { inode, .. }
        | Op::Truncate { inode, .. }
        | Op::Open { inode, .. } = &op
        {
            self.note_content(*inode);
        }
        if let Op::Create { parent, name, .. } = &op
            && let Outcome::Attr(view) =
                self.model.run(actor, &Op::Lookup { parent: *parent, name: name.clone() }, 0)
        {
            self.note_content(view.inode);
        }
        // What has come beside it is not covered by what makes it durable.
        let is_alone = is_alone || self.pending.get(&actor).is_some_and(|pending| pending.is_quiet());
        let known = op.inode().filter(|inode| !self.is_in_doubt(*inode) && (is_alone || !op.is_beside()));
        let number = known.map_or(0, |inode| self.content_number(inode));
        if let Some(pending) = self.pending.get_mut(&actor) {
            pending.content_number = number;
        }
    }

    fn note_content(&mut self, inode: u64) {
        let Some(content) = self.model.content(inode).cloned() else { return };
        let versions = self.versions.entry(inode).or_insert_with(|| vec![Content::default()]);
        if versions.last() != Some(&content) {
            versions.push(content);
        }
    }

    /// Whoever else has written to `inode` has done so before `actor` could: it holds the lease now.
    fn settle_others(&mut self, actor: Actor, inode: u64) {
        let done: Vec<Actor> = self
            .pending
            .iter()
            .filter(|(other, pending)| **other != actor && pending.has_stored && !pending.is_applied)
            .filter(|(_, pending)| pending.op.inode() == Some(inode) && !self.are_beside(actor, pending))
            .map(|(other, _)| *other)
            .collect();
        for other in done {
            self.apply(other, 0, false);
        }
    }

    /// `actor` has changed the content of `inode` on a target.
    pub fn stored(&mut self, actor: Actor, inode: u64) {
        self.settle_others(actor, inode);
        if let Some(pending) = self.pending.get_mut(&actor)
            && pending.op.is_write()
            && pending.op.inode() == Some(inode)
        {
            pending.has_stored = true;
        }
        self.refresh();
    }

    fn new_inode_in(&self, writes: &[(Vec<u8>, Option<Bytes>)]) -> u64 {
        // Nobody knows of slices.
        let is_inode = |value: &Bytes| {
            let inode = codec::decode::<Inode>(value, "inode record").ok();
            inode.is_none_or(|inode| !inode.kind.is_slice())
        };
        let inodes = writes
            .iter()
            .filter(|(key, value)| key.get(2) == Some(&b'I') && value.as_ref().is_some_and(is_inode));
        let mut ids = inodes.filter_map(|(key, _)| key::inode_of(key)).map(|inode| inode.0);
        ids.find(|inode| !self.model.nodes.contains_key(inode)).unwrap_or(0)
    }

    fn flatten(frames: &[Frame]) -> Vec<(Vec<u8>, Option<Bytes>)> {
        let writes = frames.iter().flat_map(|frame| &frame.writes.0);
        writes.map(|(key, value)| (key.to_vec(), value.clone())).collect()
    }

    /// The actor whose operation under way takes effect with these frames.
    fn actor_of(&self, frames: &[Frame]) -> Option<Actor> {
        let frame = frames.first()?;
        let actor = *self.sessions.get(&frame.op.session.0)?;
        let pending = self.pending.get(&actor)?;
        (verb_of(&pending.op) == Some(frame.verb) && pending.committed.is_none()).then_some(actor)
    }

    /// A group of frames is in the log.
    pub fn commit(&mut self, frames: &[Frame]) {
        let writes = Oracle::flatten(frames);
        if let Some(actor) = self.actor_of(frames) {
            let new = self.new_inode_in(&writes);
            let op = self.pending[&actor].op.clone();
            let existing = match &op {
                Op::Create { parent, name, .. } => self.model.child(*parent, name),
                op => op.inode(),
            };
            // A close is the one change that takes nothing away from who writes the file.
            if let Some(inode) = existing
                && !(self.may_share && matches!(op, Op::Close { .. }))
            {
                self.settle_others(actor, inode);
            }
            let outcomes = self.outcomes(actor, &op, new);
            if let Some(pending) = self.pending.get_mut(&actor) {
                pending.committed = Some(outcomes);
                pending.commit_number = self.commits_dropped + self.commits.len() as u64 + 1;
            }
            self.apply(actor, new, true);
        }
        self.commits.push(Commit { writes, model: self.model.clone() });
        self.attempt = None;
        self.refresh();
    }

    /// A group of frames was being written when the disk stopped.
    pub fn attempted(&mut self, frames: &[Frame]) {
        let writes = Oracle::flatten(frames);
        let mut model = self.model.clone();
        if let Some(actor) = self.actor_of(frames) {
            let new = self.new_inode_in(&writes);
            model.run(actor, &self.pending[&actor].op, new);
            if let Some(inode) = self.pending[&actor].op.inode() {
                let after = model.content(inode).cloned();
                self.versions.entry(inode).or_default().extend(after);
            }
        }
        self.attempt = Some(Commit { writes, model });
    }

    /// `actor` has got its answer.
    /// With `is_durable` everything it did is durable now.
    pub fn answered(&mut self, actor: Actor, outcome: &Outcome, is_durable: bool) {
        let is_trouble = matches!(outcome, Outcome::Err(errno) if is_trouble(*errno));
        let is_write = self.pending.get(&actor).is_some_and(|pending| pending.op.is_write());
        if is_write && *outcome == Outcome::Done && !self.pending[&actor].is_applied {
            let pending = &self.pending[&actor];
            // What has changed nothing on a target has found nothing to change. Others may have written before it is answered: it may have been synced meanwhile.
            if !pending.was_idle || pending.has_stored {
                self.apply(actor, 0, false);
            }
        }
        let is_close = self.pending.get(&actor).is_some_and(|pending| matches!(pending.op, Op::Close { .. }));
        let opens = matches!(outcome, Outcome::Opened(..));
        if (is_close || opens) && !self.pending[&actor].is_applied {
            // Opening a file that is there commits nothing, nor does closing one that has a name.
            self.apply_open(actor, outcome);
        }
        let Some(pending) = self.pending.remove(&actor) else { return };
        self.checked += 1;
        if is_trouble {
            self.trouble(actor, &pending, outcome);
        } else {
            self.judge(actor, &pending, outcome);
        }
        self.note_durable(&pending, outcome);
        let is_change = match &pending.op {
            // They change nothing that a power cut could lose: who has what open is over then anyway, and what has no name goes.
            Op::Close { .. } | Op::Open { truncate: false, .. } => false,
            _ => true,
        };
        if is_durable && is_change && !matches!(outcome, Outcome::Err(_) | Outcome::Gone) {
            self.durable = self.durable.max(pending.commit_number);
            self.drop_commits();
            if let Some(inode) = pending.op.inode().filter(|_| pending.op.is_write()) {
                self.drop_contents(inode, pending.content_number);
            }
        }
        self.refresh();
    }

    fn apply_open(&mut self, actor: Actor, outcome: &Outcome) {
        let op = self.pending[&actor].op.clone();
        if let Outcome::Opened(view, _) = outcome {
            if self.model.nodes.contains_key(&view.inode) {
                *self.model.change(view.inode).opens.entry(actor).or_insert(0) += 1;
            }
        } else {
            self.model.run(actor, &op, 0);
        }
    }

    fn judge(&mut self, actor: Actor, pending: &Pending, outcome: &Outcome) {
        let is_uncertain =
            |model: &Model, inode: u64| model.nodes.get(&inode).is_some_and(|node| node.is_uncertain);
        // The length of a file that a dead client was writing is old until all its targets are there.
        let may_be_old = |model: &Model, inode: u64| {
            is_uncertain(model, inode) || model.nodes.get(&inode).is_some_and(|node| node.is_hidden)
        };
        // What a call with a name, or a change, tells of a directory that may be split.
        let is_in_part = |view: &View| {
            view.mode & 0o170_000 == 0o040_000
                && matches!(pending.op, Op::Lookup { .. } | Op::Mkdir { .. } | Op::Chmod { .. })
        };
        let fits = |expected: &Outcome| match (expected, outcome) {
            (Outcome::Attr(theirs), Outcome::Attr(view)) if is_in_part(view) && self.may_split => {
                (theirs.inode, theirs.mode) == (view.inode, view.mode)
            }
            (Outcome::Attr(theirs), Outcome::Attr(view)) if may_be_old(&self.model, view.inode) => {
                theirs.inode == view.inode && theirs.nlink == view.nlink
            }
            (Outcome::Opened(theirs, _), Outcome::Opened(view, _)) if may_be_old(&self.model, view.inode) => {
                theirs.inode == view.inode
            }
            (Outcome::Bytes(_), Outcome::Bytes(_)) if matches!(pending.op, Op::Read { inode, .. } if is_uncertain(&self.model, inode)) => {
                true
            }
            (expected, outcome) => expected == outcome,
        };
        let is_fine = match &pending.committed {
            Some(expected) => expected.iter().any(fits),
            None => pending.allowed.iter().any(fits) || (*outcome == Outcome::Gone && pending.may_be_gone),
        };
        if is_fine || Oracle::is_mixture(pending, outcome) {
            self.learn(pending, outcome);
            return;
        }
        if self.is_excused(actor) {
            return;
        }
        let expected = pending.committed.as_ref().unwrap_or(&pending.allowed);
        let first = |outcome: &Outcome| match outcome {
            Outcome::Bytes(bytes) => format!("{} bytes {:?}", bytes.len(), &bytes[..bytes.len().min(16)]),
            other => format!("{other:?}"),
        };
        let differ = expected.iter().find_map(|expected| match (expected, outcome) {
            (Outcome::Bytes(theirs), Outcome::Bytes(bytes)) => {
                theirs.iter().zip(bytes).position(|(a, b)| a != b)
            }
            _ => None,
        });
        let all: Vec<String> = expected.iter().map(first).collect();
        let when = if pending.committed.is_some() { "at its commit" } else { "while it was under way" };
        let what = format!(
            "actor {actor}: {} answered {}, but {when} the model answers {} (first byte that differs: {differ:?})",
            pending.op.brief(),
            first(outcome),
            all.join(" or ")
        );
        self.fail(what);
    }

    fn trouble(&mut self, actor: Actor, pending: &Pending, outcome: &Outcome) {
        let is_missing = pending.is_about_hidden && *outcome == Outcome::Err(Errno::ENODEV);
        if !self.is_excused(actor) && !is_missing {
            let what = format!(
                "actor {actor}: {} answered {outcome:?} although nothing is broken",
                pending.op.brief()
            );
            self.fail(what);
        }
        if pending.op.is_write()
            && !pending.is_applied
            && let Some(inode) = pending.op.inode()
        {
            self.make_uncertain(actor, &pending.op, inode);
        }
    }

    fn make_uncertain(&mut self, actor: Actor, op: &Op, inode: u64) {
        if self.model.content(inode).is_some() {
            let node = self.model.change(inode);
            node.is_unknown |= node.is_uncertain && matches!(op, Op::Write { append: true, .. });
            node.is_uncertain = true;
            let mut model = self.model.clone();
            model.run(actor, op, 0);
            let after = model.content(inode).cloned();
            self.versions.entry(inode).or_default().extend(after);
        }
    }

    fn note_durable(&mut self, pending: &Pending, outcome: &Outcome) {
        if *outcome != Outcome::Done || !matches!(pending.op, Op::Fsync { .. } | Op::Sync) {
            return;
        }
        self.durable = self.durable.max(pending.commits_before);
        for (inode, count) in &pending.contents_before {
            // Nobody asks a target that is missing.
            if pending.op == Op::Sync && self.model.nodes.get(inode).is_some_and(|node| node.is_hidden) {
                continue;
            }
            self.drop_contents(*inode, *count);
        }
        self.drop_commits();
    }

    /// The `count`-th content of a file is durable.
    fn drop_contents(&mut self, inode: u64, count: usize) {
        // What a write that failed has left may be there or not, in every later content too.
        if self.model.nodes.get(&inode).is_some_and(|node| node.is_uncertain) {
            return;
        }
        if let Some(versions) = self.versions.get_mut(&inode) {
            let dropped = self.versions_dropped.entry(inode).or_insert(0);
            let keep_from = count.saturating_sub(1).saturating_sub(*dropped);
            let keep_from = keep_from.min(versions.len().saturating_sub(1));
            *dropped += keep_from;
            versions.drain(..keep_from);
        }
    }

    fn drop_commits(&mut self) {
        let count = (self.durable - self.commits_dropped) as usize;
        for commit in self.commits.drain(..count) {
            self.commits_dropped += 1;
            replay(&mut self.base, &commit.writes);
            self.base_model = commit.model;
        }
    }

    /// The newest state of the lane.
    pub fn newest(&self) -> Pairs {
        let mut at = self.base.clone();
        for commit in &self.commits {
            replay(&mut at, &commit.writes);
        }
        at
    }
}

fn replay(pairs: &mut Pairs, writes: &[(Vec<u8>, Option<Bytes>)]) {
    for (key, value) in writes {
        match value {
            Some(value) => pairs.insert(key.clone(), value.clone()),
            None => pairs.remove(key),
        };
    }
}

/// Whether a file's content is with its inode.
pub fn is_inline(pairs: &Pairs, inode: u64) -> bool {
    let record = pairs.get(key::inode(InodeId(inode)).as_slice());
    let record = record.and_then(|bytes| codec::decode::<Inode>(bytes, "inode record").ok());
    matches!(record.map(|record| record.kind), Some(Kind::Regular(FileData::Inline { .. })))
}

/// Nobody has anything open any more, and what has no name is gone.
pub fn forget_dead(model: &mut Model) {
    model.nodes.retain(|_, node| node.nlink > 0);
    for node in model.nodes.values_mut() {
        if !node.opens.is_empty() {
            Arc::make_mut(node).opens.clear();
        }
    }
}
