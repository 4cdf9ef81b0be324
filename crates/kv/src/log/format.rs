//! Log bytes: segment headers and records (`docs/formats/log.md` is the authority). All integers are little-endian.
//!
//! A record's checksum covers, besides the record, the file system, the lane, the position and the segment's nonce: bytes
//! that a recycled segment, an abandoned tail or another lane left behind never pass as a record of this place.

use crate::{Frame, KEY_BYTES_MAX, Key, VALUE_BYTES_MAX, WriteSet};
use ashlar_types::codec::crc32c;
use ashlar_types::{ClusterId, Epoch, OpId, SessionId, ShardId};
use bytes::Bytes;

/// First bytes of a segment.
pub const SEGMENT_MAGIC: [u8; 8] = *b"ASHLRLOG";
/// The format this module writes and the newest it reads.
pub const FORMAT_VERSION: u32 = 1;
/// Bytes before the first record of a segment.
pub const SEGMENT_HEADER_BYTES: usize = 4096;
/// Bytes of a segment header that every release has written.
const HEADER_FIRST: usize = 52;
/// Bytes of a segment header that carry something.
const HEADER_USED: usize = 64;
/// First bytes of a record.
pub const RECORD_MAGIC: [u8; 4] = *b"GRP1";
/// Bytes of a record before its frames.
pub const RECORD_HEADER_BYTES: usize = 40;
/// Records begin at multiples of this.
pub const RECORD_ALIGN: usize = 8;
// LIMIT: longest body of a record; a commit above it is refused. It bounds memory at replay and the size of a segment.
/// Longest frames of one group together, bytes.
pub const GROUP_BYTES_MAX: usize = 16 << 20;
/// Bytes of a frame besides its reply and writes.
const FRAME_FIXED: usize = 48;
/// Bytes of a write besides its key and value.
const WRITE_FIXED: usize = 6;
/// The value length that stands for a deletion.
const DELETED: u32 = u32::MAX;
/// Values of this length and more are written from where they are instead of being copied into the record's buffer.
const SPLICE_BYTES_MIN: usize = 4096;

/// Whose log it is; part of every checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogIdentity {
    /// The file system.
    pub cluster: ClusterId,
    /// The lane's number in its server.
    pub lane: u32,
}

impl LogIdentity {
    /// The checksum of the identity, with which every record's checksum begins.
    pub fn seed(&self) -> u32 {
        crc32c(crc32c(0, &self.cluster.0), &self.lane.to_le_bytes())
    }
}

/// The head of a segment file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentHeader {
    /// Whose log.
    pub identity: LogIdentity,
    /// Position of the first record.
    pub first: u64,
    /// Drawn at random for this use of the file; every record in it carries it.
    pub nonce: u64,
    /// Length of the file; durable before the header is written. `None` in segments of early releases, which do not tell.
    pub file_bytes: Option<u64>,
}

/// Why bytes are not a segment header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderFault {
    /// Magic or checksum do not match: never written, torn or damaged.
    Invalid,
    /// Whole, but of this newer format.
    Version(u32),
}

impl SegmentHeader {
    /// The header as it is written.
    pub fn encode(&self) -> [u8; SEGMENT_HEADER_BYTES] {
        let mut out = [0; SEGMENT_HEADER_BYTES];
        out[0..8].copy_from_slice(&SEGMENT_MAGIC);
        out[8..12].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
        out[12..16].copy_from_slice(&self.identity.lane.to_le_bytes());
        out[16..32].copy_from_slice(&self.identity.cluster.0);
        out[32..40].copy_from_slice(&self.first.to_le_bytes());
        out[40..48].copy_from_slice(&self.nonce.to_le_bytes());
        let crc = crc32c(0, &out[..48]);
        out[48..HEADER_FIRST].copy_from_slice(&crc.to_le_bytes());
        if let Some(file_bytes) = self.file_bytes {
            out[56..HEADER_USED].copy_from_slice(&file_bytes.to_le_bytes());
            let crc = crc32c(crc, &out[56..HEADER_USED]);
            out[HEADER_FIRST..56].copy_from_slice(&crc.to_le_bytes());
        }
        out
    }

    /// Reads a header.
    ///
    /// # Errors
    /// [`HeaderFault`].
    pub fn decode(bytes: &[u8]) -> Result<SegmentHeader, HeaderFault> {
        let mut input = Input(bytes);
        let whole = bytes.len() >= HEADER_USED
            && bytes[..8] == SEGMENT_MAGIC
            && bytes[48..HEADER_FIRST] == crc32c(0, &bytes[..48]).to_le_bytes();
        if !whole {
            return Err(HeaderFault::Invalid);
        }
        let mut tail = Input(&bytes[HEADER_FIRST..HEADER_USED]);
        let (crc, file_bytes) = tail.u32().zip(tail.u64()).ok_or(HeaderFault::Invalid)?;
        let expected = crc32c(crc32c(0, &bytes[..48]), &bytes[56..HEADER_USED]);
        let file_bytes = match (crc, file_bytes) {
            (0, 0) => None,
            (crc, file_bytes) if crc == expected => Some(file_bytes),
            _ => return Err(HeaderFault::Invalid),
        };
        let read = |input: &mut Input<'_>| {
            let _magic = input.take(8)?;
            let version = input.u32()?;
            let lane = input.u32()?;
            let cluster = ClusterId(input.take(16)?.try_into().ok()?);
            let identity = LogIdentity { cluster, lane };
            Some((version, SegmentHeader { identity, first: input.u64()?, nonce: input.u64()?, file_bytes }))
        };
        match read(&mut input).ok_or(HeaderFault::Invalid)? {
            (FORMAT_VERSION, header) => Ok(header),
            (version, _) => Err(HeaderFault::Version(version)),
        }
    }
}

