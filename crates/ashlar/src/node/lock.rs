//! The lock of a metadata directory, and with it of the whole file system.

use super::trouble;
use anyhow::{Context, Result, bail};
use ashlar_env::{Disk, DiskFile, OpenMode};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// In a metadata directory: locked by whoever uses it.
pub const LOCK_FILE: &str = "lock";
/// Longest text of a holder that is shown.
const HOLDER_BYTES_MAX: usize = 256;

/// What the text of a holder ends with once its mounts are gone.
const ENDING: &str = ", which is ending";
/// LIMIT: how long a holder that says so is waited for. After `umount` the server makes everything durable while the command has
/// returned; whoever types `mount` or `fsck` next must not be told that the file system is in use.
const ENDING_MAX: Duration = Duration::from_secs(120);
/// LIMIT: the same for one that does not say so yet: it notices the end of its mounts a moment later.
const NOTICE_MAX: Duration = Duration::from_secs(3);
/// Time between two attempts.
const PAUSE: Duration = Duration::from_millis(20);

/// The lock, held until dropped.
pub struct MetaLock {
    file: Arc<dyn DiskFile>,
    shown: PathBuf,
    holder: String,
}

impl MetaLock {
    /// Takes the lock of metadata directory `path` and writes `holder` into it; waits for a holder that is ending.
    ///
    /// # Errors
    /// When somebody else holds it: the text says who.
    pub fn take(disk: &Arc<dyn Disk>, path: &Path, holder: &str) -> Result<MetaLock> {
        let shown = path.join(LOCK_FILE);
        let file = disk.open(LOCK_FILE, OpenMode::CreateOrOpen).map_err(|error| {
            let way_out = trouble::way_out(&error).map(|way_out| format!("; {way_out}")).unwrap_or_default();
            anyhow::Error::new(error).context(format!("cannot open {}{way_out}", shown.display()))
        })?;
        MetaLock::wait(file, shown, path, holder)
    }

    /// As [`MetaLock::take`], on a disk that may be read-only: nobody is told who has it there.
    ///
    /// # Errors
    /// As [`MetaLock::take`].
    pub fn take_to_look(disk: &Arc<dyn Disk>, path: &Path, holder: &str) -> Result<MetaLock> {
        match disk.open(LOCK_FILE, OpenMode::CreateOrOpen) {
            Err(error) if error.kind() == std::io::ErrorKind::ReadOnlyFilesystem => {
                let shown = path.join(LOCK_FILE);
                let file = disk.open(LOCK_FILE, OpenMode::Read);
                let file = file.with_context(|| format!("cannot open {}", shown.display()))?;
                MetaLock::wait(file, shown, path, holder)
            }
            _ => MetaLock::take(disk, path, holder),
        }
    }

    /// Who has the lock in `disk`, as he says; nobody has one that is not there.
    ///
    /// # Errors
    /// When that cannot be looked at.
    pub fn holder(disk: &Arc<dyn Disk>) -> Result<Option<String>> {
        let shown = disk.describe(LOCK_FILE);
        let file = match disk.open(LOCK_FILE, OpenMode::ReadWrite) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).with_context(|| format!("cannot open {shown}")),
        };
        match file.try_lock() {
            Ok(()) => Ok(None),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Ok(Some(holder_of(&file))),
            Err(error) => Err(error).with_context(|| format!("cannot lock {shown}")),
        }
    }

    fn wait(file: Arc<dyn DiskFile>, shown: PathBuf, path: &Path, holder: &str) -> Result<MetaLock> {
        let (begin, mut is_told) = (Instant::now(), false);
        loop {
            match file.try_lock() {
                Ok(()) => break,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    let other = holder_of(&file);
                    let bound = if other.ends_with(ENDING) { ENDING_MAX } else { NOTICE_MAX };
                    if begin.elapsed() > bound {
                        bail!(
                            "{} is in use by {other}; stop that first (`ashlar status` shows what runs)",
                            path.display()
                        );
                    }
                    if !is_told && begin.elapsed() > NOTICE_MAX {
                        eprintln!("ashlar: waiting for {other}");
                        is_told = true;
                    }
                    std::thread::sleep(PAUSE);
                }
                Err(error) => return Err(error).with_context(|| format!("cannot lock {}", shown.display())),
            }
        }
        let lock = MetaLock { file, shown, holder: holder.to_owned() };
        lock.write(holder);
        Ok(lock)
    }

    /// Tells whoever wants the lock that it will be free soon.
    pub fn note_ending(&self) {
        self.write(&format!("{}{ENDING}", self.holder));
    }

    /// A full disk must not keep the file system closed: the text is for people, and for how long they wait.
    fn write(&self, text: &str) {
        if let Err(error) = self.file.set_len(0).and_then(|()| self.file.write_at(0, text.as_bytes())) {
            // A handle that is only for reading answers EBADF or EINVAL: expected there, and no news elsewhere.
            tracing::debug!(file = %self.shown.display(), %error, "cannot write the holder into the lock file");
        }
    }
}

fn holder_of(file: &Arc<dyn DiskFile>) -> String {
    let mut text = [0; HOLDER_BYTES_MAX];
    let got = file.read_at(0, &mut text).unwrap_or(0);
    String::from_utf8_lossy(&text[..got]).trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ashlar_env::os::OsDisk;

    #[test]
    fn one_that_is_ending_is_waited_for_and_one_that_is_not_is_named() {
        let directory = tempfile::tempdir().expect("a directory");
        let disk: Arc<dyn Disk> = Arc::new(OsDisk::new(directory.path()));
        let take = |holder| MetaLock::take(&disk, directory.path(), holder);
        let first = take("the first").expect("free");
        let refused = take("the second").err().expect("in use").to_string();
        assert!(refused.contains("in use by the first;"), "{refused}");

        first.note_ending();
        // Longer than a holder that says nothing is waited for.
        let ending = std::thread::spawn(move || {
            std::thread::sleep(NOTICE_MAX * 2);
            drop(first);
        });
        let second = take("the second").expect("waited for");
        ending.join().expect("no panic");
        assert_eq!(holder_of(&second.file), "the second");
    }
}
