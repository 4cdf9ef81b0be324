//! `ashlar-torture databench`: rates of sequential and random reads and writes, in the manner of ior and fio.
//!
//! N-N: a file per thread. N-1: one file, the threads' blocks interleaved. Random: 4 KiB blocks at a queue depth, through io_uring.

use std::fs;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Args;
use io_uring::{IoUring, opcode, types};

use crate::fsx::aligned::AlignedBuffer;
use crate::measure::{Phase, Samples, Server, measure, print};
use crate::rng::{Rng, pattern};
use crate::sys::data;

/// Measure sequential (N-N, N-1) and random I/O.
#[derive(Args, Debug)]
pub struct Arguments {
    /// A directory on the file system to be measured.
    #[arg(long)]
    dir: PathBuf,
    /// Threads.
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// MiB per thread.
    #[arg(long, default_value_t = 512)]
    mib: u64,
    /// KiB per request; 4 for `--random` unless given.
    #[arg(long)]
    block_kib: Option<u64>,
    /// One file for all threads.
    #[arg(long)]
    shared: bool,
    /// Random offsets for a fixed time instead of a sequential pass.
    #[arg(long)]
    random: bool,
    /// Requests in flight per thread.
    #[arg(long, default_value_t = 1)]
    depth: u32,
    /// Seconds per random phase.
    #[arg(long, default_value_t = 5)]
    seconds: u64,
    /// Open with O_DIRECT.
    #[arg(long)]
    direct: bool,
    /// Let the time of a write phase include an fsync.
    #[arg(long)]
    fsync: bool,
    #[command(flatten)]
    server: Server,
    /// Print one line of JSON instead of a table.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Write,
    Read,
}

/// Runs the command.
///
/// # Errors
/// When any call fails or a request is short.
pub fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let root = arguments.dir.join(format!("databench-{}", std::process::id()));
    fs::create_dir(&root).with_context(|| format!("create {}", root.display()))?;
    let block = arguments.block_kib.unwrap_or(if arguments.random { 4 } else { 1024 }) << 10;
    if block == 0 || !(arguments.mib << 20).is_multiple_of(block) {
        bail!("the size of a file must be a multiple of the size of a request");
    }
    let bench = Bench { arguments, root: root.clone(), block };
    let result = bench.phases();
    fs::remove_dir_all(&root).with_context(|| format!("remove {}", root.display()))?;
    print(&result?, arguments.json)
}

struct Bench<'a> {
    arguments: &'a Arguments,
    root: PathBuf,
    block: u64,
}

