//! How fast content is sent for moves.

use parking_lot::Mutex;
use std::time::Duration;

/// What was sent is paid for with time, by all who copy at a server together.
#[derive(Default)]
pub(crate) struct Throttle {
    /// When what was sent so far may have been sent, by the monotonic clock.
    paid_until: Mutex<Duration>,
}

impl Throttle {
    /// `bytes` are to be sent at `now`, at `rate_mib_s` (0: as fast as it goes): how long to wait first.
    pub(crate) fn wait_for(&self, bytes: u64, rate_mib_s: u32, now: Duration) -> Duration {
        if rate_mib_s == 0 {
            return Duration::ZERO;
        }
        let cost = Duration::from_secs_f64(bytes as f64 / (f64::from(rate_mib_s) * 1_048_576.0));
        let mut paid_until = self.paid_until.lock();
        let begin = (*paid_until).max(now);
        *paid_until = begin + cost;
        begin - now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn movers_together_send_no_more_than_the_rate() {
        let throttle = Throttle::default();
        let now = Duration::from_secs(100);
        let waits: Vec<Duration> = (0..10).map(|_| throttle.wait_for(1 << 20, 2, now)).collect();
        assert_eq!(
            (waits[0], waits[1], waits[9]),
            (Duration::ZERO, Duration::from_millis(500), Duration::from_millis(4500))
        );
        assert_eq!(
            throttle.wait_for(1 << 20, 2, now + Duration::from_secs(60)),
            Duration::ZERO,
            "what was not used is lost"
        );
        assert_eq!(throttle.wait_for(1 << 30, 0, now), Duration::ZERO);
    }
}
