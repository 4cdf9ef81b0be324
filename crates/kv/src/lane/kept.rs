//! Opens a log that stays as it is, because other machines may know better what its end is: it is read into the overlay, and what the engine lacks is made
//! durable where it is.

use super::open::Recovery;
use crate::log::replay::{Replayed, replay};
use crate::log::segment::{LogFiles, SegmentFile, SegmentName, file_offset};
use crate::log::writer::SealedSegment;
use crate::{GroupNumber, KvError};
use ashlar_env::{DiskFile, OpenMode};
use ashlar_types::Epoch;
use std::io;

/// Bytes that are written anew at a time.
const PIECE_BYTES: u64 = 1 << 20;

/// Which groups a log has, by number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogRuns {
    /// The last group that it has not any more.
    pub floor: GroupNumber,
    /// The epochs of those behind, and how many groups in a row are of each.
    // LIMIT: as there are epochs in a log.
    pub runs: Vec<(Epoch, u64)>,
}

impl LogRuns {
    fn push(&mut self, epoch: Epoch) {
        match self.runs.last_mut() {
            Some((last, count)) if *last == epoch => *count += 1,
            _ => self.runs.push((epoch, 1)),
        }
    }

    /// Makes the first group the floor. That of a floor that was not read is not known.
    fn raise_by_one(&mut self) {
        if let Some((epoch, count)) = self.runs.first_mut() {
            self.floor = GroupNumber { sequence: self.floor.sequence + 1, epoch: *epoch };
            *count -= 1;
        }
        self.runs.retain(|(_, count)| *count > 0);
    }
}

/// What is in a log, as far as it was read.
struct Contents {
    /// Where reading began.
    from: u64,
    replayed: Replayed,
    runs: LogRuns,
    /// For each segment how many groups are before it, by number.
    behind: Vec<u64>,
}

impl Recovery<'_> {
    /// Reads the log; tells which of its segments stay.
    pub(super) fn run_keeping(
        &mut self,
        files: &LogFiles,
    ) -> Result<(Replayed, Vec<SealedSegment>), KvError> {
        let (applied, noted) = (self.applied.0, self.last);
        let oldest = files.segments.first().map_or(applied, |oldest| oldest.first.min(applied));
        let mut contents = self.read_from(&files.segments, oldest);
        // What is before the engine's position is kept for others alone.
        let is_short = match &contents {
            Ok(contents) => contents.replayed.end < applied,
            Err(KvError::Corrupt { .. }) => self.last == noted,
            Err(_) => false,
        };
        if is_short && oldest < applied {
            tracing::warn!(
                "the log before the last checkpoint cannot be read: who lacks it gets a checkpoint"
            );
            contents = self.read_from(&files.segments, applied);
        }
        let contents = contents?;
        let kept = self.keep(&files.segments, &contents)?;
        if contents.replayed.groups > 0 {
            tracing::info!(groups = contents.replayed.groups, position = contents.replayed.end, "log read");
        }
        self.runs = contents.runs;
        Ok((contents.replayed, kept))
    }

    /// Reads the log from `from` on, which is at the engine's position or before.
    fn read_from(&mut self, segments: &[SegmentName], from: u64) -> Result<Contents, KvError> {
        let (applied, noted) = (self.applied.0, self.last);
        let (log_dir, give_up_from) = (self.log_dir.clone(), self.config.give_up_from);
        let (mut before, mut runs) = (0, LogRuns::default());
        let mut counted = vec![0; segments.len()];
        let mut at = 0;
        let replayed = replay(&log_dir, segments, from, give_up_from, &mut |end, frames| {
            let epochs = frames.iter().map(|logged| logged.frame.epoch);
            let epoch = epochs.fold(runs.runs.last().map_or(Epoch(0), |(last, _)| *last), Epoch::max);
            while segments.get(at + 1).is_some_and(|next| next.first < end) {
                at += 1;
                counted[at] = before + (self.last.sequence - noted.sequence);
            }
            if end > applied {
                self.insert(end, frames)?;
                runs.push(self.last.epoch);
            } else {
                before += 1;
                runs.push(epoch);
            }
            Ok(())
        })?;
        // Those behind the last group have marks at the most.
        let all = before + (self.last.sequence - noted.sequence);
        counted.iter_mut().skip(at + 1).for_each(|count| *count = all);
        let Some(floor) = noted.sequence.checked_sub(before) else {
            let what = format!("the log has {before} groups up to a checkpoint of {}", noted.sequence);
            return Err(KvError::Corrupt { what });
        };
        runs.floor = GroupNumber { sequence: floor, epoch: Epoch(0) };
        match before {
            0 => runs.floor = noted,
            _ if floor > 0 => runs.raise_by_one(),
            _ => {}
        }
        counted.iter_mut().for_each(|count| *count += floor);
        Ok(Contents { from, replayed, runs, behind: counted })
    }

    /// The segments of what was read, with what the engine lacks made durable.
    fn keep(&self, segments: &[SegmentName], contents: &Contents) -> Result<Vec<SealedSegment>, KvError> {
        let end = contents.replayed.end;
        let mut kept = Vec::new();
        for (at, name) in segments.iter().enumerate() {
            let sealed_end = segments.get(at + 1).map_or(end, |next| next.first.min(end));
            let is_of_use = name.first < sealed_end && sealed_end > contents.from;
            if !is_of_use {
                continue;
            }
            let open = || {
                let file = self.log_dir.disk.open(&name.path, OpenMode::ReadWrite)?;
                let file_bytes = file.len()?;
                // What was read may be in the page cache only, and after a failed sync perhaps nowhere else, however often it is synced.
                let from = self.applied.0.max(name.first);
                write_anew(&*file, file_offset(name.first, from), file_offset(name.first, sealed_end))?;
                Ok((file, file_bytes))
            };
            let opened: io::Result<_> = open();
            let path = || self.log_dir.describe(&name.path);
            let (file, file_bytes) =
                opened.map_err(|e| KvError::io(format!("keep log segment {}", path()), e))?;
            let (path, first, behind) = (name.path.clone(), name.first, contents.behind[at]);
            let segment =
                SegmentFile { file, path, first, file_bytes, from: first.max(contents.from), behind };
            kept.push(SealedSegment { segment, end: sealed_end });
        }
        Ok(kept)
    }
}

/// Writes bytes `from` to `to` of `file` as they are, and makes them durable.
fn write_anew(file: &dyn DiskFile, from: u64, to: u64) -> io::Result<()> {
    if from >= to {
        return Ok(());
    }
    let mut at = from;
    let mut piece = vec![0; (to - from).min(PIECE_BYTES) as usize];
    while at < to {
        let wanted = (to - at).min(PIECE_BYTES) as usize;
        let got = file.read_at(at, &mut piece[..wanted])?;
        if got == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        file.write_at(at, &piece[..got])?;
        at += got as u64;
    }
    file.sync_data()
}
