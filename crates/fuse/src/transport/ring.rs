//! FUSE over io_uring (Linux 6.14 and later): requests arrive as completions, replies leave as submissions.
//!
//! ```text
//! worker thread, one per processor, owns one ring:
//!   REGISTER(queue, header buffer, payload buffer)        once per entry
//!   completion(entry)  ->  handler  ->  COMMIT_AND_FETCH(queue, commit id)  ->  completion(entry) ...
//! ```
//!
//! The kernel sends a request to the queue of the processor its caller runs on, and wants a queue for every processor it
//! may ever have; queues of processors this process may not use are spread over the threads there are. FORGET, INTERRUPT and
//! INIT still come through /dev/fuse. Sources: `fs/fuse/dev_uring.c`, `Documentation/filesystems/fuse/fuse-io-uring.rst`.
//!
//! A request whose reply is deferred keeps its entry, so a spare one is registered in its place, by the same thread, or by a new one where threads
//! share a queue (see `slots`): waiting for locks never uses up the entries that unlocking needs. (The kernel hands requests it held back for lack of entries out only with
//! a commit, so parking can need a nudge: see the worker.)

mod crew;
mod entry;
mod reserve;
mod seats;
mod slots;
mod worker;

pub(crate) use crew::{Crew, CrewPlan};
pub(crate) use reserve::Rollcall;

/// LIMIT: requests of one queue whose replies are deferred (each holds an entry); a further one gets ENOLCK.
const PARKED_PER_QUEUE_MAX: usize = 256;

/// LIMIT: threads that a mount begins with where several share a queue: with more processors fewer share one, but two at least. Those for requests that
/// wait come on top.
const SHARED_THREADS_MAX: usize = 512;

/// LIMIT: memory of all payload buffers together. It is address space; a page becomes memory when first used. With more
/// processors than fit, queues get fewer entries than asked for, but at least two.
const PAYLOAD_BYTES_MAX: usize = 2 << 30;
