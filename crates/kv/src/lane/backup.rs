//! A lane as the copy of another one: groups come from there, and some may be taken back.

use super::note::Note;
use super::{Lane, Shared};
use crate::copies::Group;
use crate::lane::writer::{Urgency, validate};
use crate::log::format::{LoggedFrame, decode_frames};
use crate::log::replay::replay;
use crate::log::segment::{SegmentFile, SegmentName};
use crate::log::writer::{create_spare_in_what_is_free, create_spare_numbered};
use crate::overlay::Overlay;
use crate::{Frame, GroupNumber, KvError, Position};
use ashlar_types::ShardId;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::sync::atomic::Ordering;

impl Lane {
    /// Appends groups of the lane that this one is a copy of, which follow its last one.
    ///
    /// # Errors
    /// [`KvError::Invalid`] for one that does not follow, [`KvError::Corrupt`] for one that is malformed: those before it are there. As
    /// [`crate::LaneWriter::commit`] for the rest.
    pub fn append_groups(&self, groups: &[Group]) -> Result<(), KvError> {
        groups.iter().try_for_each(|group| self.shared.append_group(group))
    }

    /// Takes back the groups behind number `sequence`, durably. None of them is in a checkpoint. Nobody else may use the lane meanwhile.
    ///
    /// # Errors
    /// [`KvError::Corrupt`] when a checkpoint has some of them; [`KvError::Io`]; the lane is stopped then.
    pub fn truncate_after(&self, sequence: u64) -> Result<(), KvError> {
        self.shared.health.check()?;
        if sequence >= self.last_group().sequence {
            return Ok(());
        }
        let truncated = self.shared.without_checkpoint(|| self.shared.truncate_after(sequence));
        truncated.map_err(|error| self.shared.stop_on(error))
    }
}

/// What a log comes to.
#[derive(Default)]
struct Rebuilt {
    overlay: Overlay,
    sequences: FxHashMap<ShardId, u64>,
    last: GroupNumber,
}

impl Rebuilt {
    fn take(&mut self, frames: Vec<LoggedFrame>) {
        self.last = self.last.next(frames.iter().map(|logged| logged.frame.epoch));
        for LoggedFrame { sequence, frame } in frames {
            self.sequences.insert(frame.shard, sequence);
            for (key, value) in frame.writes.0 {
                self.overlay.insert(key, value);
            }
        }
    }
}

impl Shared {
    fn append_group(&self, group: &Group) -> Result<(), KvError> {
        let malformed = || KvError::Corrupt {
            what: format!("group {} of another server is malformed", group.number.sequence),
        };
        let logged = decode_frames(&group.body, group.frames)
            .filter(|frames| !frames.is_empty())
            .ok_or_else(malformed)?;
        let sequences: SmallVec<[u64; 8]> = logged.iter().map(|frame| frame.sequence).collect();
        let frames: Vec<Frame> = logged.into_iter().map(|logged| logged.frame).collect();
        validate(&frames)?;
        let (mut state, is_stalled) = self.lock_with_room();
        self.health.check()?;
        if is_stalled {
            let what = "a checkpoint of this copy has not ended".to_owned();
            return Err(KvError::Stalled { what });
        }
        let last = state.last;
        let is_next = group.number.sequence == last.sequence + 1 && group.number.epoch >= last.epoch;
        if !is_next {
            let what = format!("group {:?} does not follow {last:?}", group.number);
            return Err(KvError::Invalid { what });
        }
        let is_of_epoch = frames.iter().all(|frame| frame.epoch == group.number.epoch);
        let follows = |(frame, sequence): (&Frame, &u64)| {
            let earlier = frames
                .iter()
                .zip(&sequences)
                .filter(|(other, number)| other.shard == frame.shard && *number < sequence);
            *sequence == state.sequence(frame.shard) + 1 + earlier.count() as u64
        };
        if !is_of_epoch || !frames.iter().zip(&sequences).all(follows) {
            return Err(malformed());
        }
        // ORDER: as in a commit. What is taken here was taken there, so the reserve may be used for it.
        let (position, _) = self.append(&mut state, &frames, &sequences, (Urgency::FreesSpace, false))?;
        for (frame, sequence) in frames.into_iter().zip(sequences) {
            state.sequences.insert(frame.shard, sequence);
            for (key, value) in frame.writes.0 {
                state.active.insert(key, value);
            }
        }
        state.last = group.number;
        self.flusher.publish(position);
        self.counters.appended_groups.fetch_add(1, Ordering::Relaxed);
        self.request_work(&state);
        Ok(())
    }

