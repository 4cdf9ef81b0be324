//! Where the records of a thread are.

use super::{DataPlan, Files, Order};
use crate::scatter::Scatter;
use std::time::{Duration, Instant};

/// Offsets of a thread's records in its file, in the order of the plan, until bytes or time are used up.
pub struct Places {
    record_bytes: u64,
    /// Records of the thread in one segment.
    in_segment: u64,
    /// Records from the begin of a segment to the begin of the next.
    segment_step: u64,
    /// Records from the begin of a segment to the thread's first.
    skip: u64,
    records: u64,
    next: u64,
    scatter: Option<Scatter>,
    time_max: Option<Duration>,
    end: Option<Instant>,
}

impl Places {
    pub fn new(plan: &DataPlan, thread: usize) -> Places {
        let records = plan.thread_bytes / plan.record_bytes;
        let (in_segment, segment_step, skip) = match plan.files {
            Files::PerThread => (records, records, 0),
            Files::Shared { segments } => {
                let each = records / segments;
                (each, each * plan.threads as u64, each * thread as u64)
            }
        };
        let scatter = match plan.order {
            Order::Sequential => None,
            Order::Random { seed } => Some(Scatter::new(records, seed ^ (thread as u64) << 32)),
        };
        Places {
            record_bytes: plan.record_bytes,
            in_segment,
            segment_step,
            skip,
            records,
            next: 0,
            scatter,
            time_max: plan.time_max,
            end: None,
        }
    }

    /// The time of the plan begins.
    pub fn begin(&mut self) {
        self.end = self.time_max.map(|time| Instant::now() + time);
    }

    /// Bytes from the begin of the file to the record at `place` in the thread's own order from first to last.
    fn offset(&self, place: u64) -> u64 {
        let (segment, within) = (place / self.in_segment, place % self.in_segment);
        (segment * self.segment_step + self.skip + within) * self.record_bytes
    }
}

impl Iterator for Places {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        // Random I/O with a limit of time goes round until the time is over; all else ends with its bytes.
        let goes_round = self.scatter.is_some() && self.end.is_some();
        if (self.next >= self.records && !goes_round) || self.end.is_some_and(|end| Instant::now() >= end) {
            return None;
        }
        let place = self.next % self.records;
        self.next += 1;
        Some(self.offset(self.scatter.map_or(place, |scatter| scatter.at(place))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(files: Files, order: Order) -> DataPlan {
        DataPlan {
            threads: 3,
            files,
            order,
            record_bytes: 100,
            thread_bytes: 600,
            depth: 1,
            is_direct: false,
            counts_fsync: false,
            time_max: None,
        }
    }

    #[test]
    fn threads_with_files_of_their_own_all_begin_at_the_beginning() {
        let plan = plan(Files::PerThread, Order::Sequential);
        for thread in 0..3 {
            assert_eq!(Places::new(&plan, thread).collect::<Vec<_>>(), [0, 100, 200, 300, 400, 500]);
        }
    }

    #[test]
    fn segments_of_one_file_are_filled_by_all_threads_in_turn() {
        let one = plan(Files::Shared { segments: 1 }, Order::Sequential);
        assert_eq!(Places::new(&one, 1).collect::<Vec<_>>(), [600, 700, 800, 900, 1000, 1100]);
        let three = plan(Files::Shared { segments: 3 }, Order::Sequential);
        assert_eq!(Places::new(&three, 1).collect::<Vec<_>>(), [200, 300, 800, 900, 1400, 1500]);
        let strided = plan(Files::Shared { segments: 6 }, Order::Sequential);
        assert_eq!(Places::new(&strided, 2).collect::<Vec<_>>(), [200, 500, 800, 1100, 1400, 1700]);
    }

    #[test]
    fn all_threads_together_cover_every_record_of_one_file_once_in_any_order() {
        for order in [Order::Sequential, Order::Random { seed: 5 }] {
            let plan = plan(Files::Shared { segments: 2 }, order);
            let mut all: Vec<u64> = (0..3).flat_map(|thread| Places::new(&plan, thread)).collect();
            all.sort_unstable();
            assert_eq!(all, (0..18).map(|record| record * 100).collect::<Vec<_>>());
        }
    }

    #[test]
    fn random_io_goes_round_until_its_time_is_over_and_sequential_io_ends_with_its_bytes() {
        let time_max = Some(Duration::from_secs(3600));
        let random = DataPlan { time_max, ..plan(Files::PerThread, Order::Random { seed: 1 }) };
        let mut places = Places::new(&random, 0);
        places.begin();
        assert_eq!(places.take(20).count(), 20);
        let sequential = DataPlan { order: Order::Sequential, ..random };
        let mut places = Places::new(&sequential, 0);
        places.begin();
        assert_eq!(places.count(), 6);
        let over = DataPlan { time_max: Some(Duration::ZERO), ..sequential };
        let mut places = Places::new(&over, 0);
        places.begin();
        assert_eq!(places.count(), 0);
    }
}
