//! A file system in an image file on a loop device: something that can lose power or fill up without harm to the machine.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

use crate::server::is_mounted;
use crate::sys::mount::{detach, shutdown_filesystem, unmount};

/// The file systems a disk can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum FileSystem {
    /// ext4.
    Ext4,
    /// XFS.
    Xfs,
}

/// A mounted loop disk; unmounted when dropped, the image stays.
#[derive(Debug)]
pub struct LoopDisk {
    image: PathBuf,
    mountpoint: PathBuf,
}

fn command(program: &str, arguments: &[&OsStr]) -> anyhow::Result<()> {
    let output =
        Command::new(program).args(arguments).output().with_context(|| format!("start {program}"))?;
    if !output.status.success() {
        bail!("{program} failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

impl LoopDisk {
    /// Makes an image of `bytes` bytes at `image`, formats it and mounts it at `mountpoint`. An old image is overwritten.
    ///
    /// # Errors
    /// When one of the steps fails: not root, no loop device, the formatting program is not installed.
    pub fn create(image: &Path, mountpoint: &Path, bytes: u64, kind: FileSystem) -> anyhow::Result<Self> {
        fs::create_dir_all(mountpoint).with_context(|| format!("create {}", mountpoint.display()))?;
        if is_mounted(mountpoint)? {
            bail!("{} is already mounted; unmount it first", mountpoint.display());
        }
        let file = File::create(image).with_context(|| format!("create {}", image.display()))?;
        file.set_len(bytes).with_context(|| format!("size {}", image.display()))?;
        drop(file);
        match kind {
            FileSystem::Ext4 => command("mkfs.ext4", &["-q".as_ref(), "-F".as_ref(), image.as_os_str()])?,
            FileSystem::Xfs => command("mkfs.xfs", &["-q".as_ref(), "-f".as_ref(), image.as_os_str()])?,
        }
        let disk = Self { image: image.to_owned(), mountpoint: mountpoint.to_owned() };
        disk.mount()?;
        Ok(disk)
    }

    /// Where it is mounted.
    #[must_use]
    pub fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }

    /// Mounts it again after [`LoopDisk::unmount`]; the file system replays its log.
    ///
    /// # Errors
    /// When `mount` fails.
    pub fn mount(&self) -> anyhow::Result<()> {
        command(
            "mount",
            &["-o".as_ref(), "loop".as_ref(), self.image.as_os_str(), self.mountpoint.as_os_str()],
        )
    }

    /// Cuts the power: the file system stops at once and writes neither data nor log any more.
    ///
    /// # Errors
    /// When the kernel refuses the ioctl.
    pub fn cut_power(&self) -> anyhow::Result<()> {
        let root = File::open(&self.mountpoint).context("open the disk")?;
        shutdown_filesystem(root.as_fd()).context("shut the file system down")
    }

    /// Unmounts it.
    ///
    /// # Errors
    /// When it is busy or not mounted.
    pub fn unmount(&self) -> anyhow::Result<()> {
        unmount(&self.mountpoint).with_context(|| format!("unmount {}", self.mountpoint.display()))
    }
}

impl Drop for LoopDisk {
    fn drop(&mut self) {
        match is_mounted(&self.mountpoint) {
            Ok(true) => {
                if let Err(errno) = detach(&self.mountpoint) {
                    eprintln!("cannot unmount {}: {errno}", self.mountpoint.display());
                }
            }
            Ok(false) => {}
            Err(error) => eprintln!("{error:#}"),
        }
    }
}
