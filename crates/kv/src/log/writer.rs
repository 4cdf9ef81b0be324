//! Appends records, one write each, and moves on to the next segment.
//!
//! ```text
//!   spare ──header, rename──> active ──roll──> sealed ──checkpoint behind it──> spare or removed
//! ```
//!
//! Only the length of a new file is synced here. A segment is born as a spare file, gets its header and is renamed to its position; both become
//! durable with the first flush that covers a record in it. Spare files keep their blocks, so that the log does not
//! allocate while it is written, and a full disk does not stop it at once.

use super::format::{
    GROUP_BYTES_MAX, RECORD_ALIGN, RECORD_HEADER_BYTES, RecordBuffer, RecordHeader, SEGMENT_HEADER_BYTES,
    SegmentHeader, body_bytes,
};
use super::segment::{LogDir, SegmentFile, file_offset};
use crate::{Frame, KvError};
use ashlar_env::{Entropy, OpenMode};
use bytes::Bytes;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

// LIMIT: spare segments kept for reuse; more are removed.
const SPARES_MAX: usize = 3;

// LIMIT: the shortest segment that a log on a full disk goes on in: some thousand deletes.
const SEGMENT_BYTES_MIN: u64 = 1 << 20;

/// The number of the spare file that an open makes.
pub(crate) const FIRST_SPARE: u64 = 1;

/// A segment that takes no more records.
#[derive(Clone)]
pub(crate) struct SealedSegment {
    pub(crate) segment: SegmentFile,
    /// Position behind its last record.
    pub(crate) end: u64,
}

/// The writing end of a log. Not shared: it lives under the lane's exclusive lock.
pub(crate) struct LogWriter {
    dir: LogDir,
    entropy: Arc<dyn Entropy>,
    seed: u32,
    segment_bytes: u64,
    active: SegmentFile,
    nonce: u64,
    end: u64,
    begun: Option<SegmentFile>,
    sealed: VecDeque<SealedSegment>,
    spares: Vec<SegmentFile>,
    spare_number: u64,
    buffer: RecordBuffer,
    /// The highest watermark in a record so far.
    flushed_logged: u64,
    /// Groups up to the end.
    sequence: u64,
    /// Drawn at random, also whenever something was taken back.
    generation: u64,
}

impl LogWriter {
    /// Begins a log at `position`, behind group `sequence`, with a segment of its own, made of `spare`, over whatever had its name. Nothing is durable yet.
    pub(crate) fn create(
        dir: LogDir,
        entropy: Arc<dyn Entropy>,
        segment_bytes: u64,
        (position, sequence): (u64, u64),
        spare: SegmentFile,
    ) -> Result<LogWriter, KvError> {
        let nonce = entropy.next_u64();
        let active = begin_segment(&dir, spare, (position, sequence), nonce)?;
        let seed = dir.identity.seed();
        Ok(LogWriter {
            dir,
            entropy,
            seed,
            segment_bytes,
            active,
            nonce,
            end: position,
            begun: None,
            sealed: VecDeque::new(),
            spares: Vec::new(),
            // INVARIANT: no other spare is there when the next is made: an open removes those it finds.
            spare_number: FIRST_SPARE,
            buffer: RecordBuffer::default(),
            flushed_logged: position,
            sequence,
            generation: nonce,
        })
    }

    /// Puts segments of earlier, in stream order, before the first one: what is in them can still be read.
    pub(crate) fn keep_before(&mut self, earlier: Vec<SealedSegment>) {
        self.sealed = earlier.into();
    }

    /// The segments, in stream order, and where each ends.
    pub(crate) fn segments(&self) -> impl DoubleEndedIterator<Item = (&SegmentFile, u64)> {
        let sealed = self.sealed.iter().map(|sealed| (&sealed.segment, sealed.end));
        sealed.chain(std::iter::once((&self.active, self.end)))
    }