/// The head of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordHeader {
    /// Bytes of the frames.
    pub body_bytes: u32,
    /// Where the record begins in the stream.
    pub position: u64,
    /// Everything before this position was durable when the record was written; a fault there is damage, not a torn tail.
    pub flushed: u64,
    /// The segment's nonce.
    pub nonce: u64,
    /// Frames in the group; 0 marks a record that only carries `flushed`.
    pub frames: u32,
}

impl RecordHeader {
    /// Bytes of the whole record, with its padding.
    pub fn record_bytes(&self) -> usize {
        (RECORD_HEADER_BYTES + self.body_bytes as usize).next_multiple_of(RECORD_ALIGN)
    }

    /// The header without its checksum.
    fn encode(&self) -> [u8; 36] {
        let mut out = [0; 36];
        out[0..4].copy_from_slice(&RECORD_MAGIC);
        out[4..8].copy_from_slice(&self.body_bytes.to_le_bytes());
        out[8..16].copy_from_slice(&self.position.to_le_bytes());
        out[16..24].copy_from_slice(&self.flushed.to_le_bytes());
        out[24..32].copy_from_slice(&self.nonce.to_le_bytes());
        out[32..36].copy_from_slice(&self.frames.to_le_bytes());
        out
    }

    /// The header and frames of the record at the start of `bytes`; `None` when there is no whole, undamaged one. A record
    /// of another file system or lane is none.
    pub fn check(bytes: &[u8], identity_seed: u32) -> Option<(RecordHeader, &[u8])> {
        let mut input = Input(bytes);
        if input.take(4)? != RECORD_MAGIC {
            return None;
        }
        let header = RecordHeader {
            body_bytes: input.u32()?,
            position: input.u64()?,
            flushed: input.u64()?,
            nonce: input.u64()?,
            frames: input.u32()?,
        };
        let crc = input.u32()?;
        if header.body_bytes as usize > GROUP_BYTES_MAX {
            return None;
        }
        let body = input.take(header.body_bytes as usize)?;
        let expected = crc32c(crc32c(identity_seed, &bytes[..36]), body);
        (crc == expected).then_some((header, body))
    }
}

/// One frame as it is in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoggedFrame {
    /// Its number in its shard, from 1, without gaps.
    pub sequence: u64,
    /// The frame.
    pub frame: Frame,
}

/// Bytes that the frames take in a record.
pub fn body_bytes(frames: &[Frame]) -> usize {
    frames.iter().map(frame_bytes).fold(0, usize::saturating_add)
}

fn frame_bytes(frame: &Frame) -> usize {
    let writes = frame.writes.0.iter();
    let writes: usize =
        writes.map(|(key, value)| WRITE_FIXED + key.len() + value.as_ref().map_or(0, Bytes::len)).sum();
    FRAME_FIXED + frame.reply.len() + writes
}

/// A record on its way to disk. Kept and reused, so that a commit allocates nothing.
#[derive(Debug, Default)]
pub struct RecordBuffer {
    bytes: Vec<u8>,
    /// Large values and the offset in `bytes` before which they belong.
    splices: Vec<(usize, Bytes)>,
}

impl RecordBuffer {
    /// Makes the record of `frames`; `header.body_bytes` must be [`body_bytes`] of them.
    pub fn encode(&mut self, seed: u32, header: &RecordHeader, frames: &[Frame], sequences: &[u64]) {
        self.bytes.clear();
        self.splices.clear();
        self.bytes.extend_from_slice(&header.encode());
        self.bytes.extend_from_slice(&[0; 4]);
        for (frame, sequence) in frames.iter().zip(sequences) {
            self.push_frame(frame, *sequence);
        }
        let padding = header.record_bytes() - RECORD_HEADER_BYTES - header.body_bytes as usize;
        let crc = self.checksum(seed);
        self.bytes.extend_from_slice(&[0; RECORD_ALIGN][..padding]);
        self.bytes[36..40].copy_from_slice(&crc.to_le_bytes());
    }

