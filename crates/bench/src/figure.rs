//! What a measurement tells: figures, and what must be said with them.

use crate::crew::Outcome;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// What may have answered instead of the file system.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Caution {
    /// So much (0 to 1) of what was read was in the page cache of the machine that read it, or the one with most, when reading began.
    WasCached(f64),
    /// The data is less than twice the memory of clients and servers: a server may have answered from its memory.
    FewBytes,
    /// Written to the client's memory: neither past the cache, nor with an fsync in the time.
    NotWrittenBack,
    /// What the machine that looked at the files knew of them was not dropped before: it is not permitted, or was not asked for.
    NamesWereKnown,
    /// The time was over before all bytes were moved.
    TimeWasOver,
}

impl Caution {
    /// One sentence without the point.
    pub fn text(self) -> String {
        match self {
            Caution::WasCached(part) => {
                format!("{:.0} % of the data was in the client's page cache when reading began", part * 100.0)
            }
            Caution::FewBytes => "the data is less than twice the memory of clients and servers, whose caches may have answered".into(),
            Caution::NotWrittenBack => "without fsync in the time, this is the speed of memory as long as it lasts".into(),
            Caution::NamesWereKnown => "the client's caches of names and attributes were not dropped before".into(),
            Caution::TimeWasOver => "the time was over before all of the data was moved".into(),
        }
    }

    /// Whether the figure is one of a cache that was meant to be avoided, and not told unless somebody insists.
    pub fn is_spoiled(self) -> bool {
        matches!(self, Caution::WasCached(_))
    }
}

/// One phase of one repetition.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// What was done, as `sequential write` or `create`.
    pub what: String,
    /// Threads.
    pub threads: usize,
    /// Which time it was done, from 1.
    pub repetition: u32,
    /// Operations.
    pub operations: u64,
    /// Bytes moved.
    pub bytes: u64,
    /// From the moment all threads were let go to the end of the last.
    pub seconds: f64,
    /// Latency of the operations, microseconds: median.
    pub p50_us: f64,
    /// Not exceeded by 99 % of the operations.
    pub p99_us: f64,
    /// The longest.
    pub max_us: f64,
    /// What must be said with it.
    pub cautions: Vec<Caution>,
}

impl Figure {
    /// What `threads` threads did.
    pub fn new(
        what: &str,
        threads: usize,
        repetition: u32,
        outcome: &Outcome,
        cautions: Vec<Caution>,
    ) -> Figure {
        let micros = |part: f64| outcome.tally.latency(part).as_secs_f64() * 1e6;
        Figure {
            what: what.to_owned(),
            threads,
            repetition,
            operations: outcome.tally.operations(),
            bytes: outcome.tally.bytes(),
            seconds: outcome.time.max(Duration::from_nanos(1)).as_secs_f64(),
            p50_us: micros(0.5),
            p99_us: micros(0.99),
            max_us: micros(1.0),
            cautions,
        }
    }

    /// Operations per second.
    pub fn operations_per_second(&self) -> f64 {
        self.operations as f64 / self.seconds
    }

    /// Bytes per second.
    pub fn bytes_per_second(&self) -> f64 {
        self.bytes as f64 / self.seconds
    }
}

/// The same phase over all repetitions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// What was done.
    pub what: String,
    /// Threads.
    pub threads: usize,
    /// How often.
    pub repetitions: usize,
    /// Operations per second: mean, and standard deviation of the repetitions (0 for one).
    pub operations_per_second: Spread,
    /// Bytes per second.
    pub bytes_per_second: Spread,
    /// Median of the medians, microseconds.
    pub p50_us: f64,
    /// Worst of the repetitions.
    pub p99_us: f64,
    /// What must be said with any of them, each sort once.
    pub cautions: Vec<Caution>,
}

/// Mean, standard deviation of a sample, least and greatest.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// Arithmetic mean.
    pub mean: f64,
    /// Standard deviation of the sample (n - 1); 0 for a single value.
    pub deviation: f64,
    /// Least.
    pub least: f64,
    /// Greatest.
    pub greatest: f64,
}

