//! Makes room in the lease table before it is full: what a mount has looked at once would stay under lease for ever, and what it looks at
//! now would be answered without, because the kernel does not tell when it forgets an inode. Every time it looks, waits for locks that have
//! turned out to be deadlocks end, too, files that could not be removed when they were closed are, and files that could not be measured when a session ended.

use crate::MetaService;
use crate::execute::DECIDE_MAX;
use crate::waiting::Waiter;
use ashlar_namespace::lease::{LEASED_INODES_HIGH, LEASED_INODES_MAX, SURPLUS_SEARCHES};
use ashlar_types::Errno;
use ashlar_types::message::LeaseSet;
use std::sync::atomic::Ordering::Acquire;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Time between looks; a mount that looks up as fast as it can fills the room above the mark in about that time.
const PAUSE: Duration = Duration::from_millis(200);
/// Leases taken back at a time. Few, because a recall looks for one of its kind among those under way.
const BATCH: usize = 256;
/// To so many inodes under lease it goes down when names have to be taken back: each recall of them costs a mount all names it knows, so
/// it must be long until the next.
const LOW_AFTER_NAMES: usize = LEASED_INODES_HIGH - LEASED_INODES_MAX / 16;

impl MetaService {
    /// Starts the trimmer; it ends with the service.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn start_trimmer(self: &Arc<Self>) -> std::io::Result<()> {
        let weak: Weak<MetaService> = Arc::downgrade(self);
        let run = move || {
            while let Some(service) = weak.upgrade() {
                {
                    let mut leases = service.leases.lock();
                    if leases.len() < LEASED_INODES_HIGH {
                        service.trim_pause.wait_for(&mut leases, PAUSE);
                    }
                }
                if service.is_stopping.load(Acquire) {
                    return;
                }
                let mut look = || {
                    service.end_deadlocks();
                    service.begin_releasing();
                    service.begin_measuring();
                    service.trim();
                };
                if !service.env.tasks.contain(&mut look) {
                    tracing::error!(
                        "taking back leases that nobody needs ended by a panic; trying again later"
                    );
                    let mut leases = service.leases.lock();
                    service.trim_pause.wait_for(&mut leases, DECIDE_MAX);
                }
            }
        };
        self.env.tasks.spawn("ashlar-trim", Box::new(run)).map(drop)
    }

    /// Takes leases back if there are too many: a batch, or enough of the names if nothing else is left.
    fn trim(&self) {
        let trimmed = self.trim_to(LEASED_INODES_HIGH, LeaseSet::ENTRIES).and_then(|is_enough| {
            if is_enough { Ok(true) } else { self.trim_to(LOW_AFTER_NAMES, LeaseSet::NONE) }
        });
        if trimmed != Ok(true) {
            // Everything is open, or a mount does not answer: more is answered without a lease. Not looked at again at once.
            let mut leases = self.leases.lock();
            self.trim_pause.wait_for(&mut leases, PAUSE);
        }
    }

    /// Takes leases back until fewer than `limit` inodes are under lease; false when the others have one of `kept` or are open.
    fn trim_to(&self, limit: usize, kept: LeaseSet) -> Result<bool, Errno> {
        let mut searches = 0;
        while !self.is_stopping.load(Acquire) {
            let surplus = {
                let mut leases = self.leases.lock();
                if leases.len() < limit {
                    return Ok(true);
                }
                let opens = self.opens.lock();
                leases.surplus(BATCH, kept, |inode| opens.is_open(inode))
            };
            if surplus.is_empty() {
                searches += 1;
                if searches >= SURPLUS_SEARCHES {
                    return Ok(false);
                }
                continue;
            }
            searches = 0;
            let taken = self.recall(Waiter::Itself, &surplus, self.env.clock.monotonic() + DECIDE_MAX);
            taken.inspect_err(|errno| {
                tracing::warn!(%errno, "leases that nobody needs were not given back in time");
            })?;
        }
        Ok(true)
    }
}
