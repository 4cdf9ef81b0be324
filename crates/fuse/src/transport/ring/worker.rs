//! One ring and the thread that owns it.

use super::PARKED_PER_QUEUE_MAX;
use super::entry::{Arrived, Entry, argument};
use super::slots::{Relief, Slots};
use crate::errno::Errno;
use crate::filesystem::Filesystem;
use crate::id::NodeId;
use crate::notify;
use crate::protocol::{Malformed, Opcode, Parts, wire};
use crate::reply::fixed::FixedReply;
use crate::service::{Outcome, Service, refuse};
use crate::transport::device::Device;
use crate::transport::mailbox::{Mailbox, Parcel};
use crate::transport::{LateReply, Route};
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// `user_data` of the submission that waits for the mailbox's bell; entries use their index.
const BELL: u64 = u64::MAX;

/// When several requests completed at once, replies made so far are submitted after this long instead of after the last.
const REPLY_DELAY_MAX: Duration = Duration::from_micros(50);

/// LIMIT: how long a full submission queue may stay full, two seconds: the kernel is out of memory for requests until then.
const SUBMIT_TRIES: usize = 400;
const SUBMIT_PAUSE: Duration = Duration::from_millis(5);

/// A queue this worker serves.
pub(super) struct Queue {
    pub(super) qid: u16,
    /// Entries that this worker begins with.
    pub(super) share: usize,
    /// Of all workers that serve it.
    pub(super) slots: Arc<Slots>,
}

pub(super) struct RingWorker<F> {
    // The ring goes first when dropped: nothing of the kernel's may refer to the entries' memory after it.
    ring: IoUring<squeue::Entry128, cqueue::Entry>,
    service: Arc<Service<F>>,
    mailbox: Arc<Mailbox>,
    /// Not kept open: the mount must be able to end.
    device: Weak<Device>,
    queues: Vec<Queue>,
    entries: Vec<Entry>,
    payload_len: usize,
    /// Who takes the place of a request that waits, where others share the queues.
    relief: Option<Arc<dyn Relief>>,
    fixed: FixedReply,
    /// Request data of operations that reply into the same buffer.
    scratch: Vec<u8>,
    completed: Vec<(u64, i32)>,
    parcels: Vec<Parcel>,
}

impl<F: Filesystem> RingWorker<F> {
    /// Builds the ring and its buffers, without a word to the mount yet.
    ///
    /// # Errors
    /// io_uring is switched off or forbidden here, or memory is short.
    pub(super) fn new(
        service: Arc<Service<F>>,
        device: &Arc<Device>,
        queues: Vec<Queue>,
        payload_len: usize,
        mailbox: Arc<Mailbox>,
        relief: Option<Arc<dyn Relief>>,
    ) -> io::Result<Self> {
        let slots: usize = queues.iter().map(|queue| queue.share).sum();
        let submissions = (slots + 1).next_power_of_two().max(8) as u32;
        // Every entry has at most one completion outstanding; spare entries and the bell come on top.
        let completions = (slots + 1 + queues.len() * PARKED_PER_QUEUE_MAX).next_power_of_two() as u32;
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_cqsize(completions.max(submissions * 2))
            .build(submissions)?;
        ring.submitter().register_files(&[device.raw()])?;
        let mut worker = Self {
            ring,
            service,
            mailbox,
            device: Arc::downgrade(device),
            queues,
            entries: Vec::new(),
            payload_len,
            relief,
            fixed: FixedReply::new(),
            scratch: Vec::new(),
            completed: Vec::new(),
            parcels: Vec::new(),
        };
        for queue in 0..worker.queues.len() {
            for _ in 0..worker.queues[queue].share {
                worker.add_entry(queue)?;
            }
        }
        Ok(worker)
    }

