//! Slab files: opening them when they are needed, keeping the number of open ones bounded, and knowing which ones were
//! written since they were last synced.

use crate::error::{ChunkError, is_no_space};
use crate::geometry::{Class, SlabId};
use crate::stop::StopSwitch;
use ashlar_env::{Disk, DiskFile, OpenMode};
use parking_lot::{Mutex, RwLock};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

type Handle = Arc<dyn DiskFile>;

/// One slab file, open or not.
pub(crate) struct Slab {
    pub(crate) id: SlabId,
    handle: RwLock<Option<Handle>>,
    /// Written since the last sync. Set after a write and before it is acknowledged.
    is_touched: AtomicBool,
    /// Used since the search for a handle to close last passed by.
    is_recent: AtomicBool,
}

/// All slab files of a target.
pub(crate) struct Slabs {
    disk: Arc<dyn Disk>,
    stop: Arc<StopSwitch>,
    /// LIMIT: one entry of about 100 bytes per slab that was used since the start; a slab holds 1 GiB or more.
    known: RwLock<FxHashMap<SlabId, Arc<Slab>>>,
    touched: Mutex<Vec<Arc<Slab>>>,
    /// LIMIT: `open_max` entries, plus one per thread for a moment.
    open: Mutex<VecDeque<Arc<Slab>>>,
    open_max: usize,
}

impl Slabs {
    pub(crate) fn new(disk: Arc<dyn Disk>, stop: Arc<StopSwitch>, open_max: usize) -> Slabs {
        Slabs {
            disk,
            stop,
            known: RwLock::default(),
            touched: Mutex::default(),
            open: Mutex::default(),
            open_max: open_max.max(1),
        }
    }

    /// The slab, whether or not its file exists.
    pub(crate) fn slab(&self, id: SlabId) -> Arc<Slab> {
        if let Some(slab) = self.known.read().get(&id) {
            return Arc::clone(slab);
        }
        let new = || {
            Arc::new(Slab {
                id,
                handle: RwLock::new(None),
                is_touched: AtomicBool::new(false),
                is_recent: AtomicBool::new(false),
            })
        };
        Arc::clone(self.known.write().entry(id).or_insert_with(new))
    }

    /// Numbers of the slab files of a class, ascending.
    pub(crate) fn list(&self, class: Class) -> Result<Vec<u32>, ChunkError> {
        let dir = class.dir();
        let names = match self.disk.list(&dir) {
            Ok(names) => names,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(ChunkError::io(format!("list {}", self.disk.describe(&dir)), error)),
        };
        let mut numbers: Vec<u32> = names
            .iter()
            .filter_map(|name| name.strip_suffix(".slab").and_then(|number| number.parse().ok()))
            .collect();
        numbers.sort_unstable();
        Ok(numbers)
    }

    /// Makes the file of a slab, durably; a file that an interrupted start left behind is completed.
    pub(crate) fn create(&self, id: SlabId) -> Result<(), ChunkError> {
        let path = id.path();
        let io = |what: &str, error: io::Error| {
            let what = format!("{what} {}", self.disk.describe(&path));
            if is_no_space(&error) { ChunkError::NoSpace { what } } else { ChunkError::io(what, error) }
        };
        self.disk.create_dir(&id.class.dir()).map_err(|error| io("make the directory of", error))?;
        let file = self.disk.open(&path, OpenMode::CreateOrOpen).map_err(|error| io("make", error))?;
        file.set_len(id.class.slab_file_bytes()).map_err(|error| io("set the length of", error))?;
        // ORDER: file, then its directories, before the first index record points into it.
        let synced = file
            .sync_data()
            .and_then(|()| self.disk.sync_dir(&id.class.dir()))
            .and_then(|()| self.disk.sync_dir("slabs"));
        synced.map_err(|error| self.stop.stop(format!("sync {}", self.disk.describe(&path)), &error))
    }

