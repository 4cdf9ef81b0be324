//! A reply of fixed size: header and body in one reused buffer, written to the kernel in one piece.

use crate::errno::Errno;
use crate::protocol::wire;
use zerocopy::{Immutable, IntoBytes};

/// The largest fixed body is STATX's.
const BODY_LEN_MAX: usize = size_of::<wire::StatxOut>();
const HEADER_LEN: usize = size_of::<wire::OutHeader>();

/// A reply header for `unique` with `body_len` bytes after it.
pub(crate) fn header(unique: u64, result: Result<(), Errno>, body_len: usize) -> wire::OutHeader {
    let error = result.map_or_else(|errno| -errno.code(), |()| 0);
    // Bodies are bounded by the transport's buffers (a few MiB), far below u32.
    wire::OutHeader { len: (HEADER_LEN + body_len) as u32, error, unique }
}

/// One per worker thread.
pub(crate) struct FixedReply {
    bytes: [u8; HEADER_LEN + BODY_LEN_MAX],
    body_len: usize,
}

impl FixedReply {
    pub(crate) fn new() -> Self {
        Self { bytes: [0; HEADER_LEN + BODY_LEN_MAX], body_len: 0 }
    }

    /// Starts over.
    pub(crate) fn clear(&mut self) {
        self.body_len = 0;
    }

    /// Appends a structure to the body.
    pub(crate) fn put<T: IntoBytes + Immutable>(&mut self, part: &T) {
        let start = HEADER_LEN + self.body_len;
        let end = start + size_of::<T>();
        debug_assert!(end <= self.bytes.len(), "a fixed reply has at most {BODY_LEN_MAX} bytes");
        if let Some(room) = self.bytes.get_mut(start..end) {
            room.copy_from_slice(part.as_bytes());
            self.body_len += size_of::<T>();
        }
    }

    /// The body alone.
    pub(crate) fn body(&self) -> &[u8] {
        &self.bytes[HEADER_LEN..HEADER_LEN + self.body_len]
    }

    /// Header and body; a failure has no body.
    pub(crate) fn message(&mut self, unique: u64, result: Result<(), Errno>) -> &[u8] {
        if result.is_err() {
            self.body_len = 0;
        }
        let head = header(unique, result, self.body_len);
        self.bytes[..HEADER_LEN].copy_from_slice(head.as_bytes());
        &self.bytes[..HEADER_LEN + self.body_len]
    }
}
