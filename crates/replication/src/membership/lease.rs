//! How long a lease is, and how long its granter waits before it takes the holder for gone.

use std::time::Duration;

/// The times of leases between the replicas of a group, and the bound on clocks that makes them safe.
///
/// A holder counts its lease from when it *sent* the beacon that was answered; a granter counts its grace from when it answered,
/// which is later. With clocks whose rates are within `1 ± r` of real time, the lease lasts at most `lease / (1 - r)` of real time
/// and the grace at least `grace / (1 + r)`. So the holder has stopped before the granter acts exactly if
/// `grace * (1 - r) >= lease * (1 + r)`. Offsets between clocks do not matter, nor how long a process or message is held up.
///
/// What a clock outside the bound can break is what leases are for, an answer to a read that is not the newest. What was
/// acknowledged is kept whatever clocks do: that rests on epochs alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseTerms {
    /// Between beacons of a replica.
    pub heartbeat: Duration,
    /// How long a holder may answer after it sent a beacon that was answered.
    pub lease: Duration,
    /// How long a granter waits, after its last answer, before it asks for the holder's removal.
    pub grace: Duration,
    /// The bound `r` on the rate of clocks, in parts per million, below 1,000,000.
    pub clock_rate_error_ppm: u32,
}

impl LeaseTerms {
    /// The terms of a cluster: 0.5 s, 3 s, 5 s. Safe with clocks that are wrong by up to 20 %; quartz is below 0.02 %, so the rest is
    /// margin for clocks of virtual machines.
    pub const DEFAULT: LeaseTerms = LeaseTerms {
        heartbeat: Duration::from_millis(500),
        lease: Duration::from_secs(3),
        grace: Duration::from_secs(5),
        clock_rate_error_ppm: 200_000,
    };

    /// Whether a holder has surely stopped before its granter acts, with clocks inside the bound.
    pub fn is_safe(&self) -> bool {
        let error = u128::from(self.clock_rate_error_ppm);
        error < 1_000_000
            && self.grace.as_nanos() * (1_000_000 - error) >= self.lease.as_nanos() * (1_000_000 + error)
    }

    /// Whether beacons come often enough that a few lost ones do not end a lease.
    pub fn is_live(&self) -> bool {
        self.heartbeat * 4 <= self.lease
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_terms_are_safe_and_live_and_a_shorter_grace_or_a_worse_clock_is_not() {
        let terms = LeaseTerms::DEFAULT;
        assert!(terms.is_safe() && terms.is_live());
        assert!(!LeaseTerms { grace: Duration::from_secs(4), ..terms }.is_safe());
        assert!(!LeaseTerms { clock_rate_error_ppm: 260_000, ..terms }.is_safe());
        assert!(!LeaseTerms { clock_rate_error_ppm: 1_000_000, ..terms }.is_safe());
    }
}
