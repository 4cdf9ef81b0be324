//! The directory that is measured in: what must hold before, and that nothing of ours is left after.

use crate::data::DataPlan;
use crate::{BenchError, mark};
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// LIMIT: how long the space of removed files is waited for.
const FREEING_MAX: Duration = Duration::from_secs(30);
/// Bytes that stay free beside what is written: one of so many.
const SPARE_PART: u64 = 20;

/// What is free in a file system for whoever asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Room {
    /// Bytes.
    pub bytes: u64,
    /// Files (inodes); `u64::MAX` where the file system does not count them.
    pub files: u64,
}

/// What files that are kept are in, below the directory that was named.
const KEPT: &str = "ashlar-bench.kept";
/// What they were written with.
const KEPT_PLAN: &str = "plan.json";
/// LIMIT: bytes of it.
const KEPT_PLAN_BYTES_MAX: u64 = 1 << 16;

/// A directory of our own below the one that was named; it goes with this value unless it is kept, and nothing else does.
#[derive(Debug)]
pub struct Place {
    root: PathBuf,
    is_kept: bool,
    /// Most bytes and files that were free: what is missing of them later was ours, and comes back.
    free_bytes_max: AtomicU64,
    free_files_max: AtomicU64,
}

impl Place {
    fn at(root: PathBuf, is_kept: bool) -> Place {
        Place { root, is_kept, free_bytes_max: AtomicU64::new(0), free_files_max: AtomicU64::new(0) }
    }

    /// Makes it in `directory`, which is there and, unless `beside_others`, empty.
    ///
    /// # Errors
    /// [`BenchError::NotEmpty`], and what a call answers.
    pub fn make(directory: &Path, beside_others: bool) -> Result<Place, BenchError> {
        Place::check_empty(directory, beside_others)?;
        let root = directory.join(Place::own_name());
        fs::create_dir(&root).map_err(BenchError::io("make directory", &root))?;
        Ok(Place::at(root, false))
    }

    /// The same for `run`, as [`draw_run`] has drawn it: with a mark in it, by which it is removed when an interrupted run goes on.
    ///
    /// # Errors
    /// As [`Place::make`].
    ///
    /// [`draw_run`]: crate::agent::draw_run
    pub fn make_for(run: &str, directory: &Path, beside_others: bool) -> Result<Place, BenchError> {
        Place::check_empty(directory, beside_others)?;
        let root = directory.join(mark::directory_name(run));
        mark::make(&root, run, "")?;
        Ok(Place::at(root, false))
    }

    /// The directory with the files that [`Place::keep`] has left in `directory`, and the plan that they were written with. It stays.
    ///
    /// # Errors
    /// [`BenchError::Unfit`] if there is none.
    pub fn kept(directory: &Path) -> Result<(Place, DataPlan), BenchError> {
        let root = directory.join(KEPT);
        let fault = |why: &dyn std::fmt::Display| {
            BenchError::Unfit(format!("{} has no files that --keep-files has left: {why}", root.display()))
        };
        let file = fs::File::open(root.join(KEPT_PLAN)).map_err(|error| fault(&error))?;
        let mut text = String::new();
        file.take(KEPT_PLAN_BYTES_MAX).read_to_string(&mut text).map_err(|error| fault(&error))?;
        let plan: DataPlan = serde_json::from_str(&text).map_err(|error| fault(&error))?;
        plan.check()?;
        Ok((Place::at(root, true), plan))
    }

    /// Whether no files of `directory` were kept before.
    ///
    /// # Errors
    /// [`BenchError::Unfit`] if there are.
    pub fn check_none_kept(directory: &Path) -> Result<(), BenchError> {
        let root = directory.join(KEPT);
        if fs::symlink_metadata(&root).is_err() {
            return Ok(());
        }
        Err(BenchError::Unfit(format!("{} is there: remove it, or read it with --use-kept", root.display())))
    }

    /// Leaves the files of `plan` that are here for [`Place::kept`]; tells where they are.
    ///
    /// # Errors
    /// What a call answers: also when others were kept there before.
    pub fn keep(&self, plan: &DataPlan) -> Result<PathBuf, BenchError> {
        let path = self.root.join(KEPT_PLAN);
        let text = serde_json::to_string(plan).map_err(|error| BenchError::Unfit(error.to_string()))?;
        fs::write(&path, text).map_err(BenchError::io("write", &path))?;
        let kept = self.root.with_file_name(KEPT);
        // A directory takes the place of an empty one only: what was kept before is not lost.
        fs::rename(&self.root, &kept).map_err(BenchError::io("keep the files as", &kept))?;
        Ok(kept)
    }

    /// Whether `directory` is there and, unless `beside_others`, empty.
    ///
    /// # Errors
    /// As [`Place::make`].
    pub(crate) fn check_empty(directory: &Path, beside_others: bool) -> Result<(), BenchError> {
        let mut entries = fs::read_dir(directory).map_err(BenchError::io("list", directory))?;
        let lost = |entry: &fs::DirEntry| entry.file_name() == "lost+found";
        let other = entries.find(|entry| !entry.as_ref().is_ok_and(lost));
        if let (Some(entry), false) = (other, beside_others) {
            let entry = entry.map_err(BenchError::io("list", directory))?.file_name().into();
            return Err(BenchError::NotEmpty { path: directory.to_owned(), entry });
        }
        Ok(())
    }