    /// Goes back to `position`, behind group `sequence`: what comes next is in a segment made of `spare`. Hands over the segments that are in the way; they are to
    /// be removed, the newest first, before this is called.
    pub(crate) fn go_back(
        &mut self,
        (position, sequence): (u64, u64),
        spare: SegmentFile,
    ) -> Result<(), KvError> {
        let nonce = self.entropy.next_u64();
        let next = begin_segment(&self.dir, spare, (position, sequence), nonce)?;
        let last = std::mem::replace(&mut self.active, next.clone());
        self.sealed.push_back(SealedSegment { segment: last, end: self.end });
        self.sealed.retain(|sealed| sealed.segment.first < position);
        if let Some(cut) = self.sealed.back_mut() {
            cut.end = cut.end.min(position);
        }
        (self.end, self.nonce, self.sequence, self.begun) = (position, nonce, sequence, Some(next));
        self.flushed_logged = self.flushed_logged.min(position);
        self.generation = nonce;
        Ok(())
    }

    /// Which log this is: another one after something was taken back.
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// Position behind the last record.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    pub(crate) fn active(&self) -> &SegmentFile {
        &self.active
    }

    /// Bytes of the stream that segments on disk hold.
    pub(crate) fn bytes(&self) -> u64 {
        self.end - self.sealed.front().map_or(self.active.first, |oldest| oldest.segment.first)
    }

    /// Whether there are segments that take no more records.
    pub(crate) fn has_sealed(&self) -> bool {
        !self.sealed.is_empty()
    }

    /// Whether the next group may find neither room nor a spare segment: time to wait for one.
    pub(crate) fn is_nearly_full(&self) -> bool {
        let group = (RECORD_HEADER_BYTES + GROUP_BYTES_MAX).next_multiple_of(RECORD_ALIGN) as u64;
        // With segments as short as a group the longest ones still wait for a file of their own.
        self.spares.is_empty() && self.room() < group.min(self.segment_bytes / 4)
    }

    /// Whether there is a spare segment.
    pub(crate) fn has_spare(&self) -> bool {
        !self.spares.is_empty()
    }

    /// Whether it is time to have a spare segment ready.
    pub(crate) fn wants_spare(&self) -> bool {
        self.spares.is_empty() && (self.end - self.active.first) * 2 > self.active.file_bytes
    }

    /// Whether a record that carries `flushed` would tell replay something new.
    pub(crate) fn wants_mark(&self, flushed: u64) -> bool {
        flushed > self.flushed_logged
    }

    /// Bytes left in the active segment.
    fn room(&self) -> u64 {
        self.active.file_bytes.saturating_sub(file_offset(self.active.first, self.end))
    }

    /// Appends one group; `sequences` numbers its frames. `flushed` is what is durable by now. Answers the position behind it, and its frames as they were written if
    /// `wants_body`.
    ///
    /// The segment that [`LogWriter::missing_segment`] asks for was added before. On [`KvError::Invalid`] and [`KvError::NoSpace`] the log is
    /// as before; after [`KvError::Io`] it must not be used.
    pub(crate) fn append(
        &mut self,
        frames: &[Frame],
        sequences: &[u64],
        flushed: u64,
        wants_body: bool,
    ) -> Result<(u64, Option<Bytes>), KvError> {
        let header = self.header(frames, flushed)?;
        self.make_room(header.record_bytes() as u64)?;
        let header = RecordHeader { nonce: self.nonce, ..header };
        let written = self.write_record(&header, frames, sequences);
        let is_body_wanted = wants_body && written.is_ok();
        let body = is_body_wanted.then(|| self.buffer.body(header.body_bytes as usize));
        self.buffer.shrink();
        written.map(|()| (self.end, body))
    }

    fn header(&self, frames: &[Frame], flushed: u64) -> Result<RecordHeader, KvError> {
        let body = body_bytes(frames);
        if body > GROUP_BYTES_MAX {
            let what = format!("{body} bytes in one group, {GROUP_BYTES_MAX} are the most");
            return Err(KvError::Invalid { what });
        }
        Ok(RecordHeader {
            body_bytes: body as u32,
            position: self.end,
            flushed,
            nonce: self.nonce,
            frames: frames.len() as u32,
        })
    }

    /// Bytes of the file that must be added before `frames` can be appended; nothing when there is room, or a spare that is long enough.
    ///
    /// # Errors
    /// [`KvError::Invalid`] for a group that is too long for any.
    pub(crate) fn missing_segment(&self, frames: &[Frame]) -> Result<Option<u64>, KvError> {
        let bytes = self.header(frames, 0)?.record_bytes() as u64;
        let file_bytes = self.file_bytes_for(bytes);
        let is_there = bytes <= self.room() || self.spares.iter().any(|spare| spare.file_bytes >= file_bytes);
        Ok((!is_there).then_some(file_bytes))
    }

    /// Length of a file in which a record of `bytes` has room.
    fn file_bytes_for(&self, bytes: u64) -> u64 {
        self.segment_bytes.max(SEGMENT_HEADER_BYTES as u64 + bytes)
    }

    /// The segment begun since this was asked last, even if the append that needed it failed.
    pub(crate) fn take_begun(&mut self) -> Option<SegmentFile> {
        self.begun.take()
    }

    /// Appends a record without frames, so that replay knows how far the log was durable; nothing when the segment is full.
    pub(crate) fn append_mark(&mut self, flushed: u64) -> Result<(), KvError> {
        let header =
            RecordHeader { body_bytes: 0, position: self.end, flushed, nonce: self.nonce, frames: 0 };
        if self.room() < header.record_bytes() as u64 {
            return Ok(());
        }
        self.write_record(&header, &[], &[])
    }

    fn write_record(
        &mut self,
        header: &RecordHeader,
        frames: &[Frame],
        sequences: &[u64],
    ) -> Result<(), KvError> {
        self.buffer.encode(self.seed, header, frames, sequences);
        let offset = file_offset(self.active.first, self.end);
        let written = match self.buffer.as_slice() {
            Some(bytes) => self.active.file.write_at(offset, bytes),
            None => self.active.file.write_vectored_at(offset, &self.buffer.parts()),
        };
        // Part of the record may be there after an error. Without space it will be overwritten by the next one; until then it
        // is a torn tail.
        written.map_err(|e| write_error("append to log segment", self.dir.describe(&self.active.path), e))?;
        self.end += header.record_bytes() as u64;
        self.sequence += u64::from(header.frames > 0);
        self.flushed_logged = self.flushed_logged.max(header.flushed);
        Ok(())
    }

    /// Begins the next segment if `bytes` do not fit into this one.
    fn make_room(&mut self, bytes: u64) -> Result<(), KvError> {
        if bytes <= self.room() {
            return Ok(());
        }
        let file_bytes = self.file_bytes_for(bytes);
        let fitting = self.spares.iter().rposition(|spare| spare.file_bytes >= file_bytes);
        // INVARIANT: not made here, where others wait for the lock: see `missing_segment`.
        let spare = fitting.map(|index| self.spares.swap_remove(index));
        let spare =
            spare.ok_or_else(|| KvError::Invalid { what: "no segment was made for it".to_owned() })?;
        let nonce = self.entropy.next_u64();
        let next = begin_segment(&self.dir, spare, (self.end, self.sequence), nonce)?;
        let full = std::mem::replace(&mut self.active, next.clone());
        // A segment without records had the name of the new one and is gone: the group did not fit into an empty segment.
        if full.first < self.end {
            self.sealed.push_back(SealedSegment { segment: full, end: self.end });
        }
        self.nonce = nonce;
        self.begun = Some(next);
        Ok(())
    }

    /// A number for a spare file made outside the lock.
    pub(crate) fn reserve_spare_number(&mut self) -> u64 {
        self.spare_number += 1;
        self.spare_number
    }

    /// Takes the spare for the next append, whatever the stock.
    pub(crate) fn add_spare(&mut self, spare: SegmentFile) {
        self.spares.push(spare);
    }

    /// Hands over a spare, if there is one.
    pub(crate) fn take_spare(&mut self) -> Option<SegmentFile> {
        self.spares.pop()
    }

    /// Takes a spare into stock; gives it back when there are enough.
    pub(crate) fn stock_spare(&mut self, spare: SegmentFile) -> Option<SegmentFile> {
        if self.spares.len() >= SPARES_MAX {
            return Some(spare);
        }
        self.spares.push(spare);
        None
    }

    /// Hands over the sealed segments that end at `position` or before.
    pub(crate) fn take_sealed_before(&mut self, position: u64) -> Vec<SealedSegment> {
        let count = self.sealed.iter().take_while(|sealed| sealed.end <= position).count();
        self.sealed.drain(..count).collect()
    }

    pub(crate) fn segment_bytes(&self) -> u64 {
        self.segment_bytes
    }
}

