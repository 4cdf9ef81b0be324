//! The exercise of one file: draw an operation, do it to the file and to the model, compare.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::aligned::{ALIGNMENT, AlignedBuffer};
use crate::rng::{Rng, pattern};
use crate::sys::attr::fstat;
use crate::sys::data;
use crate::sys::map::Mapping;
use crate::sys::{Errno, SysResult};

/// What one exercise does.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The file, created and removed by the exercise; more than one are the same file on several mounts.
    pub paths: Vec<PathBuf>,
    /// Fixes all choices.
    pub seed: u64,
    /// Operations.
    pub ops: u64,
    /// Largest size of the file, in bytes.
    pub size_max: u64,
    /// Open the file with `O_DIRECT` half of the time.
    pub direct: bool,
}

/// LIMIT: operations shown with a failure.
const LOG_MAX: usize = 30;

/// A descriptor of the file.
struct Opened {
    file: OwnedFd,
    direct: bool,
}

struct Exercise<'a> {
    plan: &'a Plan,
    rng: Rng,
    /// The mount that is used now: its place in the plan's paths.
    mount: usize,
    /// The descriptors of the other mounts; a mount that has none opens the file when it is its turn.
    others: Vec<Option<Opened>>,
    file: OwnedFd,
    direct: bool,
    model: Vec<u8>,
    log: VecDeque<String>,
}

/// Runs the plan; returns the number of checks made, or the description of the first failure.
///
/// # Errors
/// As said.
pub fn run(plan: &Plan) -> Result<u64, String> {
    let first = plan.paths.first().ok_or("no path")?;
    let file = open(first, libc::O_CREAT | libc::O_TRUNC).map_err(|errno| format!("create: {errno}"))?;
    let mut exercise = Exercise {
        plan,
        rng: Rng::new(plan.seed),
        mount: 0,
        others: plan.paths.iter().map(|_| None).collect(),
        file,
        direct: false,
        model: Vec::new(),
        log: VecDeque::new(),
    };
    for number in 0..plan.ops {
        exercise
            .change_mount()
            .and_then(|()| exercise.step())
            .and_then(|()| exercise.check_size())
            .map_err(|what| exercise.explain(number, &what))?;
    }
    exercise.reopen().map_err(|what| exercise.explain(plan.ops, &what))?;
    std::fs::remove_file(first).map_err(|error| format!("unlink: {error}"))?;
    Ok(plan.ops)
}

fn open(path: &Path, extra: i32) -> SysResult<OwnedFd> {
    data::openat(data::CWD, path.as_os_str().as_bytes(), libc::O_RDWR | extra, 0o600)
}

fn failed(what: &str, errno: Errno) -> String {
    format!("{what} failed with {errno}")
}

