//! Mounting and unmounting a shared disk, with mount(8), umount(8), findmnt(8) and blkid(8): they know `/etc/fstab`, file systems and their options.

use crate::program::run_within;
use anyhow::{Context, Result, bail};
use ashlar_fuse::file_system_type_at;
use ashlar_types::DiskId;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// LIMIT: for how long a disk may take to be read, mounted with its log replayed, or unmounted with all that is to be written.
const READ_MAX: Duration = Duration::from_secs(20);
const MOUNT_MAX: Duration = Duration::from_secs(120);
const UNMOUNT_MAX: Duration = Duration::from_secs(120);
/// For how long a file system that is in use is tried again, and the time between two attempts.
const BUSY_MAX: Duration = Duration::from_secs(3);
const BUSY_PAUSE: Duration = Duration::from_millis(100);

/// A shared disk of this machine.
pub struct Mounting {
    dir: PathBuf,
    /// Without one that of `dir` in `/etc/fstab`.
    device: Option<PathBuf>,
    /// Whoever mounts has it open: it stays locked until he has ended, also when the process that has started him dies before.
    lock: Arc<File>,
}

impl Mounting {
    pub fn new(dir: PathBuf, device: Option<PathBuf>, lock: Arc<File>) -> Mounting {
        Mounting { dir, device, lock }
    }

    /// Where it is mounted.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The UUID of the file system on it.
    ///
    /// # Errors
    /// When there is no such device, or nothing on it that has one: with the way out.
    pub fn identify(&self) -> Result<DiskId> {
        if self.device.is_none()
            && let Some(uuid) = self.in_fstab()?.strip_prefix("UUID=")
        {
            return parse(uuid.trim_matches('"'));
        }
        uuid_on(&self.found_device()?)
    }

    /// Whether this kernel has the file system on the disk in use: it is mounted, at this directory or anywhere else, or is being mounted or unmounted yet.
    /// A block device that is opened with `O_EXCL` is refused meanwhile (open(2)); what is mounted says less.
    pub fn is_in_use(&self) -> bool {
        if self.is_mounted() {
            return true;
        }
        let Ok(device) = self.found_device() else { return false };
        let opened =
            OpenOptions::new().read(true).custom_flags(rustix::fs::OFlags::EXCL.bits() as i32).open(device);
        // One that cannot be reached is not written to by it.
        opened.is_err_and(|error| error.kind() == std::io::ErrorKind::ResourceBusy)
    }

    /// The device, as it is called now.
    fn found_device(&self) -> Result<PathBuf> {
        let source = match &self.device {
            Some(device) => return Ok(device.clone()),
            None => self.in_fstab()?,
        };
        if !source.contains('=') {
            return Ok(source.into());
        }
        let mut findfs = Command::new("findfs");
        findfs.stdin(Stdio::null()).arg(source.replace('"', ""));
        Ok(run(&mut findfs, READ_MAX)?.trim().into())
    }

    fn in_fstab(&self) -> Result<String> {
        let mut findmnt = Command::new("findmnt");
        findmnt.stdin(Stdio::null()).args(["--fstab", "-n", "-o", "SOURCE"]).arg(&self.dir);
        let found = run(&mut findmnt, READ_MAX).with_context(|| {
            format!(
                "{} is not in /etc/fstab: add a line for it there, with `noauto` among its options, or say which device it is (`{}=DEVICE`)",
                self.dir.display(),
                self.dir.display()
            )
        })?;
        Ok(found.trim().to_owned())
    }

    /// Whether something is mounted there, as the kernel tells.
    pub fn is_mounted(&self) -> bool {
        let dir = std::fs::canonicalize(&self.dir).unwrap_or_else(|_| self.dir.clone());
        // What cannot be told may be mounted.
        file_system_type_at(&dir).map_or(true, |found| found.is_some())
    }

    /// Mounts the disk `id`, if it is not mounted.
    ///
    /// # Errors
    /// When that fails, or takes too long, and when it is another disk by now.
    pub fn mount(&self, id: DiskId) -> Result<()> {
        if !self.is_mounted() {
            self.mount_now()?;
        }
        let mut findmnt = Command::new("findmnt");
        findmnt.stdin(Stdio::null()).args(["-n", "-o", "SOURCE", "--mountpoint"]).arg(&self.dir);
        let source = run(&mut findmnt, READ_MAX).context("cannot tell what is mounted")?;
        let found = uuid_on(Path::new(source.trim()))?;
        if found != id {
            bail!("another disk than before is mounted at {}: start this server anew", self.dir.display());
        }
        Ok(())
    }

