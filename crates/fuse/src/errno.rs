//! The one error type that crosses the FUSE boundary: a positive errno.

use std::fmt;
use std::io;

/// A POSIX error number, always in 1..=511 (the range the kernel accepts in a FUSE reply; larger numbers are its own
/// restart codes and are refused by `fuse_dev_do_write`).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(i32);

macro_rules! errnos {
    ($($name:ident),* $(,)?) => {
        impl Errno {
            $(#[doc = concat!("The errno `", stringify!($name), "` of errno(3).")]
            pub const $name: Errno = Errno(libc::$name);)*
        }
    };
}

errnos! {
    EPERM, ENOENT, EINTR, EIO, ENXIO, E2BIG, EBADF, EAGAIN, ENOMEM, EACCES, EBUSY, EEXIST, EXDEV, ENODEV, ENOTDIR,
    EISDIR, EINVAL, EFBIG, ENOSPC, EROFS, EMLINK, ERANGE, EDEADLK, ENAMETOOLONG, ENOLCK, ENOSYS, ENOTEMPTY, ELOOP,
    ENODATA, EOVERFLOW, EOPNOTSUPP, ETIMEDOUT, ESTALE, EDQUOT, ENOTCONN, ECONNABORTED, EPROTO, EILSEQ,
}

impl Errno {
    /// The errno `code`; anything the kernel would not accept in a reply becomes `EIO`.
    pub const fn new(code: i32) -> Self {
        if code > 0 && code < 512 { Self(code) } else { Self(libc::EIO) }
    }

    /// The positive error number.
    pub const fn code(self) -> i32 {
        self.0
    }

    /// The errno the last failed system call of this thread left behind.
    pub(crate) fn last() -> Self {
        Self::from(io::Error::last_os_error())
    }
}

impl From<io::Error> for Errno {
    /// An I/O error without an errno behind it becomes `EIO`.
    fn from(error: io::Error) -> Self {
        error.raw_os_error().map_or(Self::EIO, Self::new)
    }
}

impl From<Errno> for io::Error {
    fn from(errno: Errno) -> Self {
        io::Error::from_raw_os_error(errno.0)
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        io::Error::from_raw_os_error(self.0).fmt(f)
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Errno({})", self.0)
    }
}

impl std::error::Error for Errno {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_the_kernel_would_refuse_becomes_eio() {
        for code in [0, -2, 512, 4096, i32::MIN, i32::MAX] {
            assert_eq!(Errno::new(code), Errno::EIO);
        }
        assert_eq!(Errno::new(libc::ENOENT), Errno::ENOENT);
        assert_eq!(Errno::from(io::Error::other("no number")), Errno::EIO);
    }
}
