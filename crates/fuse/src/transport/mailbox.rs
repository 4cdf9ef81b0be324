//! Deferred replies on their way to the thread that owns the ring: only it may submit to its ring.

use crate::errno::Errno;
use crate::id::Unique;
use crate::transport::LateReply;
use parking_lot::Mutex;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Weak};

/// A reply to the request in one ring entry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parcel {
    pub(crate) entry: u32,
    pub(crate) unique: Unique,
    pub(crate) result: Result<LateReply, Errno>,
}

/// Parcels for one ring thread, and the eventfd its ring reads.
///
/// LIMIT: one parcel per parked entry, and the ring bounds those.
pub(crate) struct Mailbox {
    parcels: Mutex<Vec<Parcel>>,
    bell: OwnedFd,
    is_closed: AtomicBool,
}

/// The mailboxes of a mount, to be closed with it: a thread all of whose requests wait for a reply hears of the end from nobody else.
#[derive(Default)]
pub(crate) struct Mailboxes {
    /// Those there are, and whether the mount has ended.
    // LIMIT: one for each thread.
    all: Mutex<(Vec<Weak<Mailbox>>, bool)>,
}

impl Mailboxes {
    /// # Errors
    /// Those of eventfd(2).
    pub(crate) fn open_one(&self) -> io::Result<Arc<Mailbox>> {
        let mailbox = Arc::new(Mailbox::new()?);
        let mut all = self.all.lock();
        all.0.retain(|one| one.strong_count() > 0);
        all.0.push(Arc::downgrade(&mailbox));
        mailbox.is_closed.store(all.1, SeqCst);
        Ok(mailbox)
    }

    /// The mount has ended.
    pub(crate) fn close(&self) {
        let mut all = self.all.lock();
        all.1 = true;
        for mailbox in all.0.drain(..).filter_map(|one| one.upgrade()) {
            mailbox.is_closed.store(true, SeqCst);
            mailbox.ring();
        }
    }
}

impl Mailbox {
    /// # Errors
    /// Those of eventfd(2).
    fn new() -> io::Result<Self> {
        // SAFETY: eventfd takes no pointers.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: `fd` was just opened and belongs to nobody else.
        let bell = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self { parcels: Mutex::new(Vec::new()), bell, is_closed: AtomicBool::new(false) })
    }

    pub(crate) fn bell(&self) -> RawFd {
        self.bell.as_raw_fd()
    }

    /// Adds a parcel and wakes the ring's thread.
    pub(crate) fn post(&self, parcel: Parcel) {
        self.parcels.lock().push(parcel);
        self.ring();
    }

    /// Whether the mount has ended.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load(SeqCst)
    }

    fn ring(&self) {
        let one = 1u64;
        // SAFETY: `one` is 8 readable bytes. The write cannot block: the counter would have to reach 2^64 - 2.
        let written = unsafe { libc::write(self.bell(), (&raw const one).cast(), size_of::<u64>()) };
        if written < 0 {
            tracing::error!(error = %io::Error::last_os_error(), "cannot wake a ring thread");
        }
    }

    /// Takes back the wake-ups so far. Parcels posted later ring again, so collect after this.
    pub(crate) fn silence(&self) {
        let mut count = 0u64;
        // SAFETY: `count` is 8 writable bytes. The descriptor does not block.
        let read = unsafe { libc::read(self.bell(), (&raw mut count).cast(), size_of::<u64>()) };
        if read < 0 {
            tracing::error!(error = %io::Error::last_os_error(), "cannot read a ring thread's bell");
        }
    }

    /// Moves every parcel into `to`.
    pub(crate) fn collect(&self, to: &mut Vec<Parcel>) {
        to.append(&mut self.parcels.lock());
    }
}
