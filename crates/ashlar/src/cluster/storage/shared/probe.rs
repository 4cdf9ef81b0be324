//! Whether a shared disk can be written to: what is not asked for may fail unseen, and another server could be reaching the disk.

use parking_lot::Mutex;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::Path;
use std::time::{Duration, Instant};

/// Time between two looks.
pub const EVERY: Duration = Duration::from_secs(2);
/// After how long it counts as failing: as with targets that have copies.
const LATE_AFTER: Duration = Duration::from_secs(15);
/// Written anew each time.
const FILE: &str = ".ashlar-probe";

/// See the module.
#[derive(Default)]
pub struct Probe {
    /// Since when nothing could be written; `None`: nobody looks.
    // LIMIT: one look at a time.
    good: Mutex<Option<Instant>>,
}

impl Probe {
    /// The disk is in use from now on.
    pub fn begin(&self) {
        *self.good.lock() = Some(Instant::now());
    }

    /// It is not any more.
    pub fn end(&self) {
        *self.good.lock() = None;
    }

    /// Whether the disk has not answered for too long.
    pub fn is_late(&self) -> bool {
        self.good.lock().is_some_and(|good| good.elapsed() >= LATE_AFTER)
    }

    /// Writes to the disk at `dir`, and notes that it could.
    pub fn look(&self, dir: &Path) {
        match write(dir) {
            // A full disk answers.
            Ok(()) => self.note(),
            Err(error) if error.kind() == io::ErrorKind::StorageFull => self.note(),
            Err(error) => tracing::warn!(%error, dir = %dir.display(), "a shared disk cannot be written to"),
        }
    }

    fn note(&self) {
        if let Some(good) = &mut *self.good.lock() {
            *good = Instant::now();
        }
    }
}

fn write(dir: &Path) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create(true).truncate(false).open(dir.join(FILE))?;
    file.write_all(&[0x5a; 512])?;
    file.sync_data()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn a_disk_that_cannot_be_written_to_is_late_after_a_while() {
        let probe = Probe::default();
        assert!(!probe.is_late(), "nobody uses it");
        let long_ago = Instant::now().checked_sub(LATE_AFTER).unwrap();
        *probe.good.lock() = Some(long_ago);
        assert!(probe.is_late());
        probe.look(Path::new("/proc/no such directory"));
        assert!(probe.is_late());
        let dir = tempfile::tempdir().unwrap();
        probe.look(dir.path());
        assert!(!probe.is_late());
        probe.end();
        probe.look(dir.path());
        assert!(probe.good.lock().is_none());
    }
}
