//! What a first start has made, taken away again if the file system is refused before anybody has used it: a directory that holds half a file
//! system, or one that nobody asked for, is in the way of the next start, or taken for something that it is not.

use super::Directories;
use ashlar_chunkstore::ChunkStore;
use ashlar_coord::local_file::STATE_FILE;
use ashlar_env::os::OsDisk;
use ashlar_types::ClusterId;
use std::fs::{File, read_dir, remove_dir, remove_dir_all, remove_file};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// A directory that was not there, or was empty, before the start.
struct Fresh {
    path: PathBuf,
    /// How many directories from `path` upwards were not there.
    missing: usize,
}

/// See the module. Dropping it, under the lock of the metadata directory, takes away what was made, unless [`FirstStart::keep`] was called.
pub struct FirstStart {
    meta: Option<Fresh>,
    targets: Vec<Fresh>,
    /// Until it is, whatever is in the directories may be somebody else's.
    is_making: bool,
    /// The file system that was made.
    cluster: Option<ClusterId>,
    is_kept: AtomicBool,
}

impl FirstStart {
    /// Notes what is there before anything is made.
    pub fn begin(directories: &Directories) -> FirstStart {
        let targets = directories.targets.iter().filter(|(_, header)| header.is_none());
        FirstStart {
            meta: Fresh::at(&directories.meta),
            targets: targets.filter_map(|(path, _)| Fresh::at(path)).collect(),
            is_making: false,
            cluster: None,
            is_kept: AtomicBool::new(false),
        }
    }

    /// From here on, under the lock of the metadata directory, nobody else makes anything in these directories.
    pub fn begin_making(&mut self) {
        self.is_making = true;
    }

    /// Which file system was made.
    pub fn note_cluster(&mut self, cluster: ClusterId) {
        self.cluster = Some(cluster);
    }

    /// The file system is in use: it stays.
    pub fn keep(&self) {
        self.is_kept.store(true, Relaxed);
    }

    /// Whether the target at `path`, which was none before, is not that of another file system by now.
    fn is_ours(&self, path: &Path) -> bool {
        match ChunkStore::header(&OsDisk::new(path)) {
            Ok(header) => self.cluster == Some(header.identity.cluster),
            // Not that far.
            Err(_) => !path.join("target").exists(),
        }
    }

    fn take_away(&self) -> io::Result<()> {
        if !self.is_making {
            // Somebody else may have made what is in there.
            return self.meta.iter().chain(&self.targets).try_for_each(Fresh::remove_if_empty);
        }
        if let Some(meta) = &self.meta {
            // ORDER: from here on the metadata is a first start that was cut short, whatever stops this in the middle; and a target that
            // is still there then has lost its header.
            File::create(meta.path.join(super::state::CREATING_FILE))?.sync_data()?;
            gone(remove_file(meta.path.join(STATE_FILE)))?;
        }
        for target in self.targets.iter().filter(|target| self.is_ours(&target.path)) {
            gone(remove_file(target.path.join("target")))?;
            target.remove()?;
        }
        self.meta.iter().try_for_each(Fresh::remove)
    }
}

impl Drop for FirstStart {
    fn drop(&mut self) {
        if self.is_kept.load(Relaxed) {
            return;
        }
        match self.take_away() {
            Ok(()) if self.cluster.is_some() => {
                eprintln!(
                    "ashlar: nobody has used the new file system: what this start has made is removed again"
                );
            }
            Ok(()) => {}
            Err(error) => tracing::warn!(%error, "could not remove what a refused first start has made"),
        }
    }
}

impl Fresh {
    /// Nothing if there is something in `path`: it is not this start's.
    fn at(path: &Path) -> Option<Fresh> {
        match read_dir(path) {
            Ok(mut entries) => entries.next().is_none().then(|| Fresh { path: path.to_owned(), missing: 0 }),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let missing = path.ancestors().take_while(|path| path.symlink_metadata().is_err()).count();
                Some(Fresh { path: path.to_owned(), missing })
            }
            Err(_) => None,
        }
    }

    fn remove(&self) -> io::Result<()> {
        let entries = match read_dir(&self.path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return self.remove_if_empty(),
            entries => entries?,
        };
        for entry in entries {
            let entry = entry?;
            let is_directory = entry.file_type()?.is_dir();
            gone(if is_directory { remove_dir_all(entry.path()) } else { remove_file(entry.path()) })?;
        }
        self.remove_if_empty()
    }

    /// Removes the directories that were not there, as far as nobody has put anything into them.
    fn remove_if_empty(&self) -> io::Result<()> {
        for path in self.path.ancestors().take(self.missing) {
            match gone(remove_dir(path)) {
                Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty => break,
                other => other?,
            }
        }
        Ok(())
    }
}

/// What is not there any more needs no removal.
fn gone(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
