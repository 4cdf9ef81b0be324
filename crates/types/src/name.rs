//! File names: any bytes but `/` and NUL, 1 to 255 of them.

use crate::Errno;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Longest name of a directory entry, in bytes (`NAME_MAX`).
pub const NAME_BYTES_MAX: usize = 255;
/// Longest symbolic link target, in bytes (`PATH_MAX` without its NUL).
pub const PATH_BYTES_MAX: usize = 4095;

/// A checked directory entry name, borrowed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Name<'a>(#[serde(with = "serde_bytes")] &'a [u8]);

impl<'a> Name<'a> {
    /// Checks a name.
    ///
    /// # Errors
    /// `ENAMETOOLONG` above 255 bytes, `ENOENT` when empty, `EINVAL` when it has a `/` or a NUL or is `.` or `..`.
    pub fn new(bytes: &'a [u8]) -> Result<Name<'a>, Errno> {
        match bytes {
            b"" => Err(Errno::ENOENT),
            b"." | b".." => Err(Errno::EINVAL),
            _ if bytes.len() > NAME_BYTES_MAX => Err(Errno::ENAMETOOLONG),
            _ if bytes.contains(&b'/') || bytes.contains(&0) => Err(Errno::EINVAL),
            _ => Ok(Name(bytes)),
        }
    }

    /// The bytes, 1 to 255.
    pub fn as_bytes(self) -> &'a [u8] {
        self.0
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Name<'a> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Name<'a>, D::Error> {
        let bytes: &'de [u8] = serde_bytes::deserialize(deserializer)?;
        Name::new(bytes).map_err(serde::de::Error::custom)
    }
}

impl fmt::Debug for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", String::from_utf8_lossy(self.0))
    }
}

impl fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", String::from_utf8_lossy(self.0))
    }
}
