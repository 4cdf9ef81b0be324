//! Timing a phase: all threads start together, the time runs from the first of them to the last, and every operation's latency
//! is kept. What a server process used meanwhile is noted beside it.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use anyhow::Context;
use serde::Serialize;

/// The process that serves the file system, if one does.
#[derive(clap::Args, Clone, Copy, Debug, Default)]
pub struct Server {
    /// The process that serves the file system: its processor time and anonymous memory are noted around each phase.
    #[arg(long)]
    server_pid: Option<u32>,
}

/// What a server had used at one moment.
#[derive(Clone, Copy, Debug)]
struct Usage {
    cpu_seconds: f64,
    anonymous_mib: f64,
}

impl Server {
    fn usage(self) -> anyhow::Result<Option<Usage>> {
        let Some(pid) = self.server_pid else { return Ok(None) };
        let read = |name: &str| {
            let path = format!("/proc/{pid}/{name}");
            std::fs::read_to_string(&path).with_context(|| format!("read {path}: does the server run?"))
        };
        // SAFETY: sysconf takes no memory.
        let ticks_per_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) } as f64;
        let ticks = processor_ticks(&read("stat")?).context("/proc/PID/stat has no processor times")?;
        let kib = anonymous_kib(&read("status")?).context("/proc/PID/status has no RssAnon")?;
        Ok(Some(Usage { cpu_seconds: ticks as f64 / ticks_per_second, anonymous_mib: kib as f64 / 1024.0 }))
    }
}

/// User and system time of all threads, those that ended included.
fn processor_ticks(stat: &str) -> Option<u64> {
    // The second field is the name in brackets and may hold anything; user and system time are the 14th and 15th.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    Some(fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?)
}

fn anonymous_kib(status: &str) -> Option<u64> {
    status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?.split_whitespace().next()?.parse().ok()
}

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
    /// User and system time of the server process during the phase, if it is known.
    pub server_cpu_seconds: Option<f64>,
    /// Anonymous memory of the server process after the phase, if it is known.
    pub server_anonymous_mib: Option<f64>,
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
    server: Server,
    work: impl Fn(usize) -> anyhow::Result<Samples> + Sync,
) -> anyhow::Result<Phase> {
    let before = server.usage()?;
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
    let after = server.usage()?;
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
        server_cpu_seconds: before.zip(after).map(|(before, after)| after.cpu_seconds - before.cpu_seconds),
        server_anonymous_mib: after.map(|usage| usage.anonymous_mib),
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
        "{:16} {:>12} {:>12} {:>10} {:>10} {:>12} {:>12}",
        "phase", "ops/s", "MiB/s", "p50 us", "p99 us", "max us", "server CPU s"
    );
    for p in phases {
        println!(
            "{:16} {:12.0} {:12.1} {:10.1} {:10.1} {:12.1} {:>12}",
            p.phase,
            p.operations_per_second,
            p.mib_per_second,
            p.p50_us,
            p.p99_us,
            p.max_us,
            p.server_cpu_seconds.map_or_else(|| "-".to_owned(), |seconds| format!("{seconds:.2}"))
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_bytes_and_errors_of_all_threads_count() {
        let phase = measure("x", 3, Server::default(), |thread| {
            let mut samples = Samples::default();
            samples.add(Duration::from_micros(thread as u64 + 1), 1 << 20);
            Ok(samples)
        })
        .expect("no thread fails");
        assert_eq!((phase.operations, phase.bytes), (3, 3 << 20));
        assert_eq!((phase.p50_us, phase.max_us), (2.0, 3.0));
        assert_eq!((phase.server_cpu_seconds, phase.server_anonymous_mib), (None, None));
        let fails = |thread: usize| if thread == 1 { anyhow::bail!("no") } else { Ok(Samples::default()) };
        assert!(measure("x", 2, Server::default(), fails).is_err());
    }

    fn own_processor_time() -> Duration {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the structure is writable.
        assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) }, 0);
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    }

    #[test]
    fn processor_time_and_anonymous_memory_of_a_process_are_noted() {
        let own = Server { server_pid: Some(std::process::id()) };
        let phase = measure("spin", 1, own, |_| {
            // Until the thread has had a processor for so long, however many others want it.
            let (begin, wanted) = (own_processor_time(), Duration::from_millis(100));
            while own_processor_time() - begin < wanted {}
            Ok(Samples::default())
        })
        .expect("this process can be read");
        assert!(phase.server_cpu_seconds > Some(0.01), "{:?}", phase.server_cpu_seconds);
        assert!(phase.server_anonymous_mib > Some(0.1), "{:?}", phase.server_anonymous_mib);
        let nobody = Server { server_pid: Some(u32::MAX) };
        assert!(measure("x", 1, nobody, |_| Ok(Samples::default())).is_err());
    }

    #[test]
    fn a_process_may_be_called_anything() {
        let stat = "7 (a) b) R 1 1 1 0 -1 4194304 100 0 0 0 30 12 0 0 20 0 1 0 5 1000 10";
        assert_eq!(processor_ticks(stat), Some(42));
        assert_eq!(processor_ticks("7 (x"), None);
        assert_eq!(anonymous_kib("Name:\tx\nRssAnon:\t    1234 kB\n"), Some(1234));
    }
}
