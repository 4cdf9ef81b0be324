//! The channels that a server remembers, and what each node has of them.

use super::Peer;
use super::connection::Channel;
use crate::net::channel::{ChannelState, KeptOfNode};
use ashlar_types::NodeId;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// For how long a channel without a connection is remembered.
const CHANNEL_MAX: Duration = Duration::from_secs(120);
/// Channels of one node. A command has one or two, a mount four for each server.
// LIMIT: of a node, whose processes of the last two minutes count; beyond, none is added.
const OF_NODE_MAX: usize = 8192;

/// See the module.
#[derive(Default)]
pub(crate) struct Channels {
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    channels: FxHashMap<ChannelKey, Arc<Channel>>,
    // LIMIT: nodes with channels.
    nodes: FxHashMap<NodeId, OfNode>,
}

#[derive(Default)]
struct OfNode {
    channels: usize,
    kept: Arc<KeptOfNode>,
}

type ChannelKey = (NodeId, [u8; 16], u32);

impl Channels {
    /// The channel, and whether it was known. `None`: the node has as many as it may.
    pub fn find_or_add(&self, peer: Peer, number: u32) -> Option<(Arc<Channel>, bool)> {
        let mut known = self.known.lock();
        let Known { channels, nodes } = &mut *known;
        let key = (peer.id.node, peer.instance, number);
        if let Some(channel) = channels.get(&key).filter(|channel| channel.peer == peer) {
            return Some((channel.clone(), true));
        }
        let of_node = nodes.entry(peer.id.node).or_default();
        if of_node.channels >= OF_NODE_MAX {
            return None;
        }
        let state = Mutex::new(ChannelState::of(of_node.kept.clone()));
        let channel = Arc::new(Channel { peer, state });
        if channels.insert(key, channel.clone()).is_none() {
            of_node.channels += 1;
        }
        Some((channel, false))
    }

    /// Forgets channels that were left long ago; tells processes that have none any more.
    pub fn forget(&self, now: Instant) -> Vec<Peer> {
        let mut gone = Vec::new();
        let mut known = self.known.lock();
        let Known { channels, nodes } = &mut *known;
        channels.retain(|(node, ..), channel| {
            let state = channel.state.lock();
            let is_old = state.left.is_some_and(|left| now.duration_since(left) > CHANNEL_MAX);
            let is_forgotten = is_old && state.is_at_rest();
            if is_forgotten {
                if !gone.contains(&channel.peer) {
                    gone.push(channel.peer);
                }
                if let Some(of_node) = nodes.get_mut(node) {
                    of_node.channels -= 1;
                }
            }
            !is_forgotten
        });
        nodes.retain(|_, of_node| of_node.channels > 0);
        gone.retain(|peer| !channels.values().any(|channel| channel.peer == *peer));
        gone
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use ashlar_types::{ClusterId, PeerId, Role};

    fn peer(node: u32) -> Peer {
        let id = PeerId {
            cluster: ClusterId([1; 16]),
            node: NodeId(node),
            roles: [Role::Client].into_iter().collect(),
            host: None,
        };
        Peer { id, role: Role::Client, instance: [7; 16], token: None }
    }

    #[test]
    fn a_node_has_a_bounded_number_of_channels_and_gets_others_when_those_are_forgotten() {
        let channels = Channels::default();
        let begun = Instant::now();
        for number in 0..OF_NODE_MAX as u32 {
            let (channel, is_known) = channels.find_or_add(peer(1), number).unwrap();
            assert!(!is_known);
            channel.state.lock().left = Some(begun);
        }
        assert!(channels.find_or_add(peer(1), u32::MAX).is_none());
        assert!(channels.find_or_add(peer(1), 5).unwrap().1, "those that it has it keeps");
        assert!(channels.find_or_add(peer(2), 1).is_some(), "another node");
        assert_eq!(channels.forget(begun + CHANNEL_MAX * 2), [peer(1)]);
        assert!(channels.find_or_add(peer(1), u32::MAX).is_some());
        assert_eq!(channels.known.lock().nodes.len(), 2);
    }
}
