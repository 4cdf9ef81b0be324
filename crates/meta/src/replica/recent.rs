//! The newest groups, in memory, for copies that are about to be sent them.

use ashlar_kv::Group;
use std::collections::VecDeque;

// LIMIT: memory of groups that copies may lack; older ones are read from the log.
const BYTES_MAX: usize = 16 << 20;

/// See the module.
#[derive(Default)]
pub(super) struct Recent {
    /// Consecutive.
    groups: VecDeque<Group>,
    bytes: usize,
}

impl Recent {
    pub(super) fn push(&mut self, group: Group) {
        if self.groups.back().is_some_and(|last| last.number.sequence + 1 != group.number.sequence) {
            self.clear();
        }
        self.bytes += group.bytes();
        self.groups.push_back(group);
        while self.bytes > BYTES_MAX {
            self.drop_oldest();
        }
    }

    fn drop_oldest(&mut self) {
        if let Some(group) = self.groups.pop_front() {
            self.bytes -= group.bytes();
        }
    }

    /// Forgets those up to number `sequence`.
    pub(super) fn forget(&mut self, sequence: u64) {
        while self.groups.front().is_some_and(|group| group.number.sequence <= sequence) {
            self.drop_oldest();
        }
    }

    pub(super) fn clear(&mut self) {
        (self.groups, self.bytes) = (VecDeque::new(), 0);
    }

    /// The groups behind number `sequence`, at most `count` and about `bytes_max`; nothing if the first is not here.
    pub(super) fn behind(&self, sequence: u64, count: usize, bytes_max: usize) -> Vec<Group> {
        let Some(first) = self.groups.front().map(|group| group.number.sequence) else { return Vec::new() };
        let Some(at) = (sequence + 1).checked_sub(first) else { return Vec::new() };
        let mut bytes = 0;
        let is_within = |group: &&Group| {
            let was_within = bytes < bytes_max;
            bytes += group.bytes();
            was_within
        };
        self.groups.iter().skip(at as usize).take(count).take_while(is_within).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ashlar_kv::GroupNumber;
    use ashlar_types::Epoch;

    fn group(sequence: u64, bytes: usize) -> Group {
        let number = GroupNumber { sequence, epoch: Epoch(1) };
        Group { number, frames: 1, body: vec![0; bytes].into() }
    }

    fn numbers(groups: Vec<Group>) -> Vec<u64> {
        groups.iter().map(|group| group.number.sequence).collect()
    }

    #[test]
    fn groups_are_found_by_number_and_within_bounds() {
        let mut recent = Recent::default();
        (5..15).for_each(|sequence| recent.push(group(sequence, 1000)));
        assert_eq!(numbers(recent.behind(6, 3, usize::MAX)), [7, 8, 9]);
        assert_eq!(numbers(recent.behind(4, 100, 2500)), [5, 6, 7]);
        assert_eq!(numbers(recent.behind(6, 9, 1)), [7], "one at least");
        assert!(recent.behind(3, 9, 9000).is_empty() && recent.behind(14, 9, 9000).is_empty());
        recent.forget(12);
        assert_eq!(numbers(recent.behind(12, 9, 90_000)), [13, 14]);
        assert!(recent.behind(11, 9, 90_000).is_empty());
        recent.push(group(40, 10));
        assert_eq!(numbers(recent.behind(39, 9, 90_000)), [40], "a gap begins anew");
        (41..60).for_each(|sequence| recent.push(group(sequence, 1 << 20)));
        assert!(recent.bytes <= BYTES_MAX && numbers(recent.behind(58, 1, 1)) == [59]);
    }
}
