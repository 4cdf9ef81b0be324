//! For how long a client waits for servers: as its owner wants, and less once it is to end.

use parking_lot::Mutex;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// See the module. Clones share it.
#[derive(Clone, Debug)]
pub struct Patience {
    max: Duration,
    end: Arc<Mutex<Option<Instant>>>,
}

impl Patience {
    /// Each call waits for at most `max`.
    pub fn new(max: Duration) -> Patience {
        Patience { max, end: Arc::default() }
    }

    /// From now on all calls together wait for at most `rest`.
    pub fn end_within(&self, rest: Duration) {
        *self.end.lock() = Some(Instant::now() + rest);
    }

    /// Until when a call that begins now waits.
    pub fn deadline(&self) -> Instant {
        let deadline = Instant::now() + self.max;
        self.end.lock().map_or(deadline, |end| end.min(deadline))
    }
}
