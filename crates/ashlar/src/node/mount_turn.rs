//! One after the other at one mount point: a mount that has just gone must not be taken for the next one there.
//!
//! The kernel gives the number of a mount that is gone to the next one. A process whose mount was taken away by umount(8) looks at the mount table to see
//! whether it still has to unmount; if somebody has mounted there again by then, and got the same number, it would take the new mount away.

use ashlar_fuse::{MountOptions, check_mountpoint};
use rustix::fs::{FlockOperation, flock};
use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

/// LIMIT: for how long a mount that is ending is waited for. It needs a fraction of a second; one that is still in use by programs, out of the tree, has a
/// number of its own, and nothing can be mistaken.
const ENDING_MAX: Duration = Duration::from_secs(2);
/// Time between two attempts.
const PAUSE: Duration = Duration::from_millis(5);

/// The right to mount at a directory, until dropped: a lock of the directory that is under the mount.
pub struct MountTurn {
    _directory: Option<File>,
}

impl MountTurn {
    /// Waits for it. There being none is no error: somebody else may have locked the directory for reasons of his own, and a mount point that cannot be used is
    /// refused when it is mounted on.
    pub fn wait(mountpoint: &Path) -> MountTurn {
        // Not opened before it was looked at: there may be a mount whose server does not answer.
        let directory = check_mountpoint(mountpoint, &MountOptions::default())
            .ok()
            .and_then(|path| File::open(path).ok());
        if let Some(directory) = &directory {
            let deadline = Instant::now() + ENDING_MAX;
            while flock(directory, FlockOperation::NonBlockingLockExclusive).is_err()
                && Instant::now() < deadline
            {
                std::thread::sleep(PAUSE);
            }
        }
        MountTurn { _directory: directory }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn the_next_one_waits_for_the_one_before_and_not_for_ever() {
        let dir = tempfile::tempdir().unwrap();
        let first = MountTurn::wait(dir.path());
        let waiting = std::thread::spawn({
            let path = dir.path().to_owned();
            move || {
                let begun = Instant::now();
                (MountTurn::wait(&path), begun.elapsed())
            }
        });
        std::thread::sleep(Duration::from_millis(300));
        drop(first);
        let (second, waited) = waiting.join().unwrap();
        assert!(waited >= Duration::from_millis(200) && waited < ENDING_MAX, "{waited:?}");
        let begun = Instant::now();
        drop(MountTurn::wait(dir.path()));
        assert!(begun.elapsed() >= ENDING_MAX, "it does wait");
        drop(second);
        let begun = Instant::now();
        drop(MountTurn::wait(dir.path()));
        assert!(begun.elapsed() < ENDING_MAX);
    }
}
