//! Work of programs that goes on while something is done to servers.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// For how long programs may wait. The promise is 10 s; a machine that is busy with other tests is slower.
pub const STALL_MAX: Duration = Duration::from_secs(40);

/// Ends work, also when what goes on beside it fails: whoever waits for the workers would wait for ever.
struct Ending<'a>(&'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// Has each worker do its turns, from the one in `first` on, while `during` does something to servers. That is given what waits until all workers together have
/// done `some` turns more. Tells how far each has come, and the longest time that one turn took.
pub fn under_load(
    first: &[u64],
    some: u64,
    work: impl Fn(usize, u64) + Sync,
    during: impl FnOnce(&dyn Fn()),
) -> (Vec<u64>, Duration) {
    let (is_done, total, longest_ms) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let turns: Vec<u64> = std::thread::scope(|scope| {
        let start = |(worker, first): (usize, &u64)| {
            let (is_done, total, longest_ms, work, first) = (&is_done, &total, &longest_ms, &work, *first);
            scope.spawn(move || {
                let mut turn = first;
                while !is_done.load(SeqCst) {
                    let begun = Instant::now();
                    work(worker, turn);
                    longest_ms.fetch_max(begun.elapsed().as_millis() as u64, SeqCst);
                    turn += 1;
                    total.fetch_add(1, SeqCst);
                }
                turn
            })
        };
        let workers: Vec<_> = first.iter().enumerate().map(start).collect();
        // Everybody gets further, from when this is called on.
        let goes_on = || {
            let (before, since) = (total.load(SeqCst), Instant::now());
            while total.load(SeqCst) < before + some {
                assert!(since.elapsed() < STALL_MAX, "nothing goes on");
                std::thread::sleep(Duration::from_millis(5));
            }
        };
        let ending = Ending(&is_done);
        goes_on();
        during(&goes_on);
        goes_on();
        drop(ending);
        workers.into_iter().map(|worker| worker.join().unwrap()).collect()
    });
    (turns, Duration::from_millis(longest_ms.load(SeqCst)))
}
