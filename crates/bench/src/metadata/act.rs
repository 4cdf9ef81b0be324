//! What one thread does with one file.

use super::Step;
use crate::BenchError;
use crate::crew::Tally;
use rustix::fs::{AtFlags, Mode, OFlags, Timespec, Timestamps};
use std::ffi::CStr;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// The time that utime sets: 2001-09-09, no time a file has by itself.
const PAST: Timespec = Timespec { tv_sec: 1_000_000_000, tv_nsec: 0 };

/// A thread at work in a directory.
pub struct Actor<'a> {
    directory: &'a OwnedFd,
    path: &'a Path,
    content: &'a [u8],
    has_fsync: bool,
    /// One byte more than a file has, so that a longer one is seen.
    read: Vec<u8>,
}

impl<'a> Actor<'a> {
    /// For files in `directory`, which is `path`, with `content`.
    pub fn new(directory: &'a OwnedFd, path: &'a Path, content: &'a [u8], has_fsync: bool) -> Actor<'a> {
        Actor { directory, path, content, has_fsync, read: vec![0; content.len() + 1] }
    }

    /// Does `step` with the file `name`, and adds it to `tally`. What is read is looked at after the time was taken.
    pub fn timed(&mut self, step: Step, name: &CStr, mut tally: Tally) -> Result<Tally, BenchError> {
        let begin = Instant::now();
        let read = self.step(step, name)?;
        let latency = begin.elapsed();
        if let Some(len) = read
            && self.read[..len] != *self.content
        {
            let same = self.read[..len].iter().zip(self.content).position(|(a, b)| a != b);
            let offset = same.unwrap_or(len.min(self.content.len())) as u64;
            return Err(BenchError::Wrong { path: self.full(name), offset });
        }
        let moves = matches!(step, Step::Create | Step::Read);
        tally.add(latency, if moves { self.content.len() as u64 } else { 0 });
        Ok(tally)
    }

    fn full(&self, name: &CStr) -> PathBuf {
        self.path.join(name.to_string_lossy().as_ref())
    }

    /// Bytes that were read, if that is what is done.
    fn step(&mut self, step: Step, name: &CStr) -> Result<Option<usize>, BenchError> {
        let full = || self.full(name);
        match step {
            Step::Create => self.create(name)?,
            Step::Stat => {
                rustix::fs::statat(self.directory, name, AtFlags::empty())
                    .map_err(|errno| BenchError::errno("stat", &full())(errno))?;
            }
            Step::Read => return self.read(name).map(Some),
            Step::Utime => {
                let times = Timestamps { last_access: PAST, last_modification: PAST };
                rustix::fs::utimensat(self.directory, name, &times, AtFlags::empty())
                    .map_err(|errno| BenchError::errno("set the times of", &full())(errno))?;
            }
            Step::Remove => {
                rustix::fs::unlinkat(self.directory, name, AtFlags::empty())
                    .map_err(|errno| BenchError::errno("remove", &full())(errno))?;
            }
        }
        Ok(None)
    }

    fn open(&self, name: &CStr, flags: OFlags) -> Result<File, BenchError> {
        rustix::fs::openat(self.directory, name, flags | OFlags::CLOEXEC, Mode::from_raw_mode(0o644))
            .map(File::from)
            .map_err(|errno| BenchError::errno("open", &self.full(name))(errno))
    }

    fn create(&self, name: &CStr) -> Result<(), BenchError> {
        let mut file = self.open(name, OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY)?;
        if !self.content.is_empty() {
            file.write_all(self.content).map_err(|error| BenchError::io("write", &self.full(name))(error))?;
        }
        if self.has_fsync {
            file.sync_all().map_err(|error| BenchError::io("fsync", &self.full(name))(error))?;
        }
        self.close(name, file)
    }

    fn read(&mut self, name: &CStr) -> Result<usize, BenchError> {
        let mut file = self.open(name, OFlags::RDONLY)?;
        let mut len = 0;
        // An empty file is opened and closed, and not read, as mdtest does.
        while !self.content.is_empty() && len < self.read.len() {
            match file.read(&mut self.read[len..]) {
                Ok(0) => break,
                Ok(more) => len += more,
                Err(error) => return Err(BenchError::io("read", &self.full(name))(error)),
            }
            if len == self.content.len() {
                // What would come now is the end, which costs a call more than mdtest makes.
                break;
            }
        }
        self.close(name, file)?;
        Ok(len)
    }

    /// What close(2) answers counts: a network file system tells there what went wrong before.
    fn close(&self, name: &CStr, file: File) -> Result<(), BenchError> {
        // SAFETY: the descriptor is ours, and `into_raw_fd` leaves it to nobody else.
        let closed = unsafe { libc::close(std::os::fd::IntoRawFd::into_raw_fd(file)) };
        if closed == 0 {
            return Ok(());
        }
        Err(BenchError::io("close", &self.full(name))(std::io::Error::last_os_error()))
    }
}
