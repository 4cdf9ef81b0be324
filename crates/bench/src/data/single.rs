//! One request after the other: pread(2) and pwrite(2).

use super::{Action, Part, stamp};
use crate::BenchError;
use crate::buffer::AlignedBuffer;
use crate::crew::Tally;
use std::os::unix::fs::FileExt;
use std::time::Instant;

impl Part<'_> {
    /// Goes through the records of `thread`.
    pub fn single(&self, thread: usize) -> Result<Tally, BenchError> {
        let number = self.file_number(thread);
        let mut buffer = AlignedBuffer::noise(self.plan.record_bytes as usize, thread as u64)?;
        let (mut tally, mut places) = (Tally::default(), self.places(thread));
        self.line.start()?;
        places.begin();
        for offset in places {
            self.line.check()?;
            let record = buffer.as_mut_slice();
            let begin = Instant::now();
            match self.action {
                Action::Write => {
                    stamp::put(record, self.stamped, number, offset);
                    let moved =
                        self.file.write_at(record, offset).map_err(BenchError::io("write", self.path))?;
                    self.check_length(offset, moved as u64)?;
                    tally.add(begin.elapsed(), self.plan.record_bytes);
                }
                Action::Read => {
                    let moved =
                        self.file.read_at(record, offset).map_err(BenchError::io("read", self.path))?;
                    self.check_length(offset, moved as u64)?;
                    tally.add(begin.elapsed(), self.plan.record_bytes);
                    self.check_content(number, offset, record)?;
                }
            }
        }
        Ok(tally)
    }
}
