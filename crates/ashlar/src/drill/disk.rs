//! Ways in which a disk of a lab breaks.

use crate::lab::{BLKIO, Disk};
use crate::terminal::shown;
use anyhow::{Context, Result, bail};
use rustix::fs::{FallocateFlags, fallocate, statvfs};
use std::fs::{self, File};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// FIFREEZE of linux/fs.h, `_IOWR('X', 119, int)`: changes are held back.
const FREEZE: libc::c_ulong = 0xc004_5877;
/// FS_IOC_SHUTDOWN of ext4 and XFS, `_IOR('X', 125, __u32)`: from now on every call fails.
const SHUTDOWN: libc::c_ulong = 0x8004_587d;
/// Of SHUTDOWN: what is not on the disk is lost.
const WITHOUT_LOG: u32 = 2;
/// For how long a disk hangs at the most that nobody has go on.
const WATCH_MORE: Duration = Duration::from_secs(60);
/// How fast one is that is slow.
pub const SLOW_BYTES_PER_S: u32 = 256 << 10;

/// Every call of it fails from now on; what is not on it yet is lost.
pub fn fail(disk: &Disk) -> Result<()> {
    let dir = disk.open()?;
    let how = WITHOUT_LOG;
    // SAFETY: the descriptor is open, and the argument is a number that lives through the call.
    let outcome = unsafe { libc::ioctl(dir.as_raw_fd(), SHUTDOWN, &raw const how) };
    if outcome != 0 {
        return Err(std::io::Error::last_os_error())
            .with_context(|| format!("cannot have {} fail", disk.name));
    }
    Ok(())
}

/// Its changes are held back until it is told to go on.
pub fn hang(disk: &Disk) -> Result<()> {
    let dir = disk.open()?;
    // SAFETY: the descriptor is open, and the argument of this request is not used.
    let outcome = unsafe { libc::ioctl(dir.as_raw_fd(), FREEZE, 0) };
    if outcome != 0 {
        return Err(std::io::Error::last_os_error())
            .with_context(|| format!("cannot have {} hang", disk.name));
    }
    Ok(())
}

/// A process that has it go on if this one does not: whoever waits for it cannot be ended.
pub fn watch(disk: &Disk, lasts: Duration) -> Result<Child> {
    let mut command = Command::new("sh");
    let seconds = (lasts + WATCH_MORE).as_secs().to_string();
    command.args(["-c", "sleep \"$1\"; exec fsfreeze --unfreeze \"$0\""]).arg(&disk.point).arg(seconds);
    command.process_group(0).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().context("cannot run sh")
}

/// The end of a [`watch`].
pub fn end_watch(mut watch: Child) {
    // SAFETY: kill takes no pointer; the group is that of a child that was not waited for.
    unsafe { libc::kill(-(watch.id() as i32), libc::SIGKILL) };
    let _ = watch.wait();
}

/// The file that takes all space of a disk.
pub fn filler(disk: &Disk) -> PathBuf {
    disk.point.join("filled-by-drill")
}

/// Takes all space that is left; tells how much that was, bytes.
pub fn fill(disk: &Disk) -> Result<u64> {
    disk.open()?;
    let path = filler(disk);
    let file = File::create(&path).with_context(|| format!("cannot make {}", shown(&path)))?;
    let stat = statvfs(&disk.point).with_context(|| format!("cannot ask for the space of {}", disk.name))?;
    let block = stat.f_frsize.max(512);
    let (mut taken, mut piece) = (0, stat.f_bfree * stat.f_frsize);
    // Less and less: what is said to be free is not all there for one file.
    while piece >= block {
        match fallocate(&file, FallocateFlags::empty(), taken, piece) {
            Ok(()) => taken += piece,
            Err(rustix::io::Errno::NOSPC) => piece /= 2,
            Err(error) => return Err(error).with_context(|| format!("cannot fill {}", disk.name)),
        }
    }
    Ok(taken)
}

/// Why disks cannot be made slow on this machine.
pub fn why_not_slow() -> Option<String> {
    let is_there = Path::new(BLKIO).join("blkio.throttle.write_bps_device").exists();
    (!is_there).then(|| {
        format!("not on this machine: there is no {BLKIO}, the blkio controller of cgroup v1, by which a disk is made slow")
    })
}

/// The groups in which a disk is slow: that of the process which uses it, and that of the kernel's own threads, which write later what it has written.
pub fn slow_groups(process: i32) -> Result<Vec<PathBuf>> {
    let path = format!("/proc/{process}/cgroup");
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    let group = text.lines().find_map(|line| {
        let (controllers, group) = line.split_once(':')?.1.split_once(':')?;
        controllers.split(',').any(|one| one == "blkio").then_some(group)
    });
    let root = PathBuf::from(BLKIO);
    let own = root.join(group.unwrap_or_default().trim_start_matches('/'));
    let mut groups = vec![root, own];
    groups.dedup_by(|one, other| one.components().eq(other.components()));
    Ok(groups)
}

/// Whether a disk is slow indeed.
pub fn is_slow(disk: &Disk) -> Result<bool> {
    let path = disk.point.join("probe-of-drill");
    let begun = Instant::now();
    let probe = || -> std::io::Result<()> {
        let mut file = File::create(&path)?;
        file.write_all(&vec![0x5a; 2 * SLOW_BYTES_PER_S as usize])?;
        file.sync_all()
    };
    let outcome = probe();
    let took = begun.elapsed();
    let _ = fs::remove_file(&path);
    outcome.with_context(|| format!("cannot write to {}", disk.name))?;
    Ok(took > Duration::from_secs(1))
}

/// Those of `all` that are meant.
pub fn first(all: Vec<Disk>, is_all: bool) -> Result<Vec<Disk>> {
    let most = if is_all { all.len() } else { 1 };
    let chosen: Vec<Disk> = all.into_iter().take(most).collect();
    if chosen.is_empty() {
        bail!("the targets of this lab have no disks of their own");
    }
    Ok(chosen)
}