    /// Hands every entry to the kernel. When all queues of a mount have done so, it sends requests here.
    ///
    /// # Errors
    /// The kernel's refusal; it then stays with /dev/fuse.
    pub(super) fn register(&mut self) -> io::Result<()> {
        for index in 0..self.entries.len() {
            self.push_register(index)?;
        }
        self.push_bell()?;
        self.ring.submit()?;
        self.collect_completions();
        let refused = self.completed.iter().find(|(_, result)| *result < 0);
        refused.map_or(Ok(()), |(_, result)| Err(io::Error::from_raw_os_error(-result)))
    }

    /// As [`Self::run`], and a panic outside a handler is its error: the mount must not go on without this thread's entries, unnoticed.
    pub(super) fn run_contained(self) -> io::Result<()> {
        let run = catch_unwind(AssertUnwindSafe(|| self.run()));
        run.unwrap_or_else(|_| Err(io::Error::other("a ring thread panicked")))
    }

    /// Serves until the mount is gone. `register` comes first.
    ///
    /// # Errors
    /// The ring does not work any more.
    fn run(mut self) -> io::Result<()> {
        loop {
            let is_connected = self.serve_completed()?;
            if !is_connected {
                return Ok(());
            }
            passing(self.ring.submit_and_wait(1))?;
            self.collect_completions();
        }
    }

    fn collect_completions(&mut self) {
        self.completed.extend(self.ring.completion().map(|done| (done.user_data(), done.result())));
    }

    /// Serves what has completed; false when the mount is gone.
    fn serve_completed(&mut self) -> io::Result<bool> {
        let mut is_connected = true;
        let mut submitted_at = (self.completed.len() > 1).then(Instant::now);
        // Taken out and put back, to keep its memory.
        let mut completed = std::mem::take(&mut self.completed);
        for &(user_data, result) in &completed {
            match (user_data, result) {
                (BELL, _) => {
                    self.deliver_parcels()?;
                    is_connected &= !self.mailbox.is_closed();
                }
                (index, 0) => self.serve_entry(index as usize)?,
                (_, result) if is_disconnect(result) => is_connected = false,
                (index, result) => {
                    let error = io::Error::from_raw_os_error(-result);
                    tracing::error!(entry = index, %error, "the kernel gave a ring entry back; it is not used any more");
                }
            }
            if let Some(since) = submitted_at
                && since.elapsed() > REPLY_DELAY_MAX
            {
                passing(self.ring.submit())?;
                submitted_at = Some(Instant::now());
            }
        }
        completed.clear();
        self.completed = completed;
        Ok(is_connected)
    }

    fn serve_entry(&mut self, index: usize) -> io::Result<()> {
        let Some(entry) = self.entries.get_mut(index) else {
            tracing::error!(index, "completion for an entry that does not exist");
            return Ok(());
        };
        let queue_index = entry.queue;
        let may_park = self.queues.get(queue_index).is_some_and(|queue| queue.slots.may_park());
        let (header_area, payload) = entry.areas();
        let Some(arrived) = Arrived::read(header_area) else { return Ok(()) };
        let header = arrived.header;
        if notify::is_nudge(header.unique) {
            (entry.unique, entry.commit_id) = (header.unique, arrived.commit_id);
            return self.commit(index, Ok(()), 0);
        }
        let data_len = arrived.payload_len.min(payload.len());
        let opcode = Opcode::from_raw(header.opcode);
        let (outcome, body_len) = if opcode.is_some_and(Opcode::replies_with_buffer) {
            // The reply goes where the request's data is: move the data (a name, ioctl input) out of the way.
            self.scratch.clear();
            self.scratch.extend_from_slice(&payload[..data_len]);
            parts(&self.service, &header, header_area, &self.scratch).map_or_else(
                |malformed| (refuse(&header, malformed, false), 0),
                |parts| match self.service.serve_buffered(&header, &parts, payload) {
                    Ok(len) => (Outcome::Reply(Ok(())), len),
                    Err(errno) => (Outcome::Reply(Err(errno)), 0),
                },
            )
        } else {
            let mailbox = &self.mailbox;
            let route =
                || may_park.then(|| Route::Ring { mailbox: Arc::downgrade(mailbox), entry: index as u32 });
            let outcome = match parts(&self.service, &header, header_area, &payload[..data_len]) {
                Ok(parts) => self.service.serve(&header, &parts, &mut self.fixed, &route),
                Err(malformed) => refuse(&header, malformed, opcode.is_some_and(Opcode::is_one_way)),
            };
            let body = if outcome == Outcome::Reply(Ok(())) { self.fixed.body() } else { &[] };
            (outcome, put_body(body, payload))
        };
        (entry.unique, entry.commit_id) = (header.unique, arrived.commit_id);
        match outcome {
            Outcome::Reply(result) => self.commit(index, result, body_len),
            // Every entry must be committed to be used again, even where nobody reads the reply.
            Outcome::OneWay => self.commit(index, Ok(()), 0),
            Outcome::Deferred => self.park(index, queue_index, NodeId(header.nodeid)),
        }
    }