    fn mount_now(&self) -> Result<()> {
        let mut mount = Command::new("mount");
        if let Some(device) = &self.device {
            mount.arg(device);
        }
        let lock = self.lock.try_clone().context("cannot hand on what is locked")?;
        run(mount.arg(&self.dir).stdin(lock), MOUNT_MAX)
            .with_context(|| format!("cannot mount {}", self.dir.display()))?;
        if !self.is_mounted() {
            bail!("mount has not mounted {}", self.dir.display());
        }
        Ok(())
    }

    /// Unmounts it, if it is mounted. Everything is on the disk then.
    ///
    /// # Errors
    /// When somebody uses it, or it takes too long.
    pub fn unmount(&self) -> Result<()> {
        // Something may be mounted over it.
        for _ in 0..8 {
            if !self.is_mounted() {
                return self.await_release();
            }
            let begun = Instant::now();
            // A thread that has looked at the target a moment ago may have a file of it open yet.
            while let Err(error) = self.unmount_now() {
                if begun.elapsed() >= BUSY_MAX {
                    return Err(error).with_context(|| {
                        format!("cannot unmount {}: does a program use it?", self.dir.display())
                    });
                }
                std::thread::sleep(BUSY_PAUSE);
            }
        }
        bail!("{} is mounted again and again", self.dir.display())
    }

    fn unmount_now(&self) -> Result<()> {
        // Until it has ended the kernel may be writing: the next process waits for that, too.
        let lock = self.lock.try_clone().context("cannot hand on what is locked")?;
        run(Command::new("umount").stdin(lock).arg(&self.dir), UNMOUNT_MAX).map(drop)
    }

    /// Waits until the kernel has nothing to do with the disk any more: a mount that was given up may be under way yet, and an unmount that nothing shows any more.
    fn await_release(&self) -> Result<()> {
        let begun = Instant::now();
        while self.is_in_use() {
            if begun.elapsed() >= BUSY_MAX {
                bail!("the disk of {} is in use yet: is it mounted elsewhere, or slow?", self.dir.display());
            }
            std::thread::sleep(BUSY_PAUSE);
        }
        Ok(())
    }
}

/// The UUID of the file system on a device.
fn uuid_on(device: &Path) -> Result<DiskId> {
    let mut blkid = Command::new("blkid");
    // Past its cache: what was there before may be gone.
    blkid.stdin(Stdio::null()).args(["-p", "-o", "value", "-s", "UUID"]).arg(device);
    let uuid = run(&mut blkid, READ_MAX).with_context(|| {
        format!(
            "cannot read which file system is on {}: does this machine reach the disk? A new one needs a file system first",
            device.display()
        )
    })?;
    parse(uuid.trim())
}

fn parse(uuid: &str) -> Result<DiskId> {
    let digits: String = uuid.chars().filter(|digit| *digit != '-').collect();
    match u128::from_str_radix(&digits, 16) {
        Ok(number) if digits.len() == 32 => Ok(number.to_be_bytes()),
        _ => bail!(
            "`{uuid}` is no UUID of a file system that Linux can have a target on: XFS or ext4 have one"
        ),
    }
}

/// What a program says that ends well, and in time.
fn run(command: &mut Command, wait: Duration) -> Result<String> {
    let shown = format!("{command:?}");
    run_within(command, &shown, wait)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_is_taken_and_nothing_else() {
        assert_eq!(parse("0a010203-0405-0607-0809-0a0b0c0d0eff").unwrap()[..2], [0x0a, 1]);
        assert!(parse("1234-ABCD").is_err_and(|error| error.to_string().contains("XFS")));
        assert!(parse("").is_err());
    }

    #[test]
    fn a_directory_that_nothing_is_mounted_at_is_told_from_a_mount_point() {
        let mounting = |dir: &str| Mounting::new(dir.into(), None, Arc::new(tempfile::tempfile().unwrap()));
        assert!(mounting("/proc").is_mounted());
        assert!(!mounting("/no such directory").is_mounted());
    }
}
