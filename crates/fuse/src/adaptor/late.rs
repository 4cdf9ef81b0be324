//! What a worker must not do itself, because it may take long: writes past the page cache of files of which the kernel may have pages, and what waits for a
//! disk (a mount that is a server's only one has no more workers than processors, and without one nothing is answered, no recall either).
//!
//! Kernels before 2026 drop the pages of such a write ahead of it and do not look again; no kernel does after asynchronous `O_DIRECT`
//! (`fuse_direct_io`). What is read into the cache meanwhile, through another descriptor or a mapping, is from before the write: it would be seen after it,
//! and a store into such a page would bring it back. So the client has them dropped before it writes (`Client::write_over_pages`).
//!
//! Dropping a page waits for whoever has it locked, a read perhaps that no worker has taken up yet. So it is nothing for a worker to do: a few
//! threads do it, and the reply is theirs. What they wait for never waits for the write, nor for room among the kernel's background requests: see
//! [`crate::Deferral::defer_write`].

use crate::deferral::Replier;
use crate::errno::Errno;
use crate::transport::cpu;
use ashlar_client::{AllocateMode, Client, Handle, KernelCache, ThroughPages, ToDrop, Who, WriteFlags};
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Threads per mount, started as needed: one that waits for a page, or for a lease, must not hold up the writers of all other files. Those that have been at one request for
/// some looks do not count: what they wait for, a disk that hangs or a server that is away, is no matter of the others.
const THREADS: usize = 64;
/// Looks after which that is so.
const LOOKS: u32 = 2;
// LIMIT: threads per mount that do not count.
const LONG_MAX: usize = 512;
/// Of these, those that may be syncing at a time.
const SYNCING_MAX: usize = 32;
/// Of these, those that may be allocating at a time; that takes seconds, and syncs must not wait for it.
const ALLOCATING_MAX: usize = 16;

/// What is left of a request when its worker goes on with others.
pub(super) enum Rest {
    /// All of it.
    Write {
        who: Who,
        handle: Arc<Handle>,
        offset: u64,
        data: Box<[u8]>,
        flags: WriteFlags,
        /// Who waits for the answer.
        replier: Replier,
    },
    /// All of it, beside other clients; `filled` are the pages that are to be dropped before.
    WriteBeside {
        who: Who,
        handle: Arc<Handle>,
        offset: u64,
        data: Box<[u8]>,
        filled: (u64, u64),
        through: ThroughPages,
        flags: WriteFlags,
        replier: Replier,
    },
    /// It is done, but the kernel may have pages from before it.
    DropPages {
        handle: Arc<Handle>,
        pages: ToDrop,
        /// How many bytes were written.
        written: u32,
        /// Whether it is made durable then, before it is answered.
        is_to_sync: bool,
        /// Who waits for the answer, unless it was given.
        replier: Option<Replier>,
    },
    /// What was written is to be made durable; `written` bytes, if it is a write that waits for that.
    Sync { what: Sync, written: Option<u32>, replier: Replier },
    /// All of a fallocate.
    Allocate { who: Who, handle: Arc<Handle>, mode: AllocateMode, range: (u64, u64), replier: Replier },
}

/// What is to be durable.
pub(super) enum Sync {
    /// One file.
    File(Arc<Handle>),
    /// Names in a directory.
    Names(ashlar_types::InodeId),
    /// Everything.
    All,
}

impl Sync {
    pub(super) fn carry_out(&self, client: &Client) -> Result<(), Errno> {
        Ok(match self {
            Sync::File(handle) => client.fsync(handle),
            Sync::Names(directory) => client.fsyncdir(*directory),
            Sync::All => client.sync(),
        }?)
    }
}

/// What a thread may be waiting for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wait {
    Pages,
    Sync,
    Allocation,
}

impl Wait {
    /// Most threads that wait so at a time.
    fn max(self) -> usize {
        match self {
            Wait::Pages => THREADS,
            Wait::Sync => SYNCING_MAX,
            Wait::Allocation => ALLOCATING_MAX,
        }
    }
}

/// A thread is at something.
struct AtWork {
    number: u64,
    wait: Wait,
    looks: u32,
}

