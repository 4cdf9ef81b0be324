//! A buffer at an address that `O_DIRECT` accepts.

/// The alignment of addresses, offsets and lengths in direct I/O here: right for every disk.
pub const ALIGNMENT: usize = 4096;

/// `len` bytes that start at a multiple of [`ALIGNMENT`].
#[derive(Debug)]
pub struct AlignedBuffer {
    storage: Vec<u8>,
    start: usize,
    len: usize,
}

impl AlignedBuffer {
    /// A zeroed buffer.
    #[must_use]
    pub fn new(len: usize) -> Self {
        let storage = vec![0u8; len + ALIGNMENT];
        let start = storage.as_ptr().align_offset(ALIGNMENT);
        Self { storage, start, len }
    }

    /// A buffer with the content of `bytes`.
    #[must_use]
    pub fn from_slice(bytes: &[u8]) -> Self {
        let mut buffer = Self::new(bytes.len());
        buffer.as_mut_slice().copy_from_slice(bytes);
        buffer
    }

    /// The bytes.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        &self.storage[self.start..self.start + self.len]
    }

    /// The bytes, to be changed.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut self.storage[self.start..self.start + self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_buffer_is_aligned_and_keeps_its_content() {
        for len in [0, 1, 4096, 10_000] {
            let buffer = AlignedBuffer::from_slice(&vec![7; len]);
            assert_eq!(buffer.as_slice().as_ptr() as usize % ALIGNMENT, 0);
            assert_eq!(buffer.as_slice(), vec![7; len]);
        }
    }
}