/// A file of `spares`, which an earlier run has left, with `file_bytes` of reserved blocks.
pub(crate) fn find_spare(
    dir: &LogDir,
    spares: &[String],
    file_bytes: u64,
) -> Result<Option<SegmentFile>, KvError> {
    for path in spares {
        let found = dir.disk.open(path, OpenMode::ReadWrite).and_then(|file| {
            let len = file.len()?;
            if len >= file_bytes {
                // Of a whole spare no block is missing.
                file.allocate(0, len)?;
                file.sync_data()?;
            }
            Ok((len >= file_bytes).then_some((file, len)))
        });
        match found {
            Ok(Some((file, len))) => {
                return Ok(Some(SegmentFile {
                    file,
                    path: path.clone(),
                    first: 0,
                    file_bytes: len,
                    from: 0,
                    behind: 0,
                }));
            }
            Ok(None) => {}
            // One that is removed since it was listed, or was cut short, does not help.
            Err(error) if error.kind() == io::ErrorKind::NotFound || is_out_of_space(&error) => {}
            Err(error) => return Err(write_error("look at log segment", dir.describe(path), error)),
        }
    }
    Ok(None)
}

/// Makes a file of `file_bytes` with its blocks reserved, under a number reserved before. `NoSpace` leaves nothing behind.
pub(crate) fn create_spare_numbered(
    dir: &LogDir,
    number: u64,
    file_bytes: u64,
) -> Result<SegmentFile, KvError> {
    let path = dir.spare_path(number);
    let made = dir.disk.open(&path, OpenMode::CreateOrOpen).and_then(|file| {
        file.allocate(0, file_bytes)?;
        // ORDER: durable before the file is a segment, so that no power cut makes a segment short and a short one is damage.
        file.sync_data()?;
        Ok(file)
    });
    match made {
        Ok(file) => Ok(SegmentFile { file, path, first: 0, file_bytes, from: 0, behind: 0 }),
        Err(error) => {
            if is_out_of_space(&error)
                && let Err(error) = dir.disk.remove(&path)
            {
                // It may hold part of its blocks until the lane is opened again.
                tracing::warn!(file = dir.describe(&path), %error, "could not remove a half-made log segment");
            }
            Err(write_error("reserve the next log segment", dir.describe(&path), error))
        }
    }
}

