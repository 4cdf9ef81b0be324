//! Which metadata servers a storage server heeds: those it has heard of lately. What one that is cut off has given is worth nothing after a while, so
//! that it can go on without the storage server, and be sure that nothing is done there any more for a session that it has ended.

use crate::wire::HEED_TERM;
use ashlar_env::Entropy;
use ashlar_types::NodeId;
use parking_lot::{Mutex, RwLock};
use rustc_hash::FxHashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// One metadata server, as a storage server sees it.
#[derive(Default)]
pub(super) struct Standing {
    /// Held by whoever changes it.
    turn: Mutex<()>,
    /// The number of what it is heeded under; 0 before it was heard of.
    number: AtomicU64,
    /// Until when it is heeded, milliseconds; 0 before that has begun.
    until_ms: AtomicU64,
}

impl Standing {
    /// Whether what was given under `number` counts.
    pub fn is_good(&self, number: u64, now_ms: u64) -> bool {
        // ORDER: the time first. One that was begun under a newer number is seen with that number.
        now_ms < self.until_ms.load(SeqCst) && self.number.load(SeqCst) == number
    }

    /// The metadata server was heard of, and had heard this server's clock say `echo` under a number. Tells the number that counts now.
    fn heed(&self, echo: Option<(u64, u64)>, now_ms: u64, entropy: &dyn Entropy) -> u64 {
        let _turn = self.turn.lock();
        let (number, until_ms) = (self.number.load(SeqCst), self.until_ms.load(SeqCst));
        let has_lapsed = until_ms != 0 && now_ms >= until_ms;
        if number == 0 || has_lapsed {
            // ORDER: not heeded under any number meanwhile, see `is_good`.
            self.until_ms.store(0, SeqCst);
            let next = loop {
                let drawn = entropy.next_u64();
                if drawn != 0 && drawn != number {
                    break drawn;
                }
            };
            self.number.store(next, SeqCst);
            return next;
        }
        if let Some((echoed, read_ms)) = echo
            && echoed == number
        {
            // A question that was under way for long promises no more than when its clock was read.
            let term = HEED_TERM.as_millis() as u64;
            self.until_ms.store(until_ms.max(read_ms.min(now_ms).saturating_add(term)), SeqCst);
        }
        number
    }
}

/// All metadata servers that were heard of.
#[derive(Default)]
pub(super) struct Standings {
    // LIMIT: one per metadata server.
    all: RwLock<FxHashMap<NodeId, Arc<Standing>>>,
}

impl Standings {
    /// Of `granter`, if it was heard of.
    pub fn of(&self, granter: NodeId) -> Option<Arc<Standing>> {
        self.all.read().get(&granter).cloned()
    }

    /// See [`Standing::heed`].
    pub fn heed(&self, granter: NodeId, echo: Option<(u64, u64)>, now_ms: u64, entropy: &dyn Entropy) -> u64 {
        let known = self.of(granter);
        let standing = known.unwrap_or_else(|| self.all.write().entry(granter).or_default().clone());
        standing.heed(echo, now_ms, entropy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ashlar_env::Env;

    const M: NodeId = NodeId(1);
    const TERM: u64 = HEED_TERM.as_millis() as u64;

    #[test]
    fn a_metadata_server_is_heeded_from_the_time_it_has_heard_on() {
        let (standings, entropy) = (Standings::default(), Env::os().entropy);
        let number = standings.heed(M, None, 1000, &*entropy);
        let standing = standings.of(M).unwrap();
        assert!(!standing.is_good(number, 1000), "it has heard nothing yet");
        assert_eq!(standings.heed(M, Some((number, 1000)), 4000, &*entropy), number);
        assert!(standing.is_good(number, 1000 + TERM - 1));
        assert!(
            !standing.is_good(number, 1000 + TERM),
            "from when the clock was read, not from when that came back"
        );
        assert!(!standing.is_good(number + 1, 4000));
        // An older echo that comes late takes nothing away, one from the future gives no more.
        standings.heed(M, Some((number, 500)), 5000, &*entropy);
        assert!(standing.is_good(number, 1000 + TERM - 1));
        standings.heed(M, Some((number, u64::MAX)), 6000, &*entropy);
        assert!(standing.is_good(number, 6000 + TERM - 1) && !standing.is_good(number, 6000 + TERM));
    }

    #[test]
    fn what_was_given_before_it_was_silent_stays_worth_nothing() {
        let (standings, entropy) = (Standings::default(), Env::os().entropy);
        let number = standings.heed(M, None, 1000, &*entropy);
        standings.heed(M, Some((number, 1000)), 1000, &*entropy);
        let late = 1000 + TERM;
        let next = standings.heed(M, Some((number, 1000)), late, &*entropy);
        assert_ne!(next, number);
        let standing = standings.of(M).unwrap();
        assert!(!standing.is_good(number, late) && !standing.is_good(next, late));
        standings.heed(M, Some((number, late)), late, &*entropy);
        assert!(!standing.is_good(number, late) && !standing.is_good(next, late), "of before");
        standings.heed(M, Some((next, late)), late, &*entropy);
        assert!(!standing.is_good(number, late) && standing.is_good(next, late));
    }

    #[test]
    fn a_metadata_server_that_is_started_again_soon_finds_the_same_number() {
        let (standings, entropy) = (Standings::default(), Env::os().entropy);
        let number = standings.heed(M, None, 1000, &*entropy);
        standings.heed(M, Some((number, 1000)), 1000, &*entropy);
        assert_eq!(standings.heed(M, None, 1000 + TERM - 1, &*entropy), number);
        assert_ne!(standings.heed(NodeId(2), None, 1000, &*entropy), number);
    }
}
