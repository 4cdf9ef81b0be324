//! Errors as POSIX names them. The only place where an internal error becomes an errno is the service that
//! answers a call; below it each crate has its own closed error enum.

use serde::{Deserialize, Serialize};
use std::fmt;

macro_rules! errnos {
    ($($name:ident = $value:literal, $text:literal;)*) => {
        /// An error number of Linux (`errno(3)`). The numeric value is the wire form.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u16)]
        pub enum Errno { $(#[doc = $text] $name = $value,)* }

        impl Errno {
            /// The errno with this number; numbers this file does not list become [`Errno::EIO`].
            pub fn from_raw(raw: i32) -> Errno {
                match raw { $($value => Errno::$name,)* _ => Errno::EIO }
            }

            /// What the error means, in words.
            pub fn text(self) -> &'static str {
                match self { $(Errno::$name => $text,)* }
            }
        }
    };
}

errnos! {
    EPERM = 1, "operation not permitted";
    ENOENT = 2, "no such file or directory";
    EINTR = 4, "interrupted";
    EIO = 5, "input/output error";
    ENXIO = 6, "no such device or address";
    E2BIG = 7, "argument list too long";
    EBADF = 9, "bad file descriptor";
    EAGAIN = 11, "resource temporarily unavailable";
    ENOMEM = 12, "out of memory";
    EACCES = 13, "permission denied";
    EBUSY = 16, "device or resource busy";
    EEXIST = 17, "file exists";
    EXDEV = 18, "cross-device link";
    ENODEV = 19, "no such device";
    ENOTDIR = 20, "not a directory";
    EISDIR = 21, "is a directory";
    EINVAL = 22, "invalid argument";
    EMFILE = 24, "too many open files";
    ENOTTY = 25, "inappropriate ioctl";
    ETXTBSY = 26, "text file busy";
    EFBIG = 27, "file too large";
    ENOSPC = 28, "no space left on device";
    ESPIPE = 29, "illegal seek";
    EROFS = 30, "read-only file system";
    EMLINK = 31, "too many links";
    ERANGE = 34, "result too large";
    EDEADLK = 35, "resource deadlock avoided";
    ENAMETOOLONG = 36, "file name too long";
    ENOLCK = 37, "no locks available";
    ENOSYS = 38, "function not implemented";
    ENOTEMPTY = 39, "directory not empty";
    ELOOP = 40, "too many levels of symbolic links";
    ENODATA = 61, "no such attribute";
    EREMOTE = 66, "object is remote";
    EPROTO = 71, "protocol error";
    EOVERFLOW = 75, "value too large";
    EREMCHG = 78, "remote address changed";
    EOPNOTSUPP = 95, "operation not supported";
    ENOTCONN = 107, "transport endpoint is not connected";
    ETIMEDOUT = 110, "timed out";
    EHOSTDOWN = 112, "host is down";
    ESTALE = 116, "stale file handle";
    EDQUOT = 122, "disk quota exceeded";
}

impl Errno {
    /// The positive number of `errno.h`.
    pub fn raw(self) -> i32 {
        self as u16 as i32
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({self:?})", self.text())
    }
}

impl std::error::Error for Errno {}

impl From<&std::io::Error> for Errno {
    fn from(error: &std::io::Error) -> Errno {
        error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
    }
}

impl Serialize for Errno {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u16(*self as u16)
    }
}

impl<'de> Deserialize<'de> for Errno {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Errno, D::Error> {
        Ok(Errno::from_raw(i32::from(u16::deserialize(deserializer)?)))
    }
}
