//! Files that only make a file system fuller, so that it can be seen how its rates behave then.

use crate::BenchError;
use crate::buffer::AlignedBuffer;
use crate::place::Place;
use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

/// Bytes of one file that fills, and of one write.
const FILE_BYTES: u64 = 1 << 30;
const PIECE_BYTES: u64 = 1 << 20;
const BLOCK_BYTES: usize = 4096;

/// Size of a file system and what of it is used, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// All.
    pub total_bytes: u64,
    /// What is not free.
    pub used_bytes: u64,
}

impl Usage {
    /// Of the file system that `place` is on.
    ///
    /// # Errors
    /// What statvfs(3) answers.
    pub fn of(place: &Place) -> Result<Usage, BenchError> {
        let told = rustix::fs::statvfs(place.path())
            .map_err(BenchError::errno("ask for the free space of", place.path()))?;
        let bytes = |blocks: u64| blocks.saturating_mul(told.f_frsize);
        Ok(Usage {
            total_bytes: bytes(told.f_blocks),
            used_bytes: bytes(told.f_blocks.saturating_sub(told.f_bfree)),
        })
    }

    /// Bytes that may be there at `percent`.
    pub fn at(&self, percent: u8) -> u64 {
        (u128::from(self.total_bytes) * u128::from(percent) / 100) as u64
    }

    /// Whether all of `percents` can be reached when `measured_bytes` of each are those of the measurement itself.
    ///
    /// # Errors
    /// [`BenchError::Plan`] with the level that cannot.
    pub fn check(&self, percents: &[u8], measured_bytes: u64) -> Result<(), BenchError> {
        let least = self.used_bytes.saturating_add(measured_bytes);
        match percents.iter().find(|percent| self.at(**percent) < least) {
            None => Ok(()),
            Some(percent) => Err(BenchError::Plan(format!(
                "the file system cannot be filled to {percent} %: {} % of it are in use, and the measurement itself needs {} % at that level",
                share(self.used_bytes, self.total_bytes),
                share(measured_bytes, self.total_bytes)
            ))),
        }
    }
}

fn share(part: u64, all: u64) -> String {
    format!("{:.1}", part as f64 / all.max(1) as f64 * 100.0)
}

/// Files of one run that fill.
#[derive(Debug, Default)]
pub struct Filling {
    files: Vec<PathBuf>,
    /// The level that was reached.
    percent: Option<u8>,
}

/// Usage is taken for settled when it was the same so often, so far apart. Many file systems tell of what was written, and free what was removed, seconds later.
const SAME_LOOKS: u32 = 3;
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// LIMIT: looks before it is taken as it is.
const LOOKS_MAX: u32 = 30;

impl Filling {
    /// Writes files in `place` until the file system holds `percent` less `spared_bytes`, which the measurement will write. Never more: what others
    /// write meanwhile is looked at before each file, and what was written here counts at once, however late it is told. A level is filled once.
    ///
    /// # Errors
    /// What a call answers; [`BenchError::Stopped`].
    pub fn fill(
        &mut self,
        place: &Place,
        percent: u8,
        spared_bytes: u64,
        cancel: &AtomicBool,
    ) -> Result<(), BenchError> {
        if self.percent == Some(percent) {
            return Ok(());
        }
        let begin = settled(place, cancel)?;
        let mut written: u64 = 0;
        loop {
            let usage = Usage::of(place)?;
            let used = usage.used_bytes.max(begin.used_bytes.saturating_add(written));
            let missing = missing(&usage, percent, spared_bytes, used);
            if missing == 0 {
                self.percent = Some(percent);
                return Ok(());
            }
            let path = place.path().join(format!("fill.{}", self.files.len()));
            self.files.push(path.clone());
            let bytes = missing.min(FILE_BYTES);
            write(&path, bytes, self.files.len() as u64, cancel)?;
            written += bytes;
        }
    }
}