    /// Checks that the file of a slab that is in use is there and complete.
    pub(crate) fn check_file(&self, id: SlabId) -> Result<(), ChunkError> {
        let file = self.disk.describe(&id.path());
        let len = self.handle(&self.slab(id))?.len();
        let len = len.map_err(|error| ChunkError::io(format!("read the length of {file}"), error))?;
        if len >= id.class.slab_file_bytes() {
            return Ok(());
        }
        Err(ChunkError::Corrupt {
            file,
            what: format!("it has {len} bytes, not {}", id.class.slab_file_bytes()),
        })
    }

    /// The name of a slab's file, for messages.
    pub(crate) fn describe(&self, id: SlabId) -> String {
        self.disk.describe(&id.path())
    }

    /// An open handle.
    fn handle(&self, slab: &Arc<Slab>) -> Result<Handle, ChunkError> {
        slab.is_recent.store(true, Ordering::Relaxed);
        if let Some(handle) = &*slab.handle.read() {
            return Ok(Arc::clone(handle));
        }
        let mut place = slab.handle.write();
        if let Some(handle) = &*place {
            return Ok(Arc::clone(handle));
        }
        let path = slab.id.path();
        let opened = self.disk.open(&path, OpenMode::ReadWrite);
        let handle = match opened {
            Ok(handle) => handle,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(ChunkError::Corrupt {
                    file: self.describe(slab.id),
                    what: "the slab is missing".into(),
                });
            }
            Err(error) => return Err(ChunkError::io(format!("open {}", self.describe(slab.id)), error)),
        };
        *place = Some(Arc::clone(&handle));
        drop(place);
        self.close_surplus(slab)?;
        Ok(handle)
    }

    /// Notes that `opened` is open and closes another one if there are too many.
    fn close_surplus(&self, opened: &Arc<Slab>) -> Result<(), ChunkError> {
        let mut open = self.open.lock();
        open.push_back(Arc::clone(opened));
        let mut tries = 2 * open.len();
        while open.len() > self.open_max && tries > 0 {
            tries -= 1;
            let Some(candidate) = open.pop_front() else { break };
            let is_kept =
                Arc::ptr_eq(&candidate, opened) || candidate.is_recent.swap(false, Ordering::Relaxed);
            if is_kept || !self.try_close(&candidate)? {
                open.push_back(candidate);
            }
        }
        Ok(())
    }

    /// Closes a handle that nobody uses.
    fn try_close(&self, slab: &Slab) -> Result<bool, ChunkError> {
        let Some(mut place) = slab.handle.try_write() else { return Ok(false) };
        let Some(handle) = place.as_ref() else { return Ok(true) };
        if Arc::strong_count(handle) > 1 {
            return Ok(false);
        }
        // ORDER: sync before close: an error of writing back that no open handle sees may be forgotten by the kernel.
        if slab.is_touched.load(Ordering::Acquire) {
            handle
                .sync_data()
                .map_err(|error| self.stop.stop(format!("sync {}", self.describe(slab.id)), &error))?;
        }
        *place = None;
        Ok(true)
    }

    /// Reads exactly `out.len()` bytes.
    pub(crate) fn read(&self, slab: &Arc<Slab>, offset: u64, out: &mut [u8]) -> Result<(), ChunkError> {
        let handle = self.handle(slab)?;
        let got = handle
            .read_at(offset, out)
            .map_err(|error| ChunkError::io(format!("read {} at {offset}", self.describe(slab.id)), error))?;
        if got == out.len() {
            return Ok(());
        }
        let what = format!("it ends {} bytes after {offset}, {} are expected", got, out.len());
        Err(ChunkError::Corrupt { file: self.describe(slab.id), what })
    }

    /// Refuses a slab that is there and cannot be opened: it is not what is in it that is bad.
    pub(crate) fn require_open(&self, slab: &Arc<Slab>) -> Result<(), ChunkError> {
        match self.handle(slab) {
            Ok(_) | Err(ChunkError::Corrupt { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// As [`Slabs::read`]; false when the disk cannot read that place. What keeps the file from being opened is an error: nothing in it is bad.
    pub(crate) fn read_if_it_can_be(
        &self,
        slab: &Arc<Slab>,
        offset: u64,
        out: &mut [u8],
    ) -> Result<bool, ChunkError> {
        self.require_open(slab)?;
        match self.read(slab, offset, out) {
            Err(ChunkError::Io { .. }) => Ok(false),
            read => read.map(|()| true),
        }
    }

    /// Changes a slab file and notes that it needs a sync. "No space" is handed back for the caller to put things right;
    /// every other error stops the target.
    pub(crate) fn change(
        &self,
        slab: &Arc<Slab>,
        change: impl FnOnce(&dyn DiskFile) -> io::Result<()>,
    ) -> Result<(), ChunkError> {
        let handle = self.handle(slab)?;
        let changed = change(&*handle);
        // ORDER: after the write, so that a sync that clears the mark covers the write; also after a failed one, which
        // may have written a part. The handle is held until here, so that it is not closed in between.
        self.touch(slab);
        drop(handle);
        match changed {
            Ok(()) => Ok(()),
            Err(error) if is_no_space(&error) => {
                Err(ChunkError::NoSpace { what: format!("write {}: {error}", self.describe(slab.id)) })
            }
            Err(error) => Err(self.stop.stop(format!("write {}", self.describe(slab.id)), &error)),
        }
    }

    fn touch(&self, slab: &Arc<Slab>) {
        if slab.is_touched.load(Ordering::SeqCst) {
            return;
        }
        // ORDER: marked and listed at once. Whoever found it marked and not listed yet would acknowledge a write of which the next sync knows nothing.
        let mut touched = self.touched.lock();
        if !slab.is_touched.swap(true, Ordering::SeqCst) {
            touched.push(Arc::clone(slab));
        }
    }

    /// Makes every change that was made before the call durable.
    pub(crate) fn sync_touched(&self) -> Result<u64, ChunkError> {
        let mut owed = Owed { slabs: self, rest: std::mem::take(&mut *self.touched.lock()) };
        let count = owed.rest.len();
        while let Some(slab) = owed.rest.last() {
            // ORDER: the mark is cleared before the sync: a write that comes in between marks the slab again.
            slab.is_touched.store(false, Ordering::SeqCst);
            self.sync(slab)?;
            owed.rest.pop();
        }
        Ok(count as u64)
    }

    /// Makes everything durable that anybody has written to the file system of the target.
    pub(crate) fn sync_all(&self) -> io::Result<()> {
        self.disk.sync_all()
    }

    /// Whether any slab was written since the last sync.
    pub(crate) fn has_touched(&self) -> bool {
        !self.touched.lock().is_empty()
    }

    /// Lists a slab that was taken off the list; it may be marked still, or again.
    fn touch_again(&self, slab: &Arc<Slab>) {
        let mut touched = self.touched.lock();
        slab.is_touched.store(true, Ordering::SeqCst);
        touched.push(Arc::clone(slab));
    }

    /// Makes every change to one slab that was made before the call durable. The slab stays marked for the next sync.
    pub(crate) fn sync(&self, slab: &Arc<Slab>) -> Result<(), ChunkError> {
        let synced = self.handle(slab)?.sync_data();
        synced.map_err(|error| self.stop.stop(format!("sync {}", self.describe(slab.id)), &error))
    }
}

/// Slabs that a round has taken and not synced yet. The next one owes what this one could not do: a file could not be opened, say.
struct Owed<'a> {
    slabs: &'a Slabs,
    rest: Vec<Arc<Slab>>,
}

impl Drop for Owed<'_> {
    fn drop(&mut self) {
        self.rest.iter().for_each(|slab| self.slabs.touch_again(slab));
    }
}