    fn commit(&mut self, index: usize, result: Result<(), Errno>, body_len: usize) -> io::Result<()> {
        let Some(entry) = self.entries.get_mut(index) else { return Ok(()) };
        entry.put_reply_header(result, body_len);
        let Some(queue) = self.queues.get(entry.queue) else { return Ok(()) };
        let sqe = entry.commit(queue.qid, index as u64);
        self.push(&sqe)
    }

    /// The request in `index` stays until its replier speaks; unless enough are left, a further entry takes its place.
    fn park(&mut self, index: usize, queue_index: usize, node: NodeId) -> io::Result<()> {
        if let Some(entry) = self.entries.get_mut(index) {
            entry.is_parked = true;
        }
        let Some(queue) = self.queues.get(queue_index) else { return Ok(()) };
        let parked = queue.slots.park();
        match &self.relief {
            // Others have entries of the queue that are not parked.
            Some(_) if !parked.is_short => Ok(()),
            Some(relief) if relief.call(queue.qid, &queue.slots, node) => Ok(()),
            // Without a further thread what comes to the spare entry waits for this one: better than for ever.
            Some(_) => {
                self.add_spare(queue_index)?;
                self.nudge(node)
            }
            None => {
                if parked.is_short {
                    self.add_spare(queue_index)?;
                }
                if parked.may_be_stuck { self.nudge(node) } else { Ok(()) }
            }
        }
    }

    fn add_spare(&mut self, queue_index: usize) -> io::Result<()> {
        match self.add_entry(queue_index) {
            Ok(spare) => self.push_register(spare),
            Err(error) => {
                tracing::error!(%error, "no memory for a spare ring entry; the queue is one entry short");
                if let Some(queue) = self.queues.get(queue_index) {
                    queue.slots.give_up_one();
                }
                Ok(())
            }
        }
    }

    /// Makes the kernel look at the requests it holds back for this processor's queue.
    ///
    /// It hands those out only with a commit, not when an entry is registered. They are held back when every entry is taken,
    /// and if all of those got parked, no commit comes (which takes at least as many parked entries as the queue is deep).
    /// A retrieve notification of nothing makes the kernel send a request here, and that will be committed. It must name a
    /// regular file: `node` is the one whose lock is waited for. (For a lock on a directory there is none, and held-back
    /// requests wait for the next one that this processor's callers make.)
    pub(super) fn nudge(&mut self, node: NodeId) -> io::Result<()> {
        // ORDER: the spare entry first; without a free one the nudge would be held back too.
        passing(self.ring.submit())?;
        let Some(device) = self.device.upgrade() else { return Ok(()) };
        if let Err(error) = notify::nudge(&device, node) {
            tracing::debug!(%error, "cannot nudge the kernel; waiting requests go on with the next request");
        }
        Ok(())
    }

