//! Keeps space back, so that a full disk can be emptied again.
//!
//! A reserve file holds blocks. While it cannot be held, or less than its size is free besides it and besides what the engine may
//! need to merge its tables, only changes that free space are taken. A checkpoint or a delete that finds no space left gives the reserve up; it is taken again when there is room
//! for it twice over.

use super::LaneConfig;
use super::turn::Turn;
use ashlar_env::{Disk, OpenMode, Tasks};
use parking_lot::Mutex;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// What the engine's least change takes, bytes: files of its own, and what a file system counts as free and does not give.
const CHANGE_BYTES_MIN: u64 = 8 << 20;

/// The reserve and what is known of free space.
pub(super) struct Space {
    disk: Arc<dyn Disk>,
    dir: String,
    /// The reserve file.
    path: String,
    reserve_bytes: u64,
    merge_part: u64,
    is_low: AtomicBool,
    bytes_free: AtomicU64,
    /// What the engine may need besides, bytes.
    merge_bytes: AtomicU64,
    is_held: Mutex<bool>,
    /// Whoever looks, and perhaps waits for the disk to take the reserve: not under the lock, for whoever gives the reserve up has no time.
    looking: Turn,
}

impl Space {
    /// Looks for a reserve left by an earlier run.
    pub(super) fn new(disk: Arc<dyn Disk>, dir: &str, config: &LaneConfig, tasks: &dyn Tasks) -> Space {
        let path = format!("{dir}/reserve");
        let found = disk.open(&path, OpenMode::Read).and_then(|file| file.len());
        let is_held = found.is_ok_and(|len| len >= config.reserve_bytes);
        Space {
            disk,
            dir: dir.to_owned(),
            path,
            reserve_bytes: config.reserve_bytes,
            merge_part: config.merge_part.max(1),
            is_low: AtomicBool::new(false),
            bytes_free: AtomicU64::new(u64::MAX),
            merge_bytes: AtomicU64::new(0),
            is_held: Mutex::new(is_held),
            looking: Turn::new(tasks),
        }
    }

    pub(super) fn is_low(&self) -> bool {
        self.is_low.load(Ordering::Relaxed)
    }

    pub(super) fn set_low(&self) {
        if self.reserve_bytes > 0 {
            self.is_low.store(true, Ordering::Relaxed);
        }
    }

    pub(super) fn describe(&self) -> String {
        format!(
            "{} has {} bytes free, {} are kept for deletes and checkpoints, and {} to merge tables",
            self.disk.describe(""),
            self.bytes_free.load(Ordering::Relaxed),
            self.reserve_bytes,
            self.merge_bytes.load(Ordering::Relaxed)
        )
    }

    /// Bytes that were free when the file system was last asked.
    pub(super) fn bytes_free(&self) -> u64 {
        self.bytes_free.load(Ordering::Relaxed)
    }

    /// Asks the file system, takes the reserve if there is room, and decides whether space is low. `merge_bytes`: what the engine may need besides.
    pub(super) fn refresh(&self, merge_bytes: u64) -> io::Result<()> {
        if self.reserve_bytes == 0 {
            return Ok(());
        }
        let _looking = self.looking.take();
        if !*self.is_held.lock() && self.disk.space()?.bytes_free >= self.reserve_bytes.saturating_mul(2) {
            self.take_reserve()?;
        }
        let is_held = self.is_held.lock();
        let space = self.disk.space()?;
        let (bytes_free, merge_bytes) =
            (space.bytes_free, merge_bytes.min(space.bytes_total / self.merge_part));
        self.bytes_free.store(bytes_free, Ordering::Relaxed);
        self.merge_bytes.store(merge_bytes, Ordering::Relaxed);
        let is_low = !*is_held || bytes_free < self.reserve_bytes.saturating_add(merge_bytes);
        if self.is_low.swap(is_low, Ordering::Relaxed) != is_low {
            tracing::warn!(is_low, bytes_free, "space for metadata: {}", self.describe());
        }
        Ok(())
    }

    fn take_reserve(&self) -> io::Result<()> {
        let file = self.disk.open(&self.path, OpenMode::CreateOrOpen)?;
        // Durable, so that a power cut does not give the blocks to others.
        let held = file.allocate(0, self.reserve_bytes).and_then(|()| {
            file.sync_data()?;
            self.disk.sync_dir(&self.dir)
        });
        match held {
            Ok(()) => *self.is_held.lock() = true,
            // Others took the space in between; the next refresh tries again.
            Err(error) if crate::log::writer::is_out_of_space(&error) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Gives the reserve back to the file system; false when there was none.
    pub(super) fn release_reserve(&self) -> bool {
        let mut is_held = self.is_held.lock();
        if !*is_held {
            return false;
        }
        self.set_low();
        match self.disk.remove(&self.path) {
            Ok(()) => *is_held = false,
            Err(error) => {
                tracing::error!(%error, file = self.disk.describe(&self.path), "could not release the reserve");
                return false;
            }
        }
        tracing::warn!(bytes = self.reserve_bytes, "the disk is full: the reserve for deletes is in use");
        true
    }

    /// Gives the reserve up if less is free than a change of `bytes` takes; tells whether so much is free now.
    pub(super) fn require(&self, bytes: u64) -> io::Result<bool> {
        let bytes = bytes.max(CHANGE_BYTES_MIN.min(self.reserve_bytes));
        if self.reserve_bytes > 0 && self.disk.space()?.bytes_free < bytes {
            self.release_reserve();
            return Ok(self.disk.space()?.bytes_free >= bytes);
        }
        Ok(true)
    }

    /// Asks the file system whether so much is free; yes where no space is kept back.
    pub(super) fn has_free(&self, bytes: u64) -> io::Result<bool> {
        Ok(self.reserve_bytes == 0 || self.disk.space()?.bytes_free >= bytes)
    }
}
