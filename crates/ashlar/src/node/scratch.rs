//! A temporary directory for what a look at a stopped file system has to write somewhere.

use super::trouble;
use super::usable::NO_PERMISSION;
use anyhow::{Context, Result};
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// LIMIT: names that are tried; each one taken is a look whose process was killed, under the same process id.
const ATTEMPTS_MAX: u32 = 1000;

/// Below `TMPDIR`, removed when dropped. It holds copies of metadata, so only its owner can look into it.
pub struct Scratch {
    path: PathBuf,
    given: AtomicU32,
}

impl Scratch {
    /// Makes one.
    ///
    /// # Errors
    /// When the temporary directory cannot be written to.
    pub fn new() -> Result<Scratch> {
        let above = std::env::temp_dir();
        let mut attempt = 0;
        loop {
            let path = above.join(format!("ashlar-look-{}-{attempt}", std::process::id()));
            match std::fs::DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(Scratch { path, given: AtomicU32::new(0) }),
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists && attempt < ATTEMPTS_MAX => {
                    attempt += 1;
                }
                Err(error) => {
                    return Err(error).with_context(|| {
                        format!(
                            "cannot make the temporary directory {}; set TMPDIR to one that can be written to",
                            path.display()
                        )
                    });
                }
            }
        }
    }

    /// What to do about `error` if its cause is that there is no room here: nothing else is written to while one only looks.
    pub fn way_out(&self, error: &(dyn std::error::Error + 'static)) -> Option<String> {
        if trouble::way_out(error)? == NO_PERMISSION {
            return Some(NO_PERMISSION.to_owned());
        }
        let path = self.path.display();
        Some(format!("the disk of the temporary directory {path} is full: set TMPDIR to one with more room"))
    }

    /// A name in it that is not in use.
    pub fn place(&self) -> PathBuf {
        self.path.join(self.given.fetch_add(1, Relaxed).to_string())
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "cannot remove a temporary directory");
        }
    }
}
