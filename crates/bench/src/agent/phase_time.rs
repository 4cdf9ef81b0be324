//! How long a phase took that several machines did together, whatever their clocks say.

use std::time::Duration;

/// From the moment the first machine was let go to the end of the last. For each: when it was told to go, on the coordinator's clock and from any
/// moment on; and how long it took from hearing that to the end of its last thread, on its own clock. No moment of one clock is compared
/// with one of another: clocks may be apart by any time. What is left is by how much the way to one machine takes longer than to another.
/// Machines that had nothing to do have a time of zero.
pub(super) fn phase_time(machines: &[(Duration, Duration)]) -> Duration {
    let busy = || machines.iter().filter(|(_, took)| !took.is_zero());
    let begin = busy().map(|(told, _)| *told).min().unwrap_or_default();
    busy().map(|(told, took)| *told + *took).max().unwrap_or_default().saturating_sub(begin)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_phase_lasts_from_the_first_that_goes_to_the_end_of_the_last() {
        let millis = |machines: &[(u64, u64)]| {
            let machines: Vec<_> = machines
                .iter()
                .map(|(told, took)| (Duration::from_millis(*told), Duration::from_millis(*took)))
                .collect();
            phase_time(&machines).as_millis()
        };
        assert_eq!(millis(&[(0, 100), (5, 90)]), 100);
        assert_eq!(millis(&[(0, 100), (5, 99)]), 104);
        assert_eq!(millis(&[(1000, 100), (1005, 99)]), 104, "only differences count");
        assert_eq!(millis(&[(0, 0), (3, 50)]), 50, "who has no threads does not count");
        assert_eq!(millis(&[]), 0);
    }
}
