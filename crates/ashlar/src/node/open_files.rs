//! How many descriptors this process may have.

use std::io;

/// LIMIT: more than this is not asked for.
const OPEN_FILES_MAX: u64 = 1 << 20;

/// Raises the number of open files to what an administrator lets this process have at most (`setrlimit(2)`): chunk files, and where several mounts
/// share a file system over io_uring two for each thread, are more than the usual 1,024. Where it cannot be raised the process goes on with what it has.
pub fn allow_as_many_as_permitted() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is writable.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } != 0 {
        return;
    }
    let wanted = limit.rlim_max.min(OPEN_FILES_MAX);
    if limit.rlim_cur >= wanted {
        return;
    }
    let raised = libc::rlimit { rlim_cur: wanted, ..limit };
    // SAFETY: `raised` is readable.
    if unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const raised) } != 0 {
        tracing::warn!(error = %io::Error::last_os_error(), "cannot have more than {} open files", limit.rlim_cur);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_soft_limit_becomes_the_hard_one() {
        allow_as_many_as_permitted();
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: `limit` is writable.
        assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) }, 0);
        assert!(limit.rlim_cur >= limit.rlim_max.min(OPEN_FILES_MAX));
    }
}
