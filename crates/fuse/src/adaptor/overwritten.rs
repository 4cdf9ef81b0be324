//! Pages that a write past the page cache has made old.
//!
//! The kernel drops the pages of such a write before it sends it; kernels before 2026, and all of them for asynchronous `O_DIRECT`, do not look at
//! them again (`fuse_direct_io`). What is read into the cache meanwhile, by a read(2) through another descriptor or by a mapping, is from before the
//! write and would stay. So it is dropped once the write is done, and only then is the write answered: whoever starts after it sees it.
//!
//! Known gap: where such a page is also stored into, through a mapping, at that moment, it is written back with what was stored and all else from before
//! the write, and so undoes the write. Nothing that is done after the write can tell the two apart: its bytes may be newer by then.
//!
//! Dropping a page waits for whoever has it locked, a read perhaps that no worker has taken up yet. So it is nothing for a worker to do: a few
//! threads do it, and the reply is theirs. What they wait for never waits for the write, whose own part is over.

use crate::deferral::Replier;
use crate::errno::Errno;
use crate::id::NodeId;
use crate::notify::{Notifier, NotifyError};
use ashlar_types::InodeId;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, OnceLock};

/// Threads per mount: one that waits for a page must not hold up the writers of all other files.
const THREADS: usize = 4;

/// A write that is done, and whose bytes the kernel may have as they were before.
pub(super) struct Overwritten {
    pub(super) inode: InodeId,
    /// First byte that changed.
    pub(super) offset: u64,
    /// Bytes the write took.
    pub(super) bytes: u32,
    /// Who waits for the answer.
    pub(super) replier: Option<Replier>,
}

/// Drops the pages of writes that are done, then answers them.
#[derive(Default)]
pub(super) struct Dropper {
    notifier: OnceLock<Notifier>,
    queue: Arc<Queue>,
}

#[derive(Default)]
struct Queue {
    state: Mutex<State>,
    ready: Condvar,
}

#[derive(Default)]
struct State {
    // LIMIT: the writes that programs have under way.
    waiting: VecDeque<Overwritten>,
    /// Threads there are; they are started when the first write needs one.
    threads: usize,
    idle: usize,
    is_closed: bool,
}

impl Dropper {
    pub(super) fn attach(&self, notifier: Notifier) {
        // Called once per mount.
        let _ = self.notifier.set(notifier);
    }

    /// Drops the pages of `done` and answers it, from another thread.
    pub(super) fn drop_pages(&self, done: Overwritten) {
        let Some(notifier) = self.notifier.get() else { return };
        let mut state = self.queue.state.lock();
        if state.idle <= state.waiting.len() && state.threads < THREADS {
            match self.start_thread(notifier.clone()) {
                Ok(()) => state.threads += 1,
                Err(error) if state.threads == 0 => {
                    drop(state);
                    tracing::error!(%error, "no thread that drops pages; a write is answered with EIO");
                    return done.answer(Err(Errno::EIO));
                }
                Err(error) => tracing::warn!(%error, "fewer threads that drop pages than wanted"),
            }
        }
        state.waiting.push_back(done);
        drop(state);
        self.queue.ready.notify_one();
    }

    fn start_thread(&self, notifier: Notifier) -> io::Result<()> {
        let queue = self.queue.clone();
        let run = move || {
            while let Some(done) = queue.next() {
                done.drop_pages(&notifier);
                done.answer(Ok(()));
            }
        };
        // Not joined: it ends when the mount's adaptor goes, or with the page it waits for.
        std::thread::Builder::new().name("fuse-overwritten".into()).spawn(run).map(drop)
    }
}

impl Drop for Dropper {
    fn drop(&mut self) {
        self.queue.state.lock().is_closed = true;
        self.queue.ready.notify_all();
    }
}