impl Spread {
    /// Of `values`; all 0 for none.
    pub fn of(values: &[f64]) -> Spread {
        let count = values.len().max(1) as f64;
        let mean = values.iter().sum::<f64>() / count;
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        let deviation = if values.len() > 1 { (squares / (count - 1.0)).sqrt() } else { 0.0 };
        let least = values.iter().copied().reduce(f64::min).unwrap_or(0.0);
        let greatest = values.iter().copied().reduce(f64::max).unwrap_or(0.0);
        Spread { mean, deviation, least, greatest }
    }
}

/// Sums up figures by what was done and threads, in the order they came first.
pub fn summarize(figures: &[Figure]) -> Vec<Summary> {
    let mut keys: Vec<(&str, usize)> = Vec::new();
    for figure in figures {
        let key = (figure.what.as_str(), figure.threads);
        if !keys.contains(&key) {
            keys.push(key);
        }
    }
    let of = |(what, threads): (&str, usize)| {
        let same: Vec<&Figure> = figures
            .iter()
            .filter(|figure| (figure.what.as_str(), figure.threads) == (what, threads))
            .collect();
        let spread =
            |value: fn(&Figure) -> f64| Spread::of(&same.iter().map(|one| value(one)).collect::<Vec<_>>());
        let mut medians: Vec<f64> = same.iter().map(|figure| figure.p50_us).collect();
        medians.sort_by(f64::total_cmp);
        let mut cautions: Vec<Caution> = Vec::new();
        for caution in same.iter().flat_map(|figure| &figure.cautions) {
            match cautions
                .iter_mut()
                .find(|known| std::mem::discriminant(*known) == std::mem::discriminant(caution))
            {
                Some(Caution::WasCached(most)) => {
                    if let Caution::WasCached(part) = caution {
                        *most = most.max(*part);
                    }
                }
                Some(_) => {}
                None => cautions.push(*caution),
            }
        }
        Summary {
            what: what.to_owned(),
            threads,
            repetitions: same.len(),
            operations_per_second: spread(Figure::operations_per_second),
            bytes_per_second: spread(Figure::bytes_per_second),
            p50_us: medians.get(medians.len() / 2).copied().unwrap_or(0.0),
            p99_us: same.iter().map(|figure| figure.p99_us).fold(0.0, f64::max),
            cautions,
        }
    };
    keys.into_iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(what: &str, repetition: u32, seconds: f64, cautions: Vec<Caution>) -> Figure {
        Figure {
            what: what.to_owned(),
            threads: 2,
            repetition,
            operations: 100,
            bytes: 1000,
            seconds,
            p50_us: seconds,
            p99_us: 2.0 * seconds,
            max_us: 3.0 * seconds,
            cautions,
        }
    }

    #[test]
    fn repetitions_are_summed_up_by_mean_and_deviation_and_every_caution_is_kept() {
        let figures = [
            figure("read", 1, 1.0, vec![Caution::WasCached(0.1), Caution::FewBytes]),
            figure("write", 1, 1.0, vec![]),
            figure("read", 2, 2.0, vec![Caution::WasCached(0.3)]),
            figure("read", 3, 4.0, vec![Caution::FewBytes]),
        ];
        let [read, write] = summarize(&figures).try_into().unwrap();
        assert_eq!((read.what.as_str(), read.repetitions, read.p50_us, read.p99_us), ("read", 3, 2.0, 8.0));
        let rate = read.operations_per_second;
        assert!((rate.mean - 175.0 / 3.0).abs() < 1e-9 && (rate.least, rate.greatest) == (25.0, 100.0));
        assert!((rate.deviation - 38.188).abs() < 1e-3, "{}", rate.deviation);
        assert_eq!(read.cautions, [Caution::WasCached(0.3), Caution::FewBytes]);
        assert_eq!((write.operations_per_second.deviation, write.cautions.len()), (0.0, 0));
    }
}
