//! Going on with files that programs have open through a mount whose process has ended: another process has what the kernel knows of them, and this client makes
//! them its own. What the other one knew and had not told is lost with its session, and asked of the targets when that ends.

use crate::call::Who;
use crate::client::Client;
use crate::file::{File, FileState, Handle, OpenFlags};
use ashlar_types::message::LeaseSet;
use ashlar_types::{DescriptionId, Errno, InodeId, OpenProof};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

/// LIMIT: for how long the end of the session before is waited for, whose leases are in the way; it ends by its silence, in 20 s.
const OTHER_SESSION_MAX: Duration = Duration::from_secs(60);

/// An open file description as the kernel knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Adopted {
    /// Of what.
    pub inode: InodeId,
    /// How it was opened.
    pub flags: OpenFlags,
    /// Whether the kernel caches no pages for it.
    pub is_shared: bool,
    /// Whether it is of a directory.
    pub is_directory: bool,
    /// Whether a lock may be held through it: it is lost, so reads and writes through it fail until it is closed, as after a cut.
    pub had_lock: bool,
    /// That a metadata server has let this machine open it.
    pub proof: Option<OpenProof>,
}

impl Client {
    /// Opens files anew for descriptions that programs have, without asking whether they may: that was decided when they were opened. Waits until each can be
    /// read, and written if it is open for that.
    ///
    /// # Errors
    /// When the metadata service cannot be told. What has come of a single file shows when it is used.
    pub fn adopt(&self, descriptions: &[Adopted]) -> Result<Vec<Arc<Handle>>, Errno> {
        let mut handles = Vec::with_capacity(descriptions.len());
        for adopted in descriptions {
            let number = self.handles_made.fetch_add(1, SeqCst);
            let opened = (DescriptionId(number), adopted.flags, adopted.is_shared);
            let (file, _) = self.files.open(adopted.inode, opened, adopted.proof, FileState::unknown, |_| {});
            if adopted.had_lock {
                file.state.lock().lost_locks.push(DescriptionId(number));
            }
            handles.push(Arc::new(Handle::new(number, file, adopted.flags, adopted.is_shared)));
        }
        let (files, session) = (self.files.all(), self.session());
        self.untold.begin(session, files.clone());
        if !self.tell_untold(session) {
            return Err(Errno::ETIMEDOUT);
        }
        let is_file = |inode: InodeId| descriptions.iter().any(|one| one.inode == inode && !one.is_directory);
        let may_write = |inode: InodeId| descriptions.iter().any(|one| one.inode == inode && one.flags.write);
        let give_up = self.env.clock.monotonic().saturating_add(OTHER_SESSION_MAX);
        for file in files.iter().filter(|file| is_file(file.inode)) {
            let lease = if may_write(file.inode) { LeaseSet::WRITE } else { LeaseSet::READ };
            self.learn(file, lease, give_up);
            if let Ok((policy, _)) = self.layout_show(&Who::system(), file.inode) {
                let mut state = file.state.lock();
                state.inline_bytes = policy.inline_bytes.map_or(0, u64::from);
                state.durability = policy.durability.unwrap_or_default();
            }
        }
        Ok(handles)
    }

    /// Has the kernel forget names, and pages of what is open: another session was told of them. To be called once its requests are served.
    pub fn forget_in_kernel(&self) {
        let Some(kernel) = self.kernel.get() else { return };
        kernel.drop_entries(InodeId::ROOT);
        self.take_back_pages();
        self.are_pages_unknown.store(false, SeqCst);
    }

    /// Finds out where the content of a file is, under a lease.
    fn learn(&self, file: &File, lease: LeaseSet, give_up: Duration) {
        loop {
            match self.begin(file, lease) {
                Ok((in_flight, state)) => {
                    // ORDER: what is under way ends under the lock.
                    drop(state);
                    return drop(in_flight);
                }
                Err(Errno::ETIMEDOUT) if self.env.clock.monotonic() < give_up => {}
                Err(errno) => {
                    tracing::warn!(%errno, inode = %file.inode, "an open file of the process before cannot be used");
                    return;
                }
            }
        }
    }
}