impl Exercise<'_> {
    fn explain(&self, number: u64, what: &str) -> String {
        let log: Vec<&str> = self.log.iter().map(String::as_str).collect();
        format!(
            "{}: seed {}, operation {number}: {what}\n  operations before it, the last one at the end:\n    {}",
            self.plan.paths[self.mount].display(),
            self.plan.seed,
            log.join("\n    ")
        )
    }

    fn note(&mut self, line: String) {
        if self.log.len() == LOG_MAX {
            self.log.pop_front();
        }
        let mode = if self.direct { "direct " } else { "" };
        let mount = if self.others.len() > 1 { format!("mount {}: ", self.mount) } else { String::new() };
        self.log.push_back(format!("{mount}{mode}{line} (size {})", self.model.len()));
    }

    /// Goes on through any of the mounts, which has the file open from earlier or not.
    fn change_mount(&mut self) -> Result<(), String> {
        let next = if self.others.len() > 1 { self.rng.index(self.others.len()) } else { self.mount };
        if next == self.mount {
            return Ok(());
        }
        let opened = match self.others[next].take() {
            Some(opened) => opened,
            None => {
                let file = open(&self.plan.paths[next], 0).map_err(|errno| failed("open", errno))?;
                Opened { file, direct: false }
            }
        };
        let file = std::mem::replace(&mut self.file, opened.file);
        let left = Opened { file, direct: std::mem::replace(&mut self.direct, opened.direct) };
        if self.rng.percent(90) {
            self.others[self.mount] = Some(left);
        } else {
            data::close(left.file).map_err(|errno| failed("close", errno))?;
        }
        self.mount = next;
        // A mapping ends where the kernel knows the end to be, and it asks for that with stat, not with mmap.
        self.check_size()
    }

    fn step(&mut self) -> Result<(), String> {
        match self.rng.below(100) {
            0..20 => self.read(),
            20..42 => self.write(),
            42..50 => self.map_read(),
            50..60 => self.map_write(),
            60..68 => self.truncate(),
            68..75 => self.change_space("punch", libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE),
            75..80 => self.change_space("zero", libc::FALLOC_FL_ZERO_RANGE),
            80..83 => {
                self.change_space("zero keeping size", libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE)
            }
            83..87 => self.change_space("allocate", 0),
            87..89 => self.change_space("allocate keeping size", libc::FALLOC_FL_KEEP_SIZE),
            89..94 => self.copy_range(),
            94..96 => self.sync(),
            96..98 => self.check_holes(),
            _ => self.reopen(),
        }
    }

    fn align(&self, value: u64) -> u64 {
        if self.direct { value / ALIGNMENT as u64 * ALIGNMENT as u64 } else { value }
    }

    /// A range that starts inside the largest size and does not reach beyond it.
    fn range(&mut self) -> (usize, usize) {
        let max = self.plan.size_max;
        let mut offset = self.rng.below(max);
        if self.rng.percent(30) {
            // Near a page border or the end of the file.
            let border = if self.rng.percent(50) { self.model.len() as u64 } else { offset & !4095 };
            offset = (border + self.rng.below(9)).saturating_sub(4).min(max - 1);
        }
        let span = if self.rng.percent(80) { 20_000 } else { max };
        let offset = self.align(offset);
        let drawn = 1 + self.rng.below(span.min(max - offset));
        let mut len = self.align(drawn);
        if self.direct && len == 0 {
            len = ALIGNMENT as u64;
        }
        (offset as usize, len as usize)
    }

    fn compare(&self, offset: usize, got: &[u8], wanted_len: usize) -> Result<(), String> {
        let start = offset.min(self.model.len());
        let wanted = &self.model[start..(offset + wanted_len).min(self.model.len()).max(start)];
        if got == wanted {
            return Ok(());
        }
        if got.len() != wanted.len() {
            return Err(format!("read at {offset} returned {} bytes instead of {}", got.len(), wanted.len()));
        }
        let at = got.iter().zip(wanted).position(|(got, wanted)| got != wanted).unwrap_or(0);
        let last = got.iter().zip(wanted).rposition(|(got, wanted)| got != wanted).unwrap_or(0);
        let show = |bytes: &[u8]| format!("{:02x?}", &bytes[at..(at + 16).min(bytes.len())]);
        Err(format!(
            "bytes {} to {} are wrong: expected {}, got {}",
            offset + at,
            offset + last,
            show(wanted),
            show(got)
        ))
    }

    fn check_size(&self) -> Result<(), String> {
        let size = fstat(self.file.as_fd()).map_err(|errno| failed("fstat", errno))?.size;
        if size == self.model.len() as i64 {
            Ok(())
        } else {
            Err(format!("the size is {size}, expected {}", self.model.len()))
        }
    }

    fn load(&self, offset: usize, len: usize) -> Result<Vec<u8>, String> {
        let mut buffer = AlignedBuffer::new(len);
        let got = data::pread_full(self.file.as_fd(), buffer.as_mut_slice(), offset as i64)
            .map_err(|errno| failed("read", errno))?;
        Ok(buffer.as_slice()[..got].to_vec())
    }

    fn read(&mut self) -> Result<(), String> {
        let (offset, len) = self.range();
        self.note(format!("read {offset}+{len}"));
        // A direct read may only ask once: after a short read at the end, the next offset is not aligned.
        let mut buffer = AlignedBuffer::new(len);
        let got = data::pread_into(self.file.as_fd(), buffer.as_mut_slice(), offset as i64)
            .map_err(|errno| failed("read", errno))?;
        self.compare(offset, &buffer.as_slice()[..got], len)
    }

    fn write(&mut self) -> Result<(), String> {
        let (offset, len) = self.range();
        let bytes = pattern(self.rng.next_u64(), len);
        self.note(format!("write {offset}+{len}"));
        let buffer = AlignedBuffer::from_slice(&bytes);
        data::pwrite_all(self.file.as_fd(), buffer.as_slice(), offset as i64)
            .map_err(|errno| failed("write", errno))?;
        self.put(offset, &bytes);
        Ok(())
    }

    fn put(&mut self, offset: usize, bytes: &[u8]) {
        let end = offset + bytes.len();
        if self.model.len() < end {
            self.model.resize(end, 0);
        }
        self.model[offset..end].copy_from_slice(bytes);
    }

    /// A range inside the file, starting in page `.0` at `.1` bytes, `.2` bytes long.
    fn mapped_range(&mut self) -> Option<(usize, usize, usize)> {
        let size = self.model.len();
        if size == 0 {
            return None;
        }
        let offset = self.rng.index(size);
        let len = 1 + self.rng.index((size - offset).min(100_000));
        Some((offset & !4095, offset & 4095, len))
    }

    fn map_read(&mut self) -> Result<(), String> {
        let Some((page, at, len)) = self.mapped_range() else { return Ok(()) };
        self.note(format!("map-read {}+{len}", page + at));
        let bytes = Mapping::new(self.file.as_fd(), page as i64, at + len, false)
            .and_then(|mapping| mapping.load(at, len))
            .map_err(|errno| failed("mmap", errno))?;
        self.compare(page + at, &bytes, len)
    }

    fn map_write(&mut self) -> Result<(), String> {
        let Some((page, at, len)) = self.mapped_range() else { return Ok(()) };
        let bytes = pattern(self.rng.next_u64(), len);
        // Other mounts see a store once it is written back.
        let sync = self.rng.percent(50) || self.others.len() > 1;
        self.note(format!("map-write {}+{len}{}", page + at, if sync { " msync" } else { "" }));
        let stored = Mapping::new(self.file.as_fd(), page as i64, at + len, true).and_then(|mut mapping| {
            mapping.store(at, &bytes)?;
            if sync { mapping.sync() } else { Ok(()) }
        });
        stored.map_err(|errno| failed("mmap write", errno))?;
        self.put(page + at, &bytes);
        Ok(())
    }

    fn truncate(&mut self) -> Result<(), String> {
        let max = self.plan.size_max;
        let len = if self.rng.percent(10) { 0 } else { self.rng.below(max) } as usize;
        self.note(format!("truncate to {len}"));
        data::ftruncate(self.file.as_fd(), len as i64).map_err(|errno| failed("ftruncate", errno))?;
        self.model.resize(len, 0);
        Ok(())
    }

    fn change_space(&mut self, what: &str, mode: i32) -> Result<(), String> {
        let (offset, len) = self.range();
        self.note(format!("{what} {offset}+{len}"));
        match data::fallocate(self.file.as_fd(), mode, offset as i64, len as i64) {
            Ok(()) => {}
            // The file system need not offer every mode; what it offers must be right.
            Err(Errno(libc::EOPNOTSUPP)) => return Ok(()),
            Err(errno) => return Err(failed(what, errno)),
        }
        let end = offset + len;
        if mode & libc::FALLOC_FL_KEEP_SIZE == 0 && self.model.len() < end {
            self.model.resize(end, 0);
        }
        if mode & (libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_ZERO_RANGE) != 0 {
            let inside = offset.min(self.model.len())..end.min(self.model.len());
            self.model[inside].fill(0);
        }
        Ok(())
    }

    fn copy_range(&mut self) -> Result<(), String> {
        let (from, len) = self.range();
        let (to, _) = self.range();
        let room = self.plan.size_max as usize - to;
        let len = self.align(len.min(room).min(self.model.len().saturating_sub(from)) as u64) as usize;
        // Overlapping ranges of one file are refused by the call.
        if len == 0 || from.abs_diff(to) < len {
            return Ok(());
        }
        self.note(format!("copy {from}+{len} to {to}"));
        let mut done = 0;
        while done < len {
            let (source, target) = ((from + done) as i64, (to + done) as i64);
            let copied =
                data::copy_file_range(self.file.as_fd(), source, self.file.as_fd(), target, len - done)
                    .map_err(|errno| failed("copy_file_range", errno))?;
            if copied == 0 {
                return Err(format!("copy_file_range stopped after {done} of {len} bytes"));
            }
            done += copied;
        }
        let bytes = self.model[from..from + len].to_vec();
        self.put(to, &bytes);
        Ok(())
    }

    fn sync(&mut self) -> Result<(), String> {
        self.note("fsync and drop the cached pages".into());
        data::fsync(self.file.as_fd(), self.rng.percent(50)).map_err(|errno| failed("fsync", errno))?;
        use std::os::fd::AsRawFd;
        // SAFETY: posix_fadvise takes no memory. It is advice: its result does not matter.
        unsafe { libc::posix_fadvise(self.file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
        Ok(())
    }

    /// What `SEEK_DATA` and `SEEK_HOLE` call a hole must be zero in the model.
    fn check_holes(&mut self) -> Result<(), String> {
        self.note("seek for data and holes".into());
        let size = self.model.len() as i64;
        let mut at = 0;
        while at < size {
            let start = match data::lseek(self.file.as_fd(), at, libc::SEEK_DATA) {
                Ok(start) => start,
                Err(Errno(libc::ENXIO)) => size,
                Err(errno) => return Err(failed("SEEK_DATA", errno)),
            };
            if start < at
                || start > size
                || self.model[at as usize..start as usize].iter().any(|byte| *byte != 0)
            {
                return Err(format!("SEEK_DATA from {at} gave {start}, which skips data"));
            }
            if start == size {
                break;
            }
            at = data::lseek(self.file.as_fd(), start, libc::SEEK_HOLE)
                .map_err(|errno| failed("SEEK_HOLE", errno))?;
            if at <= start || at > size {
                return Err(format!("SEEK_HOLE from {start} gave {at}"));
            }
        }
        Ok(())
    }

    fn reopen(&mut self) -> Result<(), String> {
        self.direct = self.plan.direct && self.rng.percent(50);
        self.note("close, open, read all".into());
        let extra = if self.direct { libc::O_DIRECT } else { 0 };
        let fresh = open(&self.plan.paths[self.mount], extra).map_err(|errno| failed("open", errno))?;
        let old = std::mem::replace(&mut self.file, fresh);
        data::close(old).map_err(|errno| failed("close", errno))?;
        let (mut at, piece) = (0, 1 << 20);
        while at < self.model.len() {
            let rest = self.model.len() - at;
            let want = piece.min(if self.direct { rest.next_multiple_of(ALIGNMENT) } else { rest });
            let bytes = if self.direct { self.load_once(at, want)? } else { self.load(at, want)? };
            self.compare(at, &bytes, want)?;
            at += want;
        }
        Ok(())
    }

    fn load_once(&self, offset: usize, len: usize) -> Result<Vec<u8>, String> {
        let mut buffer = AlignedBuffer::new(len);
        let got = data::pread_into(self.file.as_fd(), buffer.as_mut_slice(), offset as i64)
            .map_err(|errno| failed("direct read", errno))?;
        Ok(buffer.as_slice()[..got].to_vec())
    }
}
