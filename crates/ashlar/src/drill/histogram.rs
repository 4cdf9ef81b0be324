//! How long calls took: counts by length, exact to an eighth of a doubling.

use std::time::Duration;

/// Counts for each doubling.
const STEPS: f64 = 8.0;
/// LIMIT: counts; the last one is of everything longer than 2^40 us, which is days.
const COUNTS: usize = 320;
/// Where rows of a table end.
pub const ROWS_MS: &[u64] = &[1, 3, 10, 30, 100, 300, 1_000, 3_000, 10_000, 30_000, 100_000];

/// See the module.
#[derive(Clone, Debug)]
pub struct Histogram {
    counts: Vec<u64>,
    /// For each row of the table, and what is longer than all of them.
    rows: Vec<u64>,
    longest: Duration,
    total: u64,
}

impl Default for Histogram {
    fn default() -> Histogram {
        let (counts, rows) = (vec![0; COUNTS], vec![0; ROWS_MS.len() + 1]);
        Histogram { counts, rows, longest: Duration::ZERO, total: 0 }
    }
}

impl Histogram {
    pub fn add(&mut self, took: Duration) {
        let micros = (took.as_micros() as f64).max(1.0);
        let at = ((micros.log2() * STEPS) as usize).min(COUNTS - 1);
        let row = ROWS_MS.iter().position(|most| took <= Duration::from_millis(*most));
        if let Some(count) = self.counts.get_mut(at) {
            *count += 1;
        }
        if let Some(count) = self.rows.get_mut(row.unwrap_or(ROWS_MS.len())) {
            *count += 1;
        }
        self.longest = self.longest.max(took);
        self.total += 1;
    }

    /// Those of another one, too.
    pub fn add_all(&mut self, other: &Histogram) {
        self.counts.iter_mut().zip(&other.counts).for_each(|(count, more)| *count += more);
        self.rows.iter_mut().zip(&other.rows).for_each(|(count, more)| *count += more);
        self.longest = self.longest.max(other.longest);
        self.total += other.total;
    }

    pub fn total(&self) -> u64 {
        self.total
    }

    pub fn longest(&self) -> Duration {
        self.longest
    }

    /// What so many of a hundred did not take longer than; nothing if there were none.
    pub fn percentile(&self, percent: u64) -> Duration {
        let wanted = (self.total * percent).div_ceil(100).max(1);
        let mut seen = 0;
        for (at, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                let most = ((at as f64 + 1.0) / STEPS).exp2();
                return Duration::from_micros(most as u64).min(self.longest);
            }
        }
        self.longest
    }

    /// How many took longer than one of [`ROWS_MS`].
    pub fn longer_than_ms(&self, row_ms: u64) -> u64 {
        let behind = ROWS_MS.iter().zip(&self.rows).filter(|(most, _)| **most <= row_ms);
        self.total - behind.map(|(_, count)| count).sum::<u64>()
    }

    /// Counts by [`ROWS_MS`]; the last one, which has none, is of what is longer.
    pub fn rows(&self) -> impl Iterator<Item = (Option<u64>, u64)> {
        let most = ROWS_MS.iter().copied().map(Some).chain([None]);
        most.zip(self.rows.iter().copied())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_exact_to_an_eighth_of_a_doubling() {
        let mut histogram = Histogram::default();
        for ms in 1..=1000 {
            histogram.add(Duration::from_millis(ms));
        }
        let is_near = |found: Duration, ms: f64| {
            let found = found.as_secs_f64() * 1000.0;
            assert!((ms..ms * 1.1).contains(&found), "{found} instead of {ms}");
        };
        is_near(histogram.percentile(50), 500.0);
        is_near(histogram.percentile(99), 990.0);
        assert_eq!(histogram.longest(), Duration::from_secs(1));
        assert_eq!((histogram.longer_than_ms(100), histogram.longer_than_ms(1000)), (900, 0));
    }

    #[test]
    fn nothing_and_what_takes_for_ever_have_a_place() {
        let mut histogram = Histogram::default();
        assert_eq!((histogram.percentile(99), histogram.total()), (Duration::ZERO, 0));
        histogram.add(Duration::ZERO);
        histogram.add(Duration::from_secs(1 << 30));
        assert_eq!(histogram.rows().map(|(_, count)| count).sum::<u64>(), 2);
        assert_eq!(histogram.longer_than_ms(10_000), 1);
    }
}
