//! Pages that a write past the page cache has made old.
//!
//! The kernel drops the pages of such a write before it sends it; kernels before 2026, and all of them for asynchronous `O_DIRECT`, do not look at
//! them again (`fuse_direct_io`). What is read into the cache meanwhile, by a read(2) through another descriptor or by a mapping, is from before the
//! write and would stay. So it is dropped once the write is done, and only then is the write answered: whoever starts after it sees it.
//!
//! Where programs may store into such pages (the file is open for reading and writing), dropping them is not enough: one that is written back
//! after the write, with what was stored and all else from before, would undo it. So then:
//!
//! | step | what holds after it |
//! |---|---|
//! | 1. the write counts as under way ([`UnderWay`]) | what the kernel sends back from now on has the write's bytes |
//! | 2. its bytes are put into the pages there are, and these are dropped | what was on its way back before has arrived |
//! | 3. it is written once more | the bytes are there, whatever arrived |
//! | 4. as 2 | no page is from before |
//!
//! Dropping a page waits for whoever has it locked, a read perhaps that no worker has taken up yet. So it is nothing for a worker to do: a few
//! threads do it, and the reply is theirs. What they wait for never waits for the write, whose own part is over.

mod under_way;

use crate::deferral::Replier;
use crate::errno::Errno;
use crate::id::NodeId;
use crate::notify::{Delivery, Notifier, NotifyError};
use ashlar_types::InodeId;
use parking_lot::{Condvar, Mutex};
use std::borrow::Cow;
use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, OnceLock};
use under_way::{Bytes, UnderWay};

/// Threads per mount: one that waits for a page must not hold up the writers of all other files.
const THREADS: usize = 4;

/// A write that is done, and whose bytes the kernel may have as they were before.
pub(super) struct Overwritten {
    pub(super) inode: InodeId,
    /// First byte that changed.
    pub(super) offset: u64,
    /// Bytes the write took.
    pub(super) bytes: u32,
    /// What it wrote, where it has to be written again.
    pub(super) again: Option<Again>,
    /// Who waits for the answer.
    pub(super) replier: Option<Replier>,
}

/// A write that may have been undone.
pub(super) struct Again {
    pub(super) data: Vec<u8>,
    /// Writes this at an offset; tells how many bytes were taken.
    pub(super) write: Write,
}

/// See [`Again`].
pub(super) type Write = Box<dyn Fn(u64, &[u8]) -> Result<usize, Errno> + Send>;

/// Drops the pages of writes that are done, then answers them.
#[derive(Default)]
pub(super) struct Dropper {
    mount: OnceLock<Arc<MountedPages>>,
    queue: Arc<Queue>,
}

/// What the threads work with.
struct MountedPages {
    notifier: Notifier,
    under_way: UnderWay,
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
        let _ = self.mount.set(Arc::new(MountedPages { notifier, under_way: UnderWay::default() }));
    }

    /// What is to be written at `offset` of `inode` when the kernel writes `data` back there.
    pub(super) fn over<'a>(&self, inode: InodeId, offset: u64, data: &'a [u8]) -> Cow<'a, [u8]> {
        self.mount.get().map_or(Cow::Borrowed(data), |mount| mount.under_way.over(inode, offset, data))
    }

    /// Drops the pages of `done` and answers it, from another thread.
    pub(super) fn drop_pages(&self, done: Overwritten) {
        let Some(mount) = self.mount.get() else { return };
        let mut state = self.queue.state.lock();
        if state.idle <= state.waiting.len() && state.threads < THREADS {
            match self.start_thread(mount.clone()) {
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

    fn start_thread(&self, mount: Arc<MountedPages>) -> io::Result<()> {
        let queue = self.queue.clone();
        let run = move || {
            while let Some(done) = queue.next() {
                let is_whole = mount.settle(&done);
                done.answer(is_whole);
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
    fn answer(self, is_whole: Result<(), Errno>) {
        if let Some(replier) = self.replier {
            replier.reply_written(is_whole.map(|()| self.bytes));
        }
    }
}

impl MountedPages {
    /// Does what the module says.
    fn settle(&self, done: &Overwritten) -> Result<(), Errno> {
        let Some(again) = &done.again else {
            self.drop_pages(done);
            return Ok(());
        };
        let data = again.data.get(..done.bytes as usize).unwrap_or(&again.data);
        let _under_way = self.under_way.begin(done.inode, Bytes { offset: done.offset, data: data.into() });
        self.put_into_pages(done, data);
        self.drop_pages(done);
        if (again.write)(done.offset, data)? < data.len() {
            return Err(Errno::EIO);
        }
        self.put_into_pages(done, data);
        self.drop_pages(done);
        Ok(())
    }

    fn put_into_pages(&self, done: &Overwritten, data: &[u8]) {
        told(self.notifier.store(NodeId(done.inode.0), done.offset, data), done.inode);
    }

    fn drop_pages(&self, done: &Overwritten) {
        // Files end below 2^63 (`s_maxbytes`), so the offset fits.
        let (offset, len) = (done.offset as i64, i64::from(done.bytes));
        told(self.notifier.inval_inode(NodeId(done.inode.0), offset, len), done.inode);
    }
}

fn told(delivery: Result<Delivery, NotifyError>, inode: InodeId) {
    match delivery {
        Ok(_) | Err(NotifyError::Disconnected) => {}
        Err(error) => tracing::warn!(%error, %inode, "the kernel may keep pages from before a write"),
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

        fn expect_store(&mut self, offset: u64, data: &[u8; 4]) {
            assert_eq!(self.next::<wire::OutHeader>().unique, 0);
            let stored: wire::NotifyStoreOut = self.next();
            assert_eq!((stored.nodeid, stored.offset, stored.size), (7, offset, 4));
            assert_eq!(self.next::<[u8; 4]>(), *data);
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
            dropper.drop_pages(Overwritten { inode: InodeId(7), offset, bytes: 512, again: None, replier });
            kernel.expect_drop(offset, 512);
            kernel.expect_reply(unique, 512);
        }
        assert!(dropper.queue.state.lock().threads <= THREADS);
    }

    #[test]
    fn a_write_that_a_page_could_undo_is_put_into_the_pages_and_written_once_more() {
        let mut kernel = Kernel::new();
        let dropper = Arc::new(Dropper::default());
        dropper.attach(kernel.notifier());
        let (device, beside) = (kernel.device.clone(), dropper.clone());
        // What it finds is told on the way to the kernel, between the notifications.
        let write = move |offset: u64, data: &[u8]| {
            assert_eq!(
                *beside.over(InodeId(7), 4094, b"......"),
                *b"..same",
                "what is written back meanwhile"
            );
            device.write(format!("{offset} {}", String::from_utf8_lossy(data)).as_bytes()).unwrap();
            Ok(data.len())
        };
        let again = Some(Again { data: b"same old".to_vec(), write: Box::new(write) });
        let replier = Some(kernel.replier(3));
        dropper.drop_pages(Overwritten { inode: InodeId(7), offset: 4096, bytes: 4, again, replier });
        for is_last in [false, true] {
            kernel.expect_store(4096, b"same");
            kernel.expect_drop(4096, 4);
            if !is_last {
                assert_eq!(kernel.next::<[u8; 9]>(), *b"4096 same");
            }
        }
        kernel.expect_reply(3, 4);
        assert_eq!(*dropper.over(InodeId(7), 4094, b"......"), *b"......");
    }
}
