//! The outside world as a parameter: clock, disk, randomness and threads as traits, with an OS implementation ([`os`]) and a
//! seeded, simulated one ([`sim`]) that can lose what was not synced, fail, fill up and stop.
//!
//! Protocol, namespace, log and chunk-store code names no file, socket or clock; it gets these traits. Services and clients
//! start threads and wait for each other through [`Tasks`]. Network joins them with the cluster.
//!
//! Errors are `std::io::Error`, because their raw OS number is what decides (ENOSPC, EIO).

use ashlar_types::Timespec;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

mod no_waiting;
pub mod os;
pub mod sim;
mod tasks;

pub use no_waiting::NoWaiting;
pub use tasks::{Signal, SimSignal, SimTask, Task, Tasks};

/// Reads clocks.
pub trait Clock: Send + Sync {
    /// Wall-clock time, for file timestamps only.
    fn now(&self) -> Timespec;
    /// Time since an arbitrary start that never goes back and counts suspend (`CLOCK_BOOTTIME`), for leases and waits.
    fn monotonic(&self) -> Duration;
}

/// Random numbers; the OS implementation is fit for keys and ids, the simulated one is seeded.
pub trait Entropy: Send + Sync {
    /// Fills `out` with random bytes.
    fn fill(&self, out: &mut [u8]);

    /// A random 64-bit number.
    fn next_u64(&self) -> u64 {
        let mut bytes = [0; 8];
        self.fill(&mut bytes);
        u64::from_le_bytes(bytes)
    }
}

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// For reading; it must exist.
    Read,
    /// For reading and writing; it must exist.
    ReadWrite,
    /// For reading and writing; made if absent, kept if present.
    CreateOrOpen,
    /// For reading and writing; an error if it exists.
    CreateNew,
}

/// Space on the local file system under a [`Disk`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskSpace {
    /// Total bytes.
    pub bytes_total: u64,
    /// Bytes that can still be written by this process.
    pub bytes_free: u64,
    /// Which local file system it is, where that is known: disks with the same number share their space.
    pub file_system: Option<u64>,
}

/// Names a span of time in which a [`Disk`] shows everything that was ever written to it, synced or not, to whichever process. It ends
/// with a power cut, a kernel crash, when the local file system is unmounted, and when that has failed to write something ([`Disk::note_loss`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Continuity {
    /// Drawn at random when the machine started.
    pub boot: [u8; 16],
    /// The mount of the local file system; no other one of this boot has the number. Above bit 48: the losses that were noted in the directory, also in earlier mounts.
    pub mount: u64,
}

impl Continuity {
    /// The span of time that is there after so many losses.
    fn after(self, losses: u64) -> Continuity {
        Continuity { mount: self.mount ^ (losses << 48), ..self }
    }
}