impl Bench<'_> {
    fn phases(&self) -> anyhow::Result<Vec<Phase>> {
        let mut phases = Vec::new();
        if self.arguments.random {
            self.lay_out()?;
            phases.push(self.phase("random write", Kind::Write, true)?);
            self.drop_cache()?;
            phases.push(self.phase("random read", Kind::Read, true)?);
        } else {
            phases.push(self.phase("write", Kind::Write, false)?);
            self.drop_cache()?;
            phases.push(self.phase("read", Kind::Read, false)?);
        }
        Ok(phases)
    }

    /// Writes the files that random I/O goes to, in large pieces.
    fn lay_out(&self) -> anyhow::Result<()> {
        const PIECE: usize = 1 << 20;
        let content = AlignedBuffer::from_slice(&pattern(1, PIECE));
        let files = if self.arguments.shared { 1 } else { self.arguments.threads };
        let mib = if self.arguments.shared {
            self.arguments.mib * self.arguments.threads as u64
        } else {
            self.arguments.mib
        };
        for thread in 0..files {
            let file = self.open(&self.path(thread))?;
            for number in 0..mib as usize {
                data::pwrite_all(file.as_fd(), content.as_slice(), (number * PIECE) as i64)?;
            }
        }
        self.drop_cache()
    }

    fn path(&self, thread: usize) -> PathBuf {
        self.root.join(if self.arguments.shared { "shared".to_owned() } else { thread.to_string() })
    }

    fn open(&self, path: &Path) -> anyhow::Result<OwnedFd> {
        let direct = if self.arguments.direct { libc::O_DIRECT } else { 0 };
        let flags = libc::O_CREAT | libc::O_RDWR | direct;
        data::openat(data::CWD, path.as_os_str().as_bytes(), flags, 0o644)
            .with_context(|| format!("open {}", path.display()))
    }

    /// Forgets cached pages, so that a read phase reads.
    fn drop_cache(&self) -> anyhow::Result<()> {
        for thread in 0..self.arguments.threads {
            let file = self.open(&self.path(thread))?;
            data::fsync(file.as_fd(), false)?;
            // SAFETY: posix_fadvise takes no memory. It is advice: its result does not matter.
            unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
        }
        Ok(())
    }

    fn phase(&self, name: &str, kind: Kind, random: bool) -> anyhow::Result<Phase> {
        measure(name, self.arguments.threads, self.arguments.server, |thread| {
            let file = self.open(&self.path(thread))?;
            let offsets = Offsets::new(self, thread, random);
            let samples = if self.arguments.depth > 1 {
                self.queued(&file, kind, offsets)
            } else {
                self.single(&file, kind, offsets)
            }?;
            if self.arguments.fsync && kind == Kind::Write {
                data::fsync(file.as_fd(), false)?;
            }
            Ok(samples)
        })
    }

    fn single(&self, file: &OwnedFd, kind: Kind, offsets: Offsets) -> anyhow::Result<Samples> {
        let mut buffer = AlignedBuffer::from_slice(&pattern(1, self.block as usize));
        let mut samples = Samples::with_capacity(100_000);
        for offset in offsets {
            samples.time(self.block, || {
                let moved = match kind {
                    Kind::Write => data::pwrite(file.as_fd(), buffer.as_slice(), offset as i64)?,
                    Kind::Read => data::pread_into(file.as_fd(), buffer.as_mut_slice(), offset as i64)?,
                };
                self.check_length(moved as u64, offset)
            })?;
        }
        Ok(samples)
    }

    fn check_length(&self, moved: u64, offset: u64) -> anyhow::Result<()> {
        anyhow::ensure!(moved == self.block, "{moved} of {} bytes at {offset}", self.block);
        Ok(())
    }

    fn queued(&self, file: &OwnedFd, kind: Kind, mut offsets: Offsets) -> anyhow::Result<Samples> {
        let depth = self.arguments.depth as usize;
        // The buffers outlive the ring: they are declared first, and every request is waited for before this function returns.
        let mut buffers: Vec<AlignedBuffer> =
            (0..depth).map(|_| AlignedBuffer::from_slice(&pattern(1, self.block as usize))).collect();
        let mut starts = vec![(Instant::now(), 0u64); depth];
        let mut ring = IoUring::new(self.arguments.depth).context("set up io_uring")?;
        let mut samples = Samples::with_capacity(1_000_000);
        let mut free: Vec<usize> = (0..depth).collect();
        let mut failure = None;
        loop {
            while failure.is_none()
                && let Some(slot) = free.pop()
            {
                let Some(offset) = offsets.next() else {
                    free.push(slot);
                    break;
                };
                starts[slot] = (Instant::now(), offset);
                self.submit(&mut ring, file, kind, &mut buffers[slot], offset, slot as u64)?;
            }
            if free.len() == depth {
                return failure.map_or(Ok(samples), Err);
            }
            ring.submit_and_wait(1).context("wait for io_uring")?;
            for entry in ring.completion() {
                let slot = entry.user_data() as usize;
                let (start, offset) = starts[slot];
                free.push(slot);
                if entry.result() < 0 {
                    let error = std::io::Error::from_raw_os_error(-entry.result());
                    failure = Some(anyhow::Error::from(error).context(format!("request at {offset}")));
                } else if let Err(short) = self.check_length(entry.result() as u64, offset) {
                    failure = Some(short);
                }
                samples.add(start.elapsed(), self.block);
            }
        }
    }

    fn submit(
        &self,
        ring: &mut IoUring,
        file: &OwnedFd,
        kind: Kind,
        buffer: &mut AlignedBuffer,
        offset: u64,
        slot: u64,
    ) -> anyhow::Result<()> {
        let (fd, len) = (types::Fd(file.as_raw_fd()), self.block as u32);
        let entry = match kind {
            Kind::Write => opcode::Write::new(fd, buffer.as_slice().as_ptr(), len).offset(offset).build(),
            Kind::Read => {
                opcode::Read::new(fd, buffer.as_mut_slice().as_mut_ptr(), len).offset(offset).build()
            }
        };
        // SAFETY: the buffer is not touched until the completion with this slot number has been taken, and lives longer than
        // the ring's requests (see `queued`).
        unsafe { ring.submission().push(&entry.user_data(slot)) }.context("the submission queue is full")
    }
}

/// The offsets a thread uses: its part of the file in order, or random ones until the time is over.
struct Offsets {
    block: u64,
    blocks: u64,
    stride: u64,
    first: u64,
    next: u64,
    random: Option<(Rng, Instant)>,
}

impl Offsets {
    fn new(bench: &Bench<'_>, thread: usize, random: bool) -> Self {
        let arguments = bench.arguments;
        let (stride, first) =
            if arguments.shared { (arguments.threads as u64, thread as u64) } else { (1, 0) };
        let end = Instant::now() + Duration::from_secs(arguments.seconds);
        Self {
            block: bench.block,
            blocks: (arguments.mib << 20) / bench.block,
            stride,
            first,
            next: 0,
            random: random.then(|| (Rng::new(thread as u64), end)),
        }
    }
}

impl Iterator for Offsets {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        let number = match &mut self.random {
            Some((_, end)) if Instant::now() > *end => return None,
            Some((rng, _)) => rng.below(self.blocks),
            None if self.next == self.blocks => return None,
            None => {
                self.next += 1;
                self.next - 1
            }
        };
        Some((number * self.stride + self.first) * self.block)
    }
}
