//! Makes room in the lease table before it is full: what a mount has looked at once would stay under lease for ever, and what it looks at
//! now would be answered without, because the kernel does not tell when it forgets an inode.

use crate::MetaService;
use crate::execute::DECIDE_MAX;
use ashlar_namespace::lease::LEASED_INODES_HIGH;
use std::sync::atomic::Ordering::Acquire;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Time between looks; a mount that looks up as fast as it can fills the room above the mark in about that time.
const PAUSE: Duration = Duration::from_millis(200);
/// Leases taken back at a time. Few, because a recall looks for one of its kind among those under way.
const BATCH: usize = 256;

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
                if !service.env.tasks.contain(&mut || service.trim()) {
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

    /// Takes a batch of leases back if there are too many.
    fn trim(&self) {
        let surplus = {
            let mut leases = self.leases.lock();
            if leases.len() < LEASED_INODES_HIGH {
                return;
            }
            let opens = self.opens.lock();
            leases.surplus(BATCH, |inode| opens.is_open(inode))
        };
        if surplus.is_empty() {
            // Everything is open or a directory: more is answered without a lease. Not looked at again at once.
            let mut leases = self.leases.lock();
            self.trim_pause.wait_for(&mut leases, PAUSE);
            return;
        }
        let deadline = self.env.clock.monotonic() + DECIDE_MAX;
        if let Err(errno) = self.recall(&surplus, deadline) {
            tracing::warn!(%errno, "leases that nobody needs were not given back in time");
        }
    }
}
