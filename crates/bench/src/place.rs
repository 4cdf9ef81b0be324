//! The directory that is measured in: what must hold before, and that nothing of ours is left after.

use crate::BenchError;
use std::fs;
use std::path::{Path, PathBuf};

/// Bytes that stay free beside what is written: one of so many.
const SPARE_PART: u64 = 20;

/// A directory of our own below the one that was named; it goes with this value, and nothing else does.
#[derive(Debug)]
pub struct Place {
    root: PathBuf,
}

impl Place {
    /// Makes it in `directory`, which is there and, unless `beside_others`, empty.
    ///
    /// # Errors
    /// [`BenchError::NotEmpty`], and what a call answers.
    pub fn make(directory: &Path, beside_others: bool) -> Result<Place, BenchError> {
        Place::check_empty(directory, beside_others)?;
        let root = directory.join(Place::own_name());
        fs::create_dir(&root).map_err(BenchError::io("make directory", &root))?;
        Ok(Place { root })
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
    pub fn own_name() -> String {
        format!("ashlar-bench.{}", std::process::id())
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.root
    }

    /// Bytes that are free there for whoever runs this.
    ///
    /// # Errors
    /// What statvfs(3) answers.
    pub fn free_bytes(&self) -> Result<u64, BenchError> {
        free_bytes(&self.root)
    }

    /// Whether `bytes` fit.
    ///
    /// # Errors
    /// [`BenchError::NoRoom`] if not.
    pub fn check_room(&self, bytes: u64) -> Result<(), BenchError> {
        check_room(&self.root, bytes, self.free_bytes()?)
    }
}

/// Bytes that are free in `directory` for whoever runs this.
pub(crate) fn free_bytes(directory: &Path) -> Result<u64, BenchError> {
    let told =
        rustix::fs::statvfs(directory).map_err(BenchError::errno("ask for the free space of", directory))?;
    Ok(told.f_bavail.saturating_mul(told.f_frsize))
}

/// Whether `bytes` fit into `free_bytes` of `directory`, with some to spare.
pub(crate) fn check_room(directory: &Path, bytes: u64, free_bytes: u64) -> Result<(), BenchError> {
    if bytes.saturating_add(bytes / SPARE_PART) <= free_bytes {
        return Ok(());
    }
    Err(BenchError::NoRoom { path: directory.to_owned(), wanted_bytes: bytes, free_bytes })
}

/// Removes the directory of a run that was interrupted. One that was only about to be made is somebody else's if there is something in it.
///
/// # Errors
/// What a call answers.
pub(crate) fn remove_left(root: &Path, is_made: bool) -> Result<(), BenchError> {
    if is_made && root.is_dir() {
        return fs::remove_dir_all(root).map_err(BenchError::io("remove", root));
    }
    // It need not be there, and need not be ours.
    let _ = fs::remove_dir(root);
    Ok(())
}

impl Drop for Place {
    fn drop(&mut self) {
        // What went wrong before is what matters; should this fail, the directory's name says whose it is.
        let _ = fs::remove_dir_all(&self.root);
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
    fn more_than_there_is_room_for_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let place = Place::make(root.path(), false).unwrap();
        assert!(place.check_room(1 << 20).is_ok());
        assert!(matches!(place.check_room(1 << 60), Err(BenchError::NoRoom { .. })));
        let missing = Place::make(&root.path().join("missing"), false);
        assert!(matches!(missing, Err(BenchError::Io { what: "list", .. })));
    }
}
