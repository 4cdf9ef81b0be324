//! What processors, network interfaces and disks of this machine do while something is measured, and which of them limits it.
//!
//! | file | read for |
//! |---|---|
//! | `/proc/stat` | time of each processor: busy, idle, waiting for I/O, taken by the host (proc_stat(5)) |
//! | `/proc/net/dev` | bytes that each interface has sent and received |
//! | `/sys/class/net/*/speed` | what its link can do, Mbit/s |
//! | `/proc/diskstats` | bytes that each disk has moved, and the time it had something to do (Documentation/admin-guide/iostats.rst) |

pub mod bottleneck;
mod load;
mod snapshot;

pub use load::{DeviceLoad, InterfaceLoad, Load};
pub use snapshot::Snapshot;

use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Time between two looks.
const EVERY: Duration = Duration::from_millis(50);
/// LIMIT: snapshots that are kept: ten minutes.
const KEPT_MAX: usize = 12_000;
/// Shorter phases tell nothing: the kernel counts processor time in steps of 10 ms, on some machines 4.
pub const WINDOW_MIN: Duration = Duration::from_millis(100);

#[derive(Default)]
struct Shared {
    kept: Mutex<(VecDeque<(Instant, Snapshot)>, bool)>,
    changed: Condvar,
}

/// A thread that looks twenty times a second, until this value goes.
pub struct Sampler {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Sampler {
    /// Begins to look.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn start() -> std::io::Result<Sampler> {
        let shared = Arc::new(Shared::default());
        let own = shared.clone();
        let thread = std::thread::Builder::new().name("sampler".into()).spawn(move || watch(&own))?;
        Ok(Sampler { shared, thread: Some(thread) })
    }

    /// What happened in the last `time`; nothing if that is too short to tell, or longer than what is kept.
    pub fn last(&self, time: Duration) -> Option<Load> {
        if time < WINDOW_MIN {
            return None;
        }
        let (now, end) = (Instant::now(), Snapshot::take());
        let kept = self.shared.kept.lock();
        let begun = now.checked_sub(time)?;
        let (at, start) = kept.0.iter().rev().find(|(at, _)| *at <= begun)?;
        Some(Load::between(start, &end, now - *at))
    }

    /// What happened in the busiest stretch of `time` since `since`: a program that measures by itself prepares before, and cleans up after, what
    /// it timed. Nothing if that is too short to tell, or longer ago than what is kept.
    pub fn busiest(&self, time: Duration, since: Instant) -> Option<Load> {
        if time < WINDOW_MIN {
            return None;
        }
        let end = (Instant::now(), Snapshot::take());
        let kept = self.shared.kept.lock();
        if kept.0.front()?.0 > since {
            return None;
        }
        // The last look before it began is part of it.
        let first = kept.0.iter().rposition(|(at, _)| *at <= since)?;
        let looks: Vec<&(Instant, Snapshot)> = kept.0.iter().skip(first).chain([&end]).collect();
        let mut begun = 0;
        let mut best: Option<(u64, usize, usize)> = None;
        for ended in 1..looks.len() {
            // As short as it can be without being shorter than `time`.
            while looks[ended].0 - looks[begun + 1].0 >= time {
                begun += 1;
            }
            if looks[ended].0 - looks[begun].0 < time {
                continue;
            }
            let active = looks[ended].1.active_ticks().saturating_sub(looks[begun].1.active_ticks());
            if best.is_none_or(|(most, ..)| active > most) {
                best = Some((active, begun, ended));
            }
        }
        // One that says it took longer than it ran.
        let (_, begun, ended) = best.unwrap_or((0, 0, looks.len() - 1));
        let (start, end) = (looks[begun], looks[ended]);
        Some(Load::between(&start.1, &end.1, end.0 - start.0))
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        self.shared.kept.lock().1 = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // It only ends.
            let _ = thread.join();
        }
    }
}

fn watch(shared: &Shared) {
    let mut kept = shared.kept.lock();
    while !kept.1 {
        let taken = parking_lot::MutexGuard::unlocked(&mut kept, || (Instant::now(), Snapshot::take()));
        if kept.0.len() >= KEPT_MAX {
            kept.0.pop_front();
        }
        kept.0.push_back(taken);
        shared.changed.wait_for(&mut kept, EVERY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_busiest_stretch_is_found_though_rest_came_after() {
        let sampler = Sampler::start().unwrap();
        std::thread::sleep(Duration::from_millis(100));
        let begun = Instant::now();
        std::thread::sleep(Duration::from_millis(400));
        let busy = Instant::now();
        let mut turns = 0u64;
        while busy.elapsed() < Duration::from_millis(400) {
            turns = std::hint::black_box(turns + 1);
        }
        std::thread::sleep(Duration::from_millis(800));
        let load = sampler.busiest(Duration::from_millis(300), begun).unwrap();
        assert!(load.busiest > 0.3 && load.seconds >= 0.3, "{load:?}");
        let long = sampler.busiest(Duration::from_secs(100), begun).unwrap();
        assert!(
            long.seconds > 1.5,
            "what says it took longer than it ran is seen as long as it ran: {long:?}"
        );
        assert!(sampler.busiest(Duration::from_millis(10), begun).is_none());
        let long_ago = begun.checked_sub(Duration::from_secs(5)).unwrap();
        assert!(sampler.busiest(Duration::from_millis(300), long_ago).is_none());
    }

    #[test]
    fn a_busy_processor_is_seen() {
        let sampler = Sampler::start().unwrap();
        assert!(sampler.last(Duration::from_millis(10)).is_none());
        std::thread::sleep(Duration::from_millis(50));
        let begun = Instant::now();
        let mut turns = 0u64;
        while begun.elapsed() < Duration::from_millis(500) {
            turns = std::hint::black_box(turns + 1);
        }
        let load = sampler.last(begun.elapsed()).unwrap();
        assert!(load.processors >= 1 && load.seconds >= 0.5 && load.seconds < 60.0, "{load:?}");
        // One of them did this, or others took it from us: either way one is busy.
        assert!(load.busiest > 0.3 && load.busy <= load.busiest + 1e-9, "{load:?}");
    }
}
