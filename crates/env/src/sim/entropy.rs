//! Random numbers from a seed.

use crate::Entropy;
use parking_lot::Mutex;

/// Steele, Lea and Flood's SplitMix64 ("Fast splittable pseudorandom number generators", OOPSLA 2014): every seed gives
/// a full-period sequence, and nearby seeds give unrelated ones.
#[derive(Debug)]
pub struct SimEntropy {
    state: Mutex<u64>,
}

/// One SplitMix64 step.
pub(crate) fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

impl SimEntropy {
    /// The sequence of `seed`.
    pub fn new(seed: u64) -> SimEntropy {
        SimEntropy { state: Mutex::new(seed) }
    }

    /// A number in `0..bound`; 0 when `bound` is 0.
    pub fn below(&self, bound: u64) -> u64 {
        if bound == 0 { 0 } else { self.next_u64() % bound }
    }
}

impl Entropy for SimEntropy {
    fn fill(&self, out: &mut [u8]) {
        let mut state = self.state.lock();
        for part in out.chunks_mut(8) {
            let bytes = split_mix(&mut state).to_le_bytes();
            part.copy_from_slice(&bytes[..part.len()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_seed_gives_one_sequence() {
        let draw = |seed| (0..4).map(|_| SimEntropy::new(seed).next_u64()).collect::<Vec<_>>();
        let entropy = SimEntropy::new(7);
        assert_eq!(draw(7), draw(7));
        assert_ne!(entropy.next_u64(), entropy.next_u64());
        assert_ne!(SimEntropy::new(7).next_u64(), SimEntropy::new(8).next_u64());
    }
}
