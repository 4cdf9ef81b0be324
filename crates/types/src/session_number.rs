//! What the number of a session says of it: so every server knows it that hears of the session, also one that was started anew, and every call says it again.

use crate::{Coherence, Durability, SessionId};

/// Of a session that is [`Coherence::CloseToOpen`].
const CLOSE_TO_OPEN_BIT: u64 = 1 << 63;
/// Of a session all of whose changes are durable before they are answered ([`Durability::Sync`]). That many bits, because servers of earlier versions drew numbers that may have any of them: what such a
/// session changes is durable sooner than it has to be, and hardly any is one.
const SYNC_BITS: u64 = 0xff << 55;

impl SessionId {
    /// The number of such a session, made of a random one.
    pub fn drawn(coherence: Coherence, durability: Durability, random: u64) -> SessionId {
        let number = match coherence {
            Coherence::Strict => random & !CLOSE_TO_OPEN_BIT,
            Coherence::CloseToOpen => random | CLOSE_TO_OPEN_BIT,
        };
        match durability {
            Durability::Sync => SessionId(number | SYNC_BITS),
            // One of them less is enough.
            Durability::Async if number & SYNC_BITS == SYNC_BITS => SessionId(number ^ (1 << 55)),
            Durability::Async => SessionId(number),
        }
    }

    /// The number of a session that is [`Coherence::CloseToOpen`], made of a random one.
    pub fn close_to_open(random: u64) -> SessionId {
        SessionId::drawn(Coherence::CloseToOpen, Durability::Async, random)
    }

    /// How coherent the session is.
    pub fn coherence(self) -> Coherence {
        match self.0 & CLOSE_TO_OPEN_BIT {
            0 => Coherence::Strict,
            _ => Coherence::CloseToOpen,
        }
    }

    /// Whether the session is [`Coherence::CloseToOpen`].
    pub fn is_close_to_open(self) -> bool {
        self.coherence() == Coherence::CloseToOpen
    }

    /// How durable a change of the session is before it is answered, whatever the directory says: the stronger of both counts.
    pub fn durability(self) -> Durability {
        match self.0 & SYNC_BITS {
            SYNC_BITS => Durability::Sync,
            _ => Durability::Async,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_a_session_says_how_coherent_and_how_durable_it_is() {
        for random in [0, 1, u64::MAX, u64::MAX >> 1, SYNC_BITS, CLOSE_TO_OPEN_BIT, 0x7ff0_0000_0000_0000] {
            for coherence in [Coherence::Strict, Coherence::CloseToOpen] {
                for durability in [Durability::Async, Durability::Sync] {
                    let drawn = SessionId::drawn(coherence, durability, random);
                    assert_eq!(
                        (drawn.coherence(), drawn.durability()),
                        (coherence, durability),
                        "{random:x}"
                    );
                }
            }
            assert!(SessionId::close_to_open(random).is_close_to_open());
        }
    }
}
