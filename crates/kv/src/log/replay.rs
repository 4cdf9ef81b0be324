//! Reads a log from a position to its end.
//!
//! The end is the first place without a valid record. Two things look like that: a torn tail - records that were being
//! written, or written and never flushed, when power went off - and damage to records that were durable. They are told
//! apart by the watermark every record carries, the position up to which the log was durable when it was written:
//!
//! | behind the bad place there is | meaning | result |
//! |---|---|---|
//! | no valid record | tail | the log ends here |
//! | valid records, no watermark above the bad place | tail; later blocks reached the disk before earlier ones | the log ends here |
//! | a valid record with a watermark above the bad place | a durable record is damaged or missing | [`KvError::Corrupt`] |
//! | a segment shorter than it was made | durable records may be missing | [`KvError::Corrupt`] |

use super::format::{
    GROUP_BYTES_MAX, HeaderFault, LoggedFrame, RECORD_ALIGN, RECORD_HEADER_BYTES, RECORD_MAGIC, RecordHeader,
    SEGMENT_HEADER_BYTES, SegmentHeader, decode_frames,
};
use super::segment::{LogDir, SegmentName, file_offset};
use crate::{KvError, Position};
use ashlar_env::OpenMode;
use bytes::Bytes;
use memchr::memmem;
use std::io;
use std::ops::Range;

/// What a group's frames are given to, with the position behind the group.
pub(crate) type Sink<'a> = dyn FnMut(u64, Vec<LoggedFrame>) -> Result<(), KvError> + 'a;

/// What replay found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Replayed {
    /// Position behind the last group.
    pub(crate) end: u64,
    /// Groups given to the sink.
    pub(crate) groups: u64,
}

/// A segment file in memory.
struct Segment {
    name: SegmentName,
    bytes: Bytes,
    /// Where `bytes` may be anything but zeros.
    data: Vec<Range<usize>>,
    header: Option<SegmentHeader>,
}

/// Replays `segments` (in stream order) from `from`. A fault at `give_up_from`
/// is taken for the end of the log.
pub(crate) fn replay(
    dir: &LogDir,
    segments: &[SegmentName],
    from: u64,
    give_up_from: Option<Position>,
    sink: &mut Sink<'_>,
) -> Result<Replayed, KvError> {
    let mut replayed = Replayed { end: from, groups: 0 };
    let Some(start) = segments.iter().rposition(|segment| segment.first <= from) else {
        if give_up_from != Some(Position(from)) {
            first_segment_missing(dir, segments, from)?;
        }
        return Ok(replayed);
    };
    for index in start..segments.len() {
        let mut segment = read_segment(dir, &segments[index], Part::Data)?;
        let limit = segments.get(index + 1).map(|next| next.first);
        let mut has_next = replay_segment(dir, &segment, limit, &mut replayed, sink);
        let mut part = Part::Data;
        if matches!(has_next, Ok(false)) && !is_as_told(dir, &segment, replayed.end)? {
            part = Part::All;
            tracing::warn!(
                segment = dir.describe(&segment.name.path),
                "the local file system takes data for a hole; all is read"
            );
            drop(segment);
            segment = read_segment(dir, &segments[index], part)?;
            has_next = replay_segment(dir, &segment, limit, &mut replayed, sink);
        }
        match has_next {
            Ok(true) => {}
            Ok(false) if give_up_from == Some(Position(replayed.end)) => break,
            Ok(false) => {
                require_torn_tail(dir, (segment, part), &segments[index + 1..], replayed.end)?;
                break;
            }
            Err(KvError::Corrupt { .. }) if give_up_from == Some(Position(replayed.end)) => break,
            Err(error) => return Err(error),
        }
    }
    Ok(replayed)
}

/// Nothing holds position `from`: fine in a new lane, a loss in any other.
fn first_segment_missing(dir: &LogDir, segments: &[SegmentName], from: u64) -> Result<(), KvError> {
    let found = match segments.first() {
        None if from == 0 => return Ok(()),
        None => "no segment".to_owned(),
        Some(oldest) => format!("nothing before {}", dir.describe(&oldest.path)),
    };
    let what = format!(
        "log directory {} has {found}, but the engine's checkpoint ends at position {from}: {}",
        dir.describe(&dir.path),
        way_out(from)
    );
    Err(KvError::Corrupt { what })
}

fn way_out(position: u64) -> String {
    format!(
        "restore it from a copy, or give up every change after position {position} by opening it with that position as \
         give_up_from"
    )
}

/// How much of a segment file is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// Without what was reserved and not written, as far as the local file system tells.
    Data,
    All,
}

