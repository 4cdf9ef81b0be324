//! Thin wrappers over the system calls the test programs compare: one call each, no retries, no smoothing.
//!
//! The programs must see exactly what the kernel answered, including short counts and rarely used flags, so they do not go
//! through `std::fs`. Every function returns the value of the call or the `errno` it set. Paths are byte strings, because
//! names need not be UTF-8.

pub mod attr;
pub mod cred;
pub mod data;
pub mod dir;
pub mod lock;
pub mod map;
pub mod mount;
pub mod name;

use std::ffi::CString;
use std::fmt;

use serde::{Deserialize, Serialize};

/// An `errno` value as the kernel returned it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Errno(pub i32);

/// The result of one system call.
pub type SysResult<T> = Result<T, Errno>;

impl Errno {
    /// The calling thread's current `errno`.
    #[must_use]
    pub fn last() -> Self {
        Self(std::io::Error::last_os_error().raw_os_error().unwrap_or(0))
    }

    /// The symbolic name, or `None` for a number these programs never expect.
    #[must_use]
    pub fn name(self) -> Option<&'static str> {
        NAMES.iter().find(|(code, _)| *code == self.0).map(|(_, name)| *name)
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "errno {}", self.0),
        }
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?} ({})", std::io::Error::from_raw_os_error(self.0))
    }
}

impl std::error::Error for Errno {}

impl From<std::io::Error> for Errno {
    fn from(error: std::io::Error) -> Self {
        Self(error.raw_os_error().unwrap_or(libc::EIO))
    }
}

macro_rules! names {
    ($($name:ident)*) => { &[$((libc::$name, stringify!($name)),)*] };
}

const NAMES: &[(i32, &str)] = names!(
    EPERM ENOENT EINTR EIO ENXIO E2BIG EBADF EAGAIN ENOMEM EACCES EFAULT EBUSY EEXIST EXDEV ENODEV ENOTDIR EISDIR EINVAL ENFILE
    EMFILE ENOTTY ETXTBSY EFBIG ENOSPC ESPIPE EROFS EMLINK EPIPE ERANGE EDEADLK ENAMETOOLONG ENOLCK ENOSYS ENOTEMPTY ELOOP ENODATA
    EOVERFLOW EOPNOTSUPP ENOTCONN ECONNABORTED ETIMEDOUT ESTALE EDQUOT EUCLEAN ENODEV ESHUTDOWN EREMOTEIO
);

/// `path` as a C string; `EINVAL` when it holds a NUL byte.
///
/// # Errors
/// `EINVAL` as said.
pub fn c_path(path: &[u8]) -> SysResult<CString> {
    CString::new(path).map_err(|_| Errno(libc::EINVAL))
}

/// Turns a `-1`-on-error return value into a result.
pub(crate) fn check<T: Copy + PartialOrd + Default>(returned: T) -> SysResult<T> {
    if returned < T::default() { Err(Errno::last()) } else { Ok(returned) }
}

/// `check` for calls whose value carries nothing.
pub(crate) fn check_unit<T: Copy + PartialOrd + Default>(returned: T) -> SysResult<()> {
    check(returned).map(|_| ())
}
