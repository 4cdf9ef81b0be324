//! Disks of a lab: local file systems in files, each mounted where a storage server has a target, so that one can break without the others.

use super::plan::{LabRole, Places};
use super::record::Record;
use crate::program::run_within;
use crate::terminal::shown;
use anyhow::{Context, Result, bail};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// LIMIT: for how long whoever uses a disk is waited for.
const UNMOUNT_MAX: Duration = Duration::from_secs(20);
/// LIMIT: for how long a program may take to make, mount or unmount one, which waits for what is still to be written.
const PROGRAM_MAX: Duration = Duration::from_secs(60);
/// Time between two attempts.
const TURN: Duration = Duration::from_millis(100);
/// Where the controller is by which a disk can be slow.
pub const BLKIO: &str = "/sys/fs/cgroup/blkio";
/// FITHAW of linux/fs.h, `_IOWR('X', 120, int)`: changes of the file system go on.
const THAW: libc::c_ulong = 0xc004_5878;

/// A disk of a storage server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disk {
    /// As people name it.
    pub name: String,
    /// The file that it is in.
    pub image: PathBuf,
    /// Where it is mounted, which is the directory of the target.
    pub point: PathBuf,
}

impl Disk {
    /// Those of a storage server, none if its target is a directory of this machine.
    pub fn of(places: &Places, record: &Record, node: &str) -> Vec<Disk> {
        let data = places.data(node);
        let numbered = (1..=record.made_with.disks).map(|number| Disk {
            name: format!("disk{number} of {node}"),
            image: data.join(format!("disk{number}.image")),
            point: data.join(format!("disk{number}")),
        });
        numbered.collect()
    }

    fn make(&self, bytes: u64) -> Result<()> {
        let file =
            File::create(&self.image).with_context(|| format!("cannot make {}", shown(&self.image)))?;
        file.set_len(bytes).with_context(|| format!("cannot make {}", shown(&self.image)))?;
        fs::create_dir_all(&self.point).with_context(|| format!("cannot make {}", shown(&self.point)))?;
        run("mkfs.ext4", &[OsStr::new("-q"), OsStr::new("-F"), self.image.as_os_str()])?;
        self.mount()
    }

    /// Mounts one anew that had failed, once nobody uses it any more.
    pub fn mount_again(&self) -> Result<()> {
        let deadline = Instant::now() + UNMOUNT_MAX;
        loop {
            self.unmount()?;
            self.mount()?;
            // As long as somebody else has a copy of the mount table, it is the same file system that has failed.
            match self.probe() {
                Err(error) if Instant::now() >= deadline => {
                    return Err(error).with_context(|| format!("{} still fails", self.name));
                }
                Err(_) => std::thread::sleep(TURN),
                Ok(()) => return Ok(()),
            }
        }
    }

    fn probe(&self) -> std::io::Result<()> {
        let path = self.point.join("probe");
        File::create(&path)?;
        fs::remove_file(&path)
    }

    fn mount(&self) -> Result<()> {
        let (options, loops) = (OsStr::new("-o"), OsStr::new("loop"));
        run("mount", &[options, loops, self.image.as_os_str(), self.point.as_os_str()])
    }

    /// Unmounts it, once nobody uses it any more.
    fn unmount(&self) -> Result<()> {
        let deadline = Instant::now() + UNMOUNT_MAX;
        while self.is_mounted()? {
            if let Err(error) = run("umount", &[self.point.as_os_str()])
                && Instant::now() >= deadline
            {
                return Err(error).with_context(|| format!("{} is still in use", self.name));
            }
            std::thread::sleep(TURN);
        }
        Ok(())
    }

    fn is_mounted(&self) -> Result<bool> {
        let found = ashlar_fuse::file_system_type_at(&self.point).context("cannot read the mount table")?;
        Ok(found.is_some())
    }

    /// The number of its device.
    pub fn device(&self) -> Result<u64> {
        let known = self.open()?.metadata().with_context(|| format!("cannot look at {}", self.name))?;
        Ok(known.dev())
    }

    /// Its root directory.
    ///
    /// # Errors
    /// When it is not mounted: what is at its place is on a disk of this machine then, to which nothing must happen.
    pub fn open(&self) -> Result<File> {
        let dir = File::open(&self.point).with_context(|| format!("cannot open {}", shown(&self.point)))?;
        let device = |known: std::io::Result<fs::Metadata>| {
            known.map(|known| known.dev()).with_context(|| format!("cannot look at {}", self.name))
        };
        if device(dir.metadata())? == device(fs::metadata(self.image.with_file_name("")))? {
            bail!("{} is not mounted", self.name);
        }
        Ok(dir)
    }

