//! Free space, and the refusal of writes before it runs out.
//!
//! Asking the local file system costs about a microsecond, so the answer is kept for a while: until a share of the
//! distance to the reserve has been handed out, or a second has passed.

use crate::error::ChunkError;
use ashlar_env::{Clock, Disk, DiskSpace};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

/// Age at which the answer is asked for anew.
const AGE_MAX: Duration = Duration::from_secs(1);

/// What is known of the local file system's free space.
pub(crate) struct Space {
    disk: Arc<dyn Disk>,
    clock: Arc<dyn Clock>,
    reserve_bytes: u64,
    /// Bytes that may be handed out before the file system is asked again; negative when it must be asked now.
    credit: AtomicI64,
    /// Microseconds of the monotonic clock.
    asked_at: AtomicU64,
    /// One asks, the others wait for the answer.
    asking: Mutex<()>,
}

impl Space {
    pub(crate) fn new(
        disk: Arc<dyn Disk>,
        clock: Arc<dyn Clock>,
        reserve: impl FnOnce(u64) -> u64,
    ) -> Result<Space, ChunkError> {
        let now = disk.space().map_err(|error| ChunkError::io("ask for free space", error))?;
        Ok(Space {
            disk,
            clock,
            reserve_bytes: reserve(now.bytes_total),
            credit: AtomicI64::new(-1),
            asked_at: AtomicU64::new(0),
            asking: Mutex::new(()),
        })
    }

    /// Kept free, bytes.
    pub(crate) fn reserve_bytes(&self) -> u64 {
        self.reserve_bytes
    }

    /// Asks the file system.
    pub(crate) fn ask(&self) -> Result<DiskSpace, ChunkError> {
        self.disk.space().map_err(|error| ChunkError::io("ask for free space", error))
    }

    /// Whether `bytes` more may be used.
    pub(crate) fn admit(&self, bytes: u64) -> Result<bool, ChunkError> {
        let wanted = i64::try_from(bytes).unwrap_or(i64::MAX);
        if self.credit.fetch_sub(wanted, Ordering::Relaxed) >= wanted && self.age() < AGE_MAX {
            return Ok(true);
        }
        let _asking = self.asking.lock();
        let above = self.ask()?.bytes_free.saturating_sub(self.reserve_bytes);
        // A quarter of the distance: others use the file system too, and writes in flight are not counted in it yet.
        let share = i64::try_from(above / 4).unwrap_or(i64::MAX);
        self.credit.store(share.saturating_sub(wanted), Ordering::Relaxed);
        self.asked_at.store(self.now_us(), Ordering::Relaxed);
        Ok(above >= bytes)
    }

    fn now_us(&self) -> u64 {
        u64::try_from(self.clock.monotonic().as_micros()).unwrap_or(u64::MAX)
    }

    fn age(&self) -> Duration {
        Duration::from_micros(self.now_us().saturating_sub(self.asked_at.load(Ordering::Relaxed)))
    }
}
