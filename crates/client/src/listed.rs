//! Listing a directory by fewer calls than the kernel makes: it asks for what fits its buffer, about 170 entries with attributes, and here so many are asked
//! for that a directory of a thousand takes two calls. The rest waits with the open directory.
//!
//! What waits is good for as long as nobody has changed the directory, as far as its lease tells, and for a moment only. Attributes are given as far as they are good
//! then ([`crate::ahead`]); an entry without is looked up when somebody wants to know. A listing that begins anew asks anew.

use crate::ahead::Turn;
use crate::call::Who;
use crate::client::Client;
use crate::directory::{ENTRY_BYTES, ENTRY_BYTES_WITH_ATTRIBUTES, Listing};
use crate::file::Handle;
use ashlar_types::Errno;
use ashlar_types::message::{DirEntry, LeaseSet};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

/// What is asked for at once, bytes as the kernel packs entries.
const ASKED_BYTES: u32 = 256 << 10;
/// The same without attributes: entries are smaller then, and as many take more memory here.
const ASKED_PLAIN_BYTES: u32 = 64 << 10;
/// For how long what waits is good.
const KEPT_MAX: Duration = Duration::from_secs(2);
/// LIMIT: directories that are listed at a time of which something waits, each with about 400 KiB; of others the kernel is given what it asks for.
const WAITING_MAX: usize = 64;

/// How far the listing of an open directory is.
#[derive(Debug, Default)]
pub(crate) struct Listed {
    waiting: Option<Waiting>,
    /// Something that waited was given up because the directory had changed: what comes next will be, too.
    is_spoilt: bool,
}

#[derive(Debug)]
struct Waiting {
    /// The cookie behind which they are.
    after: u64,
    entries: VecDeque<DirEntry>,
    is_end: bool,
    with_attributes: bool,
    turn: Turn,
    since: Duration,
    _counted: Counted,
}

/// One of those that wait, for as long as it lives.
#[derive(Debug)]
struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn take(count: &Arc<AtomicUsize>) -> Option<Counted> {
        if count.fetch_add(1, SeqCst) < WAITING_MAX {
            return Some(Counted(count.clone()));
        }
        count.fetch_sub(1, SeqCst);
        None
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

impl Waiting {
    /// Whether it has what comes behind cookie `after`.
    fn has(&self, after: u64, with_attributes: bool) -> bool {
        let last = self.entries.back().map_or(self.after, |entry| entry.cookie);
        let is_within = after >= self.after && (after < last || self.is_end);
        is_within && (self.with_attributes || !with_attributes)
    }
}

/// How many of `entries` fit into `bytes`; one at the least, if there are any.
fn fitting<'a>(entries: impl Iterator<Item = &'a DirEntry>, bytes: u32, with_attributes: bool) -> usize {
    let of_entry = if with_attributes { ENTRY_BYTES_WITH_ATTRIBUTES } else { ENTRY_BYTES };
    let mut sum = 0_u32;
    let fits = |(at, entry): &(usize, &DirEntry)| {
        sum = sum.saturating_add(of_entry + entry.name.len() as u32);
        *at == 0 || sum <= bytes
    };
    entries.enumerate().take_while(fits).count()
}

/// What is asked for where the kernel wants `bytes_max`. The kernel begins each listing with attributes, and goes on with them when somebody has looked at some: so the first
/// time nothing is asked for ahead.
fn asked_bytes(after: u64, (bytes_max, with_attributes): (u32, bool), may_wait: bool) -> u32 {
    match (may_wait, with_attributes) {
        (false, _) => bytes_max,
        (true, true) if after == 0 => bytes_max,
        (true, true) => bytes_max.max(ASKED_BYTES),
        (true, false) => bytes_max.max(ASKED_PLAIN_BYTES),
    }
}

impl Client {
    /// Entries of an open directory behind cookie `after` (0 to begin), about `bytes_max` bytes of them.
    ///
    /// # Errors
    /// As [`Client::readdir`].
    pub fn list(
        &self,
        who: &Who,
        handle: &Handle,
        after: u64,
        bytes_max: u32,
        with_attributes: bool,
    ) -> Result<Listing, Errno> {
        let directory = handle.file.inode;
        // Those of a split directory are in several places, and change there.
        if !self.ahead.is_used() || self.split_directories.find(directory).is_some() {
            return self.readdir(who, directory, after, bytes_max, with_attributes);
        }
        // Taken out, so that nobody waits here for a call; who lists through the same description at the same time asks by himself.
        let mut listed = std::mem::take(&mut *handle.listed.lock());
        let listing = self.list_on(who, handle, &mut listed, (after, bytes_max, with_attributes));
        *handle.listed.lock() = listed;
        listing
    }