    fn deliver_parcels(&mut self) -> io::Result<()> {
        self.mailbox.silence();
        let mut parcels = std::mem::take(&mut self.parcels);
        self.mailbox.collect(&mut parcels);
        for parcel in parcels.drain(..) {
            let index = parcel.entry as usize;
            let Some(entry) = self.entries.get_mut(index) else { continue };
            if !entry.is_parked || entry.unique != parcel.unique.0 {
                tracing::error!(unique = %parcel.unique, "deferred reply to a request that is not parked");
                continue;
            }
            entry.is_parked = false;
            if let Some(queue) = self.queues.get(entry.queue) {
                queue.slots.unpark();
            }
            let result = LateReply::put(parcel.result, &mut self.fixed);
            let len = put_body(self.fixed.body(), entry.areas().1);
            self.commit(index, result, len)?;
        }
        self.parcels = parcels;
        self.push_bell()
    }

    fn add_entry(&mut self, queue: usize) -> io::Result<usize> {
        self.entries.push(Entry::new(queue, self.payload_len)?);
        Ok(self.entries.len() - 1)
    }

    fn push_register(&mut self, index: usize) -> io::Result<()> {
        let sqe = self.entries[index].register(self.queues[self.entries[index].queue].qid, index as u64);
        self.push(&sqe)
    }

    fn push_bell(&mut self) -> io::Result<()> {
        let poll = opcode::PollAdd::new(types::Fd(self.mailbox.bell()), libc::POLLIN as u32);
        self.push(&squeue::Entry128::from(poll.build().user_data(BELL)))
    }

    fn push(&mut self, sqe: &squeue::Entry128) -> io::Result<()> {
        for pause in [Duration::ZERO].into_iter().chain([SUBMIT_PAUSE; SUBMIT_TRIES]) {
            // SAFETY: the memory a submission refers to (iovecs and buffers of an entry) lives in `entries`, which never
            // shrinks and is dropped after the ring.
            if unsafe { self.ring.submission().push(sqe) }.is_ok() {
                return Ok(());
            }
            std::thread::sleep(pause);
            passing(self.ring.submit())?;
        }
        // SAFETY: as above.
        unsafe { self.ring.submission().push(sqe) }.map_err(|_| io::Error::from_raw_os_error(libc::EBUSY))
    }
}

/// What a submission came to; what will pass (no memory just now, a signal) is no error, what was not taken stays in the queue.
fn passing(submitted: io::Result<usize>) -> io::Result<()> {
    match submitted {
        Ok(_) => Ok(()),
        Err(error) if matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY)) => {
            Ok(())
        }
        Err(error) => Err(error),
    }
}

/// Puts a reply's body where the kernel looks for it; tells its length.
fn put_body(body: &[u8], payload: &mut [u8]) -> usize {
    let len = body.len().min(payload.len());
    payload[..len].copy_from_slice(&body[..len]);
    len
}

fn is_disconnect(result: i32) -> bool {
    matches!(-result, libc::ENOTCONN | libc::ECANCELED | libc::ECONNABORTED | libc::ENODEV)
}

/// The request in an entry's areas, in the form both transports share.
fn parts<'a, F>(
    service: &Service<F>,
    header: &wire::InHeader,
    header_area: &'a [u8],
    rest: &'a [u8],
) -> Result<Parts<'a>, Malformed> {
    let opcode = service.dialect.opcode(header.opcode)?;
    let argument_len = service.dialect.argument_len(opcode);
    // The one operation whose fixed argument the kernel puts in front of the data instead of into `op_in`.
    if opcode == Opcode::NotifyReply {
        let (argument, rest) = rest.split_at_checked(argument_len).ok_or(Malformed::Truncated)?;
        return Ok(Parts { opcode, argument, rest });
    }
    let argument = argument(header_area, argument_len).ok_or(Malformed::Truncated)?;
    Ok(Parts { opcode, argument, rest })
}
