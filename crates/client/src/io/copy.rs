//! `copy_file_range`.

use super::seek::Seek;
use super::write::WriteFlags;
use crate::call::Who;
use crate::client::Client;
use crate::file::Handle;
use crate::pages::Stretch;
use ashlar_types::Errno;
use ashlar_types::message::LeaseSet;

/// Bytes moved at a time.
const COPY_BYTES: usize = 1 << 20;
/// LIMIT: bytes copied by one call: whoever carries it out has others waiting, and `copy_file_range(2)` may do less than was asked.
const COPY_BYTES_MAX: u64 = 4 << 20;

impl Client {
    /// Copies up to `len` bytes between two open files without a round trip through the program; holes stay holes where the target
    /// has nothing either. Tells how many bytes were copied, fewer than asked for at the end of the source and where it is much. They go to
    /// `to_offset` however the target was opened: the kernel refuses a target that is in append mode now.
    ///
    /// # Errors
    /// As `copy_file_range(2)`, when nothing was copied.
    pub fn copy_file_range(
        &self,
        who: &Who,
        (from, from_offset): (&Handle, u64),
        (to, to_offset): (&Handle, u64),
        len: u64,
    ) -> Result<u64, Errno> {
        let len = len.min(COPY_BYTES_MAX);
        let flags = WriteFlags { append: Some(false), ..WriteFlags::on_behalf_of(who) };
        let mut buffer = vec![0; COPY_BYTES.min(usize::try_from(len).unwrap_or(COPY_BYTES))];
        let mut done = 0;
        while done < len {
            let want = usize::try_from(len - done).unwrap_or(COPY_BYTES).min(buffer.len());
            let step = self.copy_piece(
                who,
                (from, from_offset + done),
                (to, to_offset + done),
                &mut buffer[..want],
                flags,
            );
            match step {
                Ok(0) => break,
                Ok(copied) => done += copied as u64,
                Err(errno) if done == 0 => return Err(errno),
                Err(_) => break,
            }
        }
        Ok(done)
    }

    fn copy_piece(
        &self,
        who: &Who,
        (from, at): (&Handle, u64),
        (to, to_at): (&Handle, u64),
        buffer: &mut [u8],
        flags: WriteFlags,
    ) -> Result<usize, Errno> {
        let got = self.read(from, at, buffer)?;
        // What was read counts: by the time of the second question the source may be another. Where it does not answer that, zeros are zeros.
        let is_hole = || {
            let data = self.seek(from, at, Seek::Data).unwrap_or(u64::MAX);
            buffer[..got].iter().all(|byte| *byte == 0) && data >= at + got as u64
        };
        if got > 0 && self.ends_before(to, to_at)? && is_hole() {
            // The last byte makes the size; everything before it stays a hole.
            return self.write_whole(who, to, to_at + got as u64 - 1, &[0], flags).map(|_| got);
        }
        self.write_whole(who, to, to_at, &buffer[..got], flags)
    }

    /// Whether a program on this client may be storing into a page of what a copy of `len` bytes to `offset` would change: the kernel may have some, and
    /// somebody has the file open for reading and writing.
    pub fn may_be_stored_into(&self, handle: &Handle, offset: u64, len: u64) -> bool {
        let state = handle.file.state.lock();
        state.storers > 0 && state.pages.may_have(Stretch::of_pages(offset, len.min(COPY_BYTES_MAX)))
    }

    /// Whether a file has nothing at `offset` and behind. Asked under a lease: the length as last known may be old.
    fn ends_before(&self, to: &Handle, offset: u64) -> Result<bool, Errno> {
        let (_in_flight, state) = self.begin(&to.file, LeaseSet::READ)?;
        let ends_before = state.size <= offset;
        drop(state);
        Ok(ends_before)
    }
}
