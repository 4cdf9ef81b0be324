//! Workers that take the place of those that wait for long.
//!
//! A worker carries its request out to the end, and may wait for as long as a server is away or a disk hangs. If all of them did, nothing would be answered any
//! more, whatever it is about. So somebody looks, a few times a second, how many have been at the same request for some looks, and has as many more serve.
//! When those that waited are back for a while, as many end again.

use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

/// Time between two looks.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Looks at one request after which its worker counts as one that waits.
const LOOKS: u64 = 2;
/// Looks for which workers are too many before some end.
const CALM: u64 = 100;
// LIMIT: workers of a mount that read /dev/fuse, those that wait included; each has the data of its request, 1 MiB at the most. Beyond it requests wait in the kernel.
const WORKERS_MAX: usize = 1024;

/// The workers of a mount, as whoever looks after them sees them.
#[derive(Default)]
pub(crate) struct Standby {
    /// How many looks there have been. One relaxed load and two stores are all that a request costs.
    turn: AtomicU64,
    // LIMIT: `WORKERS_MAX`.
    seats: Mutex<Vec<Arc<Since>>>,
    /// Further workers that are to end.
    surplus: AtomicUsize,
    /// Since which look there are more than are wanted.
    calm_since: AtomicU64,
}

/// The look before a worker's request began, and 1 more; 0 without a request. In a cache line of its own: it is written for each request, by another thread than others.
#[derive(Default)]
#[repr(align(128))]
struct Since(AtomicU64);

/// The place of one worker; dropped with it.
pub(crate) struct Seat {
    since: Arc<Since>,
    is_further: bool,
    standby: Arc<Standby>,
}

impl Standby {
    /// A place for a worker that stays, or for a further one.
    pub(crate) fn seat(self: &Arc<Self>, is_further: bool) -> Seat {
        let since = Arc::new(Since::default());
        self.seats.lock().push(Arc::clone(&since));
        Seat { since, is_further, standby: Arc::clone(self) }
    }

    /// Looks at all; tells how many more are wanted for `base` of them not to wait.
    pub(crate) fn look(&self, base: usize) -> usize {
        let turn = self.turn.fetch_add(1, Relaxed) + 1;
        let seats = self.seats.lock();
        let waits = |since: &&Arc<Since>| {
            let since = since.0.load(Relaxed).checked_sub(1);
            since.is_some_and(|since| turn.saturating_sub(since) > LOOKS)
        };
        let waiting = seats.iter().filter(waits).count();
        // When nobody is left for what comes, many may come.
        let is_crowded = seats.iter().all(|since| since.0.load(Relaxed) != 0);
        let free = if is_crowded { base.max(waiting) } else { base };
        let wanted = (free + waiting).min(WORKERS_MAX);
        if seats.len() <= wanted {
            self.calm_since.store(turn, Relaxed);
        }
        let is_calm = turn - self.calm_since.load(Relaxed) > CALM;
        self.surplus.store(if is_calm { seats.len() - wanted } else { 0 }, Relaxed);
        wanted.saturating_sub(seats.len())
    }
}

impl Seat {
    /// A request begins.
    pub(crate) fn begin(&self) {
        self.since.0.store(self.standby.turn.load(Relaxed) + 1, Relaxed);
    }

    /// It has ended; whether the worker is to go on.
    pub(crate) fn end(&self) -> bool {
        self.since.0.store(0, Relaxed);
        let take = |surplus: usize| surplus.checked_sub(1);
        !self.is_further
            || self.standby.surplus.load(Relaxed) == 0
            || self.standby.surplus.fetch_update(Relaxed, Relaxed, take).is_err()
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.standby.seats.lock().retain(|since| !Arc::ptr_eq(since, &self.since));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_as_wanted_do_not_wait_and_further_ones_end_when_nobody_waits_for_a_while() {
        let standby = Arc::new(Standby::default());
        let mut seats: Vec<Seat> = (0..2).map(|_| standby.seat(false)).collect();
        for _ in 0..CALM * 3 {
            assert_eq!(standby.look(2), 0, "nobody has anything to do");
        }
        seats[0].begin();
        assert_eq!((standby.look(2), standby.look(2)), (0, 0), "it may be a short one");
        assert_eq!(standby.look(2), 1);
        seats.push(standby.seat(true));
        seats[1].begin();
        seats[2].begin();
        // All of them wait: as many again.
        assert_eq!((standby.look(2), standby.look(2), standby.look(2)), (0, 0, 3));
        seats.extend([standby.seat(true), standby.seat(true)]);
        for _ in 0..CALM * 3 {
            // One that begins anew each time does not wait.
            seats[3].begin();
            assert_eq!(standby.look(2), 0);
            assert!(seats[3].end() && seats[4].end(), "all are needed");
        }
        (0..3).for_each(|at| assert!(seats[at].end()));
        for _ in 0..=CALM {
            assert_eq!(standby.look(2), 0);
        }
        assert!(seats[0].end() && seats[1].end(), "those stay");
        let ended = seats.extract_if(.., |seat| !seat.end()).count();
        assert_eq!((ended, standby.seats.lock().len()), (3, 2));
    }

    #[test]
    fn there_are_so_many_and_no_more() {
        let standby = Arc::new(Standby::default());
        let mut seats: Vec<Seat> = (0..32).map(|_| standby.seat(false)).collect();
        for _ in 0..100 {
            seats.iter().filter(|seat| seat.since.0.load(Relaxed) == 0).for_each(Seat::begin);
            let more = standby.look(32);
            seats.extend((0..more).map(|_| standby.seat(true)));
        }
        assert_eq!(seats.len(), WORKERS_MAX);
    }
}
