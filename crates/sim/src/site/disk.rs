//! The disk of a server of the site, which stops in the middle of something.

use super::Site;
use ashlar_env::sim::SimDisk;
use ashlar_env::{Continuity, Disk, DiskFile, DiskSpace, OpenMode};
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering::SeqCst};
use std::sync::{Arc, Weak};

/// Stops in the middle of a change of the disk, and keeps everybody from it after that.
#[derive(Default)]
pub(super) struct Switch {
    /// Changes of the disk until the server stops; negative: it does not.
    pub stop_in: AtomicI64,
    pub is_off: AtomicBool,
}

impl Switch {
    /// One that stops after so many changes.
    pub fn new(stop_in: i64) -> Arc<Switch> {
        Arc::new(Switch { stop_in: AtomicI64::new(stop_in), is_off: AtomicBool::new(false) })
    }

    /// It does not stop any more.
    pub fn keep_on(&self) {
        self.stop_in.store(-1, SeqCst);
    }

    /// The server is off, and may be started again.
    pub fn reset(&self) {
        self.keep_on();
        self.is_off.store(false, SeqCst);
    }
}

/// The disk of a server.
#[derive(Clone)]
pub(super) struct ServerDisk {
    pub inner: SimDisk,
    pub switch: Arc<Switch>,
    /// Whether others run during a sync: nobody may hold a lock then.
    pub pauses_in_sync: bool,
    pub site: Weak<Site>,
}

struct ServerFile {
    inner: Arc<dyn DiskFile>,
    disk: ServerDisk,
}

fn eio() -> io::Error {
    io::Error::from_raw_os_error(libc::EIO)
}

impl ServerDisk {
    fn change<T>(&self, run: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        if self.switch.is_off.load(SeqCst) {
            return Err(eio());
        }
        let left = self.switch.stop_in.load(SeqCst);
        if left >= 0 {
            self.switch.stop_in.store(left - 1, SeqCst);
        }
        if left == 0 {
            self.inner.cut_power_after(0);
            let outcome = run();
            self.switch.is_off.store(true, SeqCst);
            return outcome.and_then(|_| Err(eio()));
        }
        run()
    }

    fn look<T>(&self, run: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        if self.switch.is_off.load(SeqCst) { Err(eio()) } else { run() }
    }

    fn pause(&self) {
        if self.pauses_in_sync
            && let Some(site) = self.site.upgrade()
            && site.dice.below(2) == 0
        {
            site.scheduler.pause();
        }
    }
}

impl Disk for ServerDisk {
    fn open(&self, path: &str, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        let run = || self.inner.open(path, mode);
        let inner = match mode {
            OpenMode::CreateOrOpen | OpenMode::CreateNew => self.change(run)?,
            OpenMode::Read | OpenMode::ReadWrite => self.look(run)?,
        };
        Ok(Arc::new(ServerFile { inner, disk: self.clone() }))
    }

    fn list(&self, path: &str) -> io::Result<Vec<String>> {
        self.look(|| self.inner.list(path))
    }

    fn create_dir(&self, path: &str) -> io::Result<()> {
        self.change(|| self.inner.create_dir(path))
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        self.change(|| self.inner.remove(path))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.change(|| self.inner.rename(from, to))
    }

    fn sync_dir(&self, path: &str) -> io::Result<()> {
        self.change(|| self.inner.sync_dir(path))
    }

    fn sync_all(&self) -> io::Result<()> {
        self.change(|| self.inner.sync_all())
    }

    fn space(&self) -> io::Result<DiskSpace> {
        self.look(|| self.inner.space())
    }

    fn continuity(&self) -> Option<Continuity> {
        self.inner.continuity()
    }

    fn note_loss(&self, what: &str) -> io::Result<()> {
        self.change(|| self.inner.note_loss(what))
    }

    fn end_loss(&self) -> io::Result<bool> {
        self.change(|| self.inner.end_loss())
    }

    fn describe(&self, path: &str) -> String {
        self.inner.describe(path)
    }
}

impl DiskFile for ServerFile {
    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<usize> {
        self.disk.look(|| self.inner.read_at(offset, out))
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.disk.change(|| self.inner.write_at(offset, data))
    }

    fn write_vectored_at(&self, offset: u64, parts: &[&[u8]]) -> io::Result<()> {
        self.disk.change(|| self.inner.write_vectored_at(offset, parts))
    }

    fn next_data(&self, offset: u64) -> io::Result<Option<Range<u64>>> {
        self.disk.look(|| self.inner.next_data(offset))
    }

    fn sync_data(&self) -> io::Result<()> {
        self.disk.pause();
        let outcome = self.disk.change(|| self.inner.sync_data());
        self.disk.pause();
        outcome
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.disk.change(|| self.inner.set_len(len))
    }

    fn len(&self) -> io::Result<u64> {
        self.disk.look(|| self.inner.len())
    }

    fn punch_hole(&self, offset: u64, len: u64) -> io::Result<()> {
        self.disk.change(|| self.inner.punch_hole(offset, len))
    }

    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        self.disk.change(|| self.inner.allocate(offset, len))
    }

    fn try_lock(&self) -> io::Result<()> {
        self.disk.look(|| self.inner.try_lock())
    }
}
