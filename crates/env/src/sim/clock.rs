//! A clock that moves only when told.

use crate::Clock;
use ashlar_types::Timespec;
use parking_lot::Mutex;
use std::time::Duration;

/// Wall and monotonic time under the test's control.
#[derive(Debug)]
pub struct SimClock {
    times: Mutex<(Timespec, Duration)>,
}

impl SimClock {
    /// A clock at `now`, with monotonic time zero.
    pub fn new(now: Timespec) -> SimClock {
        SimClock { times: Mutex::new((now, Duration::ZERO)) }
    }

    /// Moves both clocks forward by `step`.
    pub fn advance(&self, step: Duration) {
        let mut times = self.times.lock();
        let (wall, monotonic) = *times;
        let secs = i64::try_from(step.as_secs()).unwrap_or(i64::MAX);
        let wall = Timespec::new(wall.secs.saturating_add(secs), wall.nanos + step.subsec_nanos());
        *times = (wall, monotonic.saturating_add(step));
    }

    /// Sets the wall clock, forward or back, and leaves monotonic time alone.
    pub fn set_now(&self, now: Timespec) {
        self.times.lock().0 = now;
    }
}

impl Clock for SimClock {
    fn now(&self) -> Timespec {
        self.times.lock().0
    }

    fn monotonic(&self) -> Duration {
        self.times.lock().1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advancing_carries_nanoseconds_and_setting_moves_only_the_wall() {
        let clock = SimClock::new(Timespec::new(5, 900_000_000));
        clock.advance(Duration::from_millis(1200));
        assert_eq!(clock.now(), Timespec::new(7, 100_000_000));
        clock.set_now(Timespec::new(-3, 0));
        assert_eq!((clock.now().secs, clock.monotonic()), (-3, Duration::from_millis(1200)));
    }
}