    fn list_on(
        &self,
        who: &Who,
        handle: &Handle,
        listed: &mut Listed,
        (after, bytes_max, with_attributes): (u64, u32, bool),
    ) -> Result<Listing, Errno> {
        let directory = handle.file.inode;
        if let Some(mut waiting) = listed.waiting.take().filter(|_| after > 0) {
            let age = self.env.clock.monotonic().saturating_sub(waiting.since);
            let is_same = self.ahead.is_as_at(waiting.turn, directory, self.era());
            listed.is_spoilt |= !is_same;
            if is_same && age < KEPT_MAX && waiting.has(after, with_attributes) {
                let listing = self.take_from(&mut waiting, after, (bytes_max, with_attributes));
                listed.waiting = Some(waiting);
                return Ok(listing);
            }
        }
        let counted = if listed.is_spoilt { None } else { Counted::take(&self.listed) };
        let asked = asked_bytes(after, (bytes_max, with_attributes), counted.is_some());
        let (turn, since) = (self.ahead.turn(self.era()), self.env.clock.monotonic());
        let Listing { mut entries, is_end } = self.readdir(who, directory, after, asked, with_attributes)?;
        let now = fitting(entries.iter(), bytes_max, with_attributes);
        // Where nothing follows, the kernel asks once more.
        let Some(counted) = counted.filter(|_| now < entries.len() || is_end) else {
            return Ok(Listing { entries, is_end });
        };
        // All of them: what the kernel does not take of those that it is given it asks for again.
        let waiting = entries.iter().cloned().collect();
        entries.truncate(now);
        listed.waiting = Some(Waiting {
            after,
            entries: waiting,
            is_end,
            with_attributes,
            turn,
            since,
            _counted: counted,
        });
        Ok(Listing { entries, is_end: false })
    }

    fn take_from(
        &self,
        waiting: &mut Waiting,
        after: u64,
        (bytes_max, with_attributes): (u32, bool),
    ) -> Listing {
        while waiting.entries.front().is_some_and(|entry| entry.cookie <= after) {
            waiting.after = waiting.entries.pop_front().map_or(after, |entry| entry.cookie);
        }
        let count = fitting(waiting.entries.iter(), bytes_max, with_attributes);
        let now = self.env.clock.monotonic();
        let as_good_now = |entry: &DirEntry| {
            let known = entry.attr.as_ref().and_then(|attr| self.ahead.look(attr.inode, self.era(), now));
            // What was told of the inode since may have come with a name elsewhere; of names here the listing tells.
            let of_name = entry.leases.and(LeaseSet::ENTRIES);
            let (attr, leases) = known.map_or((None, LeaseSet::NONE), |(attr, leases)| {
                (Some(attr), leases.without(LeaseSet::ENTRIES).with(of_name))
            });
            DirEntry { attr, leases, ..entry.clone() }
        };
        let entries: Vec<DirEntry> = waiting.entries.iter().take(count).map(as_good_now).collect();
        Listing { is_end: waiting.is_end && count == waiting.entries.len(), entries }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use ashlar_types::{FileType, InodeId};

    fn entry(cookie: u64) -> DirEntry {
        let name = bytes::Bytes::from_static(b"four");
        let (inode, file_type) = (InodeId(cookie), FileType::Regular);
        DirEntry { cookie, inode, file_type, name, attr: None, leases: LeaseSet::NONE }
    }

    #[test]
    fn as_many_are_given_as_fit_and_one_in_any_case() {
        let all: Vec<DirEntry> = (1..10).map(entry).collect();
        let bytes = ENTRY_BYTES + 4;
        assert_eq!(fitting(all.iter(), 3 * bytes, false), 3);
        assert_eq!(fitting(all.iter(), 3 * bytes - 1, false), 2);
        assert_eq!(fitting(all.iter(), 0, false), 1);
        assert_eq!(
            fitting(all.iter(), 3 * bytes, true),
            1.max(3 * bytes / (ENTRY_BYTES_WITH_ATTRIBUTES + 4)) as usize
        );
        assert_eq!(fitting([].iter(), 100, false), 0);
    }

    #[test]
    fn attributes_are_asked_for_ahead_from_the_second_time_on() {
        assert_eq!(asked_bytes(0, (4096, true), true), 4096, "nobody may want any");
        assert_eq!(asked_bytes(9, (4096, true), true), ASKED_BYTES);
        assert_eq!(asked_bytes(0, (4096, false), true), ASKED_PLAIN_BYTES);
        assert_eq!(asked_bytes(9, (4096, true), false), 4096);
        assert_eq!(asked_bytes(9, (1 << 20, true), true), 1 << 20);
    }

    #[test]
    fn what_waits_answers_for_what_is_behind_its_beginning_and_no_more() {
        let count = Arc::default();
        let waiting = |is_end| Waiting {
            after: 5,
            entries: (6..9).map(entry).collect(),
            is_end,
            with_attributes: false,
            turn: crate::ahead::Ahead::new(true).turn(0),
            since: Duration::ZERO,
            _counted: Counted::take(&count).unwrap(),
        };
        let has = |after| waiting(false).has(after, false);
        assert_eq!([4, 5, 7, 8, 9].map(has), [false, true, true, false, false]);
        assert!(waiting(true).has(8, false), "that nothing follows is known");
        assert!(!waiting(true).has(6, true), "attributes were not asked for");
        assert_eq!(count.load(SeqCst), 0);
    }

    #[test]
    fn no_more_wait_than_may() {
        let count = Arc::default();
        let all: Vec<_> = (0..WAITING_MAX).map(|_| Counted::take(&count).unwrap()).collect();
        assert!(Counted::take(&count).is_none());
        drop(all);
        assert!(Counted::take(&count).is_some());
    }
}
