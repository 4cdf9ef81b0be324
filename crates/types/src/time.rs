//! Points in time as POSIX file timestamps.

use serde::{Deserialize, Serialize};

/// Seconds and nanoseconds since the epoch of POSIX; `nanos` is always below 10^9. Seconds may be negative.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Timespec {
    /// Whole seconds, rounded towards minus infinity.
    pub secs: i64,
    /// Nanoseconds within the second, 0..10^9.
    pub nanos: u32,
}

impl Timespec {
    /// A time; nanoseconds of 10^9 and more carry into the seconds.
    pub fn new(secs: i64, nanos: u32) -> Timespec {
        Timespec { secs: secs.saturating_add(i64::from(nanos / 1_000_000_000)), nanos: nanos % 1_000_000_000 }
    }

    /// Whole seconds from `earlier` to `self`, negative when `self` is the earlier one.
    pub fn seconds_since(self, earlier: Timespec) -> i64 {
        self.secs.saturating_sub(earlier.secs)
    }
}