/// Ends requests that workers have begun.
pub(super) struct Late {
    /// Where its threads may run: a worker that starts one may itself be bound to one processor.
    cpus: Vec<usize>,
    client: Arc<Client>,
    kernel: Arc<dyn KernelCache>,
    queue: Arc<Queue>,
}

#[derive(Default)]
struct Queue {
    state: Mutex<State>,
    ready: Condvar,
}

#[derive(Default)]
struct State {
    // LIMIT: the requests that are kept (`Deferral::defer_write`, `defer_long`), and per file one job more, and those of which a page is doubtful.
    waiting: VecDeque<Rest>,
    /// What threads are at, and for how many looks.
    // LIMIT: as threads.
    at_work: Vec<AtWork>,
    number: u64,
    /// Threads at work, by what for, without those that have been for long.
    busy: [usize; 3],
    /// Those.
    long: usize,
    /// Threads there are without those: one from [`Late::start`] on, the others are started when they are needed.
    threads: usize,
    idle: usize,
    is_closed: bool,
}

impl Late {
    /// Those of `client`, over the cache of its `kernel`.
    pub(super) fn new(client: Arc<Client>, kernel: Arc<dyn KernelCache>) -> Late {
        Late { cpus: cpu::allowed(), client, kernel, queue: Arc::default() }
    }

    /// Starts the first thread, so that there always is one.
    ///
    /// # Errors
    /// `EAGAIN` when it cannot be started.
    pub(super) fn start(&self) -> Result<(), Errno> {
        let mut state = self.queue.state.lock();
        self.start_thread().map_err(|error| {
            tracing::error!(%error, "no thread for requests that may take long");
            Errno::EAGAIN
        })?;
        state.threads += 1;
        Ok(())
    }

    /// Has `rest` done by another thread.
    pub(super) fn add(&self, rest: Rest) {
        let mut state = self.queue.state.lock();
        if state.idle <= state.waiting.len() && state.threads < THREADS {
            match self.start_thread() {
                Ok(()) => state.threads += 1,
                Err(error) => {
                    tracing::warn!(%error, "fewer threads for requests that may take long than wanted")
                }
            }
        }
        if !state.waiting.iter_mut().any(|waiting| waiting.takes_in(&rest)) {
            // What is answered already comes first: until its pages are dropped, reads see what was there before.
            if matches!(rest, Rest::DropPages { replier: None, .. }) {
                state.waiting.push_front(rest);
            } else {
                state.waiting.push_back(rest);
            }
        }
        drop(state);
        self.queue.ready.notify_one();
    }

    /// Has others take the place of threads that have been at something for long. To be called a few times a second.
    pub(super) fn is_at_rest(&self) -> bool {
        let state = self.queue.state.lock();
        state.waiting.is_empty() && state.at_work.is_empty()
    }

    pub(super) fn look(&self) {
        let mut state = self.queue.state.lock();
        let State { at_work, busy, long, threads, idle, waiting, .. } = &mut *state;
        for one in at_work.iter_mut() {
            one.looks = one.looks.saturating_add(1);
            if one.looks != LOOKS {
                continue;
            }
            // There always is a thread that counts.
            if *long >= LONG_MAX || (*threads == 1 && self.start_thread().map(|()| *threads += 1).is_err()) {
                one.looks -= 1;
                continue;
            }
            (*long, *threads) = (*long + 1, *threads - 1);
            busy[one.wait as usize] -= 1;
        }
        let may_begin = |wait: Wait| busy[wait as usize] < wait.max();
        let ready = waiting.iter().filter(|rest| may_begin(rest.wait())).count();
        for _ in *idle..ready {
            // Without a thread those that are at work see to it later.
            if *threads >= THREADS || self.start_thread().is_err() {
                break;
            }
            *threads += 1;
        }
        drop(state);
        self.queue.ready.notify_all();
    }

    fn start_thread(&self) -> io::Result<()> {
        let (client, kernel, queue) = (self.client.clone(), self.kernel.clone(), self.queue.clone());
        let cpus = self.cpus.clone();
        let run = move || {
            if let Err(error) = cpu::bind(&cpus) {
                tracing::debug!(%error, "a thread runs where its starter did");
            }
            while let Some((number, rest)) = queue.next() {
                // Its replier answers EIO as it goes; the thread is needed for others.
                if catch_unwind(AssertUnwindSafe(|| rest.end(&client, &*kernel))).is_err() {
                    tracing::error!("a request that may take long ended in a panic");
                }
                if !queue.end(number) {
                    return;
                }
            }
        };
        // Not joined: it ends when the mount's adaptor goes, or with the page it waits for.
        std::thread::Builder::new().name("fuse-late".into()).spawn(run).map(drop)
    }
}

