//! Where a bench run of a test takes place.

use std::fs;
use std::path::PathBuf;

/// A directory on a disk, with an empty one in it that is measured.
pub struct Desk {
    pub folder: tempfile::TempDir,
}

impl Desk {
    pub fn new() -> Desk {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        fs::create_dir(folder.path().join("place")).unwrap();
        Desk { folder }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}
