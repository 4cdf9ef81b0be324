//! The buffer a reply of variable size is written into. It belongs to the transport and goes to the kernel as it is, so
//! reads need no copy of their own.

/// A reply under construction. It starts empty, is never larger than what the kernel asked for, and is page-aligned.
pub struct ReplyBuffer<'a> {
    bytes: &'a mut [u8],
    filled: usize,
}

impl<'a> ReplyBuffer<'a> {
    /// An empty reply of at most `bytes.len()`.
    pub(crate) fn new(bytes: &'a mut [u8]) -> Self {
        Self { bytes, filled: 0 }
    }

    /// Bytes the kernel still has room for.
    pub fn remaining(&self) -> usize {
        self.bytes.len() - self.filled
    }

    /// Bytes filled so far.
    pub fn len(&self) -> usize {
        self.filled
    }

    /// Whether nothing is filled yet (end of file, for READ).
    pub fn is_empty(&self) -> bool {
        self.filled == 0
    }

    /// The room left, to be filled from its start. Its content is left over from earlier replies.
    pub fn spare(&mut self) -> &mut [u8] {
        &mut self.bytes[self.filled..]
    }

    /// Declares the first `len` bytes of [`Self::spare`] filled; more than there is counts as all of it. The caller must
    /// have written them: whatever is there goes to the reader.
    pub fn advance(&mut self, len: usize) {
        self.filled += len.min(self.remaining());
    }

    /// Appends as much of `data` as fits; returns how much that was.
    pub fn put(&mut self, data: &[u8]) -> usize {
        let len = data.len().min(self.remaining());
        self.bytes[self.filled..self.filled + len].copy_from_slice(&data[..len]);
        self.filled += len;
        len
    }

    /// Appends up to `len` zero bytes (a hole); returns how many fit.
    pub fn put_zeros(&mut self, len: usize) -> usize {
        let len = len.min(self.remaining());
        self.bytes[self.filled..self.filled + len].fill(0);
        self.filled += len;
        len
    }

    /// Gives back everything after the first `len` bytes.
    pub fn truncate(&mut self, len: usize) {
        self.filled = self.filled.min(len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_never_grows_beyond_what_was_asked_for() {
        let mut bytes = [9u8; 8];
        let mut reply = ReplyBuffer::new(&mut bytes);
        assert_eq!(reply.put(b"abcde"), 5);
        assert_eq!(reply.put_zeros(2), 2);
        assert_eq!(reply.put(b"xyz"), 1);
        reply.advance(100);
        assert_eq!((reply.len(), reply.remaining()), (8, 0));
        assert_eq!(&bytes, b"abcde\0\0x");
    }
}
