//! Calls by service and kind: how many, how long they took, how they failed, and the bytes they moved.

use crate::kind::ServiceKinds;
use crate::text::{MetricType, Text};
use ashlar_types::Errno;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Upper bounds of the histogram, microseconds, and as labels show them, seconds.
const BOUNDS: [(u64, &str); 13] = [
    (50, "0.00005"),
    (100, "0.0001"),
    (250, "0.00025"),
    (500, "0.0005"),
    (1_000, "0.001"),
    (2_500, "0.0025"),
    (5_000, "0.005"),
    (10_000, "0.01"),
    (50_000, "0.05"),
    (250_000, "0.25"),
    (1_000_000, "1"),
    (5_000_000, "5"),
    (30_000_000, "30"),
];
/// Above every error number there is.
const ERRNOS: usize = 134;

/// On which side of a call this process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// It carries calls out.
    Served,
    /// It makes them, to servers; the time includes the network and waiting for servers that are away.
    Sent,
}

impl Side {
    fn name(self) -> &'static str {
        match self {
            Side::Served => "served",
            Side::Sent => "sent",
        }
    }
}

#[derive(Default)]
struct Kind {
    /// By time; the last one is for what took longer than every bound.
    buckets: [AtomicU64; BOUNDS.len() + 1],
    took_us: AtomicU64,
}

/// Counts of the calls to one service. A call costs two additions to counters, one more for its payload or its error.
pub struct Calls {
    side: Side,
    of: ServiceKinds,
    kinds: Vec<Kind>,
    /// By kind and error number.
    errors: Vec<AtomicU64>,
    read: AtomicU64,
    written: AtomicU64,
}

impl Calls {
    /// Nothing was counted yet.
    pub fn new(side: Side, of: ServiceKinds) -> Calls {
        let mut errors = Vec::new();
        errors.resize_with(of.names.len() * ERRNOS, AtomicU64::default);
        Calls {
            side,
            of,
            kinds: of.names.iter().map(|_| Kind::default()).collect(),
            errors,
            read: AtomicU64::new(0),
            written: AtomicU64::new(0),
        }
    }

    /// A call of this kind took so long, and failed or not.
    pub fn note(&self, kind: usize, took: Duration, error: Option<Errno>) {
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let Some(counts) = self.kinds.get(kind) else { return };
        let bucket = BOUNDS.partition_point(|(bound, _)| *bound < us);
        counts.buckets[bucket].fetch_add(1, Relaxed);
        counts.took_us.fetch_add(us, Relaxed);
        if let Some(errno) = error
            && let Some(count) = self.errors.get(kind * ERRNOS + errno.raw() as usize)
        {
            count.fetch_add(1, Relaxed);
        }
    }

    /// So many bytes of payload were read.
    pub fn note_read(&self, bytes: usize) {
        self.read.fetch_add(bytes as u64, Relaxed);
    }

    /// So many bytes of payload were written.
    pub fn note_written(&self, bytes: usize) {
        self.written.fetch_add(bytes as u64, Relaxed);
    }

    /// Writes what `all` have counted: times of kinds that have occurred, and errors.
    pub fn tell(all: &[&Calls], text: &mut Text) {
        let help = "Calls by service and kind, and how long they took, seconds.";
        text.family("ashlar_call_duration_seconds", MetricType::Histogram, help);
        for calls in all {
            calls
                .of
                .names
                .iter()
                .zip(&calls.kinds)
                .for_each(|(name, kind)| calls.tell_kind(name, kind, text));
        }
        text.family(
            "ashlar_call_errors_total",
            MetricType::Counter,
            "Calls that ended with an error number.",
        );
        for calls in all {
            calls.tell_errors(text);
        }
        let moves: Vec<&&Calls> =
            all.iter().filter(|calls| calls.of.service == ServiceKinds::STORAGE.service).collect();
        if moves.is_empty() {
            return;
        }
        text.family("ashlar_read_bytes_total", MetricType::Counter, "Content read from targets, bytes.");
        moves.iter().for_each(|calls| text.sample(&[("side", calls.side.name())], calls.read.load(Relaxed)));
        text.family("ashlar_written_bytes_total", MetricType::Counter, "Content written to targets, bytes.");
        moves
            .iter()
            .for_each(|calls| text.sample(&[("side", calls.side.name())], calls.written.load(Relaxed)));
    }

    fn labels<'a>(&self, kind: &'a str) -> [(&'static str, &'a str); 3] {
        [("side", self.side.name()), ("service", self.of.service), ("kind", kind)]
    }

    fn tell_kind(&self, name: &str, kind: &Kind, text: &mut Text) {
        let took_us = kind.took_us.load(Relaxed);
        let counts: Vec<u64> = kind.buckets.iter().map(|bucket| bucket.load(Relaxed)).collect();
        if counts.iter().all(|count| *count == 0) {
            return;
        }
        let [side, service, kind] = self.labels(name);
        let mut sum = 0;
        let bounds = BOUNDS.iter().map(|(_, shown)| *shown).chain(["+Inf"]);
        for (count, bound) in counts.iter().zip(bounds) {
            sum += count;
            text.sample_of("_bucket", &[side, service, kind, ("le", bound)], sum);
        }
        text.sample_of("_sum", &[side, service, kind], took_us as f64 / 1e6);
        text.sample_of("_count", &[side, service, kind], sum);
    }

    fn tell_errors(&self, text: &mut Text) {
        for (at, count) in self.errors.iter().enumerate() {
            let count = count.load(Relaxed);
            if count > 0 {
                let [side, service, kind] = self.labels(self.of.names[at / ERRNOS]);
                let errno = format!("{:?}", Errno::from_raw((at % ERRNOS) as i32));
                text.sample(&[side, service, kind, ("errno", &errno)], count);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_in_the_bucket_of_its_time_and_in_all_above() {
        let calls = Calls::new(Side::Served, ServiceKinds::STORAGE);
        calls.note(1, Duration::from_micros(50), None);
        calls.note(1, Duration::from_micros(51), Some(Errno::EIO));
        calls.note(1, Duration::from_secs(60), None);
        calls.note_read(4096);
        let mut text = Text::default();
        Calls::tell(&[&calls], &mut text);
        let text = text.finish();
        let labels = "side=\"served\",service=\"storage\",kind=\"read\"";
        for line in [
            format!("ashlar_call_duration_seconds_bucket{{{labels},le=\"0.00005\"}} 1"),
            format!("ashlar_call_duration_seconds_bucket{{{labels},le=\"0.0001\"}} 2"),
            format!("ashlar_call_duration_seconds_bucket{{{labels},le=\"30\"}} 2"),
            format!("ashlar_call_duration_seconds_bucket{{{labels},le=\"+Inf\"}} 3"),
            format!("ashlar_call_duration_seconds_sum{{{labels}}} 60.000101"),
            format!("ashlar_call_duration_seconds_count{{{labels}}} 3"),
            format!("ashlar_call_errors_total{{{labels},errno=\"EIO\"}} 1"),
            "ashlar_read_bytes_total{side=\"served\"} 4096".to_owned(),
            "ashlar_written_bytes_total{side=\"served\"} 0".to_owned(),
        ] {
            assert!(text.lines().any(|shown| shown == line), "no {line} in\n{text}");
        }
        assert!(!text.contains("kind=\"write\""), "kinds that did not occur are left out:\n{text}");
    }
}
