//! What a server remembers of a channel: which of its calls are under way and which answers the caller may not have got.
//!
//! So a call that is sent again, because the connection broke under it, is carried out once. Pure bookkeeping.

use super::hello::EndedCalls;
use rustc_hash::FxHashSet;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
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

/// Bytes of answers that are kept for all channels of one node.
// LIMIT: of a node: with more kept than that no call of its is taken.
const NODE_KEPT_BYTES_MAX: usize = 256 << 20;

/// Bytes of answers that are kept for one node.
#[derive(Debug, Default)]
pub(crate) struct KeptOfNode(AtomicUsize);

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
    kept_bytes: usize,
    of_node: Arc<KeptOfNode>,
    lowest: u64,
    /// Above `lowest`, what the caller needs no more, as it has said last.
    // LIMIT: `EndedCalls::MAX`.
    ended: Vec<(u64, u64)>,
}

impl<C> Default for ChannelState<C> {
    fn default() -> ChannelState<C> {
        ChannelState::of(Arc::default())
    }
}

impl<C> Drop for ChannelState<C> {
    fn drop(&mut self) {
        self.of_node.0.fetch_sub(self.kept_bytes, SeqCst);
    }
}

impl<C> ChannelState<C> {
    /// One of a node's.
    pub fn of(of_node: Arc<KeptOfNode>) -> ChannelState<C> {
        ChannelState {
            attempt: 0,
            connection: None,
            left: None,
            under_way: FxHashSet::default(),
            kept: BTreeMap::new(),
            kept_bytes: 0,
            of_node,
            lowest: 0,
            ended: Vec::new(),
        }
    }

    fn forget(&mut self, id: u64) {
        let bytes = self.kept.remove(&id).map_or(0, |reply| reply.len());
        self.kept_bytes -= bytes;
        self.of_node.0.fetch_sub(bytes, SeqCst);
    }

    /// A call has come; `lowest` is the oldest one whose answer the caller still waits for.
    pub fn admit(&mut self, id: u64, lowest: u64) -> Admission {
        if lowest > self.lowest {
            self.lowest = lowest;
            while let Some(id) = self.kept.first_key_value().map(|(id, _)| *id).filter(|id| *id < lowest) {
                self.forget(id);
            }
        }
        if id < self.lowest || self.under_way.contains(&id) {
            return Admission::Known;
        }
        if let Some(reply) = self.kept.get(&id) {
            return Admission::Answered(reply.clone());
        }
        // By how many there are, not by how far they are apart: a call that takes long must not be in the way of those behind it.
        let are_too_many = self.kept.len() as u64 >= WINDOW || self.under_way.len() as u64 >= WINDOW;
        if are_too_many || self.of_node.0.load(SeqCst) > NODE_KEPT_BYTES_MAX {
            return Admission::Excess;
        }
        self.under_way.insert(id);
        Admission::Run
    }

    /// A call has ended. `reply`: what its caller is to get although it asks again.
    pub fn finish(&mut self, id: u64, reply: Option<Vec<u8>>) {
        self.under_way.remove(&id);
        if let Some(reply) = reply.filter(|_| id >= self.lowest) {
            self.forget(id);
            self.kept_bytes += reply.len();
            self.of_node.0.fetch_add(reply.len(), SeqCst);
            self.kept.insert(id, reply);
        }
    }

    /// The caller needs the answers of these calls no more, whether it has them or has given them up.
    pub fn note_ended(&mut self, ended: EndedCalls) {
        for (from, to) in &ended.0 {
            let gone: Vec<u64> = self.kept.range(from..to).map(|(id, _)| *id).collect();
            gone.into_iter().for_each(|id| self.forget(id));
        }
        self.ended = ended.0;
    }

    /// Whether the caller has not given the call up, as far as it has said.
    pub fn is_awaited(&self, id: u64) -> bool {
        id >= self.lowest && !self.ended.iter().any(|(from, to)| (*from..*to).contains(&id))
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
        for id in 1..=WINDOW {
            assert_eq!(channel.admit(id, 1), Admission::Run);
            channel.finish(id, Some(vec![0; 10]));
        }
        assert_eq!(channel.admit(WINDOW + 1, 1), Admission::Excess);
        assert_eq!(channel.admit(WINDOW + 1, WINDOW + 1), Admission::Run);
        assert_eq!(channel.kept.len(), 0);
    }

    #[test]
    fn what_is_kept_for_a_node_is_bounded_in_bytes_over_all_of_its_channels() {
        let of_node = Arc::<KeptOfNode>::default();
        let mut channels = [(); 3].map(|()| ChannelState::<()>::of(of_node.clone()));
        let answer = vec![0; NODE_KEPT_BYTES_MAX / 64];
        let mut taken = 0;
        for id in 1..=64 {
            for channel in &mut channels {
                if channel.admit(id, 1) == Admission::Run {
                    channel.finish(id, Some(answer.clone()));
                    taken += 1;
                }
            }
        }
        assert_eq!(taken, 65, "the last one that is taken may be too much");
        assert_eq!(channels[0].admit(1000, 1), Admission::Excess);
        assert_eq!(channels[0].admit(1000, 1000), Admission::Run, "its caller has the others");
        assert_eq!(channels[1].admit(1000, 1), Admission::Run);
        channels[1].note_ended(EndedCalls(vec![(1, 1000)]));
        drop(channels);
        assert_eq!(of_node.0.load(SeqCst), 0);
    }

    #[test]
    fn a_call_that_takes_long_is_not_in_the_way_of_those_behind_it() {
        let mut channel = ChannelState::<()>::default();
        assert_eq!(channel.admit(1, 1), Admission::Run);
        for id in 2..WINDOW * 10 {
            assert_eq!(channel.admit(id, 1), Admission::Run, "{id}");
            channel.finish(id, Some(vec![0; 10]));
            if id % 100 == 0 {
                channel.note_ended(EndedCalls(vec![(2, id)]));
                assert_eq!((channel.kept.len(), channel.is_awaited(id)), (1, true));
                assert!(channel.is_awaited(1) && !channel.is_awaited(2) && !channel.is_awaited(id - 1));
            }
        }
        channel.finish(1, Some(b"late".to_vec()));
        assert_eq!(channel.admit(1, 1), Admission::Answered(b"late".to_vec()));
    }
}