fn read_segment(dir: &LogDir, name: &SegmentName, part: Part) -> Result<Segment, KvError> {
    let path = dir.describe(&name.path);
    let (bytes, data) =
        read_data(dir, name, part).map_err(|e| KvError::io(format!("read log segment {path}"), e))?;
    let header = match SegmentHeader::decode(&bytes) {
        Ok(header) => Some(header),
        Err(HeaderFault::Invalid) => None,
        Err(HeaderFault::Version(version)) => {
            let what = format!("log segment {path} has format version {version}, this software knows 1");
            return Err(KvError::Foreign { what });
        }
    };
    if let Some(theirs) = header.map(|header| header.identity)
        && theirs != dir.identity
    {
        let ours = dir.identity;
        let what = format!(
            "log segment {path} is of file system {} lane {}, not of {} lane {}",
            theirs.cluster, theirs.lane, ours.cluster, ours.lane
        );
        return Err(KvError::Foreign { what });
    }
    // A recycled file may show its last use's header, if power failed before the new one was on the disk.
    let header = header.filter(|header| header.first == name.first);
    Ok(Segment { name: name.clone(), bytes, data, header })
}

/// What is in a segment file, and where it may be anything but zeros: the end of one is reserved and not written yet, and neither read nor looked at.
fn read_data(dir: &LogDir, name: &SegmentName, part: Part) -> io::Result<(Bytes, Vec<Range<usize>>)> {
    let file = dir.disk.open(&name.path, OpenMode::Read)?;
    // LIMIT: one segment at a time; its length was bounded when it was written.
    let (mut bytes, mut data) = (vec![0; file.len()? as usize], Vec::new());
    let len = bytes.len() as u64;
    let mut at = 0;
    while at < len {
        let next = match part {
            Part::Data => file.next_data(at)?,
            Part::All => Some(at..len),
        };
        let Some(next) = next.filter(|next| next.start < len) else { break };
        // One without an end tells nothing.
        let end = if next.end > next.start { next.end.min(len) } else { len };
        let range = next.start as usize..end as usize;
        let got = file.read_at(next.start, &mut bytes[range.clone()])?;
        data.push(range.start..range.start + got);
        at = end;
    }
    Ok((Bytes::from(bytes), data))
}

/// Bytes that are read where the log seems to end, whatever the local file system takes for a hole.
const END_BYTES: usize = 64 << 10;

/// Whether what is behind `end` is on the disk as it was told. A file system that takes data for a hole would shorten the log without a word.
fn is_as_told(dir: &LogDir, segment: &Segment, end: u64) -> Result<bool, KvError> {
    // Without a header nothing of it was looked at.
    let offset = match segment.header {
        Some(_) => file_offset(segment.name.first, end.max(segment.name.first)) as usize,
        None => 0,
    };
    let Some(told) = segment.bytes.get(offset..) else { return Ok(true) };
    // What begins as a record may be one, up to its end.
    let max = if told.starts_with(&RECORD_MAGIC) { RECORD_HEADER_BYTES + GROUP_BYTES_MAX } else { END_BYTES };
    let told = &told[..told.len().min(max)];
    // All of that was read: so it is in a segment that was used before.
    if segment.data.iter().any(|read| read.start <= offset && offset + told.len() <= read.end) {
        return Ok(true);
    }
    let read = || {
        let mut found = vec![0; told.len()];
        let got = dir.disk.open(&segment.name.path, OpenMode::Read)?.read_at(offset as u64, &mut found)?;
        Ok(found[..got] == told[..got])
    };
    let path = || dir.describe(&segment.name.path);
    read().map_err(|error: io::Error| KvError::io(format!("read log segment {}", path()), error))
}

/// Gives the segment's groups to `sink`; false when the log ends inside it.
fn replay_segment(
    dir: &LogDir,
    segment: &Segment,
    limit: Option<u64>,
    replayed: &mut Replayed,
    sink: &mut Sink<'_>,
) -> Result<bool, KvError> {
    require_whole(dir, segment, replayed.end)?;
    let Some(header) = segment.header else { return Ok(false) };
    let seed = dir.identity.seed();
    loop {
        if limit.is_some_and(|limit| limit <= replayed.end) {
            return Ok(true);
        }
        let offset = file_offset(header.first, replayed.end) as usize;
        let Some(rest) = segment.bytes.get(offset..) else { return Ok(false) };
        let Some((record, body)) = RecordHeader::check(rest, seed) else { return Ok(false) };
        if record.position != replayed.end || record.nonce != header.nonce {
            return Ok(false);
        }
        let frames = decode_frames(&segment.bytes.slice_ref(body), record.frames).ok_or_else(|| {
            let path = dir.describe(&segment.name.path);
            let what = format!(
                "record at offset {offset} of log segment {path} has a valid checksum and malformed frames, which no \
                 torn write makes: {}",
                way_out(replayed.end)
            );
            KvError::Corrupt { what }
        })?;
        replayed.end += record.record_bytes() as u64;
        if record.frames > 0 {
            sink(replayed.end, frames)?;
            replayed.groups += 1;
        }
    }
}

