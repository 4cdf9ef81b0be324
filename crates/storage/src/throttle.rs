//! How fast content is sent for moves.

use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Without a rate, while clients are served, copying takes one part of so many of the time: they are to have most of what links, disks and processors can do, and nobody says how much that is.
const GIVES_WAY: u32 = 8;
/// For how long after a call of a client copying gives way.
const BUSY_FOR: Duration = Duration::from_millis(250);
/// LIMIT: what one piece may cost without a rate. A link that was down for a while is not waited for seven times as long.
const TOOK_MAX: Duration = Duration::from_secs(1);

/// What was sent is paid for with time, by all who copy at a server together.
#[derive(Default)]
pub(crate) struct Throttle {
    /// When what was sent so far may have been sent, by the monotonic clock.
    paid_until: Mutex<Duration>,
    /// When a client called last, milliseconds of that clock and one; 0: never.
    called_ms: AtomicU64,
}

impl Throttle {
    /// Notes that a client calls.
    pub(crate) fn note_call(&self, now: Duration) {
        self.called_ms.store(now.as_millis() as u64 + 1, Relaxed);
    }

    /// Whether what is sent without a rate is to give way to clients.
    fn is_busy(&self, now: Duration) -> bool {
        let called = Duration::from_millis(self.called_ms.load(Relaxed));
        !called.is_zero() && now < called + BUSY_FOR
    }

    /// Something is to be sent at `now`, at `rate_mib_s` (0: giving way to clients): when it may be. How many `bytes` it has is asked only where that is paid for.
    pub(crate) fn due<E>(
        &self,
        bytes: impl FnOnce() -> Result<u64, E>,
        rate_mib_s: u32,
        now: Duration,
    ) -> Result<Duration, E> {
        let wait = match rate_mib_s {
            0 => self.paid_until.lock().saturating_sub(now),
            rate => self.wait_for(bytes()?, rate, now),
        };
        Ok(now + wait)
    }

    /// `bytes` are to be sent at `now`, at a rate: how long to wait first.
    fn wait_for(&self, bytes: u64, rate_mib_s: u32, now: Duration) -> Duration {
        let cost = Duration::from_secs_f64(bytes as f64 / (f64::from(rate_mib_s) * 1_048_576.0));
        let mut paid_until = self.paid_until.lock();
        let begin = (*paid_until).max(now);
        *paid_until = begin + cost;
        begin - now
    }

    /// Whether the wait until `due` is over, at this rate.
    pub(crate) fn is_over(&self, due: Duration, rate_mib_s: u32, now: Duration) -> bool {
        now >= due || rate_mib_s == 0 && !self.is_busy(now)
    }

    /// Something was sent from `begun` until `now`: without a rate that is paid for afterwards.
    pub(crate) fn sent(&self, begun: Duration, rate_mib_s: u32, now: Duration) {
        if rate_mib_s == 0 && self.is_busy(now) {
            let took = now.saturating_sub(begun).min(TOOK_MAX);
            let mut paid_until = self.paid_until.lock();
            *paid_until = (*paid_until).max(now) + took * (GIVES_WAY - 1);
        }
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
        assert_eq!(throttle.due(|| Ok::<_, ()>(1 << 20), 2, now).map(|due| due > now), Ok(true));
        assert_eq!(throttle.due(|| Err("no map"), 2, now), Err("no map"));
    }

    #[test]
    fn without_a_rate_movers_together_give_way_to_clients_and_to_nobody_else() {
        let throttle = Throttle::default();
        let at = |ms: u64| Duration::from_secs(100) + Duration::from_millis(ms);
        throttle.sent(at(0), 0, at(10));
        let due = |now| throttle.due(|| Err("nobody pays for bytes"), 0, now).unwrap();
        assert_eq!(due(at(10)), at(10), "nobody else is served");
        throttle.note_call(at(10));
        throttle.sent(at(10), 0, at(20));
        throttle.sent(at(10), 0, at(20));
        assert_eq!(due(at(20)), at(160), "two at a time pay for both");
        assert!(!throttle.is_over(at(160), 0, at(159)) && throttle.is_over(at(160), 0, at(160)));
        assert!(throttle.is_over(at(10_000), 0, at(300)), "clients have gone");
        assert!(!throttle.is_over(at(10_000), 5, at(300)), "a rate is a rate");
        throttle.note_call(at(1000));
        throttle.sent(at(0), 0, at(60_000).min(at(1100)));
        assert!(due(at(1100)) <= at(1100) + TOOK_MAX * GIVES_WAY, "bounded");
    }
}
