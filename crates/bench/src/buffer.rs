//! A buffer at an address that `O_DIRECT` accepts, in pages of its own.
//!
//! A disk moves a request in as many pieces as the pages of its buffer lie apart in memory, and on a virtual disk one piece per page can halve the rate. Pages that
//! were used before lie further apart than new ones. So each buffer is new pages, as it is in a program that has just been started: fio's, IOR's.

use crate::BenchError;
use std::path::Path;
use std::ptr::NonNull;

/// The alignment of addresses, offsets and lengths of direct I/O here, bytes: right for every disk.
pub const ALIGNMENT: u64 = 4096;

/// `len` bytes that start at a multiple of [`ALIGNMENT`].
pub struct AlignedBuffer {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping belongs to this value alone, and is plain memory.
unsafe impl Send for AlignedBuffer {}

impl AlignedBuffer {
    /// A buffer full of bytes that do not compress and differ by `seed`, so that neither compression nor deduplication flatters. `len` is at least 1.
    ///
    /// # Errors
    /// When the machine gives no more memory.
    pub fn noise(len: usize, seed: u64) -> Result<AlignedBuffer, BenchError> {
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory of ours.
        let address = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, -1, 0) };
        let start = NonNull::new(address.cast::<u8>()).filter(|_| address != libc::MAP_FAILED);
        let refused =
            || BenchError::io("reserve", Path::new("memory for a record"))(std::io::Error::last_os_error());
        let mut buffer = AlignedBuffer { start: start.ok_or_else(refused)?, len };
        for (number, word) in buffer.as_mut_slice().chunks_mut(8).enumerate() {
            let noise = crate::scatter::mix(seed ^ (number as u64) << 20).to_le_bytes();
            word.copy_from_slice(&noise[..word.len()]);
        }
        Ok(buffer)
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: the mapping has so many bytes, which are zeros at first, and lives as long as this value.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    /// The bytes, to be changed.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as above, and nobody else has it meanwhile.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Drop for AlignedBuffer {
    fn drop(&mut self) {
        // SAFETY: the range is exactly the mapping, and nothing refers to it any more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_aligned_and_full_of_noise_that_differs() {
        let (one, other) =
            (AlignedBuffer::noise(1 << 20, 1).unwrap(), AlignedBuffer::noise(1000, 2).unwrap());
        assert_eq!(one.as_slice().as_ptr() as u64 % ALIGNMENT, 0);
        assert_eq!((one.as_slice().len(), other.as_slice().len()), (1 << 20, 1000));
        assert_ne!(one.as_slice()[..1000], *other.as_slice());
        assert!(one.as_slice().chunks(8).zip(one.as_slice()[8..].chunks(8)).all(|(word, next)| word != next));
        assert!(
            AlignedBuffer::noise(usize::MAX >> 1, 1)
                .err()
                .unwrap()
                .to_string()
                .contains("memory for a record")
        );
    }
}
