//! Reads all of a lane, little by little: damage is to be found while somebody else has what is damaged.

use super::{Lane, reader};
use crate::{KEY_BYTES_MAX, Key, KvError};
use std::ops::ControlFlow;

/// Pairs that are read in one go, and their bytes.
const PAIRS: usize = 512;
/// See above.
const BYTES: usize = 128 << 10;
/// Behind all keys.
const KEYS_END: [u8; KEY_BYTES_MAX + 1] = [0xFF; KEY_BYTES_MAX + 1];

impl Lane {
    /// Reads some of what it holds, from key `from` on; tells where the rest begins, or that there is none. What the engine has in its cache is not read from the disk again.
    ///
    /// # Errors
    /// As [`crate::Engine::scan`]; [`KvError::NotPrimary`] for damage of what others have ([`crate::Copies::give_up_damaged`]).
    pub fn read_through(&self, from: &[u8]) -> Result<Option<Key>, KvError> {
        self.shared.health.check()?;
        let (mut pairs, mut bytes, mut next) = (0, 0, None);
        // Not under the lock of the lane: a disk may have to be waited for, and what is in the overlays is on none.
        let read = self.shared.engine.scan(from, &KEYS_END, &mut |key, value| {
            if pairs == PAIRS || bytes >= BYTES {
                next = Some(Key::from_slice(key));
                return ControlFlow::Break(());
            }
            pairs += 1;
            bytes += key.len() + value.len();
            ControlFlow::Continue(())
        });
        read.map_err(|error| reader::answered_elsewhere(self.shared.copies.get(), error))?;
        Ok(next)
    }
}
