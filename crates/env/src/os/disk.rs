//! A directory of the local file system as a [`Disk`].

use super::OsFile;
use super::continuity::continuity_of;
use super::loss;
use crate::{Continuity, Disk, DiskFile, DiskSpace, OpenMode};
use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

/// Files below one directory.
#[derive(Clone, Debug)]
pub struct OsDisk {
    root: PathBuf,
}

impl OsDisk {
    /// Whether the local file system of the root is mounted read-only.
    ///
    /// # Errors
    /// As `statvfs(3)`.
    pub fn is_mounted_read_only(&self) -> io::Result<bool> {
        Ok(statvfs(&self.root)?.f_flag & libc::ST_RDONLY != 0)
    }

    /// The tree below `root`, which should be an existing directory.
    pub fn new(root: impl Into<PathBuf>) -> OsDisk {
        OsDisk { root: root.into() }
    }

    /// Whether there is a note that something may be lost ([`Disk::note_loss`]).
    pub(super) fn is_loss_noted(&self) -> io::Result<bool> {
        loss::is_noted(&self.root)
    }

    /// Has what is read from now on come from the device.
    pub(super) fn forget_pages(&self) -> io::Result<()> {
        loss::forget_pages_below(&self.root, 0)
    }

    /// `path` below the root; refuses what would leave it.
    fn resolve(&self, path: &str) -> io::Result<PathBuf> {
        let relative = Path::new(path);
        let stays =
            relative.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
        if !stays {
            let what = format!("{path:?} leaves its root directory");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        Ok(self.root.join(relative))
    }
}

impl Disk for OsDisk {
    fn open(&self, path: &str, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        let mut options = OpenOptions::new();
        options.read(true).mode(0o600);
        match mode {
            OpenMode::Read => &mut options,
            OpenMode::ReadWrite => options.write(true),
            OpenMode::CreateOrOpen => options.write(true).create(true).truncate(false),
            OpenMode::CreateNew => options.write(true).create_new(true),
        };
        Ok(Arc::new(OsFile::new(options.open(self.resolve(path)?)?)))
    }

    fn list(&self, path: &str) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(self.resolve(path)?)? {
            // A name that is not UTF-8 was not made through this trait and cannot be opened through it.
            if let Ok(name) = entry?.file_name().into_string() {
                names.push(name);
            }
        }
        Ok(names)
    }

    fn create_dir(&self, path: &str) -> io::Result<()> {
        std::fs::create_dir_all(self.resolve(path)?)
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        std::fs::remove_file(self.resolve(path)?)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        std::fs::rename(self.resolve(from)?, self.resolve(to)?)
    }

    fn sync_dir(&self, path: &str) -> io::Result<()> {
        File::open(self.resolve(path)?)?.sync_all()
    }

    fn sync_all(&self) -> io::Result<()> {
        let root = File::open(&self.root)?;
        // SAFETY: the descriptor is open through the call, which takes no pointer.
        match unsafe { libc::syncfs(root.as_raw_fd()) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn space(&self) -> io::Result<DiskSpace> {
        let answer = statvfs(&self.root)?;
        // SAFETY: geteuid has no preconditions and cannot fail.
        let is_root = unsafe { libc::geteuid() } == 0;
        let blocks_free = if is_root { answer.f_bfree } else { answer.f_bavail };
        Ok(DiskSpace {
            bytes_total: answer.f_blocks.saturating_mul(answer.f_frsize),
            bytes_free: blocks_free.saturating_mul(answer.f_frsize),
            // Not f_fsid, which copies of a disk have in common.
            file_system: Some(std::fs::metadata(&self.root)?.dev()),
        })
    }

    fn continuity(&self) -> Option<Continuity> {
        let found = continuity_of(&self.root)?;
        let is_whole = loss::is_noted(&self.root).is_ok_and(|is_noted| !is_noted);
        let losses = loss::count(&self.root).ok().filter(|_| is_whole)?;
        Some(found.after(losses))
    }

    fn note_loss(&self, what: &str) -> io::Result<()> {
        loss::note(&self.root, what)
    }

    fn end_loss(&self) -> io::Result<bool> {
        loss::end(self, &self.root)
    }

    fn describe(&self, path: &str) -> String {
        self.root.join(path).display().to_string()
    }
}

/// What the kernel says of the file system of `path`.
fn statvfs(path: &Path) -> io::Result<libc::statvfs> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let mut answer = MaybeUninit::<libc::statvfs>::uninit();
    loop {
        // SAFETY: `path` is a terminated string and `answer` is writable memory of the right type.
        if unsafe { libc::statvfs(path.as_ptr(), answer.as_mut_ptr()) } == 0 {
            // SAFETY: statvfs returned 0, so it filled the structure.
            return Ok(unsafe { answer.assume_init() });
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}
