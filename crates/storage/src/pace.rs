//! How fast content is copied from a target, and how much was.

use ashlar_types::TargetId;
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// For how long what was copied counts for the rate, seconds.
const WINDOW_S: u64 = 10;

/// How fast each target is copied from, for moves and to give others their copies.
#[derive(Default)]
pub(crate) struct Paces(
    // LIMIT: as targets here.
    Mutex<BTreeMap<TargetId, Pace>>,
);

impl Paces {
    /// Notes that `bytes` were copied from `target`.
    pub(crate) fn note(&self, target: TargetId, bytes: u64, now: Duration) {
        self.0.lock().entry(target).or_default().note(bytes, now);
    }

    /// What is copied from `target` in a second, by the last ones, bytes.
    pub(crate) fn bytes_per_s(&self, target: TargetId, now: Duration) -> u64 {
        self.0.lock().get_mut(&target).map_or(0, |pace| pace.bytes_per_s(now))
    }

    /// What was copied from each since the server was started, bytes.
    pub(crate) fn totals(&self) -> BTreeMap<TargetId, u64> {
        self.0.lock().iter().map(|(target, pace)| (*target, pace.total)).collect()
    }

    pub(crate) fn forget(&self, target: TargetId) {
        self.0.lock().remove(&target);
    }
}

/// How fast one is copied from. Times are of the monotonic clock.
#[derive(Default)]
struct Pace {
    /// What was copied in each second that something was.
    // LIMIT: WINDOW_S and one.
    seconds: VecDeque<(u64, u64)>,
    /// Since when something has been copied without a pause as long as the window.
    since: Duration,
    total: u64,
}

impl Pace {
    /// Notes that `bytes` were copied.
    fn note(&mut self, bytes: u64, now: Duration) {
        self.forget(now);
        if self.seconds.is_empty() {
            self.since = now;
        }
        self.total = self.total.saturating_add(bytes);
        match self.seconds.back_mut().filter(|(second, _)| *second == now.as_secs()) {
            Some((_, sum)) => *sum = sum.saturating_add(bytes),
            None => self.seconds.push_back((now.as_secs(), bytes)),
        }
    }

    /// What is copied in a second, by the last ones.
    fn bytes_per_s(&mut self, now: Duration) -> u64 {
        self.forget(now);
        let sum: u64 = self.seconds.iter().map(|(_, bytes)| bytes).sum();
        let took =
            now.saturating_sub(self.since).clamp(Duration::from_secs(1), Duration::from_secs(WINDOW_S));
        (sum as f64 / took.as_secs_f64()) as u64
    }

    fn forget(&mut self, now: Duration) {
        while self.seconds.front().is_some_and(|(second, _)| second + WINDOW_S <= now.as_secs()) {
            self.seconds.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_that_of_the_last_seconds_and_nothing_after_a_pause() {
        let at = |s: f64| Duration::from_secs_f64(s);
        let mut pace = Pace::default();
        assert_eq!(pace.bytes_per_s(at(5.0)), 0);
        for tenth in 0..40 {
            pace.note(100, at(100.0 + f64::from(tenth) / 10.0));
        }
        assert_eq!(pace.bytes_per_s(at(104.0)), 1000, "of the four seconds that it has taken");
        for tenth in 40..400 {
            pace.note(200, at(100.0 + f64::from(tenth) / 10.0));
        }
        let rate = pace.bytes_per_s(at(140.0));
        assert!((1800..=2000).contains(&rate), "the slower beginning is forgotten: {rate}");
        assert_eq!(pace.bytes_per_s(at(151.0)), 0);
        assert_eq!(pace.total, 40 * 100 + 360 * 200);
        pace.note(500, at(200.0));
        assert_eq!(pace.bytes_per_s(at(200.2)), 500, "what has just begun is no more than what there is");
    }
}
