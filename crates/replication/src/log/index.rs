//! What a log has: which sequence numbers, of which epochs. The entries themselves are on disk.

use super::{EntryRun, EntryRuns, LogPosition, Sequence};
use ashlar_types::Epoch;
use smallvec::SmallVec;

/// The positions in a replica's log, behind its checkpoint.
///
/// Invariant: epochs of the runs ascend, the first not below the floor's.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct LogIndex {
    /// The last entry that the checkpoint covers; it and those before are no longer in the log.
    floor: LogPosition,
    // LIMIT: one run per epoch since the checkpoint.
    runs: SmallVec<[EntryRun; 4]>,
}

impl LogIndex {
    /// A log whose entries behind `floor` are `runs`.
    pub fn new(floor: LogPosition, runs: impl IntoIterator<Item = EntryRun>) -> LogIndex {
        let mut index = LogIndex { floor, runs: SmallVec::new() };
        for run in runs {
            index.append(run);
        }
        index
    }

    /// What the checkpoint covers.
    pub fn floor(&self) -> LogPosition {
        self.floor
    }

    /// The last position.
    pub fn last(&self) -> LogPosition {
        let count: u64 = self.runs.iter().map(|run| run.count).sum();
        let epoch = self.runs.last().map_or(self.floor.epoch, |run| run.epoch);
        LogPosition { sequence: Sequence(self.floor.sequence.0 + count), epoch }
    }

    /// The epoch of entry `sequence`; `None` if the log does not have it (any more).
    pub fn epoch_at(&self, sequence: Sequence) -> Option<Epoch> {
        let mut behind = sequence.0.checked_sub(self.floor.sequence.0)?;
        if behind == 0 {
            return Some(self.floor.epoch);
        }
        for run in &self.runs {
            if behind <= run.count {
                return Some(run.epoch);
            }
            behind -= run.count;
        }
        None
    }

    /// Whether the log has `position`.
    pub fn has(&self, position: LogPosition) -> bool {
        self.epoch_at(position.sequence) == Some(position.epoch)
    }

    /// Adds entries at the end.
    pub fn append(&mut self, run: EntryRun) {
        // INVARIANT: epochs ascend, because nobody writes at an epoch older than one he has seen.
        assert!(run.epoch >= self.last().epoch, "{} after {}", run.epoch, self.last().epoch);
        match self.runs.last_mut() {
            Some(last) if last.epoch == run.epoch => last.count += run.count,
            _ if run.count > 0 => self.runs.push(run),
            _ => {}
        }
    }

    /// Drops the entries after `sequence`, which is not below the floor.
    pub fn truncate(&mut self, after: Sequence) {
        let mut keep = after.0 - self.floor.sequence.0;
        self.runs.retain(|run| {
            run.count = run.count.min(keep);
            keep -= run.count;
            run.count > 0
        });
    }

    /// The entries from `first` on, at most `count_max` of them; `first` is above the floor.
    pub fn runs_from(&self, first: Sequence, count_max: u64) -> EntryRuns {
        let mut skip = first.0 - self.floor.sequence.0 - 1;
        let mut room = count_max;
        let mut runs = EntryRuns::new();
        for run in &self.runs {
            let skipped = skip.min(run.count);
            skip -= skipped;
            let count = (run.count - skipped).min(room);
            room -= count;
            if count > 0 {
                runs.push(EntryRun { epoch: run.epoch, count });
            }
        }
        runs
    }

    /// A checkpoint covers the entries up to `sequence`, which the log has.
    pub fn raise_floor(&mut self, sequence: Sequence) {
        let Some(epoch) = self.epoch_at(sequence) else { return };
        let runs = self.runs_from(sequence.next(), u64::MAX);
        *self = LogIndex::new(LogPosition { sequence, epoch }, runs);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(epoch: u64, count: u64) -> EntryRun {
        EntryRun { epoch: Epoch(epoch), count }
    }

    #[test]
    fn positions_are_found_cut_and_checkpointed_across_runs() {
        let floor = LogPosition { sequence: Sequence(10), epoch: Epoch(1) };
        let mut index = LogIndex::new(floor, [run(1, 2), run(3, 1), run(3, 1), run(4, 5)]);
        assert_eq!(index.last(), LogPosition { sequence: Sequence(19), epoch: Epoch(4) });
        let epochs: Vec<_> = (9..=20).map(|n| index.epoch_at(Sequence(n)).map(|epoch| epoch.0)).collect();
        let expected = [0, 1, 1, 1, 3, 3, 4, 4, 4, 4, 4, 0].map(|epoch| (epoch > 0).then_some(epoch));
        assert_eq!(epochs, expected);
        assert_eq!(index.runs_from(Sequence(12), 4).as_slice(), [run(1, 1), run(3, 2), run(4, 1)]);
        index.truncate(Sequence(13));
        assert_eq!(index, LogIndex::new(floor, [run(1, 2), run(3, 1)]));
        index.raise_floor(Sequence(12));
        assert_eq!((index.floor().epoch, index.last().sequence), (Epoch(1), Sequence(13)));
        index.truncate(Sequence(12));
        assert_eq!(index.last(), index.floor());
    }
}