/// One directory tree on a local file system. Paths are relative, `/`-separated, without `..`.
pub trait Disk: Send + Sync {
    /// Opens a file.
    ///
    /// # Errors
    /// As `open(2)`.
    fn open(&self, path: &str, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>>;
    /// Names in directory `path` (`""` is the root), in no order.
    ///
    /// # Errors
    /// As `opendir(3)`.
    fn list(&self, path: &str) -> io::Result<Vec<String>>;
    /// Makes a directory and its parents; no error if it is there.
    ///
    /// # Errors
    /// As `mkdir(2)`.
    fn create_dir(&self, path: &str) -> io::Result<()>;
    /// Removes a file.
    ///
    /// # Errors
    /// As `unlink(2)`.
    fn remove(&self, path: &str) -> io::Result<()>;
    /// Renames a file over another, atomically.
    ///
    /// # Errors
    /// As `rename(2)`.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Makes creations, removals and renames in directory `path` durable.
    ///
    /// # Errors
    /// As `fsync(2)`; final.
    fn sync_dir(&self, path: &str) -> io::Result<()>;
    /// Makes everything durable that anybody has written to the file system it is on.
    ///
    /// # Errors
    /// As `syncfs(2)`; final.
    fn sync_all(&self) -> io::Result<()>;
    /// Space of the file system it is on.
    ///
    /// # Errors
    /// As `statvfs(3)`.
    fn space(&self) -> io::Result<DiskSpace>;
    /// The span of time it is in, for the file system of the root; `None` where the operating system does not tell.
    fn continuity(&self) -> Option<Continuity>;
    /// Notes that what was written and not synced may be lost, though machine and mount live on: a write or a sync has failed. Until [`Disk::end_loss`] the disk is in no span of
    /// time ([`Disk::continuity`]). It outlives the process; after a power cut nobody needs it. `what` is for people. Waits half a second at the most.
    ///
    /// # Errors
    /// It is not noted yet; on a real disk a thread goes on trying for as long as the process lives.
    fn note_loss(&self, what: &str) -> io::Result<()>;
    /// Begins a new span of time if a loss was noted, and tells whether one was. What is read from then on is what the device has, and not what the operating system has kept in memory of
    /// what it could not write. To be called by whoever opens what is there, before he reads it, and while nobody else uses it.
    ///
    /// # Errors
    /// Those of reading, writing and syncing; `ResourceBusy` when somebody keeps a file in memory. The note stays.
    fn end_loss(&self) -> io::Result<bool>;
    /// The absolute path of `path`, for messages and for libraries that open files themselves.
    fn describe(&self, path: &str) -> String;
}

/// Replaces file `name` of `disk` by one with these bytes, durably: at any moment it has all of the old ones or all of the new ones. What an
/// interrupted attempt leaves is called `name` with `.new` behind it, and is overwritten by the next.
///
/// # Errors
/// Of any of the steps; the file is as it was, but after a failure of the last one, which nobody may act on.
pub fn replace_file(disk: &dyn Disk, name: &str, bytes: &[u8]) -> io::Result<()> {
    let new = format!("{name}.new");
    let file = disk.open(&new, OpenMode::CreateOrOpen)?;
    file.set_len(0)?;
    file.write_at(0, bytes)?;
    file.sync_data()?;
    // ORDER: whole and durable before it gets its name, and the name durable before anybody acts on it.
    disk.rename(&new, name)?;
    disk.sync_dir(name.rsplit_once('/').map_or("", |(directory, _)| directory))
}

/// An open file. All offsets and lengths are in bytes.
pub trait DiskFile: Send + Sync {
    /// Reads up to `out.len()` bytes at `offset`; fewer only at the end of the file.
    ///
    /// # Errors
    /// As `pread(2)`.
    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<usize>;
    /// Writes all of `data` at `offset`, extending the file as needed.
    ///
    /// # Errors
    /// As `pwrite(2)`; on error any part may have been written, in whole sectors of 512 bytes (Linux copies whole pages).
    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()>;
    /// Writes `parts` one behind the other at `offset` in as few system calls as possible.
    ///
    /// # Errors
    /// As `pwritev(2)`.
    fn write_vectored_at(&self, offset: u64, parts: &[&[u8]]) -> io::Result<()>;
    /// Makes content and length durable (`fdatasync(2)`).
    ///
    /// # Errors
    /// As `fdatasync(2)`; final: the caller takes the target out of service and never retries.
    fn sync_data(&self) -> io::Result<()>;
    /// Sets the length.
    ///
    /// # Errors
    /// As `ftruncate(2)`.
    fn set_len(&self, len: u64) -> io::Result<()>;
    /// The length.
    ///
    /// # Errors
    /// As `fstat(2)`.
    fn len(&self) -> io::Result<u64>;
    /// Whether the length is 0.
    ///
    /// # Errors
    /// As `fstat(2)`.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }
    /// The next range from `offset` on that may have anything but zeros in it; what is before it is a hole, or was reserved and never
    /// written. `None` if nothing but that follows. Where the local file system cannot tell, all there is.
    ///
    /// # Errors
    /// As `lseek(2)`.
    fn next_data(&self, offset: u64) -> io::Result<Option<Range<u64>>> {
        let len = self.len()?;
        Ok((offset < len).then_some(offset..len))
    }
    /// Frees the space of a range; it reads as zeros afterwards. The length stays. Where the local file system cannot,
    /// the range is overwritten with zeros.
    ///
    /// # Errors
    /// As `fallocate(2)`.
    fn punch_hole(&self, offset: u64, len: u64) -> io::Result<()>;
    /// Reserves space for a range, extending the length if need be, so that writes there cannot fail with ENOSPC. Where the
    /// local file system cannot reserve, the length is extended only.
    ///
    /// # Errors
    /// As `fallocate(2)`.
    fn allocate(&self, offset: u64, len: u64) -> io::Result<()>;
    /// Takes an exclusive advisory lock for the life of this handle, without waiting.
    ///
    /// # Errors
    /// `WouldBlock` when another handle holds it.
    fn try_lock(&self) -> io::Result<()>;
}

/// Clock, randomness and the rest of the world in one place to hand around.
#[derive(Clone)]
pub struct Env {
    /// Clocks.
    pub clock: Arc<dyn Clock>,
    /// Randomness.
    pub entropy: Arc<dyn Entropy>,
    /// Threads, and what they wait on.
    pub tasks: Arc<dyn Tasks>,
}

impl Env {
    /// The operating system's clocks and random numbers.
    pub fn os() -> Env {
        Env { clock: Arc::new(os::OsClock), entropy: Arc::new(os::OsEntropy), tasks: Arc::new(os::OsTasks) }
    }

    /// A clock that stands at `now` until the returned handle moves it, the random numbers of `seed`, and real threads.
    pub fn simulated(seed: u64, now: Timespec) -> (Env, Arc<sim::SimClock>) {
        let clock = Arc::new(sim::SimClock::new(now));
        let entropy = Arc::new(sim::SimEntropy::new(seed));
        (Env { clock: clock.clone(), entropy, tasks: Arc::new(os::OsTasks) }, clock)
    }
}