    /// The name of what this process makes in a directory.
    fn own_name() -> String {
        format!("ashlar-bench.{}", std::process::id())
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.root
    }

    /// What is free there for whoever runs this.
    ///
    /// # Errors
    /// What statvfs(3) answers.
    pub fn room(&self) -> Result<Room, BenchError> {
        room(&self.root)
    }

    /// Whether `bytes` in `files` fit. If something has fitted before, the space of what was removed since may be on its way back, which is waited for.
    ///
    /// # Errors
    /// [`BenchError::NoRoom`] or [`BenchError::NoFiles`] if not.
    pub fn check_room(&self, bytes: u64, files: u64) -> Result<(), BenchError> {
        let begun = Instant::now();
        loop {
            let room = self.room()?;
            let found = check_room(&self.root, (bytes, files), room);
            // Many file systems free the space of what was removed some time after they have said so.
            let had_bytes = self.free_bytes_max.fetch_max(room.bytes, Relaxed);
            let had_files = self.free_files_max.fetch_max(room.files, Relaxed);
            let was_never_there = bytes > had_bytes || files > had_files;
            if found.is_ok() || was_never_there || begun.elapsed() > FREEING_MAX {
                return found;
            }
            std::thread::park_timeout(Duration::from_millis(200));
        }
    }
}

/// What is free in `directory` for whoever runs this.
pub(crate) fn room(directory: &Path) -> Result<Room, BenchError> {
    let told =
        rustix::fs::statvfs(directory).map_err(BenchError::errno("ask for the free space of", directory))?;
    let files = if told.f_files == 0 { u64::MAX } else { told.f_favail };
    Ok(Room { bytes: told.f_bavail.saturating_mul(told.f_frsize), files })
}

/// Whether `bytes` in `files` fit into the room of `directory`, with some to spare.
pub(crate) fn check_room(directory: &Path, (bytes, files): (u64, u64), room: Room) -> Result<(), BenchError> {
    let (path, fits) =
        (directory.to_owned(), |wanted: u64, free| wanted.saturating_add(wanted / SPARE_PART) <= free);
    if !fits(bytes, room.bytes) {
        return Err(BenchError::NoRoom { path, wanted_bytes: bytes, free_bytes: room.bytes });
    }
    if !fits(files, room.files) {
        return Err(BenchError::NoFiles { path, wanted: files, free: room.files });
    }
    Ok(())
}

impl Drop for Place {
    fn drop(&mut self) {
        // What went wrong before is what matters; should this fail, the directory's name says whose it is.
        if !self.is_kept {
            let _ = mark::remove(&self.root);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_with_something_in_it_is_refused_and_left_alone() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("lost+found")).unwrap();
        let place = Place::make(root.path(), false).unwrap();
        fs::write(place.path().join("x"), "x").unwrap();
        drop(place);
        fs::write(root.path().join("theirs"), "x").unwrap();
        let refused = Place::make(root.path(), false).unwrap_err();
        assert!(refused.to_string().contains("theirs"), "{refused}");
        drop(Place::make(root.path(), true).unwrap());
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 2);
    }

    #[test]
    fn files_that_are_kept_are_found_again_and_never_replaced() {
        let root = tempfile::tempdir().unwrap();
        let plan = DataPlan {
            threads: 1,
            files: crate::data::Files::PerThread,
            order: crate::data::Order::Sequential,
            record_bytes: 4096,
            thread_bytes: 4096,
            depth: 1,
            is_direct: false,
            counts_fsync: true,
            time_max: None,
        };
        assert!(Place::kept(root.path()).unwrap_err().to_string().contains("--keep-files"));
        let place = Place::make(root.path(), false).unwrap();
        fs::write(place.path().join("data.0"), "x").unwrap();
        let kept = place.keep(&plan).unwrap();
        drop(place);
        let (found, told) = Place::kept(root.path()).unwrap();
        assert_eq!((found.path(), told), (kept.as_path(), plan.clone()));
        drop(found);
        let other = Place::make(root.path(), true).unwrap();
        assert!(other.keep(&plan).is_err());
        drop(other);
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 1);
        assert_eq!(fs::read_to_string(kept.join("data.0")).unwrap(), "x");
    }

    #[test]
    fn more_than_there_is_room_for_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let place = Place::make(root.path(), false).unwrap();
        assert!(place.check_room(1 << 20, 1).is_ok());
        let begun = Instant::now();
        assert!(matches!(place.check_room(1 << 60, 1), Err(BenchError::NoRoom { .. })));
        let other = tempfile::tempdir().unwrap();
        let new = Place::make(other.path(), false).unwrap();
        let many = new.room().unwrap().files;
        assert!(many == u64::MAX || matches!(new.check_room(0, many), Err(BenchError::NoFiles { .. })));
        assert!(begun.elapsed() < FREEING_MAX, "it was never there");
        let room = Room { bytes: 1 << 30, files: 1000 };
        let check = |files| check_room(root.path(), (0, files), room);
        assert!(check(950).is_ok());
        let refused = check(1000).unwrap_err().to_string();
        assert!(refused.contains("1000 are free") && refused.contains("--files"), "{refused}");
        assert!(check_room(root.path(), (0, 1 << 60), Room { files: u64::MAX, ..room }).is_ok());
        let missing = Place::make(&root.path().join("missing"), false);
        assert!(matches!(missing, Err(BenchError::Io { what: "list", .. })));
    }
}
