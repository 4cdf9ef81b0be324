//! Writes past the page cache of files of which the kernel may have pages.
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
use ashlar_client::{Client, Handle, KernelCache, Taken, Who, WriteFlags};
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

/// Threads per mount, started as needed: one that waits for a page, or for a lease, must not hold up the writers of all other files.
const THREADS: usize = 32;

/// What is left of a write when its worker goes on with other requests.
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
    /// It is done, but the kernel may have pages from before it.
    DropPages {
        handle: Arc<Handle>,
        taken: Taken,
        /// Who waits for the answer, unless it was given.
        replier: Option<Replier>,
    },
}

/// Ends writes that workers have begun.
pub(super) struct LateWrites {
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
    // LIMIT: the writes that are kept (`Deferral::defer_write`), and one job more per file.
    waiting: VecDeque<Rest>,
    /// Threads there are; they are started when the first write needs one.
    threads: usize,
    idle: usize,
    is_closed: bool,
}

impl LateWrites {
    /// Those of `client`, over the cache of its `kernel`.
    pub(super) fn new(client: Arc<Client>, kernel: Arc<dyn KernelCache>) -> LateWrites {
        LateWrites { client, kernel, queue: Arc::default() }
    }

    /// Has `rest` done by another thread.
    pub(super) fn add(&self, rest: Rest) {
        let mut state = self.queue.state.lock();
        if state.idle <= state.waiting.len() && state.threads < THREADS {
            match self.start_thread() {
                Ok(()) => state.threads += 1,
                Err(error) if state.threads == 0 => {
                    drop(state);
                    // Dropped without an answer it is answered with EIO.
                    return tracing::error!(%error, "no thread for a write over pages of the kernel");
                }
                Err(error) => tracing::warn!(%error, "fewer threads for writes over pages than wanted"),
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

    fn start_thread(&self) -> io::Result<()> {
        let (client, kernel, queue) = (self.client.clone(), self.kernel.clone(), self.queue.clone());
        let run = move || {
            while let Some(rest) = queue.next() {
                rest.end(&client, &*kernel);
            }
        };
        // Not joined: it ends when the mount's adaptor goes, or with the page it waits for.
        std::thread::Builder::new().name("fuse-late-write".into()).spawn(run).map(drop)
    }
}

impl Drop for LateWrites {
    fn drop(&mut self) {
        self.queue.state.lock().is_closed = true;
        self.queue.ready.notify_all();
    }
}

impl Queue {
    fn next(&self) -> Option<Rest> {
        let mut state = self.state.lock();
        loop {
            if let Some(rest) = state.waiting.pop_front() {
                return Some(rest);
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

impl Rest {
    /// Where nobody waits for either, pages of one file are dropped in one go: true if this does what `other` would.
    fn takes_in(&mut self, other: &Rest) -> bool {
        let Rest::DropPages { handle, taken, replier: None } = self else { return false };
        let Rest::DropPages { handle: other_handle, taken: other, replier: None } = other else {
            return false;
        };
        if handle.file.inode != other_handle.file.inode {
            return false;
        }
        let end = |taken: &Taken| taken.offset.saturating_add(taken.bytes as u64);
        let (offset, end) = (taken.offset.min(other.offset), end(taken).max(end(other)));
        *taken = Taken { offset, bytes: usize::try_from(end - offset).unwrap_or(usize::MAX) };
        true
    }

    fn end(self, client: &Client, kernel: &dyn KernelCache) {
        match self {
            Rest::Write { who, handle, offset, data, flags, replier } => {
                client.write_over_pages(&who, &handle, offset, &data, flags, |taken| {
                    // The kernel bounds a write by max_write, far below 4 GiB.
                    replier.reply_written(taken.map(|taken| taken.bytes as u32).map_err(Errno::from));
                });
            }
            Rest::DropPages { handle, taken, replier } => {
                kernel.drop_range(handle.file.inode, taken.offset, taken.bytes as u64);
                if let Some(replier) = replier {
                    replier.reply_written(Ok(taken.bytes as u32));
                }
            }
        }
    }
}
