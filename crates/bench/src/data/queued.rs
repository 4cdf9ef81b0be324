//! Several requests of one thread at a time, through io_uring.

use super::{Action, Part, stamp};
use crate::BenchError;
use crate::buffer::AlignedBuffer;
use crate::crew::Tally;
use io_uring::{IoUring, opcode, types};
use std::io;
use std::os::fd::AsRawFd;
use std::time::Instant;

/// A place for one request.
struct Slot {
    buffer: AlignedBuffer,
    offset: u64,
    begin: Instant,
}

/// A ring that only this thread uses. Answers wait until it asks for them instead of interrupting it (kernel 6.1), which else costs as much as the
/// request where answers come from another processor; fio sets the same.
fn ring(depth: u32) -> io::Result<IoUring> {
    let ring =
        IoUring::builder().setup_coop_taskrun().setup_single_issuer().setup_defer_taskrun().build(depth);
    // EINVAL: an older kernel knows one of them not.
    ring.or_else(|_| IoUring::new(depth))
}

impl Part<'_> {
    /// Goes through the records of `thread`, the plan's depth of them at a time.
    pub fn queued(&self, thread: usize) -> Result<Tally, BenchError> {
        let record_bytes = self.plan.record_bytes as usize;
        let new_slot = |count: u32| {
            let seed = thread as u64 + (u64::from(count) << 32);
            let buffer = AlignedBuffer::noise(record_bytes, seed)?;
            Ok(Slot { buffer, offset: 0, begin: Instant::now() })
        };
        let slots: Result<Vec<Slot>, BenchError> = (0..self.plan.depth).map(new_slot).collect();
        let mut slots = slots?;
        let mut ring = ring(self.plan.depth).map_err(BenchError::io("set up io_uring for", self.path))?;
        let mut free: Vec<usize> = (0..slots.len()).collect();
        let (mut tally, mut places) = (Tally::default(), self.places(thread));
        let number = self.file_number(thread);
        self.line.start()?;
        places.begin();
        let mut outcome = Ok(());
        // ORDER: this does not return before all requests are answered, because until then the kernel may use the buffers.
        loop {
            while outcome.is_ok()
                && let Some(&slot) = free.last()
                && let Some(offset) = places.next()
            {
                outcome = self.queue(&mut ring, &mut slots[slot], (slot, number, offset));
                if outcome.is_ok() {
                    // Under way from here on, whatever the kernel says: it may take it with the next call.
                    free.pop();
                    // Each goes to the kernel at once, as fio's do: the disk has it while the next one is made ready.
                    let sent = ring.submit().map_err(BenchError::io("submit a request on", self.path));
                    outcome = sent.map(|_| ());
                }
            }
            if free.len() == slots.len() {
                return outcome.map(|()| tally);
            }
            // LIMIT: the kernel answers every request; a file system that does not is what `dmesg` tells of.
            match ring.submit_and_wait(1) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => {
                    // What is under way may still write to the buffers, so they stay for ever.
                    std::mem::forget(slots);
                    return Err(BenchError::io("wait for io_uring on", self.path)(error));
                }
                _ => {}
            }
            for entry in ring.completion() {
                let at = entry.user_data() as usize;
                free.push(at);
                let done = self.take(&slots[at], number, entry.result(), &mut tally);
                outcome = outcome.and(done);
            }
            outcome = outcome.and(self.line.check());
        }
    }

    fn queue(
        &self,
        ring: &mut IoUring,
        slot: &mut Slot,
        (at, number, offset): (usize, u64, u64),
    ) -> Result<(), BenchError> {
        let (fd, len) = (types::Fd(self.file.as_raw_fd()), self.plan.record_bytes as u32);
        let record = slot.buffer.as_mut_slice();
        let entry = match self.action {
            Action::Write => {
                stamp::put(record, self.stamped, number, offset);
                opcode::Write::new(fd, record.as_ptr(), len).offset(offset).build()
            }
            Action::Read => opcode::Read::new(fd, record.as_mut_ptr(), len).offset(offset).build(),
        };
        (slot.offset, slot.begin) = (offset, Instant::now());
        // SAFETY: the buffer is not touched until the completion with this number has been taken. It lives until all requests are answered,
        // or for ever (see `queued`).
        let pushed = unsafe { ring.submission().push(&entry.user_data(at as u64)) };
        // There are as many entries as slots.
        pushed.map_err(|error| BenchError::io("queue a request on", self.path)(io::Error::other(error)))
    }

    fn take(&self, slot: &Slot, number: u64, answer: i32, tally: &mut Tally) -> Result<(), BenchError> {
        let latency = slot.begin.elapsed();
        if answer < 0 {
            let what = if self.action == Action::Write { "write" } else { "read" };
            return Err(BenchError::io(what, self.path)(io::Error::from_raw_os_error(-answer)));
        }
        self.check_length(slot.offset, answer as u64)?;
        tally.add(latency, self.plan.record_bytes);
        match self.action {
            Action::Write => Ok(()),
            Action::Read => self.check_content(number, slot.offset, slot.buffer.as_slice()),
        }
    }
}
