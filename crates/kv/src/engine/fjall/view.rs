//! A copy of an engine's small files beside links to its large ones, so that a look at the engine changes nothing in it: fjall
//! removes, makes and renames files whenever it opens a database, and needs a disk that takes that.

use super::files::{BLOBS, Found, JOURNAL_SUFFIX, LOCK, TABLES};
use crate::KvError;
use std::fs;
use std::io;
use std::path::Path;

/// Makes `view`, which must not be there, look like the engine in `path`, in which `found` was found.
///
/// # Errors
/// [`KvError::Io`]; part of the view may be there then.
pub(super) fn make(path: &Path, view: &Path, found: Found) -> Result<(), KvError> {
    let failed =
        |error| KvError::io(format!("make a view of {} in {}", path.display(), view.display()), error);
    fs::create_dir(view).map_err(failed)?;
    if found == Found::Nothing {
        return Ok(());
    }
    let path = path.canonicalize().map_err(failed)?;
    copy_tree(&path, view).map_err(failed)?;
    // A journal never holds anything; fjall wants it to be a file of its own.
    fs::File::create(view.join("0.jnl")).map_err(failed)?;
    Ok(())
}

fn copy_tree(from: &Path, to: &Path) -> io::Result<()> {
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        let is_immutable =
            [TABLES, BLOBS].iter().any(|name| from.file_name().is_some_and(|last| last == *name));
        if entry.file_type()?.is_dir() {
            fs::create_dir(&target)?;
            copy_tree(&source, &target)?;
        } else if is_immutable {
            // Written once, and only ever removed: removing the link leaves the file.
            std::os::unix::fs::symlink(&source, &target)?;
        } else if source.extension().is_none_or(|end| end != JOURNAL_SUFFIX) && entry.file_name() != LOCK {
            fs::write(&target, fs::read(&source)?)?;
        }
    }
    Ok(())
}