impl Drop for Late {
    fn drop(&mut self) {
        self.queue.state.lock().is_closed = true;
        self.queue.ready.notify_all();
    }
}

impl Queue {
    fn next(&self) -> Option<(u64, Rest)> {
        let mut state = self.state.lock();
        loop {
            let next =
                state.waiting.iter().position(|rest| state.busy[rest.wait() as usize] < rest.wait().max());
            if let Some(rest) = next.and_then(|index| state.waiting.remove(index)) {
                let wait = rest.wait();
                state.busy[wait as usize] += 1;
                state.number += 1;
                let number = state.number;
                state.at_work.push(AtWork { number, wait, looks: 0 });
                return Some((number, rest));
            }
            if state.is_closed {
                return None;
            }
            state.idle += 1;
            self.ready.wait(&mut state);
            state.idle -= 1;
        }
    }

    /// One has ended. The thread that says so looks for the next one itself, if this tells it to go on: where another one has taken its place there may be enough.
    fn end(&self, number: u64) -> bool {
        let mut state = self.state.lock();
        let Some(at) = state.at_work.iter().position(|one| one.number == number) else { return true };
        let AtWork { wait, looks, .. } = state.at_work.swap_remove(at);
        if looks < LOOKS {
            state.busy[wait as usize] -= 1;
            return true;
        }
        state.long -= 1;
        let goes_on = state.threads < THREADS;
        state.threads += usize::from(goes_on);
        goes_on
    }
}

impl Rest {
    /// Where nobody waits for either, pages of one file are dropped in one go: true if this does what `other` would.
    fn takes_in(&mut self, other: &Rest) -> bool {
        let Rest::DropPages { handle, pages, replier: None, .. } = self else { return false };
        let Rest::DropPages { handle: other_handle, pages: other, replier: None, .. } = other else {
            return false;
        };
        if handle.file.inode != other_handle.file.inode {
            return false;
        }
        pages.take_in(other)
    }

    fn wait(&self) -> Wait {
        match self {
            Rest::Sync { .. } | Rest::DropPages { is_to_sync: true, .. } => Wait::Sync,
            Rest::Write { .. } | Rest::WriteBeside { .. } | Rest::DropPages { .. } => Wait::Pages,
            Rest::Allocate { .. } => Wait::Allocation,
        }
    }

    fn end(self, client: &Client, kernel: &dyn KernelCache) {
        match self {
            Rest::Sync { what, written, replier } => {
                let synced = what.carry_out(client);
                match written {
                    None => replier.reply(synced),
                    Some(bytes) => replier.reply_written(synced.map(|()| bytes)),
                }
            }
            Rest::Allocate { who, handle, mode, range, replier } => {
                replier.reply(client.fallocate(&who, &handle, mode, range).map_err(Errno::from));
            }
            Rest::Write { who, handle, offset, data, flags, replier } => {
                client.write_over_pages(&who, &handle, offset, &data, flags, |taken| {
                    // The kernel bounds a write by max_write, far below 4 GiB.
                    replier.reply_written(taken.map(|taken| taken.bytes as u32).map_err(Errno::from));
                });
            }
            Rest::WriteBeside { who, handle, offset, data, filled, through, flags, replier } => {
                let put = (offset, &data[..]);
                client.write_beside(&who, &handle, put, flags, Some(filled), |taken, stays| {
                    let pages = through.end();
                    if stays {
                        pages.carry_out(kernel, &handle.file);
                    }
                    // As above.
                    replier.reply_written(taken.map(|taken| taken.bytes as u32).map_err(Errno::from));
                });
            }
            Rest::DropPages { handle, pages, written, is_to_sync, replier } => {
                pages.carry_out(kernel, &handle.file);
                let synced = if is_to_sync { client.fsync(&handle) } else { Ok(()) };
                if let Some(replier) = replier {
                    replier.reply_written(synced.map(|()| written).map_err(Errno::from));
                }
            }
        }
    }
}
