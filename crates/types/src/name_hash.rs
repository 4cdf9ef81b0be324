//! Where a name is in its directory: the hash by which entries are kept, the cookie that stands for a place in a listing, and which slice of a
//! directory that is split has it.
//!
//! Servers and clients both know it: a client sends a call on a name of a split directory straight to the server that has its slice.

use crate::Name;
use serde::{Deserialize, Serialize};
use siphasher::sip::SipHasher13;
use std::hash::Hasher;

/// Bits of a name's hash.
const HASH_BITS: u32 = 56;
/// Bits of the collision number in a readdir cookie.
pub const COLLISION_BITS: u32 = 7;
/// Most entries of one directory whose names share a 56-bit hash.
pub const COLLISIONS_MAX: u8 = (1 << COLLISION_BITS) - 1;

/// Most slices of a directory.
// LIMIT: calls that concern all of them, such as a stat or a removal of the directory, ask one after the other. Each is in a shard of its own.
pub const SLICES_MAX: u16 = 64;

/// A 56-bit keyed hash of a name, never 0. The key is drawn per file system, so that no user can choose names that collide.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct NameHash(pub u64);

impl NameHash {
    /// Above every hash: the end of the range of the last slice.
    pub const END: NameHash = NameHash(1 << HASH_BITS);

    /// The hash of `name` under the file system's key.
    pub fn of(name: Name<'_>, hash_key: &[u8; 16]) -> NameHash {
        let mut hasher = SipHasher13::new_with_key(hash_key);
        hasher.write(name.as_bytes());
        NameHash((hasher.finish() >> (64 - HASH_BITS)).max(1))
    }

    /// Which of `count` slices of a directory has names with this hash: each has a range of hashes, in their order.
    pub fn slice(self, count: usize) -> usize {
        ((u128::from(self.0) * count as u128) >> HASH_BITS) as usize
    }

    /// The smallest hash that slice `index` of `count` has; [`NameHash::END`] for the one behind the last.
    pub fn begin_of_slice(index: usize, count: usize) -> NameHash {
        NameHash((((index as u128) << HASH_BITS).div_ceil(count.max(1) as u128)) as u64)
    }
}

/// A position in a directory as readdir hands it out: hash and collision number, always positive in 63 bits.
/// 0 is the start; entries with a cookie greater than the given one follow it. `.` and `..` have 1 and 2.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cookie(pub u64);

impl Cookie {
    /// The cookie of the entry with this hash and collision number.
    pub fn new(hash: NameHash, collision: u8) -> Cookie {
        Cookie(hash.0 << COLLISION_BITS | u64::from(collision & COLLISIONS_MAX))
    }

    /// The last one before all names with this hash: a listing goes on with them behind it.
    pub fn before(hash: NameHash) -> Cookie {
        Cookie((hash.0 << COLLISION_BITS).saturating_sub(1))
    }

    /// The bucket it is in.
    pub fn hash(self) -> NameHash {
        NameHash(self.0 >> COLLISION_BITS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_are_ranges_of_hashes_in_their_order_and_about_as_large() {
        let last = NameHash((1 << HASH_BITS) - 1);
        for count in [1, 2, 3, 7, 64] {
            assert_eq!((NameHash(1).slice(count), last.slice(count)), (0, count - 1));
            for index in 1..count {
                let begin = NameHash::begin_of_slice(index, count);
                assert_eq!((begin.slice(count), NameHash(begin.0 - 1).slice(count)), (index, index - 1));
                assert_eq!(Cookie::before(begin).hash(), NameHash(begin.0 - 1));
                assert!(Cookie::before(begin) < Cookie::new(begin, 0));
            }
            assert_eq!(NameHash::begin_of_slice(count, count), NameHash::END);
            let mut sizes = vec![0; count];
            let mut before = 0;
            for step in 1..6400 {
                let at = NameHash(step * (last.0 / 6400)).slice(count);
                assert!(at == before || at == before + 1);
                before = at;
                sizes[at] += 1;
            }
            assert!(
                sizes.iter().all(|size| (6400 / count - 2..=6400 / count + 2).contains(size)),
                "{sizes:?}"
            );
        }
    }

    #[test]
    fn a_cookie_is_in_the_slice_of_its_name() {
        for number in 0..100 {
            let text = format!("name {number}");
            let hash = NameHash::of(Name::new(text.as_bytes()).unwrap(), &[3; 16]);
            assert_eq!(Cookie::new(hash, 5).hash().slice(5), hash.slice(5));
        }
    }
}