    /// Has changes go on that are held back; tells whether they were.
    pub fn thaw(&self) -> Result<bool> {
        let dir = self.open()?;
        // SAFETY: the descriptor is open, and the argument of this request is not used.
        let outcome = unsafe { libc::ioctl(dir.as_raw_fd(), THAW, 0) };
        if outcome == 0 {
            return Ok(true);
        }
        let error = std::io::Error::last_os_error();
        match error.raw_os_error() {
            // It was not frozen, or has failed altogether.
            Some(libc::EINVAL | libc::EIO) => Ok(false),
            _ => Err(error).with_context(|| format!("cannot have {} go on", self.name)),
        }
    }
}

/// Has a device read and write so many bytes per second, in these groups of the blkio controller; 0: as many as it can.
pub fn limit(groups: &[PathBuf], device: u64, bytes_per_s: u32) -> Result<()> {
    let limit = format!("{}:{} {bytes_per_s}", rustix::fs::major(device), rustix::fs::minor(device));
    for group in groups {
        for what in ["read", "write"] {
            let path = group.join(format!("blkio.throttle.{what}_bps_device"));
            fs::write(&path, &limit).with_context(|| format!("cannot write {}", shown(&path)))?;
        }
    }
    Ok(())
}

/// The directories in which a storage server has its targets.
pub fn targets(places: &Places, record: &Record, node: &str) -> Vec<PathBuf> {
    match Disk::of(places, record, node) {
        disks if disks.is_empty() => vec![places.data(node)],
        disks => disks.into_iter().map(|disk| disk.point).collect(),
    }
}

/// Makes those of a storage server.
pub fn make(places: &Places, record: &Record, node: &str) -> Result<()> {
    let disks = Disk::of(places, record, node);
    if !disks.is_empty() {
        let data = places.data(node);
        fs::create_dir_all(&data).with_context(|| format!("cannot make {}", shown(&data)))?;
    }
    disks.iter().try_for_each(|disk| disk.make(record.made_with.disk_bytes))
}

/// All of a lab.
fn all(places: &Places, record: &Record) -> Vec<Disk> {
    let servers = record.nodes.iter().filter(|node| node.role == LabRole::Storage);
    servers.flat_map(|node| Disk::of(places, record, &node.name)).collect()
}

/// Nobody is held up any more by one that hangs.
pub fn let_go_on(places: &Places, record: &Record) {
    for disk in all(places, record) {
        if !disk.is_mounted().unwrap_or(false) {
            continue;
        }
        if let Err(error) = disk.thaw() {
            tracing::warn!("{error:#}");
        }
        // The next one to have this device is not to be slow.
        let groups = [PathBuf::from(BLKIO)];
        if groups.iter().all(|group| group.exists())
            && let Err(error) = disk.device().and_then(|device| limit(&groups, device, 0))
        {
            tracing::debug!("{error:#}");
        }
    }
}

/// Unmounts all of them; the files go with the lab.
pub fn remove(places: &Places, record: &Record) -> Result<()> {
    all(places, record).iter().try_for_each(Disk::unmount)
}

/// Refuses a machine without the programs.
pub fn require_programs() -> Result<()> {
    for (program, package) in [("mkfs.ext4", "e2fsprogs"), ("mount", "mount"), ("umount", "mount")] {
        let mut command = Command::new(program);
        command.arg("-V").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().with_context(|| format!("cannot run {program}; install the package {package}"))?;
    }
    Ok(())
}

fn run(program: &str, args: &[&OsStr]) -> Result<()> {
    run_within(Command::new(program).args(args).stdin(Stdio::null()), program, PROGRAM_MAX).map(drop)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use serde_json::json;
    use std::path::Path;

    #[test]
    fn targets_are_on_disks_of_their_own_if_the_lab_was_made_with_some() {
        let places = Places { dir: "/lab".into() };
        // As one was written that knew of no disks.
        let mut record: Record = serde_json::from_value(json!({
            "version": 1, "id": "1", "made_directory": true, "link_mbit": null, "maker": null, "nodes": [], "processes": [],
        }))
        .unwrap();
        assert_eq!(targets(&places, &record, "storage1"), [Path::new("/lab/data/storage1")]);
        assert_eq!(record.made_with.split_at, 50_000);
        record.made_with.disks = 2;
        let on = ["/lab/data/storage1/disk1", "/lab/data/storage1/disk2"].map(PathBuf::from);
        assert_eq!(targets(&places, &record, "storage1"), on);
        assert_eq!(
            Disk::of(&places, &record, "storage1")[1].image,
            Path::new("/lab/data/storage1/disk2.image")
        );
    }

    #[test]
    fn nothing_happens_to_the_disk_below_one_that_is_not_mounted() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let disk = Disk { name: "disk1".into(), image: at("disk1.image"), point: at("disk1") };
        fs::create_dir(&disk.point).unwrap();
        for refused in [disk.open().map(drop), disk.thaw().map(drop), disk.device().map(drop)] {
            assert_eq!(refused.unwrap_err().to_string(), "disk1 is not mounted");
        }
        // Of another file system than the image.
        assert!(Disk { point: "/proc".into(), ..disk }.open().is_ok());
    }
}
