//! A client whose session is [`Coherence::CloseToOpen`]: it holds no lease but WRITE, and what it was told is good for a moment.
//!
//! | what | is good |
//! |---|---|
//! | names of directories, attributes | for [`Coherence::KEPT_MAX`], in the kernel |
//! | other names, and that there is none | not at all: so an open finds the file that has the name now |
//! | where the content of an open file is, how long it is, and the content itself if it is with the inode | for [`Coherence::KEPT_MAX`], then it is asked for anew |
//! | pages of the kernel | until attributes tell another time of change, and over an open if the file has not changed since the one before |
//!
//! Chunks that another client has cut off or emptied meanwhile read as zeros, which never were in the file: where such a client reads zeros it looks
//! whether what it knows of the file is still so.

use crate::client::Client;
use crate::events::KernelCache;
use crate::file::{Data, File, FileState};
use crate::names::Found;
use ashlar_types::message::LeaseSet;
use ashlar_types::{Attr, Coherence, Errno, FileType, InodeId, Timespec};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::sync::Arc;
use std::time::Duration;

/// Files whose last known state is remembered by a part of the table after they were closed.
// LIMIT: 16 parts of 48 bytes an entry: 6 MiB. Past it a part begins anew, and files are read anew when they are opened.
const SEEN_MAX: usize = 1 << 13;
const PARTS: usize = 16;

/// Bytes in which a cut leaves zeros behind the end, or a chunk that is gone is all zeros.
const BLOCK_BYTES: usize = 4096;

/// Which of its states a file is in. Every change of content makes another one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Version {
    changed: Timespec,
    size: u64,
}

impl Version {
    pub(crate) fn of(attr: &Attr) -> Version {
        Version { changed: attr.mtime.max(attr.ctime), size: attr.size }
    }
}

/// The state in which files were when they were last opened: pages that the kernel has of them are at least as new.
#[derive(Default)]
pub(crate) struct Seen {
    parts: [Mutex<FxHashMap<InodeId, Version>>; PARTS],
}

impl Seen {
    /// Notes how a file is that is being opened; tells whether it was just so the last time.
    fn is_as_before(&self, inode: InodeId, now: Version) -> bool {
        let mut part = self.parts[(inode.0 % PARTS as u64) as usize].lock();
        if part.len() >= SEEN_MAX && !part.contains_key(&inode) {
            part.clear();
        }
        part.insert(inode, now) == Some(now)
    }
}

/// What such a client knew of a file when it began to read.
pub(crate) struct Knowledge {
    generation: Option<u32>,
    size: u64,
}

/// See [`Client::asks_anew`].
pub(crate) struct AskAnew(Option<Arc<dyn KernelCache>>);

impl AskAnew {
    /// The kernel asks for attributes before the next read, and drops its pages if the file has changed.
    pub(crate) fn about(&self, file: &File) {
        let mut state = file.state.lock();
        state.leases = state.leases.without(LeaseSet::READ);
        drop(state);
        if let Some(kernel) = &self.0 {
            kernel.drop_attributes(file.inode);
        }
    }
}

impl Client {
    /// Whether what this client caches is good for a moment only, and never recalled.
    pub fn is_close_to_open(&self) -> bool {
        self.session().is_close_to_open()
    }

    /// What such a client is told of an inode.
    pub(crate) fn found_loosely(&self, attr: Attr) -> Found {
        self.doubt_if_news(&attr);
        let is_directory = attr.file_type() == FileType::Directory;
        let is_whole = attr.slices() == 0;
        let attr_valid = if is_whole { Coherence::KEPT_MAX } else { Duration::ZERO };
        Found {
            is_whole,
            attr: self.overlay(attr),
            attr_valid,
            entry_valid: if is_directory { Coherence::KEPT_MAX } else { Duration::ZERO },
        }
    }