impl Queue {
    fn next(&self) -> Option<Overwritten> {
        let mut state = self.state.lock();
        loop {
            if let Some(done) = state.waiting.pop_front() {
                return Some(done);
            }
            if state.is_closed {
                return None;
            }
            state.idle += 1;
            self.ready.wait(&mut state);
            state.idle -= 1;
        }
    }
}

impl Overwritten {
    fn drop_pages(&self, notifier: &Notifier) {
        // Files end below 2^63 (`s_maxbytes`), so the offset fits.
        let (offset, len) = (self.offset as i64, i64::from(self.bytes));
        match notifier.inval_inode(NodeId(self.inode.0), offset, len) {
            Ok(_) | Err(NotifyError::Disconnected) => {}
            Err(error) => {
                tracing::warn!(%error, inode = %self.inode, "the kernel may keep pages from before a write");
            }
        }
    }

    fn answer(self, outcome: Result<(), Errno>) {
        if let Some(replier) = self.replier {
            replier.reply_written(outcome.map(|()| self.bytes));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::deferral::{Deferral, Deferred};
    use crate::id::Unique;
    use crate::negotiation::Negotiated;
    use crate::protocol::{Features, wire};
    use crate::transport::device::Device;
    use crate::transport::{Route, Transport};
    use std::cell::Cell;
    use std::io::Read;
    use std::os::unix::net::UnixStream;
    use std::time::Duration;
    use zerocopy::{FromBytes, KnownLayout};

    /// Stands for the kernel.
    struct Kernel {
        device: Arc<Device>,
        received: UnixStream,
    }

    impl Kernel {
        fn new() -> Kernel {
            let (device, received) = UnixStream::pair().unwrap();
            received.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
            Kernel { device: Arc::new(Device::from_fd(device.into())), received }
        }

        fn notifier(&self) -> Notifier {
            let granted = Negotiated {
                kernel_minor: 31,
                offered: Features::EMPTY,
                features: Features::EMPTY,
                max_write: 1 << 20,
                max_pages: 256,
                max_readahead: 1 << 20,
                transport: Transport::Device { threads: 1, is_cloned: false },
            };
            Notifier::new(&self.device, &granted)
        }

        fn replier(&self, unique: u64) -> Replier {
            let deferred = Arc::new(Deferred::new(0));
            let route = || Some(Route::Device(Arc::downgrade(&self.device)));
            let (unique, is_taken) = (Unique(unique), Cell::new(false));
            Deferral { deferred: &deferred, route: &route, unique, is_taken: &is_taken }
                .defer_write()
                .unwrap()
        }

        fn next<T: FromBytes + KnownLayout>(&mut self) -> T {
            let mut bytes = vec![0; size_of::<T>()];
            self.received.read_exact(&mut bytes).unwrap();
            T::read_from_bytes(&bytes).unwrap()
        }

        fn expect_drop(&mut self, offset: u64, len: i64) {
            assert_eq!(self.next::<wire::OutHeader>().unique, 0);
            let dropped: wire::NotifyInvalInodeOut = self.next();
            assert_eq!((dropped.ino, dropped.off, dropped.len), (7, offset as i64, len));
        }

        fn expect_reply(&mut self, unique: u64, size: u32) {
            let head: wire::OutHeader = self.next();
            assert_eq!((head.unique, head.error), (unique, 0));
            assert_eq!(self.next::<wire::WriteOut>().size, size);
        }
    }

    #[test]
    fn a_write_is_answered_once_the_pages_that_it_made_old_are_dropped() {
        let mut kernel = Kernel::new();
        let dropper = Dropper::default();
        dropper.attach(kernel.notifier());
        for unique in 1..100 {
            let offset = unique * 4096;
            let replier = Some(kernel.replier(unique));
            dropper.drop_pages(Overwritten { inode: InodeId(7), offset, bytes: 512, replier });
            kernel.expect_drop(offset, 512);
            kernel.expect_reply(unique, 512);
        }
        assert!(dropper.queue.state.lock().threads <= THREADS);
    }
}
