//! Answers that their callers do not take yet.
//!
//! Whoever has an answer sends as much of it as the connection takes, and goes on: no thread, and no place among those that work for a target, is kept by a caller that hangs. The rest goes
//! when the connection takes it, by whichever thread waits then. A connection that takes nothing for a while is ended, and so is the one that has taken nothing for longest when
//! there is too much of all; callers ask again on the next one.

use super::connection::Connection;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// For how long a caller may take nothing of its answers.
pub(super) const SEND_MAX: Duration = Duration::from_secs(10);
/// Bytes of answers that wait for one connection; then no more calls are read from it.
pub(super) const CONNECTION_BYTES_MAX: usize = 4 << 20;
/// Bytes of answers that wait for all connections together.
// LIMIT: of a server.
const BYTES_MAX: usize = 512 << 20;

/// What a connection has that was not sent.
#[derive(Debug)]
pub(crate) struct Unsent {
    bytes: AtomicUsize,
    of_all: Arc<AtomicUsize>,
    /// When the connection took something last.
    taken: Mutex<Instant>,
}

impl Drop for Unsent {
    fn drop(&mut self) {
        self.of_all.fetch_sub(*self.bytes.get_mut(), SeqCst);
    }
}

impl Unsent {
    pub fn note_taken(&self, now: Instant) {
        *self.taken.lock() = now;
    }
}

/// Connections with such answers.
#[derive(Default)]
pub(super) struct Outgoing {
    bytes: Arc<AtomicUsize>,
    // LIMIT: as connections.
    writers: Mutex<FxHashMap<u64, Weak<Connection>>>,
}

impl Outgoing {
    /// Nothing, of a new connection.
    pub fn none(&self) -> Unsent {
        Unsent { bytes: AtomicUsize::new(0), of_all: self.bytes.clone(), taken: Mutex::new(Instant::now()) }
    }

    /// So many bytes wait for a connection by now; of one that has ended, none. Tells the one that is to be ended, if there are too many of all.
    pub fn note(&self, connection: &Arc<Connection>, bytes: usize) -> Option<Arc<Connection>> {
        if bytes == 0 && connection.unsent.bytes.load(SeqCst) == 0 {
            return None;
        }
        let mut writers = self.writers.lock();
        if bytes == 0 {
            writers.remove(&connection.token);
        } else if writers.insert(connection.token, Arc::downgrade(connection)).is_none() {
            connection.unsent.note_taken(Instant::now());
        }
        self.bytes.fetch_add(bytes, SeqCst);
        let before = connection.unsent.bytes.swap(bytes, SeqCst);
        if self.bytes.fetch_sub(before, SeqCst) - before <= BYTES_MAX || bytes <= before {
            return None;
        }
        let waiting = writers.values().filter_map(Weak::upgrade);
        waiting.min_by_key(|one| *one.unsent.taken.lock())
    }

    /// Connections that have taken nothing for too long.
    pub fn stuck(&self, now: Instant) -> Vec<Arc<Connection>> {
        let mut writers = self.writers.lock();
        writers.retain(|_, weak| weak.strong_count() > 0);
        let is_stuck = |one: &Arc<Connection>| now.duration_since(*one.unsent.taken.lock()) > SEND_MAX;
        writers.values().filter_map(Weak::upgrade).filter(is_stuck).collect()
    }
}
