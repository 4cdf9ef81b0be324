//! A tally as it travels: nothing is lost, so tallies of many machines are added as exactly as those of threads.

use super::Tally;
use serde::{Deserialize, Serialize};

/// See the module.
#[derive(Serialize, Deserialize)]
pub struct PackedTally {
    /// Latency (nanoseconds) and how often it occurred, for each that did.
    latencies: Vec<(u64, u64)>,
    bytes: u64,
}

impl From<Tally> for PackedTally {
    fn from(tally: Tally) -> PackedTally {
        let recorded = tally.nanoseconds.iter_recorded();
        let latencies = recorded.map(|step| (step.value_iterated_to(), step.count_at_value())).collect();
        PackedTally { latencies, bytes: tally.bytes }
    }
}

impl TryFrom<PackedTally> for Tally {
    type Error = &'static str;

    fn try_from(packed: PackedTally) -> Result<Tally, Self::Error> {
        let mut tally = Tally { bytes: packed.bytes, ..Tally::default() };
        let mut operations: u64 = 0;
        for (latency, count) in packed.latencies {
            operations = operations.checked_add(count).ok_or("more operations than can be counted")?;
            // The longest of a histogram is told as the end of its step, which may be past the bound.
            tally.nanoseconds.saturating_record_n(latency, count);
        }
        Ok(tally)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scatter::mix;
    use std::time::Duration;

    fn tally(seed: u64) -> Tally {
        let mut tally = Tally::default();
        for number in 0..5000 {
            let nanoseconds = mix(seed << 32 | number) >> (mix(number) % 50 + 10);
            tally.add(Duration::from_nanos(nanoseconds), number);
        }
        tally
    }

    #[test]
    fn tallies_that_travelled_add_up_to_what_they_were() {
        let (mut here, mut there) = (Tally::default(), Tally::default());
        for seed in 0..4 {
            let sent = postcard::to_stdvec(&tally(seed)).unwrap();
            assert!(sent.len() < 1 << 16, "{} bytes", sent.len());
            there.absorb(&postcard::from_bytes(&sent).unwrap());
            here.absorb(&tally(seed));
        }
        assert_eq!((here.operations(), here.bytes()), (there.operations(), there.bytes()));
        for part in 0..=1000 {
            let part = f64::from(part) / 1000.0;
            assert_eq!(here.latency(part), there.latency(part), "{part}");
        }
    }

    #[test]
    fn counts_that_cannot_be_are_refused() {
        let packed = PackedTally { latencies: vec![(1000, u64::MAX), (2000, 1)], bytes: 0 };
        assert!(Tally::try_from(packed).is_err());
    }
}