    fn push_frame(&mut self, frame: &Frame, sequence: u64) {
        let out = &mut self.bytes;
        out.extend_from_slice(&frame.shard.0.to_le_bytes());
        out.push(frame.verb);
        out.push(0);
        out.extend_from_slice(&(frame.writes.0.len() as u32).to_le_bytes());
        out.extend_from_slice(&frame.epoch.0.to_le_bytes());
        out.extend_from_slice(&frame.op.session.0.to_le_bytes());
        out.extend_from_slice(&frame.op.sequence.to_le_bytes());
        out.extend_from_slice(&sequence.to_le_bytes());
        out.extend_from_slice(&(frame.reply.len() as u32).to_le_bytes());
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&frame.reply);
        for (key, value) in &frame.writes.0 {
            let len = value.as_ref().map_or(DELETED, |value| value.len() as u32);
            out.extend_from_slice(&(key.len() as u16).to_le_bytes());
            out.extend_from_slice(&len.to_le_bytes());
            out.extend_from_slice(key);
            match value {
                Some(value) if value.len() >= SPLICE_BYTES_MIN => {
                    self.splices.push((out.len(), value.clone()));
                }
                Some(value) => out.extend_from_slice(value),
                None => {}
            }
        }
    }

    /// The checksum of what is in the buffer, without the checksum field.
    fn checksum(&self, seed: u32) -> u32 {
        let mut crc = crc32c(seed, &self.bytes[..36]);
        let mut from = RECORD_HEADER_BYTES;
        for (at, value) in &self.splices {
            crc = crc32c(crc32c(crc, &self.bytes[from..*at]), value);
            from = *at;
        }
        crc32c(crc, &self.bytes[from..])
    }

    /// The record in one piece, if it has no large value.
    pub fn as_slice(&self) -> Option<&[u8]> {
        self.splices.is_empty().then_some(&self.bytes[..])
    }

    /// The record in pieces.
    pub fn parts(&self) -> Vec<&[u8]> {
        let mut parts = Vec::with_capacity(2 * self.splices.len() + 1);
        let mut from = 0;
        for (at, value) in &self.splices {
            parts.push(&self.bytes[from..*at]);
            parts.push(value);
            from = *at;
        }
        parts.push(&self.bytes[from..]);
        parts
    }

    /// The frames of the record, `body_bytes` long, copied.
    pub fn body(&self, body_bytes: usize) -> Bytes {
        let mut body = Vec::with_capacity(body_bytes);
        let mut skip = RECORD_HEADER_BYTES;
        for part in self.parts() {
            body.extend_from_slice(&part[skip..]);
            skip = 0;
        }
        body.truncate(body_bytes);
        body.into()
    }

    /// Gives back memory after an unusually large group, and lets go of its values.
    pub fn shrink(&mut self) {
        // LIMIT: a buffer of 1 MiB is kept per lane.
        self.splices.clear();
        self.splices.shrink_to(64);
        self.bytes.shrink_to(1 << 20);
    }
}

/// Reads the frames of a record whose checksum is right; values and replies share `body`'s memory. `None` when the bytes are
/// not `count` frames within the limits of this crate, which only a faulty writer makes.
pub fn decode_frames(body: &Bytes, count: u32) -> Option<Vec<LoggedFrame>> {
    let mut input = Input(body);
    let possible = body.len() / FRAME_FIXED;
    let mut frames = Vec::with_capacity(possible.min(count as usize));
    for _ in 0..count {
        frames.push(decode_frame(&mut input, body)?);
    }
    input.0.is_empty().then_some(frames)
}

fn decode_frame(input: &mut Input<'_>, body: &Bytes) -> Option<LoggedFrame> {
    let shard = ShardId(input.u16()?);
    let verb = input.u8()?;
    let _flags = input.u8()?;
    let write_count = input.u32()? as usize;
    let epoch = Epoch(input.u64()?);
    let op = OpId { session: SessionId(input.u64()?), sequence: input.u64()? };
    let sequence = input.u64()?;
    let reply_bytes = input.u32()? as usize;
    let _reserved = input.take(4)?;
    let reply = body.slice_ref(input.take(reply_bytes)?);
    let mut writes = Vec::with_capacity(write_count.min(input.0.len() / WRITE_FIXED));
    for _ in 0..write_count {
        let (key_bytes, value_bytes) = (input.u16()? as usize, input.u32()?);
        if key_bytes > KEY_BYTES_MAX {
            return None;
        }
        let key = Key::from_slice(input.take(key_bytes)?);
        let value = match value_bytes {
            DELETED => None,
            len if len as usize > VALUE_BYTES_MAX => return None,
            len => Some(body.slice_ref(input.take(len as usize)?)),
        };
        writes.push((key, value));
    }
    let frame = Frame { shard, epoch, op, verb, writes: WriteSet(writes), reply };
    Some(LoggedFrame { sequence, frame })
}

/// Bytes still to be read; every read says whether there were enough.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn u8(&mut self) -> Option<u8> {
        Some(self.take(1)?[0])
    }

    fn u16(&mut self) -> Option<u16> {
        Some(u16::from_le_bytes(self.take(2)?.try_into().ok()?))
    }

    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?))
    }

    fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }
}
