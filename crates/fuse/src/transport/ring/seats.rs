//! How many ring threads there may be. Each has a ring and a mailbox open for as long as its mount lives; what is left of the process's open files is for
//! those who keep the data, who stop for good if they cannot open one.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Open files of a ring thread.
const FILES_PER_THREAD: usize = 2;

/// Of all mounts of this process: the limit is the process's.
static TAKEN: AtomicUsize = AtomicUsize::new(0);

/// The right to one ring thread; dropped with it.
#[derive(Debug)]
pub(super) struct Seat(());

impl Drop for Seat {
    fn drop(&mut self) {
        TAKEN.fetch_sub(1, Relaxed);
    }
}

/// `count` seats, or none if ring threads would have more than half of the open files that this process may have.
pub(super) fn take(count: usize) -> Option<Vec<Seat>> {
    take_of(count, open_files_max() / 2 / FILES_PER_THREAD)
}

// LIMIT: `max` threads of all mounts.
fn take_of(count: usize, max: usize) -> Option<Vec<Seat>> {
    let grow = |taken: usize| Some(taken + count).filter(|&taken| taken <= max);
    TAKEN.fetch_update(Relaxed, Relaxed, grow).ok()?;
    Some((0..count).map(|_| Seat(())).collect())
}

fn open_files_max() -> usize {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is what the call fills.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } != 0 {
        return 0;
    }
    usize::try_from(limit.rlim_cur).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seats_come_back_and_are_given_all_or_none() {
        // Other tests of this process may have some.
        let max = TAKEN.load(Relaxed) + 1_000_000;
        let first = take_of(999_000, max).unwrap();
        assert!(take_of(1_001_000, max).is_none());
        drop(first);
        assert_eq!(take_of(1000, max).unwrap().len(), 1000);
        assert!(open_files_max() > 0);
    }
}