    fn truncate_after(&self, sequence: u64) -> Result<(), KvError> {
        let noted = self.checkpoint_note()?;
        let (from, mut rebuilt) = match noted {
            Some(Note { applied, last, sequences, .. }) => {
                (applied, Rebuilt { overlay: Overlay::default(), sequences, last })
            }
            None => (Position(0), Rebuilt::default()),
        };
        if rebuilt.last.sequence > sequence {
            let what = format!(
                "groups behind {sequence} are to be taken back, and a checkpoint has those up to {}",
                rebuilt.last.sequence
            );
            return Err(KvError::Corrupt { what });
        }
        let names: Vec<SegmentName> = {
            let state = self.read_state();
            let name = |(segment, _): (&SegmentFile, u64)| SegmentName {
                first: segment.first,
                path: segment.path.clone(),
            };
            state.log.segments().map(name).collect()
        };
        let mut end = from.0;
        replay(&self.log_dir, &names, from.0, None, &mut |behind, frames| {
            if rebuilt.last.sequence < sequence {
                rebuilt.take(frames);
                end = behind;
            }
            Ok(())
        })?;
        if rebuilt.last.sequence != sequence {
            let what = format!("the log has no group {sequence} to go back to");
            return Err(KvError::Corrupt { what });
        }
        self.flusher.go_back(|| self.cut_log(&names, (end, sequence)))?;
        let mut state = self.write_state();
        (state.active, state.frozen) = (rebuilt.overlay, None);
        (state.sequences, state.last) = (rebuilt.sequences, rebuilt.last);
        Ok(())
    }

    /// Has the log end at `end`, behind group `sequence`.
    fn cut_log(
        &self,
        names: &[SegmentName],
        (end, sequence): (u64, u64),
    ) -> Result<(Position, SegmentFile, ()), KvError> {
        let (mut spare, number, bytes) = {
            let mut state = self.write_state();
            let spare = state.log.take_spare();
            (spare, state.log.reserve_spare_number(), state.log.segment_bytes())
        };
        // One that is taken back as a whole: on a full disk there may be no room for another one while it is open.
        let whole = |segment: &&SegmentFile| segment.first > end && segment.file_bytes >= bytes;
        let mut reused: Option<SegmentFile> = match spare {
            Some(_) => None,
            None => self.read_state().log.segments().map(|(segment, _)| segment).find(whole).cloned(),
        };
        // ORDER: the newest first, so that at no moment there is a gap; and durably before what replaces them begins, or a power cut could leave both.
        for name in names.iter().rev().filter(|name| name.first > end) {
            match reused.take_if(|segment| segment.path == name.path) {
                Some(segment) => spare = Some(self.rename_to_spare(segment, number)?),
                None => self.log_dir.remove(&name.path)?,
            }
        }
        self.log_dir.sync()?;
        let spare = match spare {
            Some(spare) => spare,
            None => self.make_segment(number, bytes)?,
        };
        let active = {
            let mut state = self.write_state();
            state.log.go_back((end, sequence), spare)?;
            state.log.take_begun();
            state.log.active().clone()
        };
        // What was taken back stays so: else it could be there again beside what has come in its place.
        let synced = active.file.sync_data();
        synced.map_err(|e| KvError::of_sync(&self.log_dir.describe(&active.path), e))?;
        self.log_dir.sync()?;
        Ok((Position(end), active, ()))
    }

    /// A file for a segment. On a full disk one in the place of what is kept back, or a short one: who cannot take back what others do not have is no copy.
    fn make_segment(&self, number: u64, bytes: u64) -> Result<SegmentFile, KvError> {
        match create_spare_numbered(&self.log_dir, number, bytes) {
            Err(KvError::NoSpace { .. }) => {
                self.space.release_reserve();
                create_spare_in_what_is_free(&self.log_dir, number, bytes)
            }
            made => made,
        }
    }
}