/// Bytes that are missing at `percent` less `spared_bytes`, when `used` are there.
fn missing(usage: &Usage, percent: u8, spared_bytes: u64, used: u64) -> u64 {
    let target = usage.at(percent).saturating_sub(spared_bytes);
    target.saturating_sub(used) / PIECE_BYTES * PIECE_BYTES
}

/// The usage once it stays the same.
fn settled(place: &Place, cancel: &AtomicBool) -> Result<Usage, BenchError> {
    let mut last = Usage::of(place)?;
    let mut same = 0;
    for _ in 0..LOOKS_MAX {
        if same == SAME_LOOKS {
            break;
        }
        if cancel.load(Relaxed) {
            return Err(BenchError::Stopped);
        }
        std::thread::park_timeout(LOOK_EVERY);
        let now = Usage::of(place)?;
        same = if now == last { same + 1 } else { 0 };
        last = now;
    }
    Ok(last)
}

fn write(path: &PathBuf, bytes: u64, seed: u64, cancel: &AtomicBool) -> Result<(), BenchError> {
    let mut file = File::create_new(path).map_err(BenchError::io("make", path))?;
    let mut piece = AlignedBuffer::noise(PIECE_BYTES as usize, seed)?;
    for number in 0..bytes / PIECE_BYTES {
        if cancel.load(Relaxed) {
            return Err(BenchError::Stopped);
        }
        // No two blocks are the same, or a file system could store them once.
        for (at, block) in piece.as_mut_slice().chunks_mut(BLOCK_BYTES).enumerate() {
            block[..8].copy_from_slice(&(number << 8 | at as u64).to_le_bytes());
        }
        file.write_all(piece.as_slice()).map_err(BenchError::io("write", path))?;
    }
    file.sync_all().map_err(BenchError::io("fsync", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_below_what_is_in_use_is_refused() {
        let usage = Usage { total_bytes: 1000, used_bytes: 300 };
        assert!(usage.check(&[40, 90], 50).is_ok());
        let refused = usage.check(&[10, 40, 90], 50).unwrap_err().to_string();
        assert!(refused.contains("to 10 %") && refused.contains("30.0 % of it are in use"), "{refused}");
        assert!(usage.check(&[40], 200).is_err());
    }

    /// A file system of 5 GiB was filled 0.8 GB too far, because it told of each file a second after it was written.
    #[test]
    fn what_is_told_late_is_not_written_twice() {
        let told = Usage { total_bytes: 1000 << 20, used_bytes: 300 << 20 };
        let first = missing(&told, 80, 100 << 20, told.used_bytes);
        assert_eq!(first, 400 << 20);
        assert_eq!(missing(&told, 80, 100 << 20, told.used_bytes + first), 0);
        assert_eq!(
            missing(&told, 80, 100 << 20, told.used_bytes + first - (1 << 19)),
            0,
            "whole pieces only"
        );
    }

    #[test]
    fn a_stopped_run_does_not_go_on_filling() {
        let root = tempfile::tempdir().unwrap();
        let place = Place::make(root.path(), false).unwrap();
        let stopped = write(&place.path().join("x"), 10 << 20, 1, &AtomicBool::new(true));
        assert!(matches!(stopped, Err(BenchError::Stopped)));
        let path = place.path().join("y");
        write(&path, 3 << 20, 1, &AtomicBool::new(false)).unwrap();
        assert_eq!(path.metadata().unwrap().len(), 3 << 20);
    }

    #[test]
    fn nothing_is_written_beyond_the_level() {
        let root = tempfile::tempdir_in("/dev/shm").unwrap();
        let place = Place::make(root.path(), false).unwrap();
        let usage = Usage::of(&place).unwrap();
        // Others use this file system, too: only what this run adds is looked at.
        let percent = (usage.used_bytes * 100 / usage.total_bytes.max(1)).saturating_sub(1) as u8;
        let mut filling = Filling::default();
        filling.fill(&place, percent, 0, &AtomicBool::new(false)).unwrap();
        assert!(std::fs::read_dir(place.path()).unwrap().next().is_none(), "the level was reached before");
    }
}
