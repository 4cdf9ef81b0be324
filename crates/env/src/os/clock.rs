//! The kernel's clocks.

use crate::Clock;
use ashlar_types::Timespec;
use std::time::Duration;

/// `CLOCK_REALTIME` and `CLOCK_BOOTTIME`.
#[derive(Clone, Copy, Debug, Default)]
pub struct OsClock;

fn read_clock(id: libc::clockid_t) -> libc::timespec {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid timespec to write to; both clock ids exist since Linux 2.6.39, and the call has no other
    // way to fail.
    let status = unsafe { libc::clock_gettime(id, &mut time) };
    debug_assert_eq!(status, 0, "clock_gettime of a fixed clock id cannot fail");
    time
}

impl Clock for OsClock {
    fn now(&self) -> Timespec {
        let time = read_clock(libc::CLOCK_REALTIME);
        Timespec::new(time.tv_sec, time.tv_nsec as u32)
    }

    fn monotonic(&self) -> Duration {
        let time = read_clock(libc::CLOCK_BOOTTIME);
        Duration::new(time.tv_sec.max(0) as u64, time.tv_nsec as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn monotonic_time_does_not_go_back_and_wall_time_is_after_2020() {
        let first = OsClock.monotonic();
        assert!(OsClock.monotonic() >= first);
        assert!(OsClock.now().secs > 1_577_836_800);
    }
}
