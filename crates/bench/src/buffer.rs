//! A buffer at an address that `O_DIRECT` accepts.

/// The alignment of addresses, offsets and lengths of direct I/O here, bytes: right for every disk.
pub const ALIGNMENT: u64 = 4096;

/// `len` bytes that start at a multiple of [`ALIGNMENT`].
pub struct AlignedBuffer {
    storage: Vec<u8>,
    start: usize,
    len: usize,
}

impl AlignedBuffer {
    /// A buffer full of bytes that do not compress and differ by `seed`, so that neither compression nor deduplication flatters.
    pub fn noise(len: usize, seed: u64) -> AlignedBuffer {
        let storage = vec![0; len + ALIGNMENT as usize];
        let start = storage.as_ptr().align_offset(ALIGNMENT as usize);
        let mut buffer = AlignedBuffer { storage, start, len };
        for (number, word) in buffer.as_mut_slice().chunks_mut(8).enumerate() {
            let noise = crate::scatter::mix(seed ^ (number as u64) << 20).to_le_bytes();
            word.copy_from_slice(&noise[..word.len()]);
        }
        buffer
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        &self.storage[self.start..self.start + self.len]
    }

    /// The bytes, to be changed.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut self.storage[self.start..self.start + self.len]
    }
}