/// Refuses a segment that has lost its end: what was in it may have been durable, and nothing in the log would tell.
fn require_whole(dir: &LogDir, segment: &Segment, end: u64) -> Result<(), KvError> {
    let expected = segment.header.and_then(|header| header.file_bytes).unwrap_or(SEGMENT_HEADER_BYTES as u64);
    let found = segment.bytes.len() as u64;
    if found >= expected {
        return Ok(());
    }
    let what = format!(
        "log segment {} has {found} bytes instead of {expected}{}, which no power cut makes: changes after position {end} may be \
         missing: {}",
        dir.describe(&segment.name.path),
        if segment.header.is_none() { " or more" } else { "" },
        way_out(end)
    );
    Err(KvError::Corrupt { what })
}

/// Refuses the end of the log at `end`, in `segment`, if a later record proves that it was durable beyond it.
fn require_torn_tail(
    dir: &LogDir,
    (segment, part): (Segment, Part),
    later: &[SegmentName],
    end: u64,
) -> Result<(), KvError> {
    let damaged = dir.describe(&segment.name.path);
    let offset = file_offset(segment.name.first, end);
    let limit = later.first().map(|next| next.first);
    let mut behind = look_behind(dir, &segment, end, limit);
    drop(segment);
    for (index, name) in later.iter().enumerate() {
        if behind.witness.is_some() {
            break;
        }
        let limit = later.get(index + 1).map(|next| next.first);
        let more = look_behind(dir, &read_segment(dir, name, part)?, end, limit);
        behind = Behind { witness: more.witness, records: behind.records + more.records };
    }
    let Some(record) = behind.witness else {
        tracing::debug!(segment = damaged, position = end, "the log ends here");
        if behind.records > 0 {
            tracing::warn!(
                segment = damaged,
                offset,
                records = behind.records,
                "the log ends at a place that was not flushed; records behind it are not used, as after a power cut. If the power was not cut, \
                 the disk has changed what it was given"
            );
        }
        return Ok(());
    };
    let what = format!(
        "no valid record at offset {offset} of log segment {damaged} (position {end}), though the log was durable up to \
         position {} when the record at position {} was written: {}",
        record.flushed,
        record.position,
        way_out(end)
    );
    Err(KvError::Corrupt { what })
}

/// What is behind a place without a valid record.
#[derive(Default)]
struct Behind {
    /// A record that says the log was durable beyond that place.
    witness: Option<RecordHeader>,
    /// Valid records, up to the witness.
    records: u64,
}

/// Where the next magic of a record is, from `offset` on.
fn find_magic(segment: &Segment, offset: usize) -> Option<usize> {
    segment.data.iter().find_map(|range| {
        let start = range.start.max(offset);
        let found = memmem::find(segment.bytes.get(start..range.end)?, &RECORD_MAGIC)?;
        Some(start + found)
    })
}

/// Looks through `segment`, up to `limit`, for what is behind `end`.
fn look_behind(dir: &LogDir, segment: &Segment, end: u64, limit: Option<u64>) -> Behind {
    let seed = dir.identity.seed();
    let first = segment.name.first;
    let mut behind = Behind::default();
    let start = file_offset(first, end.max(first)) as usize;
    let mut offset = start;
    while let Some(found) = find_magic(segment, offset) {
        offset = found;
        let position = first + (offset - SEGMENT_HEADER_BYTES) as u64;
        if limit.is_some_and(|limit| position >= limit) {
            break;
        }
        let mut step = 1;
        if (offset - start).is_multiple_of(RECORD_ALIGN)
            && let Some((record, _)) = RecordHeader::check(&segment.bytes[offset..], seed)
            && record.position == position
            && segment.header.is_none_or(|header| header.nonce == record.nonce)
        {
            if record.flushed > end {
                return Behind { witness: Some(record), ..behind };
            }
            behind.records += 1;
            step = record.record_bytes();
        }
        offset += step;
    }
    behind
}
