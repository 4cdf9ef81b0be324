//! Bounded reading of the variable part of a request: every step checks what is left and fails instead of panicking.

use super::Malformed;
use zerocopy::{FromBytes, Immutable, KnownLayout};

/// What of a request has not been read yet.
pub(crate) struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    pub(crate) fn new(rest: &'a [u8]) -> Self {
        Self { rest }
    }

    /// A fixed-size structure.
    pub(crate) fn take<T: FromBytes + KnownLayout + Immutable>(&mut self) -> Result<T, Malformed> {
        let (value, rest) = T::read_from_prefix(self.rest).map_err(|_| Malformed::Truncated)?;
        self.rest = rest;
        Ok(value)
    }

    /// `len` bytes.
    pub(crate) fn bytes(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        let (head, rest) = self.rest.split_at_checked(len).ok_or(Malformed::Truncated)?;
        self.rest = rest;
        Ok(head)
    }

    /// A string that ends with a NUL byte, without it.
    pub(crate) fn name(&mut self) -> Result<&'a [u8], Malformed> {
        let end = self.rest.iter().position(|&byte| byte == 0).ok_or(Malformed::UnterminatedName)?;
        let (name, rest) = (self.rest.get(..end), self.rest.get(end + 1..));
        self.rest = rest.unwrap_or_default();
        name.ok_or(Malformed::UnterminatedName)
    }

    pub(crate) fn rest(&self) -> &'a [u8] {
        self.rest
    }
}
