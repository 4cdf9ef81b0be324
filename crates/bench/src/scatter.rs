//! The numbers below a bound in an order that looks random, each exactly once, without a table.

/// A permutation of `0..len` that `seed` fixes: a Feistel network over the next power of four, walked until the number is below `len`
/// (J. Black, P. Rogaway, "Ciphers with Arbitrary Finite Domains", 2002). Random I/O that hits each record once is what fio does as well.
#[derive(Clone, Copy, Debug)]
pub struct Scatter {
    len: u64,
    half_bits: u32,
    seed: u64,
}

/// Enough for numbers that only have to look random.
const ROUNDS: u64 = 4;

impl Scatter {
    /// The order of `0..len` that `seed` fixes.
    pub fn new(len: u64, seed: u64) -> Scatter {
        let bits = u64::BITS - len.saturating_sub(1).leading_zeros();
        Scatter { len, half_bits: bits.div_ceil(2).max(1), seed }
    }

    /// The number at `place`, which is taken modulo the length.
    pub fn at(&self, place: u64) -> u64 {
        let mut number = place % self.len.max(1);
        // Ends: the walk is in a cycle of a permutation that contains the start, which is below the length. Four steps on average at the most.
        loop {
            number = self.round_trip(number);
            if number < self.len.max(1) {
                return number;
            }
        }
    }

    fn round_trip(&self, number: u64) -> u64 {
        let mask = (1u64 << self.half_bits) - 1;
        let (mut left, mut right) = (number >> self.half_bits, number & mask);
        for round in 0..ROUNDS {
            (left, right) =
                (right, left ^ (mix(right ^ self.seed.rotate_left(round as u32 * 16 + 1) ^ round) & mask));
        }
        left << self.half_bits | right
    }
}

/// The finalizer of SplitMix64.
pub fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ value >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_comes_exactly_once() {
        for len in [1, 2, 3, 5, 64, 1000, 4097] {
            for seed in 0..5 {
                let scatter = Scatter::new(len, seed);
                let mut seen = vec![false; len as usize];
                for place in 0..len {
                    assert!(!std::mem::replace(&mut seen[scatter.at(place) as usize], true), "{len} {seed}");
                }
                assert_eq!(scatter.at(len), scatter.at(0), "and then again");
            }
        }
    }

    #[test]
    fn neighbours_are_rarely_neighbours() {
        let scatter = Scatter::new(100_000, 7);
        let near =
            (0..99_999).filter(|place| scatter.at(*place).abs_diff(scatter.at(place + 1)) < 100).count();
        assert!(near < 400, "{near} of 99,999; about 200 are expected by chance");
    }
}
