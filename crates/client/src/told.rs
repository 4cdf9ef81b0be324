//! Of which inodes the kernel may have attributes that nobody else may change without asking: a service that was started anew does not know, and
//! they have to go before it lets anybody.
//!
//! The kernel keeps them for the term of a lease, so what was told longer ago is forgotten here, too.

use ashlar_env::Clock;
use ashlar_types::InodeId;
use ashlar_types::message::{LeaseSet, MetaReply};
use parking_lot::Mutex;
use rustc_hash::FxHashSet;
use std::time::Duration;

/// Terms from which on the service is in the same process and ends with the client.
const TERM_OF_A_PROCESS: Duration = Duration::from_secs(60 * 60);
/// Most inodes that are remembered by a part, for one term.
// LIMIT: 16 parts, two terms, 16 bytes each: 32 MiB. Past it the end of the term is waited for.
const INODES_MAX: usize = 1 << 16;
const PARTS: usize = 16;

/// See the module.
#[derive(Default)]
pub(crate) struct AttributesTold {
    term: Option<Duration>,
    parts: [Mutex<Part>; PARTS],
}

#[derive(Default)]
struct Part {
    /// Told since `since`, and in the term before.
    now: FxHashSet<InodeId>,
    before: FxHashSet<InodeId>,
    since: Duration,
    /// Until when the kernel may have some that are not remembered.
    overflowed_until: Duration,
}

impl AttributesTold {
    /// For leases of `term`.
    pub(crate) fn for_term(term: Duration) -> AttributesTold {
        let term = (term < TERM_OF_A_PROCESS).then_some(term);
        AttributesTold { term, ..AttributesTold::default() }
    }

    /// Notes what `reply` lets the kernel keep. Costs nothing, not even a look at the clock, where the service is in the same process.
    pub(crate) fn note(&self, reply: &MetaReply, clock: &dyn Clock) {
        let Some(term) = self.term else { return };
        let now = clock.monotonic();
        let one = |inode: InodeId, leases: LeaseSet| {
            if leases.has(LeaseSet::ATTR) {
                self.parts[(inode.0 % PARTS as u64) as usize].lock().note(inode, now, term);
            }
        };
        match reply {
            MetaReply::Attr { attr, leases } => one(attr.inode, *leases),
            MetaReply::Opened { open, .. } => one(open.attr.inode, open.leases),
            MetaReply::Entries { entries, .. } => {
                entries
                    .iter()
                    .filter(|entry| entry.attr.is_some())
                    .for_each(|entry| one(entry.inode, entry.leases));
            }
            _ => {}
        }
    }

    /// All of them, for another process; and whether there may be others.
    pub(crate) fn all(&self, clock: &dyn Clock) -> (Vec<InodeId>, bool) {
        let (mut all, mut are_more) = (Vec::new(), false);
        for part in &self.parts {
            let part = part.lock();
            all.extend(part.now.iter().chain(&part.before).copied());
            are_more |= part.overflowed_until > clock.monotonic();
        }
        (all, are_more)
    }

    /// Those that another process has let the kernel keep.
    pub(crate) fn note_others(&self, (inodes, are_more): &(Vec<InodeId>, bool), clock: &dyn Clock) {
        let Some(term) = self.term else { return };
        let now = clock.monotonic();
        let part = |inode: InodeId| &self.parts[(inode.0 % PARTS as u64) as usize];
        inodes.iter().for_each(|inode| part(*inode).lock().note(*inode, now, term));
        if *are_more {
            self.parts.iter().for_each(|part| part.lock().overflowed_until = now + term);
        }
    }

    /// All of them, which are forgotten; and until when there may be others.
    pub(crate) fn take(&self) -> (Vec<InodeId>, Duration) {
        let (mut all, mut until) = (Vec::new(), Duration::ZERO);
        for part in &self.parts {
            let mut part = part.lock();
            all.extend(part.now.drain());
            all.extend(part.before.drain());
            until = until.max(part.overflowed_until);
        }
        (all, until)
    }
}

impl Part {
    fn note(&mut self, inode: InodeId, now: Duration, term: Duration) {
        if now.saturating_sub(self.since) > term {
            self.before = std::mem::take(&mut self.now);
            if now.saturating_sub(self.since) > 2 * term {
                self.before.clear();
            }
            self.since = now;
        }
        if self.now.len() < INODES_MAX {
            self.now.insert(inode);
        } else if !self.now.contains(&inode) {
            self.overflowed_until = now + term;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(inodes: std::ops::Range<u64>, set: &AttributesTold, now: u64) {
        for inode in inodes {
            let part = &set.parts[(inode % PARTS as u64) as usize];
            part.lock().note(InodeId(inode), Duration::from_secs(now), set.term.unwrap());
        }
    }

    #[test]
    fn what_the_kernel_may_have_is_remembered_for_a_term_at_least() {
        let set = AttributesTold::for_term(Duration::from_secs(15));
        told(0..10, &set, 1);
        told(10..20, &set, 17);
        let (mut all, until) = set.take();
        all.sort();
        assert_eq!(all, (0..20).map(InodeId).collect::<Vec<_>>());
        assert_eq!(until, Duration::ZERO);
        told(0..16, &set, 40);
        told(16..32, &set, 100);
        let (all, _) = set.take();
        assert_eq!(all.len(), 16, "what was told two terms ago is gone from the kernel");
    }

    #[test]
    fn what_is_too_much_to_remember_is_waited_for() {
        let set = AttributesTold::for_term(Duration::from_secs(15));
        told(0..(INODES_MAX * PARTS) as u64 + 16, &set, 20);
        let (all, until) = set.take();
        assert_eq!(all.len(), INODES_MAX * PARTS);
        assert_eq!(until, Duration::from_secs(35));
    }
}
