//! The kernel's random numbers.

use crate::Entropy;
use std::io;

/// `getrandom(2)` without flags: waits for the pool to be ready once after boot, then never.
#[derive(Clone, Copy, Debug, Default)]
pub struct OsEntropy;

impl Entropy for OsEntropy {
    /// # Panics
    /// When the kernel has no `getrandom` (before Linux 3.17) or a filter forbids it: no id or key may be drawn then.
    fn fill(&self, out: &mut [u8]) {
        let mut filled = 0;
        while filled < out.len() {
            let rest = &mut out[filled..];
            // SAFETY: `rest` is valid for writes of `rest.len()` bytes.
            let got = unsafe { libc::getrandom(rest.as_mut_ptr().cast(), rest.len(), 0) };
            if got > 0 {
                filled += got as usize;
                continue;
            }
            let error = io::Error::last_os_error();
            assert!(error.kind() == io::ErrorKind::Interrupted, "getrandom: {error}; no ids can be drawn");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_fills_are_complete_and_differ() {
        let (mut a, mut b) = (vec![0; 1000], vec![0; 1000]);
        OsEntropy.fill(&mut a);
        OsEntropy.fill(&mut b);
        assert_ne!(a, b);
        assert!(a[900..].iter().any(|&byte| byte != 0));
        assert_ne!(OsEntropy.next_u64(), OsEntropy.next_u64());
    }
}
