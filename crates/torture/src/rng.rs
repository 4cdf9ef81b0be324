//! A seeded generator (xoshiro256**, seeded through SplitMix64).
//!
//! Every test program draws all of its choices from one of these, so that the seed it prints is enough to run the
//! same operations again. Not for cryptography.

/// The seeded generator. Two generators made from the same seed give the same numbers on every machine.
#[derive(Clone, Debug)]
pub struct Rng {
    state: [u64; 4],
}

/// One step of SplitMix64: also used to derive independent seeds from one seed.
#[must_use]
pub fn split_mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Rng {
    /// A generator for `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut state = [0u64; 4];
        let mut word = seed;
        for slot in &mut state {
            word = split_mix(word);
            *slot = word;
        }
        Self { state }
    }

    /// A generator that is independent of this one, for part `label` of the same run (a thread, a cycle).
    #[must_use]
    pub fn derive(seed: u64, label: u64) -> Self {
        Self::new(split_mix(seed) ^ split_mix(label.wrapping_add(0x5851_f42d)))
    }

    /// The next 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        let s = &mut self.state;
        let result = s[1].wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// A number from 0 to `bound - 1`; 0 when `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        // The bias of a 64-bit multiply-shift is far below what a test program can notice.
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// An index into a slice of `len` elements; 0 when it is empty.
    pub fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    /// A number from `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high.saturating_sub(low).saturating_add(1))
    }

    /// True `percent` times out of a hundred.
    pub fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// One element of a non-empty slice.
    ///
    /// # Panics
    /// When `choices` is empty, which is a mistake in the caller's constant table.
    pub fn pick<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[self.index(choices.len())]
    }
}

/// `len` bytes that depend only on `seed`: the content of a write.
#[must_use]
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(len + 8);
    let mut word = seed;
    while bytes.len() < len {
        word = split_mix(word);
        bytes.extend_from_slice(&word.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_numbers() {
        let mut left = Rng::new(7);
        let mut right = Rng::new(7);
        assert!((0..1000).all(|_| left.next_u64() == right.next_u64()));
        assert_ne!(Rng::new(7).next_u64(), Rng::new(8).next_u64());
        assert_ne!(Rng::derive(7, 0).next_u64(), Rng::derive(7, 1).next_u64());
    }

    #[test]
    fn bounds_are_kept_and_reached() {
        let mut rng = Rng::new(1);
        let drawn: Vec<u64> = (0..1000).map(|_| rng.between(3, 5)).collect();
        assert!(drawn.iter().all(|n| (3..=5).contains(n)));
        assert!([3, 4, 5].iter().all(|n| drawn.contains(n)));
        assert_eq!(rng.below(0), 0);
    }

    #[test]
    fn a_pattern_has_the_asked_length_and_depends_on_its_seed() {
        assert_eq!(pattern(1, 13).len(), 13);
        assert_eq!(pattern(1, 13)[..], pattern(1, 20)[..13]);
        assert_ne!(pattern(1, 13), pattern(2, 13));
    }
}
