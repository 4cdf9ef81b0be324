//! `copy_file_range`.

use super::seek::Seek;
use super::write::WriteFlags;
use crate::client::Client;
use crate::file::Handle;
use ashlar_types::Errno;
use ashlar_types::message::LeaseSet;

/// Bytes moved at a time.
const COPY_BYTES: usize = 1 << 20;

impl Client {
    /// Copies up to `len` bytes between two open files without a round trip through the program; holes stay holes where the target
    /// has nothing either. Tells how many bytes were copied, fewer than asked for at the end of the source.
    ///
    /// # Errors
    /// As `copy_file_range(2)`, when nothing was copied.
    pub fn copy_file_range(
        &self,
        (from, from_offset): (&Handle, u64),
        (to, to_offset): (&Handle, u64),
        len: u64,
    ) -> Result<u64, Errno> {
        let mut buffer = vec![0; COPY_BYTES.min(usize::try_from(len).unwrap_or(COPY_BYTES))];
        let mut done = 0;
        while done < len {
            let want = usize::try_from(len - done).unwrap_or(COPY_BYTES).min(buffer.len());
            let step =
                self.copy_piece((from, from_offset + done), (to, to_offset + done), &mut buffer[..want]);
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
        (from, at): (&Handle, u64),
        (to, to_at): (&Handle, u64),
        buffer: &mut [u8],
    ) -> Result<usize, Errno> {
        let is_hole = |got: usize| match self.seek(from, at, Seek::Data) {
            Ok(data) => data >= at + got as u64,
            Err(_) => true,
        };
        let got = self.read(from, at, buffer)?;
        if got > 0 && self.ends_before(to, to_at)? && is_hole(got) {
            // The last byte makes the size; everything before it stays a hole.
            return self.write(to, to_at + got as u64 - 1, &[0], WriteFlags::default()).map(|_| got);
        }
        self.write(to, to_at, &buffer[..got], WriteFlags::default())
    }

    /// Whether a file has nothing at `offset` and behind. Asked under a lease: the length as last known may be old.
    fn ends_before(&self, to: &Handle, offset: u64) -> Result<bool, Errno> {
        let (_in_flight, state) = self.begin(&to.file, LeaseSet::READ)?;
        let ends_before = state.size <= offset;
        drop(state);
        Ok(ends_before)
    }
}
