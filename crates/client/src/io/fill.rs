//! Reads that fill pages of the kernel.
//!
//! A kernel that has not heard that another mount has made a file shorter asks for pages behind the end, several requests at a time. From an answer
//! that is short it takes the length: where that answer ended (`fuse_short_read`), and of the answers to requests sent together it only believes the first
//! (`fuse_read_update_size`, `attr_version`). Were that one to a request that begins behind the end, the file would be as long as up to there, and zeros
//! would be read that are not in it. So while there is a request that meets the end, whose short answer tells the length, those behind it are answered in
//! full, with zeros, which nobody sees.

use crate::client::Client;
use crate::file::{File, Handle};
use ashlar_types::Errno;
use smallvec::SmallVec;
use std::time::Duration;

/// For how long after its answer a request that met the end may not have reached the kernel yet.
const ANSWER_MAX: Duration = Duration::from_millis(20);

/// How often one that was sent before, but not taken up yet, is looked for, with [`PAUSE`] between.
const LOOKS_MAX: u32 = 5;

/// Between two looks.
const PAUSE: Duration = Duration::from_millis(1);

/// Requests for pages of one file; part of its state.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fills {
    /// Where those that are being answered begin.
    // LIMIT: the requests that the kernel has under way.
    under_way: SmallVec<[u64; 4]>,
    /// When the last one that met the end was answered.
    met_end: Option<Duration>,
}

/// One request, for as long as it is being answered.
struct Filling<'a> {
    file: &'a File,
    offset: u64,
}

impl<'a> Filling<'a> {
    fn begin(file: &'a File, offset: u64) -> Filling<'a> {
        file.state.lock().fills.under_way.push(offset);
        Filling { file, offset }
    }
}

impl Drop for Filling<'_> {
    fn drop(&mut self) {
        let under_way = &mut self.file.state.lock().fills.under_way;
        // One like another will do.
        if let Some(own) = under_way.iter().position(|offset| *offset == self.offset) {
            under_way.swap_remove(own);
        }
    }
}

impl Client {
    /// As [`Client::read`], to fill pages of the kernel: waits as [`Client::begin_pages`] does. What is behind the end of the file may be told to be zeros.
    ///
    /// # Errors
    /// As of both.
    pub fn fill_pages(&self, handle: &Handle, offset: u64, out: &mut [u8]) -> Result<usize, Errno> {
        let file = &*handle.file;
        self.begin_pages(file, offset, out.len() as u64)?;
        let _filling = Filling::begin(file, offset);
        let len = self.read(handle, offset, out)?;
        if len == out.len() {
            return Ok(len);
        }
        let now = self.env.clock.monotonic();
        let mut state = file.state.lock();
        if len > 0 || offset <= state.size {
            state.fills.met_end = Some(now);
            return Ok(len);
        }
        for _ in 0..LOOKS_MAX {
            let (size, fills) = (state.size, &state.fills);
            if fills.met_end.is_some_and(|at| now.saturating_sub(at) < ANSWER_MAX)
                || fills.under_way.iter().any(|&other| other <= size)
            {
                out.fill(0);
                return Ok(out.len());
            }
            file.changed.wait_for(&mut state, PAUSE);
        }
        Ok(0)
    }
}