    /// Whether pages that the kernel has of a file that is being opened are good; `kept_read` in other sessions.
    pub(crate) fn keeps_pages(&self, attr: &Attr, kept_read: bool) -> bool {
        if self.is_close_to_open() {
            self.seen.is_as_before(attr.inode, Version::of(attr))
        } else {
            kept_read
        }
    }

    /// Whether what is known of a file may be relied on without asking: it is under a lease that would be recalled, or was learnt a moment ago.
    pub(crate) fn is_current(&self, state: &FileState) -> bool {
        if !self.is_close_to_open() || state.leases.has(LeaseSet::WRITE) {
            return true;
        }
        self.env.clock.monotonic().saturating_sub(state.learnt) < Coherence::KEPT_MAX
    }

    /// Notes that attributes were told which are not those that are known of an open file: it is asked about before it is read again.
    fn doubt_if_news(&self, attr: &Attr) {
        let Some(file) = self.open_file(attr.inode) else { return };
        let mut state = file.state.lock();
        if !state.leases.has(LeaseSet::WRITE) && state.version != Version::of(attr) {
            state.leases = state.leases.without(LeaseSet::READ);
        }
    }

    /// What makes such a client ask anew about a file, for whoever has got a lock on it: what was written under a lock before is seen. Nothing in
    /// other sessions.
    pub(crate) fn asks_anew(&self) -> Option<AskAnew> {
        self.is_close_to_open().then(|| AskAnew(self.kernel.get().cloned()))
    }

    /// What is known of `file`, for [`Client::is_still_so`]; nothing where others would have had to ask first.
    pub(crate) fn knowledge(&self, state: &FileState) -> Option<Knowledge> {
        if !self.is_close_to_open() || state.leases.has(LeaseSet::WRITE) {
            return None;
        }
        let generation = match &state.data {
            Data::Chunks(layout) => Some(layout.generation),
            Data::Inline(_) => None,
        };
        Some(Knowledge { generation, size: state.size })
    }

    /// Whether what was read into `out` by `known` may stay: there are no zeros in it that a cut may have left, or the file is asked about and still
    /// what it was.
    ///
    /// # Errors
    /// As of acquiring READ.
    pub(crate) fn is_still_so(&self, file: &File, known: &Knowledge, out: &[u8]) -> Result<bool, Errno> {
        if !out.chunks(BLOCK_BYTES).any(|block| block.last() == Some(&0)) {
            return Ok(true);
        }
        // ORDER: asked after the chunks were read. What was learnt while they were may be from before the cut.
        let mut state = file.state.lock();
        state.leases = state.leases.without(LeaseSet::READ);
        drop(state);
        let (in_flight, state) = self.begin(file, LeaseSet::READ)?;
        let generation = match &state.data {
            Data::Chunks(layout) => Some(layout.generation),
            Data::Inline(_) => None,
        };
        let is_same = generation == known.generation && state.size >= known.size;
        drop(state);
        drop(in_flight);
        Ok(is_same)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const X: InodeId = InodeId(5);

    fn version(secs: i64, size: u64) -> Version {
        Version { changed: Timespec { secs, nanos: 0 }, size }
    }

    #[test]
    fn a_file_that_was_changed_is_read_anew() {
        let seen = Seen::default();
        assert!(!seen.is_as_before(X, version(1, 10)), "the first time");
        assert!(seen.is_as_before(X, version(1, 10)));
        assert!(!seen.is_as_before(X, version(2, 10)));
        assert!(!seen.is_as_before(X, version(2, 11)));
        assert!(seen.is_as_before(X, version(2, 11)));
    }

    #[test]
    fn the_table_is_bounded() {
        let seen = Seen::default();
        for inode in 0..(2 * SEEN_MAX as u64 * PARTS as u64) {
            seen.is_as_before(InodeId(inode), version(1, 1));
        }
        assert!(seen.parts.iter().all(|part| part.lock().len() <= SEEN_MAX));
    }
}
