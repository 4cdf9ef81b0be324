//! What a server remembers of a channel: which of its calls are under way and which answers the caller may not have got.
//!
//! So a call that is sent again, because the connection broke under it, is carried out once. Pure bookkeeping.

use rustc_hash::FxHashSet;
use std::collections::BTreeMap;
use std::time::Instant;

/// Most calls of a channel whose answers the caller has not got.
// LIMIT: of a channel; callers keep to it, and who does not is cut off.
pub(crate) const WINDOW: u64 = 1024;

/// What is to be done with a call that came.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// Carry it out.
    Run,
    /// Nothing: it is under way, or its caller has the answer.
    Known,
    /// Send this answer once more.
    Answered(Vec<u8>),
    /// Cut the caller off: it has more under way than it may.
    Excess,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct ChannelState<C> {
    /// The newest connection's number.
    pub attempt: u64,
    /// The connection, while there is one.
    pub connection: Option<C>,
    /// Since when there is none.
    pub left: Option<Instant>,
    under_way: FxHashSet<u64>,
    kept: BTreeMap<u64, Vec<u8>>,
    lowest: u64,
}

impl<C> Default for ChannelState<C> {
    fn default() -> ChannelState<C> {
        ChannelState {
            attempt: 0,
            connection: None,
            left: None,
            under_way: FxHashSet::default(),
            kept: BTreeMap::new(),
            lowest: 0,
        }
    }
}

impl<C> ChannelState<C> {
    /// A call has come; `lowest` is the oldest one whose answer the caller still waits for.
    pub fn admit(&mut self, id: u64, lowest: u64) -> Admission {
        if lowest > self.lowest {
            self.lowest = lowest;
            self.kept = self.kept.split_off(&lowest);
        }
        if id < self.lowest || self.under_way.contains(&id) {
            return Admission::Known;
        }
        if let Some(reply) = self.kept.get(&id) {
            return Admission::Answered(reply.clone());
        }
        if id - self.lowest >= WINDOW || self.under_way.len() as u64 >= WINDOW {
            return Admission::Excess;
        }
        self.under_way.insert(id);
        Admission::Run
    }

    /// A call has ended. `reply`: what its caller is to get although it asks again.
    pub fn finish(&mut self, id: u64, reply: Option<Vec<u8>>) {
        self.under_way.remove(&id);
        if let Some(reply) = reply.filter(|_| id >= self.lowest) {
            self.kept.insert(id, reply);
        }
    }

    /// Whether nothing of it is at work.
    pub fn is_at_rest(&self) -> bool {
        self.under_way.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_comes_again_is_carried_out_once() {
        let mut channel = ChannelState::<()>::default();
        assert_eq!(channel.admit(1, 1), Admission::Run);
        assert_eq!(channel.admit(1, 1), Admission::Known, "it is under way");
        assert_eq!(channel.admit(2, 1), Admission::Run);
        channel.finish(1, Some(b"one".to_vec()));
        assert_eq!(channel.admit(1, 1), Admission::Answered(b"one".to_vec()));
        assert_eq!(channel.admit(3, 2), Admission::Run, "the caller has the first answer");
        assert_eq!(channel.admit(1, 1), Admission::Known, "a late copy of it");
        channel.finish(2, None);
        assert_eq!(channel.admit(2, 2), Admission::Run, "a call that may be carried out twice");
    }

    #[test]
    fn a_channel_remembers_a_bounded_number_of_calls() {
        let mut channel = ChannelState::<()>::default();
        for id in 1..WINDOW {
            assert_eq!(channel.admit(id, 1), Admission::Run);
            channel.finish(id, Some(vec![0; 10]));
        }
        assert_eq!(channel.admit(WINDOW + 1, 1), Admission::Excess);
        assert_eq!(channel.admit(WINDOW + 1, WINDOW), Admission::Run);
        assert_eq!(channel.kept.len(), 0);
    }
}
