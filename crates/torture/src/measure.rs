//! Timing a phase: all threads start together, the time runs from the first of them to the last, and every operation's latency
//! is kept.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use serde::Serialize;

/// The result of one phase.
#[derive(Clone, Debug, Serialize)]
pub struct Phase {
    /// Its name.
    pub phase: String,
    /// Operations done.
    pub operations: u64,
    /// Bytes moved.
    pub bytes: u64,
    /// From the start of the first thread to the end of the last, in seconds.
    pub seconds: f64,
    /// Operations per second.
    pub operations_per_second: f64,
    /// Mebibytes per second.
    pub mib_per_second: f64,
    /// Median latency in microseconds.
    pub p50_us: f64,
    /// 99th percentile in microseconds.
    pub p99_us: f64,
    /// Worst latency in microseconds.
    pub max_us: f64,
}

/// What one thread measured.
#[derive(Debug, Default)]
pub struct Samples {
    nanoseconds: Vec<u32>,
    bytes: u64,
}

impl Samples {
    /// Room for `operations` latencies, so that no memory is allocated while time is taken.
    #[must_use]
    pub fn with_capacity(operations: usize) -> Self {
        Self { nanoseconds: Vec::with_capacity(operations), bytes: 0 }
    }

    /// Adds one operation.
    pub fn add(&mut self, latency: Duration, bytes: u64) {
        self.nanoseconds.push(u32::try_from(latency.as_nanos()).unwrap_or(u32::MAX));
        self.bytes += bytes;
    }

    /// Times `operation` and adds it.
    ///
    /// # Errors
    /// The operation's own.
    pub fn time<E>(&mut self, bytes: u64, operation: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        let start = Instant::now();
        operation()?;
        self.add(start.elapsed(), bytes);
        Ok(())
    }
}

/// Runs `work` on `threads` threads at once and sums up. Each call gets its thread's number.
///
/// # Errors
/// The first error of any thread.
pub fn measure(
    name: &str,
    threads: usize,
    work: impl Fn(usize) -> anyhow::Result<Samples> + Sync,
) -> anyhow::Result<Phase> {
    let barrier = Barrier::new(threads);
    let results = std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads)
            .map(|thread| {
                let (barrier, work) = (&barrier, &work);
                scope.spawn(move || {
                    barrier.wait();
                    // Taken by the thread itself: this one may run long before any other gets a processor.
                    let start = Instant::now();
                    work(thread).map(|samples| (start, Instant::now(), samples))
                })
            })
            .collect();
        let joined = running
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| Err(anyhow::anyhow!("a thread panicked"))));
        joined.collect::<anyhow::Result<Vec<_>>>()
    })?;
    let first = results.iter().map(|(start, ..)| *start).min();
    let last = results.iter().map(|(_, end, _)| *end).max();
    let seconds = first.zip(last).map_or(0.0, |(first, last)| (last - first).as_secs_f64());
    let mut all = Samples::default();
    for (_, _, samples) in results {
        all.nanoseconds.extend(samples.nanoseconds);
        all.bytes += samples.bytes;
    }
    all.nanoseconds.sort_unstable();
    let quantile = |part: f64| {
        let at = (all.nanoseconds.len() as f64 * part) as usize;
        all.nanoseconds
            .get(at.min(all.nanoseconds.len().saturating_sub(1)))
            .map_or(0.0, |ns| f64::from(*ns) / 1e3)
    };
    let operations = all.nanoseconds.len() as u64;
    Ok(Phase {
        phase: name.to_owned(),
        operations,
        bytes: all.bytes,
        seconds,
        operations_per_second: operations as f64 / seconds,
        mib_per_second: all.bytes as f64 / f64::from(1 << 20) / seconds,
        p50_us: quantile(0.5),
        p99_us: quantile(0.99),
        max_us: quantile(1.0),
    })
}

/// Prints phases as a table, or as one line of JSON.
///
/// # Errors
/// When they cannot be written as JSON.
pub fn print(phases: &[Phase], json: bool) -> anyhow::Result<()> {
    if json {
        println!("{}", serde_json::to_string(phases)?);
        return Ok(());
    }
    println!(
        "{:16} {:>12} {:>12} {:>10} {:>10} {:>12}",
        "phase", "ops/s", "MiB/s", "p50 us", "p99 us", "max us"
    );
    for p in phases {
        println!(
            "{:16} {:12.0} {:12.1} {:10.1} {:10.1} {:12.1}",
            p.phase, p.operations_per_second, p.mib_per_second, p.p50_us, p.p99_us, p.max_us
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_bytes_and_errors_of_all_threads_count() {
        let phase = measure("x", 3, |thread| {
            let mut samples = Samples::default();
            samples.add(Duration::from_micros(thread as u64 + 1), 1 << 20);
            Ok(samples)
        })
        .expect("no thread fails");
        assert_eq!((phase.operations, phase.bytes), (3, 3 << 20));
        assert_eq!((phase.p50_us, phase.max_us), (2.0, 3.0));
        assert!(
            measure("x", 2, |thread| if thread == 1 { anyhow::bail!("no") } else { Ok(Samples::default()) })
                .is_err()
        );
    }
}
