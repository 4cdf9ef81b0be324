//! Groups that are in the log, for copies that lack them.

use super::{Lane, Shared};
use crate::copies::Group;
use crate::log::format::{RECORD_HEADER_BYTES, RecordHeader, decode_frames};
use crate::log::segment::{SegmentFile, file_offset};
use crate::{GroupNumber, KvError};
use bytes::Bytes;

/// Bytes that are read at a time.
const PIECE_BYTES: usize = 1 << 20;

/// A place in a log, to go on from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupCursor {
    /// Groups before it, by number.
    sequence: u64,
    /// Where the next one begins, or a mark before it.
    position: u64,
    /// Of the log: another one, or one of which something was taken back, has other groups in these places.
    generation: u64,
}

impl Lane {
    /// The number of the first group that the log still has, or of the next one.
    pub fn first_group(&self) -> u64 {
        let state = self.shared.read_state_again();
        state.log.segments().next().map_or(state.last.sequence, |(segment, _)| segment.behind) + 1
    }

    /// The groups behind number `sequence`, some of them: at least one if there is one, and no more than about `bytes_max`. `None` when the log does not have the next one any more.
    /// `cursor` makes it quick to go on where the last call ended; any will do.
    ///
    /// # Errors
    /// [`KvError::Io`].
    pub fn groups_behind(
        &self,
        sequence: u64,
        cursor: &mut GroupCursor,
        bytes_max: usize,
    ) -> Result<Option<Vec<Group>>, KvError> {
        self.shared.groups_behind(sequence, cursor, bytes_max)
    }
}

impl Shared {
    fn groups_behind(
        &self,
        sequence: u64,
        cursor: &mut GroupCursor,
        bytes_max: usize,
    ) -> Result<Option<Vec<Group>>, KvError> {
        self.health.check()?;
        let mut found = Vec::new();
        let mut bytes = 0;
        let mut next = sequence;
        while bytes < bytes_max {
            let (segment, end, last, generation) = {
                let state = self.read_state();
                let (last, generation) = (state.last.sequence, state.log.generation());
                let holding = state.log.segments().rev().find(|(segment, _)| segment.behind <= next);
                let Some((segment, end)) = holding else { break };
                (segment.clone(), end, last, generation)
            };
            if next >= last {
                break;
            }
            let is_near = cursor.generation == generation
                && cursor.sequence <= next
                && cursor.sequence >= segment.behind
                && cursor.position >= segment.from
                && cursor.position <= end;
            if !is_near {
                *cursor = GroupCursor { sequence: segment.behind, position: segment.from, generation };
            }
            let before = found.len();
            let mut take = |group: Group| {
                bytes += group.bytes();
                found.push(group);
                bytes < bytes_max
            };
            // A segment that was retired meanwhile has other records.
            let is_as_expected = self.read_groups((&segment, end), next, cursor, &mut take)?;
            if found.len() == before {
                *cursor = GroupCursor::default();
                break;
            }
            if !is_as_expected {
                break;
            }
            next = sequence + found.len() as u64;
        }
        Ok((!found.is_empty() || sequence >= self.read_state().last.sequence).then_some(found))
    }

    /// Gives the groups of one segment behind number `sequence` to `take` until it has enough; false where a record is not what it should be.
    fn read_groups(
        &self,
        (segment, end): (&SegmentFile, u64),
        sequence: u64,
        cursor: &mut GroupCursor,
        take: &mut dyn FnMut(Group) -> bool,
    ) -> Result<bool, KvError> {
        let seed = self.log_dir.identity.seed();
        let mut window = Window::new(segment, end);
        while cursor.position < end {
            let header =
                window.at(cursor.position, RECORD_HEADER_BYTES).map_err(|e| self.unread(segment, e))?;
            let Some(bytes) = record_bytes(&header) else { return Ok(false) };
            let record = window.at(cursor.position, bytes).map_err(|e| self.unread(segment, e))?;
            let Some((header, body)) = RecordHeader::check(&record, seed) else { return Ok(false) };
            if header.position != cursor.position {
                return Ok(false);
            }
            let place = GroupCursor {
                sequence: cursor.sequence + u64::from(header.frames > 0),
                position: cursor.position + header.record_bytes() as u64,
                ..*cursor
            };
            if header.frames > 0 && cursor.sequence >= sequence {
                let body = record.slice_ref(body);
                let frames = decode_frames(&body, header.frames);
                let Some(epoch) = frames.and_then(|frames| Some(frames.first()?.frame.epoch)) else {
                    return Ok(false);
                };
                let number = GroupNumber { sequence: place.sequence, epoch };
                *cursor = place;
                if !take(Group { number, frames: header.frames, body }) {
                    return Ok(true);
                }
            }
            *cursor = place;
        }
        Ok(true)
    }

    fn unread(&self, segment: &SegmentFile, error: std::io::Error) -> KvError {
        KvError::io(format!("read log segment {}", self.log_dir.describe(&segment.path)), error)
    }
}

/// Bytes of the record whose header this is, if it can be one.
fn record_bytes(header: &[u8]) -> Option<usize> {
    let body_bytes = u32::from_le_bytes(header.get(4..8)?.try_into().ok()?);
    Some(RECORD_HEADER_BYTES + body_bytes as usize)
}

/// What was read of a segment last.
struct Window<'a> {
    segment: &'a SegmentFile,
    end: u64,
    from: u64,
    bytes: Bytes,
}

impl<'a> Window<'a> {
    fn new(segment: &'a SegmentFile, end: u64) -> Window<'a> {
        Window { segment, end, from: 0, bytes: Bytes::new() }
    }

    /// Up to `count` bytes from `position` on; fewer at the end of the segment.
    fn at(&mut self, position: u64, count: usize) -> std::io::Result<Bytes> {
        let left = (self.end - position) as usize;
        let count = count.min(left);
        let has = self.from + self.bytes.len() as u64;
        if position < self.from || position + count as u64 > has {
            let mut bytes = vec![0; count.max(PIECE_BYTES).min(left)];
            let got = self.segment.file.read_at(file_offset(self.segment.first, position), &mut bytes)?;
            bytes.truncate(got);
            (self.from, self.bytes) = (position, bytes.into());
        }
        let at = (position - self.from) as usize;
        Ok(self.bytes.slice(at..(at + count).min(self.bytes.len())))
    }
}