/// As [`create_spare_numbered`], as long as there is space for it, up to `file_bytes`.
pub(crate) fn create_spare_in_what_is_free(
    dir: &LogDir,
    number: u64,
    file_bytes: u64,
) -> Result<SegmentFile, KvError> {
    let mut bytes = file_bytes;
    loop {
        match create_spare_numbered(dir, number, bytes) {
            Err(KvError::NoSpace { .. }) if bytes / 2 >= SEGMENT_BYTES_MIN => bytes /= 2,
            Ok(spare) if bytes < file_bytes => {
                tracing::warn!(bytes, "the disk is full: the log goes on in a short segment");
                return Ok(spare);
            }
            made => return made,
        }
    }
}

fn write_error(what: &str, path: String, error: io::Error) -> KvError {
    if is_out_of_space(&error) {
        return KvError::NoSpace { what: format!("{what} {path}: {error}") };
    }
    KvError::io(format!("{what} {path}"), error)
}

/// Whether the local file system is full, or a quota on it.
pub(crate) fn is_out_of_space(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Turns a spare file into the segment of `first`, behind group `behind`.
fn begin_segment(
    dir: &LogDir,
    spare: SegmentFile,
    (first, behind): (u64, u64),
    nonce: u64,
) -> Result<SegmentFile, KvError> {
    let path = dir.segment_path(first);
    let file_bytes = Some(spare.file_bytes);
    let header = SegmentHeader { identity: dir.identity, first, nonce, file_bytes };
    // ORDER: the header is written under the spare's name, so that no process ever finds a segment's name without one. After a
    // power cut it may: replay takes a segment without a header for the end of the log if nothing in it was ever flushed.
    let begun = spare.file.write_at(0, &header.encode()).and_then(|()| dir.disk.rename(&spare.path, &path));
    begun.map_err(|e| write_error("begin log segment", dir.describe(&path), e))?;
    Ok(SegmentFile { path, first, from: first, behind, ..spare })
}
